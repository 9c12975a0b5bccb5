"""Reading RLDS datasets, against TensorFlow.

- `reading`: a `tf.data` dataset in memory, whole episodes batched inside the pipeline as our source does, against step by step.
- `reading/long`, `reading/short`, `reading/images`: TFDS files, by our reader against TFDS, with the same number of threads. Images are
  read through TFDS in more than one way, and the fastest is the rival; numbers are fastest by whole columns, without decoding.
  Opening is timed on our side, and on TFDS's side it is not.
- `reading/shuffled`: 2-step items of the long episodes through `rlds2reverb.local`, each item equally likely everywhere, against a
  shuffle buffer of 1,024 items. `shuffled_in_windows`: with memory for a quarter of the items.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import rlds2reverb
from benchmarks import data, datasets
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from rlds2reverb.formats import open_source
from rlds2reverb.specs import flatten

FULL = Size(items=400_000, reference_items=20_000, repeats=5)
SHORT = Size(items=60_000, reference_items=5_000, repeats=1)

LONG_GOAL, SHORT_GOAL, IMAGE_GOAL = Goal(5), Goal(2), Goal(1)

GLOBAL, BUFFER = "global", "buffer of 1,024"
WINDOWS = 4

FILE_SHARE = 4
"""Steps in files are so many times more than `Size` says: they are read fast."""

SHORT_STEPS = 40
IMAGE_EPISODES = {True: 12, False: 4}
"""Episodes of 43 steps that are read at full size, and in a short run."""

THREADS = len(os.sched_getaffinity(0))

OURS = "rlds2reverb"


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah steps, then RT-1's images of 256x320; rates in steps per second."""
    yield _in_memory(size)
    steps = size.items * FILE_SHARE
    numbers = {"whole columns": _whole_columns}
    long = datasets.long_episodes(steps)
    yield _from_files("long", long, size.repeats, numbers, LONG_GOAL, episode_steps=1_001)
    yield from _shuffled(datasets.long_episodes(size.items), size.repeats)
    short = datasets.short_episodes(steps, SHORT_STEPS)
    yield _from_files("short", short, size.repeats, numbers, SHORT_GOAL, episode_steps=SHORT_STEPS)
    pictures = datasets.open_x("rt1", IMAGE_EPISODES[size.repeats > 1])
    ways = {"batched steps": _batched_steps, "images in parallel": _images_in_parallel}
    yield _from_files("images", pictures, size.repeats, ways, IMAGE_GOAL, image="256x320x3 JPEG")


def _in_memory(size: Size) -> Result:
    dataset = data.rlds_dataset(data.half_cheetah())
    sides = [
        Side("episodes", lambda n: _episodes(dataset.take(n)), -(-size.items // data.STEPS)),
        Side("step by step", lambda n: _step_by_step(dataset.take(n)), -(-size.reference_items // data.STEPS)),
    ]
    runs = alternate(sides, size.repeats)
    return comparison("reading", runs, "episodes", "step by step", "steps/s")


def _episodes(source: Any) -> Run:
    with timed() as watch:
        steps = sum(map(len, open_source(source)))
    return watch.run(steps)


def _step_by_step(dataset: Any) -> Run:
    with timed() as watch:
        steps = sum(1 for _ in dataset.flat_map(lambda episode: episode["steps"]).as_numpy_iterator())
    return watch.run(steps)


def _shuffled(directory: Path, repeats: int) -> Iterator[Result]:
    """Items per second of a whole epoch, opening included."""
    source = f"tfds:{directory}@train"
    items = sum(len(episode) - 1 for episode in open_source(source))
    window = (
        items
        // WINDOWS
        * sum(leaf.nbytes for leaf in flatten(next(rlds2reverb.local(source, batch_size=1))[0]).values())
    )
    cases: list[tuple[str, dict[str, int], Goal]] = [
        ("shuffled", {}, Goal(1)),
        ("shuffled_in_windows", {"shuffle_bytes": window}, Goal(0.5)),
    ]
    for name, options, goal in cases:
        sides = [
            Side(GLOBAL, lambda n, options=options: _epoch(source, shuffle="global", **options), items),  # type: ignore[misc]
            Side(BUFFER, lambda n: _epoch(source, shuffle=1_024), items),
        ]
        runs = alternate(sides, repeats)
        yield comparison(f"reading/{name}", runs, GLOBAL, BUFFER, "items/s", goal, items=items)


def _epoch(source: str, **options: Any) -> Run:
    with timed() as watch:
        items = sum(len(info.key) for _, info in rlds2reverb.local(source, batch_size=256, seed=1, **options))
    return watch.run(items)


def _from_files(
    name: str,
    directory: Path,
    repeats: int,
    ways: Mapping[str, Callable[[Path, str], Any]],
    goal: Goal,
    **parameters: Any,
) -> Result:
    """Our reader against the fastest way through TFDS."""
    import tensorflow_datasets as tfds

    episodes = tfds.builder_from_directory(directory).info.splits["train"].num_examples
    sides = [Side(OURS, lambda n: _episodes(f"tfds:{directory}@train[:{n}]"), episodes)]
    for label, way in ways.items():
        sides.append(Side(label, lambda n, way=way: _read(way(directory, f"train[:{n}]")), episodes))  # type: ignore[misc]
    runs = alternate(sides, repeats)
    counts = {label: runs[label][0].count for label in runs}
    if len(set(counts.values())) != 1:
        raise RuntimeError(f"expected that all read as many steps, got {counts}")
    rival = max(ways, key=lambda label: statistics.median(run.rate for run in runs[label]))
    mb = round(datasets.record_bytes(directory) / 1e6, 1)
    return comparison(
        f"reading/{name}",
        runs,
        OURS,
        rival,
        "steps/s",
        goal,
        file_mb=mb,
        threads=THREADS,
        episodes=episodes,
        **parameters,
    )


def _read(dataset: Any) -> Run:
    """Reads a dataset of batches of steps to its end, as numpy arrays."""
    with timed() as watch:
        steps = sum(len(batch["reward"]) for batch in dataset.as_numpy_iterator())
    return watch.run(steps)


def _open(directory: Path, split: str, as_stored: bool) -> Any:
    """The episodes as TFDS gives them, without cache, in the fixed order of both sides; by all threads."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    config = tfds.ReadConfig(try_autocache=False, options=options)
    decoders = {"steps": tfds.decode.SkipDecoding()} if as_stored else None
    builder = tfds.builder_from_directory(directory)
    return builder.as_dataset(split=split, shuffle_files=False, read_config=config, decoders=decoders)


def _whole_columns(directory: Path, split: str) -> Any:
    """Steps as they lie in the files, which is all that features without an encoding need."""
    return _open(directory, split, as_stored=True).map(lambda episode: episode["steps"]).prefetch(2)


def _batched_steps(directory: Path, split: str) -> Any:
    """The steps' own datasets, batched inside the pipeline, several episodes at a time."""
    return _open(directory, split, as_stored=False).interleave(
        lambda episode: episode["steps"].batch(2_000),
        cycle_length=THREADS,
        num_parallel_calls=THREADS,
        deterministic=True,
    )


def _images_in_parallel(directory: Path, split: str) -> Any:
    """Columns as they lie in the files, images decoded by the episode, several episodes at a time."""
    import tensorflow as tf

    def decoded(episode: Any) -> Any:
        steps = episode["steps"]
        images = tf.map_fn(
            tf.io.decode_jpeg, steps["observation"]["image"], fn_output_signature=tf.uint8, parallel_iterations=THREADS
        )
        return {**steps, "observation": {**steps["observation"], "image": images}}

    return _open(directory, split, as_stored=True).map(decoded, num_parallel_calls=THREADS, deterministic=True)
