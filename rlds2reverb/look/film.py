"""An episode as one picture, and as the pictures of a film: images side by side, curves below them. Needs the extra `images`."""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rlds2reverb.episode import ACTION, REWARD, Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.look.contents import Contents, Panel
from rlds2reverb.look.curves import Curve, span_of, ticks
from rlds2reverb.look.pictures import Picture, Pictures, choose_steps, fit_picture
from rlds2reverb.text import at_index, counted, number, visible

Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
_INK: Colour = (32, 33, 36)
_FAINT: Colour = (95, 99, 104)
_EDGE: Colour = (218, 220, 224)
CURSOR: Colour = (217, 48, 37)
COLOURS: tuple[Colour, ...] = (
    (31, 98, 173),
    (184, 82, 0),
    (17, 120, 73),
    (150, 60, 150),
    (120, 80, 40),
    (0, 128, 140),
    (185, 40, 90),
    (90, 90, 90),
)
"""Of the dimensions of a column; each can be read on white."""

_TITLE, _CAPTION, _TEXT, _SMALL = 20, 16, 13, 11
"""Sizes of letters, in pixels."""
_QUOTES = "\u2018\u2019\u201c\u201d"
"""Letters beyond ASCII that Pillow's own font has."""
_INSIDE, _AXIS, _GRAIN = 4, 56, 4
"""Pixels between the edge of a plot and its curves, and left of it for numbers; pixels a side that curves are drawn with for each one."""
_DOTS = 8
"""Pixels per step from which on each step has a dot."""
_TICKS, _TICK_WIDTH = 4, 90
"""Most numbers at the left of a plot; pixels per number below it."""

_SHEET_WIDTH, _SHEET_MARGIN = 1040, 20
_SHEET_ROOM = _SHEET_WIDTH - 2 * _SHEET_MARGIN
_GAP = 6
_STRIP, _LEAST_SIDE, _LEAST_HEIGHT = 8, 96, 48
_SHEET_PLOT = 84
_INDENT = 12

_MARGIN = 8
_LEAST_WIDTH, _MOST_WIDTH = 480, 1280
_LONGEST_SIDE = 8192
"""Of a film; H.264 has few levels beyond, and players fewer."""
_LEAST_FILM_SIDE = 224
"""Images whose longer side is shorter are enlarged by a whole number."""
_PANELS, _FILM_PLOT = 6, 56
_STEP_WIDTH = 210


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

    def write(self, text: str, top: int, left: int, size: int = _TEXT, colour: Colour = _INK) -> None:
        """Writes a text on one line."""
        self._draw.text((left, top), text, colour, _font(size))

    def write_lines(self, lines: Sequence[TextLine], top: int, left: int) -> None:
        """Writes lines below one another."""
        for line in lines:
            self.write(line.text, top, left, line.size, line.colour)
            top += line.height

    def fill(self, box: Box, colour: Colour) -> None:
        self._draw.rectangle(box.corners, colour)


class TextLine(NamedTuple):
    """A line of text."""

    text: str
    size: int = _TEXT
    colour: Colour = _INK

    @property
    def height(self) -> int:
        """Pixels from this line to the next."""
        return _line_height(self.size)


@cache
def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size=size)


def _length(text: str, size: int) -> int:
    return math.ceil(_font(size).getlength(text))


def _line_height(size: int) -> int:
    return round(1.35 * size)


def _drawable(text: str) -> str:
    r"""The text in letters that the font has: ASCII and quotation marks. Accents are left out, and other letters escaped.

    >>> print(_drawable("l\u00e8ve \u7acb"))
    leve \u7acb
    """
    plain = (character for character in unicodedata.normalize("NFKD", text) if not unicodedata.combining(character))
    return "".join(
        character if character in _QUOTES else character.encode("ascii", "backslashreplace").decode()
        for character in plain
    )


def _lines(text: str, width: int, size: int = _TEXT, colour: Colour = _INK) -> list[TextLine]:
    """A text in lines of at most `width` pixels, broken at blanks, and within words that are longer."""
    lines = [""]
    for word in _drawable(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if _length(longer, size) <= width:
            lines[-1] = longer
            continue
        lines += [] if not lines[-1] else [""]
        while _length(word, size) > width:
            most = range(1, len(word) + 1)
            fits = max(1, bisect_right(most, width, key=lambda end: _length(word[:end], size)))
            lines[-1], word = word[:fits], word[fits:]
            lines.append("")
        lines[-1] = word
    return [TextLine(line, size, colour) for line in lines]


def _height(lines: Sequence[TextLine]) -> int:
    return sum(line.height for line in lines)


@dataclass(frozen=True)
class _Plot:
    """A column of numbers as it is drawn: its name and the colours of its dimensions in as many lines as they need, and the curves below.

    Attributes:
      width, inner: pixels of all of it, and of the height of the plot.
      has_steps: whether steps are written below it.
    """

    panel: Panel
    width: int
    inner: int
    has_steps: bool

    @cached_property
    def legend(self) -> list[list[tuple[int, str, Colour, Colour | None]]]:
        """Lines of: pixels from the left, text, its colour, and the colour of the mark before it."""
        curves = zip(self.panel.moving, COLOURS)
        marked = [(curve.label, _INK, colour) for curve, colour in curves if curve.label]
        own = None if marked else COLOURS[0]
        parts = [(visible(self.panel.path), _INK, own), *marked, (self.panel.range_line, _FAINT, None)]
        lines: list[list[tuple[int, str, Colour, Colour | None]]] = [[]]
        left = 0
        for text, ink, mark in parts:
            indent = 14 if mark else 0
            for line in _lines(text, self.width - indent):
                length = indent + _length(line.text, line.size)
                if left and left + length > self.width:
                    lines.append([])
                    left = 0
                lines[-1].append((left, line.text, ink, mark))
                left += length + 12
        return lines

    @property
    def height(self) -> int:
        steps = _line_height(_SMALL) if self.has_steps else 0
        return len(self.legend) * _line_height(_TEXT) + self.inner + steps + 8

    def room(self, top: int, left: int) -> Box:
        """Where the curves are, if the top left corner of all is there."""
        below = len(self.legend) * _line_height(_TEXT) + 2 + _INSIDE
        return Box(top + below, left + _AXIS + _INSIDE, self.inner - 2 * _INSIDE, self.width - _AXIS - 2 * _INSIDE)

    def draw(self, canvas: _Canvas, top: int, left: int) -> None:
        for row, line in enumerate(self.legend):
            at = top + row * _line_height(_TEXT)
            for across, text, ink, mark in line:
                if mark is not None:
                    canvas.fill(Box(at + 5, left + across, 8, 10), mark)
                canvas.write(text, at, left + across + (14 if mark else 0), _TEXT, ink)
        span, room = span_of(self.panel.moving), self.room(top, left)
        if span is None:
            return
        steps = max(len(curve.values) for curve in self.panel.moving)
        rows = [(value, _share(np.array([value]), span)[0]) for value in ticks(*span, _TICKS)]
        columns = ticks(0, steps - 1, max(2, room.width // _TICK_WIDTH), is_whole=True)
        downs = [round((1 - share) * (room.height - 1)) for _, share in rows]
        acrosses = [int((2 * step + 1) * room.width // (2 * steps)) for step in columns]
        canvas.paste(self._curves(room, span, downs, acrosses), room.top - _INSIDE, room.left - _INSIDE)
        for (value, _), down in zip(rows, downs):
            text = number(value, 3) if abs(value) < 1e6 else f"{value:.3g}"
            at = room.left - _INSIDE - 6 - _length(text, _SMALL)
            canvas.write(text, room.top + down - _SMALL // 2 - 2, at, _SMALL, _FAINT)
        for step, across in zip(columns, acrosses) if self.has_steps else ():
            text = f"{step:,.0f}"
            at = room.left + across - _length(text, _SMALL) // 2
            canvas.write(text, room.top + room.height + _INSIDE + 1, at, _SMALL, _FAINT)

    def _curves(self, room: Box, span: tuple[float, float], downs: Sequence[int], acrosses: Sequence[int]) -> Picture:
        """The plot with its grid: drawn larger, and made smaller, so that edges are smooth."""
        height, width = room.height + 2 * _INSIDE, room.width + 2 * _INSIDE
        image = Image.new("RGB", (width * _GRAIN, height * _GRAIN), PAPER)
        draw = ImageDraw.Draw(image)
        edges = [(0, down + _INSIDE, width, 1) for down in downs] + [(at + _INSIDE, 0, 1, height) for at in acrosses]
        for left, top, across, down in [*edges, (0, 0, 1, height), (0, height - 1, width, 1)]:
            corners = [length * _GRAIN for length in (left, top, left + across, top + down)]
            draw.rectangle((corners[0], corners[1], corners[2] - 1, corners[3] - 1), _EDGE)
        for curve, colour in reversed(list(zip(self.panel.moving, COLOURS))):
            has_dots = len(curve.values) * _DOTS <= room.width
            for points in _segments(curve, room.height - 1, room.width, span):
                places = [((x + _INSIDE) * _GRAIN, (y + _INSIDE + 0.5) * _GRAIN) for x, y in points]
                if len(places) > 1:
                    draw.line(places, colour, 7, "curve")
                for x, y in places if has_dots or len(set(places)) == 1 else ():
                    draw.ellipse((x - 9, y - 9, x + 9, y + 9), colour)
        return np.asarray(image.reduce(_GRAIN))


def _segments(curve: Curve, height: int, width: int, span: tuple[float, float]) -> Iterator[list[tuple[float, float]]]:
    """The points (x, y) of a curve in pixels from the top left, in runs without a gap; of many steps the extremes of each column of pixels."""
    steps = len(curve.values)
    if steps <= width:
        x, values = (np.arange(steps) + 0.5) * width / max(1, steps), curve.values
    else:
        low, high = curve.bins(width)
        pairs = np.stack((low, high), axis=1)
        pairs[1::2] = pairs[1::2, ::-1]  # from a column's end to the next one's nearer one
        x, values = np.repeat(np.arange(width) + 0.5, 2), pairs.ravel()
    y = (1 - _share(values, span)) * height
    is_there = np.isfinite(values)
    for run in np.split(np.arange(len(values)), np.flatnonzero(np.diff(is_there)) + 1):
        if len(run) and is_there[run[0]]:
            yield list(zip(x[run].tolist(), y[run].tolist()))


def _share(values: Array, span: tuple[float, float]) -> Array:
    """Where values are between the ends of a span, 0 to 1; without overflow."""
    half = span[1] / 2 - span[0] / 2
    share = (values / 2 - span[0] / 2) / half if half > 0 else np.full(len(values), 0.5)
    return np.clip(np.nan_to_num(share), 0, 1)


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
    def text(content: str, size: int = _TEXT, colour: Colour = _INK, indent: int = 0) -> _Part:
        lines = _lines(content, _SHEET_ROOM - indent, size, colour)
        return _height(lines), lambda canvas, top: canvas.write_lines(lines, top, _SHEET_MARGIN + indent)

    gap: _Part = 12, lambda canvas, top: None
    yield text(contents.title, _TITLE)
    yield text(contents.name, _SMALL, _FAINT)
    if contents.caption:
        yield gap
        yield text(contents.caption, _CAPTION)
    yield gap
    for name, value in contents.facts:
        yield text(f"{name}: {value}", _TEXT, _FAINT, _INDENT)
    for pictures in contents.images:
        yield gap
        yield text(f"{visible(pictures.path)}  {pictures.kind}")
        yield _strip(pictures, choose_steps(len(pictures), frames))
    for panel in contents.drawn:
        yield gap
        yield _panel(panel)
    if contents.constants:
        yield gap
        yield text(f"Constant: {contents.constants}", _TEXT, _FAINT)
    yield gap
    for path, texts in contents.other_texts.items():
        for line in texts:
            yield text(f"{visible(path)}: {line}")
    for path, value in (*contents.flags.items(), *contents.others.items()):
        yield text(f"{visible(path)}: {value}")
    for kind, count in contents.left_out.items():
        yield text(f"and {counted(count, f'more {kind}')}")
    for path, value in contents.metadata.items():
        yield text(f"metadata {path}: {value}", _TEXT, _FAINT)


def _panel(panel: Panel) -> _Part:
    plot = _Plot(panel, _SHEET_ROOM, _SHEET_PLOT, has_steps=True)
    return plot.height, lambda canvas, top: plot.draw(canvas, top, _SHEET_MARGIN)


def _strip(pictures: Pictures, steps: Sequence[int]) -> _Part:
    """Pictures beside one another, in as many rows as they need, each with the number of its step below."""
    across = max(_LEAST_SIDE, (_SHEET_ROOM + _GAP) // min(len(steps), _STRIP) - _GAP)
    wide = round(_LEAST_HEIGHT * pictures.size[1] / pictures.size[0])  # of a picture that is as high as can be seen
    height, width = size_within(pictures.size, (3 * _SHEET_ROOM // 4, min(max(across, wide), _SHEET_ROOM)))
    cell = max(width, *(_length(f"{step:,}", _SMALL) for step in steps)) + _GAP
    per_row = max(1, (_SHEET_ROOM + _GAP) // cell)
    row_height = height + _line_height(_SMALL) + _GAP

    def draw(canvas: _Canvas, top: int) -> None:
        for place, step in enumerate(steps):
            row, at = divmod(place, per_row)
            down, left = top + row * row_height, _SHEET_MARGIN + at * cell
            canvas.paste(fit_picture(pictures.picture(step), height, width), down, left)
            canvas.write(f"{step:,}", down + height + 1, left, _SMALL, _FAINT)

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
class PlacedPicture:
    """An image column, where its pictures are, and its name, which stands above them."""

    pictures: Pictures
    box: Box
    label: Sequence[TextLine] = ()


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
        return choose_steps(steps, self.frames or steps)

    @cached_property
    def seen(self) -> tuple[PlacedPicture, ...]:
        """The image columns, from left to right and then below."""
        top = _MARGIN + _height(self._head) + _GAP
        return tuple(replace(placed, box=replace(placed.box, top=placed.box.top + top)) for placed in self._placed)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width, both even, as video codecs want them."""
        width, height = self._still.size
        return height, width

    def pictures(self) -> Iterator[Picture]:
        return map(self.picture, self.steps)

    def picture(self, step: int) -> Picture:
        canvas = _Canvas(self._still.copy())
        text = at_index("step", step, self.contents.steps)
        canvas.write(text, _MARGIN + 3, self._width - _MARGIN - _length(text, _TEXT))
        for seen in self.seen:
            if step < len(seen.pictures):
                picture = fit_picture(seen.pictures.picture(step), seen.box.height, seen.box.width)
                canvas.paste(picture, seen.box.top, seen.box.left)
        for plot, top in self._plots:
            room = plot.room(top, _MARGIN)
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
        width, top = self._width, max([self._images_end, *(top + plot.height for plot, top in self._plots)])
        # The numbers that have no curve.
        more = len(self.contents.drawn) - len(self._plots) + self.contents.left_out.get("number column", 0)
        parts = [f"Constant: {self.contents.constants}"] if self.contents.constants else []
        parts += [f"and {counted(more, 'more number column')}; --columns chooses which are shown"] if more else []
        foot = [line for part in parts for line in _lines(part, self._width - 2 * _MARGIN, _SMALL, _FAINT)]
        top += _GAP
        height = top + _height(foot) + _MARGIN
        if max(height, width) > _LONGEST_SIDE:
            raise ConfigError(
                f"a film of {width:,} x {height:,} pixels is larger than {_LONGEST_SIDE:,}; choose fewer --columns, "
                "or make the images smaller: --transform resize=PATH:HEIGHTxWIDTH"
            )
        canvas = _Canvas.blank(height + height % 2, width)
        canvas.write_lines(self._head, _MARGIN, _MARGIN)
        for seen in self.seen:
            canvas.write_lines(seen.label, seen.box.top - _height(seen.label), seen.box.left)
        for plot, at in self._plots:
            plot.draw(canvas, at, _MARGIN)
        canvas.write_lines(foot, top, _MARGIN)
        return canvas.image

    @cached_property
    def _placed(self) -> tuple[PlacedPicture, ...]:
        """The image columns below a head of no height: side by side, in as many rows as they need."""
        placed: list[PlacedPicture] = []
        row: list[tuple[Pictures, Box, list[TextLine]]] = []
        top, left = 0, _MARGIN

        def end_row() -> None:
            nonlocal top, left
            above = max(_height(label) for _, _, label in row)
            placed.extend(PlacedPicture(picture, replace(box, top=top + above), label) for picture, box, label in row)
            top += above + max(box.height for _, box, _ in row) + _GAP
            left = _MARGIN
            row.clear()

        for pictures in self.contents.images:
            height, width = pictures.size
            times = max(1, -(-_LEAST_FILM_SIDE // max(height, width)))
            height, width = height * times, width * times
            if row and left + width + _MARGIN > _MOST_WIDTH:
                end_row()
            label = _lines(visible(pictures.path), max(width, _LEAST_SIDE), _SMALL, _FAINT)
            row.append((pictures, Box(0, left, height, width), label))
            left += max(width, _LEAST_SIDE) + _MARGIN
        if row:
            end_row()
        return tuple(placed)

    @cached_property
    def _width(self) -> int:
        width = max([_LEAST_WIDTH, *(placed.box.left + placed.box.width + _MARGIN for placed in self._placed)])
        return width + width % 2

    @cached_property
    def _head(self) -> list[TextLine]:
        """Lines that say which episode it is, and its instruction. The step is written beside the first line."""
        room = self._width - 2 * _MARGIN
        title = _lines(self.contents.title, room - _STEP_WIDTH, _CAPTION)
        caption = _lines(self.contents.caption, room, _TEXT) if self.contents.caption else []
        return [*title, *caption, *_lines(self.contents.name, room, _SMALL, _FAINT)]

    @property
    def _images_end(self) -> int:
        return max((seen.box.top + seen.box.height for seen in self.seen), default=_MARGIN + _height(self._head))

    @cached_property
    def _plots(self) -> list[tuple[_Plot, int]]:
        """The columns whose curves are drawn, reward and action first, and where each begins."""
        chosen = sorted(self.contents.drawn, key=lambda panel: panel.path.split("/")[0] not in (REWARD, ACTION))
        shown = chosen[:_PANELS]
        placed, top = [], self._images_end + _MARGIN
        for panel in shown:
            plot = _Plot(panel, self._width - 2 * _MARGIN, _FILM_PLOT, has_steps=panel is shown[-1])
            placed.append((plot, top))
            top += plot.height
        return placed
