"""An episode as one picture, and as the pictures of a film: images side by side, curves below them. Needs the extra `images`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rlds2reverb.episode import ACTION, REWARD
from rlds2reverb.errors import ConfigError
from rlds2reverb.look.contents import Contents, Panel, range_line
from rlds2reverb.look.curves import levels, span_of
from rlds2reverb.look.pictures import Picture, Pictures, chosen_steps, fitted
from rlds2reverb.text import counted, visible

Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
_INK: Colour = (32, 33, 36)
_FAINT: Colour = (95, 99, 104)
_EDGE: Colour = (218, 220, 224)
CURSOR: Colour = (217, 48, 37)
COLOURS: tuple[Colour, ...] = (
    (31, 98, 173),
    (196, 87, 0),
    (17, 120, 73),
    (150, 60, 150),
    (120, 80, 40),
    (0, 128, 140),
    (185, 40, 90),
    (90, 90, 90),
)
"""Of the dimensions of a column; each can be read on white."""

_LINE = 16
"""Pixels of a line of text."""
_INSIDE, _BELOW = 4, 12
"""Pixels between the edge of a panel and its curves, and below it."""

_SHEET_WIDTH, _SHEET_MARGIN = 1040, 20
_SHEET_ROOM = _SHEET_WIDTH - 2 * _SHEET_MARGIN
_GAP = 6
_STRIP, _LEAST_SIDE = 8, 96
_SHEET_PLOT = 72
_INDENT = 12

_MARGIN = 8
_LEAST_WIDTH, _MOST_WIDTH = 480, 1280
_LONGEST_SIDE = 8192
"""Of a film; H.264 has few levels beyond, and players fewer."""
_LEAST_FILM_SIDE = 160
"""Images whose longer side is shorter are enlarged by a whole number."""
_PANELS, _FILM_PLOT = 6, 40
_STEP_WIDTH = 144


@dataclass(frozen=True)
class Box:
    """A place on a canvas, in pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def corners(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom, the last two within it, as Pillow has them."""
        return self.left, self.top, self.left + self.width - 1, self.top + self.height - 1


class _Canvas:
    """A picture that is drawn on. What lies outside of it is cut off."""

    def __init__(self, image: Image.Image) -> None:
        self.image = image
        self._draw = ImageDraw.Draw(image)

    @staticmethod
    def blank(height: int, width: int) -> _Canvas:
        return _Canvas(Image.new("RGB", (width, height), PAPER))

    def pixels(self) -> Picture:
        """[height, width, 3]."""
        return np.asarray(self.image)

    def paste(self, picture: Picture, top: int, left: int) -> None:
        self.image.paste(Image.fromarray(picture), (left, top))

    def write(self, text: str, top: int, left: int, width: int, colour: Colour = _INK) -> int:
        """Writes a text, cut to `width`; returns the pixels that it takes."""
        shown = _within(text, width)
        self._draw.text((left, top), shown, colour, _font())
        return _length(shown)

    def fill(self, box: Box, colour: Colour) -> None:
        self._draw.rectangle(box.corners, colour)

    def panel(self, panel: Panel, place: Box) -> None:
        """Draws a column of numbers: a line of text with the colour of each dimension, and the curves below it."""
        legend = [(curve.label, colour) for curve, colour in zip(panel.curves, COLOURS)]
        if len(legend) < 2:
            legend = [("-", COLOURS[0])]
        left, right = place.left, place.left + place.width
        for text, colour in [(visible(panel.path), _INK), *legend, (range_line(panel), _FAINT)]:
            left += self.write(text, place.top, left, right - left, colour) + 6
        edge = Box(place.top + _LINE, place.left, place.height - _panel_height(0), place.width)
        self._draw.rectangle(edge.corners, PAPER, _EDGE)
        span, room = span_of(panel.curves), plot_box(place)
        if span is None:
            return
        for curve, colour in reversed(list(zip(panel.curves, COLOURS))):
            bottom, top = levels(curve, room.width, room.height - 1, span)  # rows from below; -1 for nothing
            end = room.top + room.height - 1
            for at in np.flatnonzero(bottom >= 0).tolist():
                across = room.left + at
                self._draw.line((across, end - int(bottom[at]), across, end - int(top[at]) - 1), colour)


@cache
def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default()


def _within(text: str, width: int) -> str:
    """The text, or its beginning with "..." that fits the width."""
    if _length(text) <= width:
        return text
    most = range(min(len(text), max(0, width)))  # no letter is narrower than a pixel
    return f"{text[: max(0, bisect_right(most, width, key=lambda end: _length(f'{text[:end]}...')) - 1)]}..."


def _length(text: str) -> int:
    return round(_font().getlength(text))


def _panel_height(plot: int) -> int:
    """Pixels of a panel whose curves are `plot` pixels high."""
    return _LINE + plot + _BELOW


def plot_box(place: Box) -> Box:
    """Where the curves of a panel are, within the place of the panel."""
    height = place.height - _panel_height(0)
    return Box(place.top + _LINE + _INSIDE, place.left + _INSIDE, height - 2 * _INSIDE, place.width - 2 * _INSIDE)


_Part = tuple[int, Callable[[_Canvas, int], object]]
"""A part of a sheet over its whole width: its height, and a function that draws it below a line of pixels."""


def sheet(contents: Contents, frames: int | None = None) -> Picture:
    """An episode as one picture, [height, width, 3]: its facts, a strip of each image column (8 pictures by default), its curves, its texts.

    Raises:
      DecodeError: an image is damaged, or what decodes it is missing.
    """
    parts = list(_parts(contents, frames or _STRIP))
    canvas = _Canvas.blank(2 * _SHEET_MARGIN + sum(height for height, _ in parts), _SHEET_WIDTH)
    top = _SHEET_MARGIN
    for height, draw in parts:
        draw(canvas, top)
        top += height
    return canvas.pixels()


def _parts(contents: Contents, frames: int) -> Iterator[_Part]:
    def line(text: str, indent: int = 0) -> _Part:
        left, room = _SHEET_MARGIN + indent, _SHEET_ROOM - indent
        return _LINE, lambda canvas, top: canvas.write(text, top, left, room, _FAINT if indent else _INK)

    yield line(contents.title)
    fields = [*contents.facts, *((f"metadata {path}", value) for path, value in contents.metadata.items())]
    for name, value in fields:
        yield line(f"{name}: {value}", _INDENT)
    for pictures in contents.images:
        yield line("")
        yield line(f"{visible(pictures.path)}  {pictures.kind}")
        yield _strip(pictures, chosen_steps(len(pictures), frames))
    for panel in contents.panels:
        yield line("")
        yield _panel(panel)
    yield line("")
    for path, texts in contents.texts.items():
        for text in texts:
            yield line(f"{visible(path)}: {text}")
    for path, value in (*contents.flags.items(), *contents.others.items()):
        yield line(f"{visible(path)}: {value}")
    for kind, count in contents.left_out.items():
        yield line(f"and {counted(count, f'more {kind}')}")


def _panel(panel: Panel) -> _Part:
    height = _panel_height(_SHEET_PLOT)
    return height, lambda canvas, top: canvas.panel(panel, Box(top, _SHEET_MARGIN, height, _SHEET_ROOM))


def _strip(pictures: Pictures, steps: Sequence[int]) -> _Part:
    """Pictures beside one another, in as many rows as they need, each with the number of its step below."""
    across = max(_LEAST_SIDE, (_SHEET_ROOM + _GAP) // min(len(steps), _STRIP) - _GAP)
    height, width = size_within(pictures.size, (3 * _SHEET_ROOM // 4, across))
    per_row = max(1, (_SHEET_ROOM + _GAP) // (width + _GAP))
    row_height = height + _LINE + _GAP

    def draw(canvas: _Canvas, top: int) -> None:
        for place, step in enumerate(steps):
            row, at = divmod(place, per_row)
            down, left = top + row * row_height, _SHEET_MARGIN + at * (width + _GAP)
            canvas.paste(fitted(pictures.picture(step), height, width), down, left)
            canvas.write(f"{step}", down + height + 3, left, max(width, 30), _FAINT)

    return -(-len(steps) // per_row) * row_height, draw


def size_within(size: tuple[int, int], most: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a picture within a box: smaller in the same proportion, or larger by a whole number.

    >>> size_within((480, 640), (200, 160)), size_within((10, 20), (200, 90)), size_within((10, 20), (200, 20))
    ((120, 160), (40, 80), (10, 20))
    """
    height, width = size
    share = min(most[0] / height, most[1] / width)
    if share >= 1:
        return int(share) * height, int(share) * width
    return max(1, round(height * share)), max(1, round(width * share))


@dataclass(frozen=True)
class Seen:
    """An image column, and where its pictures are."""

    pictures: Pictures
    box: Box


@dataclass(frozen=True)
class Film:
    """The pictures of a film, made on demand: the images of a step, the curves, and a line at the step. There are `frames` at most, or one per step.

    Raises:
      ConfigError: from any method, when there is neither an image nor a curve, or no step; or the pictures would be too large.
      DecodeError: likewise, when an image is damaged, or what decodes it is missing.
    """

    contents: Contents
    frames: int | None = None

    @property
    def steps(self) -> list[int]:
        """The step that each picture shows."""
        steps = self.contents.steps
        return chosen_steps(steps, self.frames or steps)

    @cached_property
    def seen(self) -> tuple[Seen, ...]:
        """The image columns, from left to right and then below."""
        return tuple(_placed(self.contents.images))

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width, both even, as video codecs want them."""
        width, height = self._still.size
        return height, width

    def pictures(self) -> Iterator[Picture]:
        return map(self.picture, self.steps)

    def picture(self, step: int) -> Picture:
        canvas = _Canvas(self._still.copy())
        canvas.write(f"step {step:,} of {self.contents.steps:,}", _MARGIN, _MARGIN, _STEP_WIDTH)
        for one in self.seen:
            if step < len(one.pictures):
                picture = fitted(one.pictures.picture(step), one.box.height, one.box.width)
                canvas.paste(picture, one.box.top, one.box.left)
        for _, place in self._panels:
            room = plot_box(place)
            middle = (2 * step + 1) * room.width // (2 * self.contents.steps)
            canvas.fill(Box(room.top, room.left + min(middle, room.width - 1), room.height, 1), CURSOR)
        return canvas.pixels()

    @cached_property
    def _still(self) -> Image.Image:
        """The background, which is the same for every step."""
        if not self.contents.steps or not (self.contents.images or self.contents.panels):
            raise ConfigError(
                "a film needs steps with images or numbers, and this episode has none; show it without --save"
            )
        below = [place.top + place.height for _, place in self._panels]
        images_end, width = self._ends
        height = max([images_end, *below]) + _MARGIN
        if max(height, width) > _LONGEST_SIDE:
            raise ConfigError(
                f"a film of {width:,} x {height:,} pixels is larger than {_LONGEST_SIDE:,}; choose fewer --columns, "
                "or make the images smaller: --transform resize=PATH:HEIGHTxWIDTH"
            )
        canvas = _Canvas.blank(height + height % 2, width)
        at = _MARGIN + _STEP_WIDTH
        canvas.write(self.contents.title, _MARGIN, at, width - at - _MARGIN, _FAINT)
        for one in self.seen:
            canvas.write(visible(one.pictures.path), one.box.top - _LINE, one.box.left, one.box.width, _FAINT)
        for panel, place in self._panels:
            canvas.panel(panel, place)
        return canvas.image

    @property
    def _ends(self) -> tuple[int, int]:
        """Where the images end, and the whole width."""
        boxes = [one.box for one in self.seen]
        width = max([_LEAST_WIDTH, *(box.left + box.width + _MARGIN for box in boxes)])
        return max((box.top + box.height for box in boxes), default=_MARGIN + _LINE), width + width % 2

    @cached_property
    def _panels(self) -> list[tuple[Panel, Box]]:
        """The panels that are drawn, reward and action first."""
        chosen = sorted(self.contents.panels, key=lambda panel: panel.path.split("/")[0] not in (REWARD, ACTION))
        images_end, width = self._ends
        height, top = _panel_height(_FILM_PLOT), images_end + _LINE
        return [
            (panel, Box(top + number * height, _MARGIN, height, width - 2 * _MARGIN))
            for number, panel in enumerate(chosen[:_PANELS])
        ]


def _placed(images: Sequence[Pictures]) -> Iterator[Seen]:
    """Side by side, in as many rows as they need."""
    top, left, lowest = _MARGIN + 2 * _LINE, _MARGIN, 0
    for pictures in images:
        height, width = pictures.size
        times = max(1, -(-_LEAST_FILM_SIDE // max(height, width)))
        height, width = height * times, width * times
        if left > _MARGIN and left + width + _MARGIN > _MOST_WIDTH:
            top, left = lowest + 2 * _LINE, _MARGIN
        yield Seen(pictures, Box(top, left, height, width))
        left, lowest = left + width + _MARGIN, max(lowest, top + height)
