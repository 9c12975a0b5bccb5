"""`python -m benchmarks.scale_tables FILE...`: the JSON lines of `make bench-scale`, as the tables of docs/capacity.md, written into it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import Result
from benchmarks.tables import comparisons, figures, filled, machine

PAGE = Path(__file__).parent.parent / "docs" / "capacity.md"

CURVE, COST, PLAN, WORKERS = "scale_curve/", "scale_cost/", "scale_plan/", "scale/"
"""How the names of results begin that are in one table."""

_LARGE = 500_000
"""Items of a table that always has its line."""

_STEPS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))

_COSTS = {
    "push": ("pusher, µs", 1e6),
    "insert": ("server, µs", 1e6),
    "sent": ("sent, bytes", 1.0),
    "memory": ("server's memory, bytes", 1.0),
    "saving": ("on top in a checkpoint, bytes", 1.0),
    "checkpoint_bytes": ("checkpoint, bytes", 1.0),
    "checkpoint": ("checkpoint, µs", 1e6),
    "restore": ("restore, µs", 1e6),
    "sample": ("learner, µs a sampled item", 1e6),
    "serve": ("server, µs a sampled item", 1e6),
    "received": ("received, bytes a sampled item", 1.0),
}
"""Field of `Costs` -> head of its column, and what its values are multiplied by."""

_PLAN = {
    "steps": "steps",
    "servers": "servers, one a machine",
    "memory_bytes": "memory of all, bytes",
    "saving_bytes": "on top in checkpoints, bytes",
    "steps_per_server": "steps that one server holds",
    "push_core_hours": "pushers, core hours",
    "push_hours": "push, hours",
    "checkpoint_bytes": "a checkpoint of all, bytes",
    "checkpoint_hours": "a checkpoint of a server, hours",
    "restore_hours": "a restore of a server, hours",
}
"""Field of `Plan` -> head of its line."""


def sections(results: Sequence[Result]) -> dict[str, str]:
    """Marker in the page -> the table that belongs there."""
    tables = {
        "workers": [*comparisons(_of(results, WORKERS)), "", *figures(_of(results, WORKERS))],
        "curves": _curves(_of(results, CURVE)),
        "costs": _costs(_of(results, COST)),
        "plans": _plans(_of(results, PLAN)),
        "machine": [machine(results)],
    }
    return {name: "\n".join(lines) for name, lines in tables.items()}


def _of(results: Sequence[Result], beginning: str) -> list[Result]:
    return [result for result in results if result["benchmark"].startswith(beginning)]


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(names: Sequence[str], texts: int = 1) -> Iterator[str]:
    """The head of a table whose first columns are texts."""
    yield _row(names)
    yield _row(["---"] * texts + ["---:"] * (len(names) - texts))


def _curves(results: Sequence[Result]) -> Iterator[str]:
    yield from _head(
        [
            "step, item",
            "servers",
            "items",
            "bytes an item",
            "checkpoint, s",
            "memory on top, MB",
            "checkpoint, MB",
            "restore, s",
            "pushed, items/s",
            "sampled, items/s",
        ]
    )
    for point in _telling(sorted((result["parameters"] for result in results), key=_place)):
        yield _row(
            [
                point["content"],
                point["servers"],
                f"{point['items']:,}",
                f"{point['memory_bytes'] / point['items']:,.0f}",
                f"{point['checkpoint_seconds']:.1f}",
                f"{point['saving_bytes'] / 1e6:,.0f}",
                f"{point['checkpoint_bytes'] / 1e6:,.1f}",
                f"{point['restore_seconds']:.1f}",
                f"{point['items'] / point['push_seconds']:,.0f}",
                f"{point['samples'] / point['sample_seconds']:,.0f}",
            ]
        )


def _telling(points: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Without small tables where there is a larger one of their kind: in small ones, a process' own memory hides what items take."""
    largest: dict[tuple[str, int], int] = {}
    for point in points:
        kind = point["content"], point["servers"]
        largest[kind] = max(largest.get(kind, 0), point["items"])
    for point in points:
        if point["items"] >= min(_LARGE, largest[point["content"], point["servers"]]):
            yield point


def _place(point: Mapping[str, Any]) -> tuple[int, float, int, int]:
    """Vectors first, narrow to wide; few servers first."""
    return point["chunk_steps"] == 1, point["step_bytes"], point["servers"], point["items"]


def _costs(results: Sequence[Result]) -> Iterator[str]:
    yield from _head(["of a step", *(head for head, _ in _COSTS.values())])
    for result in results:
        costs = [f"{result['parameters'][name] * scale:,.3g}" for name, (_, scale) in _COSTS.items()]
        yield _row([result["benchmark"].removeprefix(COST), *map(_plain, costs)])


def _plans(results: Sequence[Result]) -> Iterator[str]:
    yield from _head(["", *(result["benchmark"].removeprefix(PLAN) for result in results)])
    for name, head in _PLAN.items():
        yield _row([head, *(_short(result["parameters"][name]) for result in results)])


def _short(value: object) -> str:
    """A number in three digits: 1.62 T, 12.3 k; text as it is."""
    if isinstance(value, str) or not isinstance(value, (int, float)):
        return str(value)
    for letter, size in _STEPS:
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _plain(number: str) -> str:
    """Without the exponent that `g` gives to numbers of more than three digits."""
    return f"{float(number.replace(',', '')):,.0f}" if "e+" in number else number


if __name__ == "__main__":
    lines = [json.loads(line) for file in sys.argv[1:] for line in Path(file).read_text().splitlines()]
    PAGE.write_text(filled(PAGE.read_text(), sections(lines)))
