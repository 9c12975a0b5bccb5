"""Draws docs/views/*.svg: what the views store of a small episode, and which rows some of their items hold.

What is drawn of a view stands in its case (`tests/support/views/cases`). Everything in a picture comes from the cut itself: boxes are stored rows, lines of boxes stored columns, coloured bars the
windows of an item (`rlds2reverb/look/drawing.py`). `scripts/generate_docs.py` (`make docs`) writes the files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Episode
from rlds2reverb.look import drawing
from rlds2reverb.views import view_of

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the suite

from tests.support.views.case import Picture
from tests.support.views.every import CASES, cuts_of

_STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.box { fill: #f6f8fa; stroke: #818b98; }
.title { font-weight: bold; }
.quiet { fill: #59636e; font-size: 11px; }
.i0 { fill: #0969da; } .i1 { fill: #bc4c00; } .i2 { fill: #1a7f37; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.card { fill: #0d1117; stroke: #3d444d; }
.box { fill: #151b23; stroke: #656c76; }
.quiet { fill: #9198a1; }
.i0 { fill: #4493f8; } .i1 { fill: #f0883e; } .i2 { fill: #3fb950; }
}"""
"""A card of its own in the reader's colours, so that the background of the page does not matter."""


PICTURES = {name: case.picture for name, case in CASES.items()}
"""Name of the file -> what it shows."""


def small_episode(number: int, rows: int, picture: Picture) -> Episode:
    """An episode whose values are their own names: o0, a0, r0; but for what the picture replaces."""
    row = np.arange(rows)
    letters = ("o", "a", "r") if number == 0 else ("p", "b", "s")
    words = [np.array([f"{letter}{at}".encode() for at in row], object) for letter in letters]
    return Episode(
        {
            "observation": words[0],
            "action": words[1],
            "reward": words[2],
            "discount": np.ones(rows, np.float32),
            "is_first": row == 0,
            "is_last": row == rows - 1,
            "is_terminal": row == rows - 1,
            **picture.replaced(rows),
        },
        id=f"episode {number}",
    )


def cut_of(picture: Picture) -> Cut:
    """The cut that is drawn."""
    view = view_of(picture.title) if picture.view is None else picture.view
    return cuts_of(view, [small_episode(number, rows, picture) for number, rows in enumerate(picture.rows)])[-1]


def draw(picture: Picture) -> str:
    """The picture as SVG."""
    cut = cut_of(picture)
    shown = ", ".join(f"item {number}" for number in picture.items)
    described = f"{picture.title}: stored rows as boxes, and the rows that {shown} hold as bars"
    rows = range(cut.row_count)
    return drawing.draw(
        drawing.Drawing(picture.title, described, cut, tuple(picture.columns.split()), picture.items, rows, _text),
        _STYLE,
    )


def _text(value: Any) -> str:
    """What stands in a box; empty text is a zero of its kind, of an image all pixels."""
    if np.ndim(value) == 3:
        return "".join(str(pixel) for pixel in np.ravel(value))
    plain = np.ravel(np.asarray(value)).tolist()[0]
    if isinstance(plain, bytes):
        return plain.decode() or "0"
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    return f"{plain:g}"
