"""A column or an array -> a few words: first values and what they span. Looks at a bounded number of values, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.notebook.markup import Html, guarded, joined, listed, quiet, text
from rlds2reverb.reports.brief import brief
from rlds2reverb.specs import ArraySpec, dtype_name

MOST_NUMBERS = 100_000
"""Of a column that are looked at."""
MOST_TEXTS = 1_000
_SHOWN = 4


def kind_of(array: Array) -> Html:
    """Dtype and shape: "float32[51, 4]"."""
    sizes = ", ".join(map(str, array.shape[:8])) + (", ..." if array.ndim > 8 else "")
    return text(f"{dtype_name(array.dtype)}[{sizes}]")


def values_of(value: Any) -> Html:
    """First values and what they span; of a large array, of its beginning only, which is said."""
    return guarded(lambda: _values(value if isinstance(value, (bytes, str)) else np.asarray(value)))


def _values(value: Any) -> Html:
    if isinstance(value, (bytes, str)):
        return text(brief(value[:MOST_NUMBERS], _SHOWN).text())
    is_text = value.dtype.kind in "OSU"
    most = MOST_TEXTS if is_text else MOST_NUMBERS
    seen = value if value.size <= most else value.flat[:most]
    others = {type(one).__name__ for one in seen.flat if not isinstance(one, (bytes, str))} if is_text else set()
    if others:
        return joined([text("objects that are no text:"), listed(sorted(others), len(others), 3)])
    told = text(brief(seen, _SHOWN).text())
    return told if seen is value else joined([quiet(f"first {most:,} values:"), told])


def mapping_of(values: Mapping[str, Any], most: int = 20) -> Html:
    """Names and values on one line, as of episode metadata."""
    named = [joined([text(f"{name}:"), values_of(value)]) for name, value in list(values.items())[:most]]
    more = [quiet(f"and {len(values) - most:,} more")] if len(values) > most else []
    return joined([*named, *more], "; ")


def spec_text(leaf: Any) -> Html:
    """A leaf of a signature: "float32[2, 4]"; of anything else its kind."""
    return text(leaf) if isinstance(leaf, ArraySpec) else text(type(leaf).__name__)
