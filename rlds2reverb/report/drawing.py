"""What a view makes of an episode, drawn: stored rows as boxes, and the rows that some items hold as bars.

Everything in a drawing comes from the cut itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rlds2reverb.cuts import Cut, Field
from rlds2reverb.episodes import Array

_LEFT, _TOP, _MARGIN = 150, 58, 14
_BOX_HEIGHT, _GAP = 24, 6
_LANE, _BAR, _BETWEEN = 11, 6, 16
_FEWEST_BOXES = 7


@dataclass(frozen=True, eq=False)
class Drawing:
    """What to draw.

    Attributes:
      title: on top.
      described: for those who do not see it.
      cut: of one episode.
      columns: the stored columns to show.
      items: their numbers, at most three: there are classes i0, i1 and i2.
      rows: the stored rows to show; bars end where these do.
      text: a value -> what stands in its box.
      name: a path -> what stands left of its boxes or bars.
      box: width of a box, in pixels.
    """

    title: str
    described: str
    cut: Cut
    columns: Sequence[str]
    items: Sequence[int]
    rows: range
    text: Callable[[Any], str]
    name: Callable[[str], str] = str
    box: int = 42


def draw(drawing: Drawing, style: str = "") -> str:
    """The drawing as SVG.

    Args:
      drawing: what to draw.
      style: its own style sheet; "" where the page has one for `svg.cut`.
    """
    body: list[str] = []
    top = _TOP
    for column in drawing.columns:
        fields = {path: field for path, field in drawing.cut.fields.items() if field.column == column}
        body += _boxes(drawing, column, top)
        top += _BOX_HEIGHT + _GAP
        for path, field in fields.items():
            body += _lanes(drawing, path, field, top)
            top += _LANE * len(drawing.items) + _GAP
        top += _BETWEEN - _GAP
    width, height = _LEFT + drawing.box * max(len(drawing.rows), _FEWEST_BOXES) + _MARGIN, top
    return "\n".join([*_head(drawing, width, height, style), *body, "</svg>", ""])


def _head(drawing: Drawing, width: int, height: int, style: str) -> list[str]:
    kind = "" if style else ' class="cut"'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return [
        f'<svg{kind} xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(drawing.described)}</title>",
        *([f"<style>{style}\n</style>"] if style else []),
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="{_MARGIN}" y="22">{escape(drawing.title)}</text>',
        *_legend(drawing.items),
    ]


def _legend(items: Sequence[int]) -> list[str]:
    lines = [f'<text class="quiet" x="{_MARGIN}" y="44">items</text>']
    for place, number in enumerate(items):
        left = _LEFT + 84 * place
        lines.append(f'<rect class="i{place}" x="{left}" y="37" width="16" height="{_BAR}" rx="2"/>')
        lines.append(f'<text class="quiet" x="{left + 22}" y="44">item {number}</text>')
    return lines


def _boxes(drawing: Drawing, name: str, top: int) -> list[str]:
    """A stored column: its name, and a box a row."""
    column: Array = drawing.cut.rows[name]
    lines = [f'<text x="{_MARGIN}" y="{top + 16}">{escape(drawing.name(name))}</text>']
    for place, row in enumerate(drawing.rows):
        left = _LEFT + drawing.box * place
        lines.append(f'<rect class="box" x="{left}" y="{top}" width="{drawing.box}" height="{_BOX_HEIGHT}"/>')
        middle = left + drawing.box // 2
        text = escape(drawing.text(column[row]))
        lines.append(f'<text x="{middle}" y="{top + 16}" text-anchor="middle">{text}</text>')
    return lines


def _lanes(drawing: Drawing, path: str, field: Field, top: int) -> list[str]:
    """A field: its name, and for every item a lane with a bar a window."""
    middle = top + _LANE * len(drawing.items) // 2 + 3
    lines = [f'<text class="quiet" x="{_MARGIN + 12}" y="{middle}">{escape(drawing.name(path))}</text>']
    anchors = drawing.cut.anchors if field.anchors is None else field.anchors
    for place, number in enumerate(drawing.items):
        for window in field.windows:
            anchor = int(anchors[number]) - drawing.rows.start
            start, stop = max(0, anchor + window.start), min(len(drawing.rows), anchor + window.stop)
            if stop > start:
                left, width = _LEFT + drawing.box * start + 3, drawing.box * (stop - start) - 6
                at = top + _LANE * place + 2
                lines.append(f'<rect class="i{place}" x="{left}" y="{at}" width="{width}" height="{_BAR}" rx="2"/>')
    return lines
