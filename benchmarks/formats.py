"""Other systems' files: reading against the bare library, pushing against a push of the same steps from TFDS' files.

- `formats/FORMAT`: all steps read as episodes, against plain loops with the library that the files are made for (`format_files`).
- `formats/push/FORMAT`: 2-step items into a server, against the same episodes from TFRecords.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from replay_server import TableConfig

from benchmarks import datasets, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed
from benchmarks.format_files import FORMATS, TRANSITIONS, FormatFiles
from benchmarks.servers import BenchServer
from rlds2reverb.formats import open_source

FULL = Size(items=1_000_000, reference_items=200_000, repeats=5)
SHORT = Size(items=40_000, reference_items=20_000, repeats=1)

READ_GOAL, PUSH_GOAL = Goal(0.5), Goal(0.7)

# Episodes cost more than a copy of memory, and no reader of text, or of a file for each step, is as fast as one of TFRecords.
READ_GOAL_OF_MAPS, PUSH_GOAL_OF_TEXT = Goal(0.5, fails_at=0.02), Goal(0.7, fails_at=0.02)

OURS = "rlds2reverb"


def run(size: Size) -> Iterator[Result]:
    """`Size.items` steps are read, `Size.reference_items` pushed; a tenth of it of formats that hold each step as text or as files of its own."""
    for file_format in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            yield _reading(file_format, Path(folder), size)
    with BenchServer([TableConfig(writers.TABLE)]) as server:
        for pushed_format in (file_format for file_format in FORMATS if file_format.is_pushed):
            with tempfile.TemporaryDirectory() as folder:
                yield _pushing(pushed_format, Path(folder), server, size)


def _reading(one: FormatFiles, folder: Path, size: Size) -> Result:
    episodes = _episodes(size.items, one)
    name = one.write(folder, episodes)
    sides = [
        Side(OURS, lambda _: _read(name), episodes),
        Side("bare library", lambda _: _read_bare(one, folder), episodes),
    ]
    runs = alternate(sides, size.repeats)
    counts = {side: of[0].count for side, of in runs.items()}
    if set(counts.values()) != {episodes * TRANSITIONS}:
        raise RuntimeError(f"{name}: expected {episodes * TRANSITIONS} steps on both sides, got {counts}")
    goal = READ_GOAL_OF_MAPS if one.is_mapped else READ_GOAL
    return comparison(f"formats/{one.name}", runs, OURS, "bare library", "steps/s", goal)


def _read(name: str) -> Run:
    with timed() as watch:
        steps = sum(len(episode) - 1 for episode in open_source(name))
    return watch.run(steps)


def _read_bare(one: FormatFiles, folder: Path) -> Run:
    with timed() as watch:
        steps = one.read(folder)
    return watch.run(steps)


def _pushing(one: FormatFiles, folder: Path, server: BenchServer, size: Size) -> Result:
    episodes = _episodes(size.reference_items, one)
    name = one.write(folder, episodes)
    tfds = datasets.long_episodes(episodes * (TRANSITIONS + 2))
    rival = f"tfds:{tfds}@train[:{episodes}]"
    sides = [
        Side(OURS, lambda _: writers.push(server, name), episodes),
        Side("from TFDS", lambda _: writers.push(server, rival), episodes),
    ]
    runs = alternate(sides, size.repeats)
    goal = PUSH_GOAL_OF_TEXT if one.share < 1 else PUSH_GOAL
    return comparison(f"formats/push/{one.name}", runs, OURS, "from TFDS", "items/s", goal)


def _episodes(steps: int, one: FormatFiles) -> int:
    return max(2, round(steps * one.share / TRANSITIONS))
