"""Items of a real episode as a drawing that a page can hold: few columns, few rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episodes import Array
from rlds2reverb.image_headers import JPEG_START, PNG_START
from rlds2reverb.report.drawing import Drawing, draw
from rlds2reverb.wording import number, shortened, visible

_ROWS = 10
_COLUMNS = 8
_BOX = 62
_LABEL = 18
"""Characters left of the boxes."""
_VALUE = 8


def items_drawing(title: str, cut: Cut) -> tuple[str, str]:
    """The first two items of a cut and its last one, as far as the first rows show them; and what is left out, in words.

    Args:
      title: what to call the view.
      cut: of one episode, with at least one item.
    """
    columns = list(dict.fromkeys(field.column for field in cut.fields.values()))
    rows = range(min(_ROWS, cut.row_count))
    items = [item for item in range(min(len(cut.anchors), 2)) if _is_seen(cut, item, rows)] or [0]
    heading = shortened(visible(title), 60)
    described = f"{heading}: stored rows as boxes, and the rows that items hold as bars"
    drawing = Drawing(heading, described, cut, columns[:_COLUMNS], items, rows, _value, _label, _BOX)
    return draw(drawing), _left_out(cut, len(columns), len(rows))


def _is_seen(cut: Cut, item: int, rows: range) -> bool:
    return int(cut.anchors[item]) in rows


def _left_out(cut: Cut, columns: int, rows: int) -> str:
    parts = [f"rows 0 to {rows - 1} of {cut.row_count:,}"] if rows < cut.row_count else []
    if columns > _COLUMNS:
        parts.append(f"{_COLUMNS} of {columns:,} columns")
    return ", ".join(parts)


def _label(path: str) -> str:
    text = visible(path)
    return text if len(text) <= _LABEL else f"…{text[1 - _LABEL :]}"  # paths differ at their ends


def _value(value: Any) -> str:
    """What stands in a box: a number, a text, or the first value of many."""
    array: Array = np.asarray(value)
    if not array.size:
        return "-"
    text = _plain(array.ravel()[0])
    return f"{text[: _VALUE - 1]}…" if array.size > 1 or len(text) > _VALUE else text


def _plain(first: Any) -> str:
    if isinstance(first, bytes) and first.startswith((JPEG_START, PNG_START)):
        return "image"
    if isinstance(first, (bytes, str)):
        return visible(first)
    if isinstance(first, np.bool_):
        return "yes" if first else "no"
    return str(first) if np.iscomplexobj(first) else number(float(first), 3)
