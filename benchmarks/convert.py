"""`rlds2reverb convert` from TFDS files to TFDS files, against TFDS' own way: its reader and its `SequentialWriter`.

- `convert/numbers`: half-cheetah in episodes of 1,001 steps.
- `convert/images`: RT-1-shaped episodes. Ours keeps the JPEG files' bytes. TFDS decodes them and encodes PNG files, which is what its features do.

Both read the same files, keep the order of episodes, and write whole datasets to the same disk. Opening is timed on our side only.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import datasets
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from rlds2reverb.conversion.convert import convert

FULL = Size(items=400_000, reference_items=20_000, repeats=5)
SHORT = Size(items=60_000, reference_items=4_000, repeats=1)

NUMBERS_GOAL, IMAGES_GOAL = Goal(20), Goal(5)
IMAGE_EPISODES = {True: 12, False: 4}
"""Episodes of 43 steps that are converted at full size, and in a short run."""

OURS, THEIRS = "rlds2reverb", "SequentialWriter"
_EPISODE_STEPS = 1_001


def run(size: Size) -> Iterator[Result]:
    """Rates in steps per second."""
    numbers = datasets.long_episodes(size.items)
    counts = -(-size.items // _EPISODE_STEPS), -(-size.reference_items // _EPISODE_STEPS)
    yield _compared("numbers", numbers, counts, size.repeats, NUMBERS_GOAL)
    count = IMAGE_EPISODES[size.repeats > 1]
    pictures = datasets.open_x("rt1", count)
    yield _compared("images", pictures, (count, count), size.repeats, IMAGES_GOAL, image="256x320x3 JPEG")


def _compared(
    name: str, directory: Path, episodes: tuple[int, int], repeats: int, goal: Goal, **parameters: Any
) -> Result:
    with tempfile.TemporaryDirectory(dir=datasets.KEPT) as folder:
        sides = [
            Side(OURS, lambda n: _ours(directory, n, Path(folder)), episodes[0]),
            Side(THEIRS, lambda n: _theirs(directory, n, Path(folder)), episodes[1]),
        ]
        runs = alternate(sides, repeats)
    return comparison(f"convert/{name}", runs, OURS, THEIRS, "steps/s", goal, **parameters)


def _ours(directory: Path, episodes: int, folder: Path) -> Run:
    with timed() as watch:
        report = convert(f"tfds:{directory}@train[:{episodes}]", f"tfds:{folder / 'converted'}")
    shutil.rmtree(report.path)
    return watch.run(report.steps_written)


def _theirs(directory: Path, episodes: int, folder: Path) -> Run:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    place = folder / "theirs"
    identity = tfds.core.dataset_info.DatasetIdentity("converted", "1.0.0", str(place), "benchmarks")
    info = tfds.core.DatasetInfo(builder=identity, features=builder.info.features)
    place.mkdir()
    steps = 0
    with contextlib.redirect_stdout(sys.stderr), timed() as watch:
        writer = tfds.core.SequentialWriter(info, max_examples_per_shard=episodes)
        writer.initialize_splits(["train"])
        for episode in tfds.as_numpy(builder.as_dataset(split=f"train[:{episodes}]")):
            taken = list(episode["steps"])
            writer.add_examples({"train": [{**episode, "steps": taken}]})
            steps += len(taken)
        writer.close_all()
    shutil.rmtree(place)
    return watch.run(steps)
