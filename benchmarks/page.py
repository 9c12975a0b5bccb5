"""What `inspect` writes besides its words, of the same pass. All from the start of a process.

- `page`: `--html` beside words.
- `page/statistics`: `--statistics FILE` beside `--json` alone.

`Size.items` steps of half-cheetah in episodes of 1,001.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import datasets
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, timed

FULL = Size(items=2_000_000, reference_items=2_000_000, repeats=3)
SHORT = Size(items=50_000, reference_items=50_000, repeats=2)

GOAL, STATISTICS_GOAL = Goal(1 / 1.3), Goal(1 / 1.15)
"""Of the rates: the page takes at most 1.3 times as long, statistics 1.15 times."""


def run(size: Size) -> Iterator[Result]:
    """Two comparisons."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        words = partial(_inspect, [])
        sides = [
            Side("html", partial(_inspect, ["--html", str(page)]), size.items),
            Side("words", words, size.items),
        ]
        runs = alternate(sides, size.repeats)
        page_bytes = page.stat().st_size
        yield comparison("page", runs, "html", "words", "steps/s", GOAL, steps=size.items, page_bytes=page_bytes)
        written = ["--json", "--statistics", str(Path(folder) / "stats.json")]
        sides = [
            Side("statistics", partial(_inspect, written), size.items),
            Side("json", partial(_inspect, ["--json"]), size.items),
        ]
        runs = alternate(sides, size.repeats)
        yield comparison("page/statistics", runs, "statistics", "json", "steps/s", STATISTICS_GOAL, steps=size.items)


def _inspect(options: list[str], steps: int) -> Run:
    dataset = datasets.long_episodes(steps)
    command = [sys.executable, "-m", "rlds2reverb", "inspect", f"tfds:{dataset}", *options]
    with timed() as watch:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return watch.run(steps)
