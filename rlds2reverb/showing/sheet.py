"""An episode as one picture: what it is, a strip of each image column, its curves, its texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlds2reverb.showing.canvas import FAINT, INK, LETTER_HEIGHT, LETTER_WIDTH, Box, blank, paste, write
from rlds2reverb.showing.contents import Contents, Panel
from rlds2reverb.showing.panels import draw_panel, panel_height
from rlds2reverb.showing.pictures import Picture, Pictures, chosen_steps, fitted
from rlds2reverb.wording import counted, visible

WIDTH = 1040
MARGIN = 20
_ROOM = WIDTH - 2 * MARGIN
_LINE = LETTER_HEIGHT + 5
_GAP = 6
_STRIP, _LEAST_SIDE = 8, 96
_PLOT = 72
_INDENT = 2 * LETTER_WIDTH

Draw = Callable[[Picture, int], None]
"""Draws itself on a canvas, from a line of pixels on."""


@dataclass(frozen=True)
class Part:
    """Something on the sheet, over its whole width.

    Attributes:
      height: in pixels.
      draw: draws it.
    """

    height: int
    draw: Draw


def sheet(contents: Contents, frames: int | None = None) -> Picture:
    """[height, width, 3].

    Args:
      contents: what is in the episode.
      frames: pictures of each image column, 8 without it.

    Raises:
      DecodeError: an image is damaged, or what decodes it is missing.
    """
    parts = list(_parts(contents, frames or _STRIP))
    canvas = blank(2 * MARGIN + sum(part.height for part in parts), WIDTH)
    top = MARGIN
    for part in parts:
        part.draw(canvas, top)
        top += part.height
    return canvas


def _parts(contents: Contents, frames: int) -> Iterator[Part]:
    yield _line(contents.title)
    fields = [*contents.facts, *((f"metadata {path}", value) for path, value in contents.metadata.items())]
    for name, value in fields:
        yield _line(f"{name}: {value}", _INDENT)
    for pictures in contents.images:
        yield Part(_LINE, _nothing)
        yield _line(f"{visible(pictures.path)}  {pictures.kind}")
        yield _strip(pictures, chosen_steps(len(pictures), frames))
    for panel in contents.panels:
        yield Part(_LINE, _nothing)
        yield _panel(panel)
    yield from _texts(contents)


def _texts(contents: Contents) -> Iterator[Part]:
    yield Part(_LINE, _nothing)
    for path, told in contents.texts.items():
        for line in told:
            yield _line(f"{visible(path)}: {line}")
    for fields in (contents.flags, contents.others):
        for path, value in fields.items():
            yield _line(f"{visible(path)}: {value}")
    for kind, count in contents.left_out.items():
        yield _line(f"and {counted(count, f'more {kind}')}")


def _nothing(canvas: Picture, top: int) -> None:
    """Draws a gap."""


def _line(text: str, indent: int = 0) -> Part:
    most = (_ROOM - indent) // LETTER_WIDTH
    shown = text if len(text) <= most else f"{text[: most - 3]}..."
    return Part(_LINE, lambda canvas, top: write(canvas, shown, top, MARGIN + indent, FAINT if indent else INK))


def _panel(panel: Panel) -> Part:
    height = panel_height(_PLOT)
    return Part(height, lambda canvas, top: draw_panel(canvas, panel, Box(top, MARGIN, height, _ROOM)))


def _strip(pictures: Pictures, steps: list[int]) -> Part:
    """Pictures beside one another, in as many rows as they need, each with the number of its step below."""
    across = max(_LEAST_SIDE, (_ROOM + _GAP) // min(len(steps), _STRIP) - _GAP)
    height, width = size_within(pictures.size, (3 * _ROOM // 4, across))
    per_row = max(1, (_ROOM + _GAP) // (width + _GAP))
    row_height = height + _LINE + _GAP

    def draw(canvas: Picture, top: int) -> None:
        for place, step in enumerate(steps):
            row, at = divmod(place, per_row)
            down, left = top + row * row_height, MARGIN + at * (width + _GAP)
            paste(canvas, fitted(pictures.picture(step), height, width), down, left)
            write(canvas, f"{step}", down + height + 3, left, FAINT)

    return Part(-(-len(steps) // per_row) * row_height, draw)


def size_within(size: tuple[int, int], most: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a picture in the room that there is: smaller in the same proportion, or larger by a whole number.

    >>> size_within((480, 640), (200, 160)), size_within((10, 20), (200, 90)), size_within((10, 20), (200, 20))
    ((120, 160), (40, 80), (10, 20))
    """
    height, width = size
    share = min(most[0] / height, most[1] / width)
    if share >= 1:
        return int(share) * height, int(share) * width
    return max(1, round(height * share)), max(1, round(width * share))
