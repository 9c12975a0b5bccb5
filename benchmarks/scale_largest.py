"""One more line of docs/scale.md: ten million items on one server. It needs 20 GB of memory and a quarter of an hour, so it runs alone."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Result, Size
from benchmarks.scale_contents import vectors
from benchmarks.scale_curves import NARROW, curve
from benchmarks.scale_points import point

FULL = Size(items=10_000_000, reference_items=100_000, repeats=1)
SHORT = Size(items=100_000, reference_items=10_000, repeats=1)


def run(size: Size) -> Iterator[Result]:
    """`Size.items`: how many; `Size.reference_items`: samples."""
    yield curve(point(vectors(size.items, NARROW), 1, size.reference_items), is_checked=True)
