"""One more line of docs/capacity.md: five million items on one server. With its checkpoints it needs 18 GB of memory, so it runs alone."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Result, Size
from benchmarks.scale_contents import vectors
from benchmarks.scale_curves import NARROW, curve
from benchmarks.scale_points import point

FULL = Size(items=5_000_000, reference_items=100_000, repeats=1)
SHORT = Size(items=100_000, reference_items=10_000, repeats=1)


def run(size: Size) -> Iterator[Result]:
    """`Size.items`: how many; `Size.reference_items`: samples."""
    yield curve(point(vectors(size.items, NARROW), 1, size.reference_items), is_checked=True)
