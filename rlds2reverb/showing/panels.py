"""Columns of numbers drawn as panels, one below the other: a line of text with the colour of each dimension, and the curves below it."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.showing.canvas import COLOURS, FAINT, INK, LETTER_HEIGHT, LETTER_WIDTH, Box, frame, plot, write
from rlds2reverb.showing.contents import Panel
from rlds2reverb.showing.curves import range_text, span_of
from rlds2reverb.showing.pictures import Picture
from rlds2reverb.wording import visible

_INSIDE = 4
_TITLE = LETTER_HEIGHT + 6


def panel_height(height: int) -> int:
    """Pixels of a panel whose curves have room of that height."""
    return _TITLE + height + 12


def plot_box(place: Box) -> Box:
    """Where the curves of a panel are, within the place of the panel."""
    height = place.height - panel_height(0)
    return Box(place.top + _TITLE + _INSIDE, place.left + _INSIDE, height - 2 * _INSIDE, place.width - 2 * _INSIDE)


def draw_panel(canvas: Picture, panel: Panel, place: Box) -> None:
    """Draws a panel at its place."""
    span = span_of(panel.curves)
    _title(canvas, panel, place, range_line(panel))
    edge = Box(place.top + _TITLE, place.left, place.height - panel_height(0), place.width)
    frame(canvas, edge)
    if span is not None:
        for curve, colour in reversed(list(zip(panel.curves, COLOURS))):
            plot(canvas, curve, plot_box(place), span, colour)


def range_line(panel: Panel) -> str:
    """Kind and range of a panel, and what of it is not drawn."""
    more = panel.dimensions - len(panel.curves)
    first = f"  (first {len(panel.curves)} of {panel.dimensions:,} dimensions)" if more else ""
    return f"{panel.kind}  {range_text(panel.curves)}{first}"


def _title(canvas: Picture, panel: Panel, place: Box, told: str) -> None:
    left = place.left
    for text, colour in [(visible(panel.path), INK), *_legend(panel), (told, FAINT)]:
        write(canvas, text, place.top, left, colour)
        left += LETTER_WIDTH * (len(text) + 1)


def _legend(panel: Panel) -> Sequence[tuple[str, tuple[int, int, int]]]:
    if len(panel.curves) < 2:
        return [("-", COLOURS[0])]
    return [(curve.label, colour) for curve, colour in zip(panel.curves, COLOURS)]
