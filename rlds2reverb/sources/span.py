"""Until every caller uses `Source.slice`."""

from __future__ import annotations

from rlds2reverb.sources.base import Slice, as_source
from rlds2reverb.sources.base import Source as Source


def Span(source: Source, start: int, stop: int, step: int = 1) -> Slice:  # noqa: N802
    """See `Source.slice`."""
    return Slice(as_source(source), range(start, stop, step))
