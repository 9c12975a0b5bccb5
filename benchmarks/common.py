"""What all benchmarks share: alternating runs, medians, goals, and results as JSON lines."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rlds2reverb import images
from rlds2reverb.wire.sample import native

Result = dict[str, Any]
"""One line of output; see `comparison` and `figure`."""

COLLAPSE_FACTOR = 3
"""A figure this many times worse than its goal is a collapse: something broke, noise does not explain it."""


@dataclass(frozen=True)
class Size:
    """How much a benchmark does.

    Attributes:
      items: things (each benchmark says which) of our side; at least so many.
      reference_items: of the side compared with. It may be fewer where that side is slow: rates are compared.
      repeats: measured runs of each side.
    """

    items: int
    reference_items: int
    repeats: int


@dataclass(frozen=True)
class Goal:
    """What a figure must reach.

    Attributes:
      value: the bound, which itself is good enough.
      at_most: whether lower is better.
      fails_at: the bound at which a run fails, where that is not `COLLAPSE_FACTOR` off `value`: for goals that are known to be far away.
    """

    value: float
    at_most: bool = False
    fails_at: float | None = None

    def met(self, measured: float) -> bool:
        """Whether the figure is good enough."""
        return measured <= self.value if self.at_most else measured >= self.value

    def collapsed(self, measured: float) -> bool:
        """Whether the figure is so bad that a run must fail."""
        if self.at_most:
            return measured > (self.fails_at or self.value * COLLAPSE_FACTOR)
        return measured < (self.fails_at or self.value / COLLAPSE_FACTOR)


@dataclass(frozen=True)
class Run:
    """One run of one side.

    Attributes:
      count: things done.
      seconds: wall time.
      processor_seconds: of this process, all threads; the server is not in it.
    """

    count: int
    seconds: float
    processor_seconds: float

    @property
    def rate(self) -> float:
        """Things per second."""
        return self.count / self.seconds

    @property
    def processor_microseconds(self) -> float:
        """Processor time per thing. Other programs on the machine disturb it less than the rate."""
        return self.processor_seconds / self.count * 1e6


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
      name: what people call it.
      run: does `size` of its work (episodes, batches, ...), and says how many things that was and how long it took.
        What must not be timed (emptying the table, encoding in advance) it does before it starts the clock.
      size: of a measured run.
    """

    name: str
    run: Callable[[int], Run]
    size: int


def alternate(sides: Sequence[Side], repeats: int) -> dict[str, list[Run]]:
    """Runs A B C A B C ...; every side is warmed up first, by a run of a fifth of the size that does not count."""
    for side in sides:
        side.run(max(1, side.size // 5))
    runs: dict[str, list[Run]] = {side.name: [] for side in sides}
    for _ in range(repeats):
        for side in sides:
            gc.collect()
            runs[side.name].append(side.run(side.size))
            note(f"  {side.name}: {runs[side.name][-1].rate:,.0f}/s")
    return runs


class Stopwatch:
    """What `timed` measured; to be read after its block."""

    def __init__(self) -> None:
        self._began = (time.perf_counter(), time.process_time())
        self.seconds = self.processor_seconds = 0.0

    def stop(self) -> None:
        """Ends the measurement."""
        self.seconds = time.perf_counter() - self._began[0]
        self.processor_seconds = time.process_time() - self._began[1]

    def run(self, count: int) -> Run:
        """The run that did `count` things in this time."""
        return Run(count, self.seconds, self.processor_seconds)


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Times its block."""
    watch = Stopwatch()
    yield watch
    watch.stop()


class Neighbours:
    """How busy other programs keep the machine, from its making on. Source: proc(5), /proc/stat, in clock ticks."""

    def __init__(self) -> None:
        self._before = self._look()

    def share(self) -> float:
        """Part of all cores' time that went to others (and to other virtual machines), 0 to 1.

        Children count as ours once they have ended and were waited for.
        """
        total, busy, own = (now - before for now, before in zip(self._look(), self._before))
        return max(0.0, busy - own) / max(1.0, total)

    @staticmethod
    def _look() -> tuple[float, float, float]:
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]  # idle, iowait
        own = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")
        return float(sum(ticks)), float(sum(ticks) - idle), own


def comparison(
    name: str,
    runs: Mapping[str, Sequence[Run]],
    ours: str,
    reference: str,
    unit: str,
    goal: Goal | None = None,
    **parameters: Any,
) -> Result:
    """A result from the runs of two sides: median rates, and the median of the ratios of neighbouring runs.

    The median is held against the goal. A collapse is told by the best ratio: neighbours on the machine disturb single runs,
    code that is slow is slow in all of them.

    Args:
      name: of the benchmark, and of the case after a "/".
      runs: of `alternate`; may hold other sides.
      ours, reference: names of the sides; the ratio is ours / reference.
      unit: of the rates.
      goal: of the ratio.
      parameters: what else a reader must know.
    """
    a, b = runs[ours], runs[reference]
    ratios = [run.rate / other.rate for run, other in zip(a, b)]
    return {
        "benchmark": name,
        "a": ours,
        "b": reference,
        "unit": unit,
        "ratio": _rounded(statistics.median(ratios)),
        "ratios": [_rounded(ratio) for ratio in ratios],
        **_side("a", a),
        **_side("b", b),
        **_judged(statistics.median(ratios), goal, max(ratios)),
        "parameters": {"repeats": len(a), **parameters},
        "machine": machine(),
    }


def _side(letter: str, runs: Sequence[Run]) -> Result:
    """Medians of one side's runs."""
    return {
        f"rate_{letter}": round(statistics.median(run.rate for run in runs), 1),
        f"processor_us_{letter}": _rounded(statistics.median(run.processor_microseconds for run in runs)),
        f"items_{letter}": runs[0].count,
    }


def figure(name: str, value: float, unit: str, goal: Goal | None = None, **parameters: Any) -> Result:
    """A result that is one number rather than a ratio of rates."""
    return {
        "benchmark": name,
        "value": _rounded(value),
        "unit": unit,
        **_judged(value, goal),
        "parameters": parameters,
        "machine": machine(),
    }


def measured(result: Result) -> float:
    """The number that a result's goal is about."""
    return float(result["ratio"] if "ratio" in result else result["value"])


def machine() -> dict[str, Any]:
    """Where this ran."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("dm-reverb", "tensorflow", "tf-agents", "grpcio")},
        "not_compiled": not_compiled(),
    }


def not_compiled() -> list[str]:
    """C libraries of ours that this working copy lacks, or has of an older source; without them we are several times slower."""
    libraries = {"images.c": images.LIBRARY, "native.c": native.LIBRARY}
    return [name for name, library in libraries.items() if library is None]


def emit(result: Result) -> None:
    """Prints a result as a line of JSON."""
    print(json.dumps(result), flush=True)


def note(text: str) -> None:
    """Says something to whoever watches; not part of the results."""
    print(text, file=sys.stderr, flush=True)


def _judged(value: float, goal: Goal | None, best: float | None = None) -> Result:
    """How a figure stands to its goal; `best` of several runs, where there are any."""
    if goal is None:
        return {"goal": None, "met": None, "collapsed": False}
    return {
        "goal": goal.value,
        "goal_is": "at most" if goal.at_most else "at least",
        "met": goal.met(value),
        "collapsed": goal.collapsed(value if best is None else best),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
