"""An episode as lines of text for a terminal of any width: curves of braille dots, pictures of half blocks in colour.

Where stdout is no terminal, lines are as long as they are, and plain; where it cannot take UTF-8, all is ASCII. A braille character has 2 x 4 dots, so
`width` characters are 2 x `width` bins of steps; an ASCII character is one bin, and shows its third of a line's height by "_", "-" or a quotation mark,
and more than one of them by "|".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TextIO

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from rlds2reverb.episode import Array
from rlds2reverb.errors import DecodeError
from rlds2reverb.look.contents import Contents, Panel
from rlds2reverb.look.curves import Curve, levels, range_text
from rlds2reverb.look.pictures import Picture, Pictures, choose_steps, fit_picture
from rlds2reverb.text import counted, visible

_UPPER_HALF = "\u2580"


def picture_lines(pictures: Sequence[Picture], is_ascii: bool) -> Iterator[Text]:
    """Pictures of one size beside one another, two rows of pixels in a line; in ASCII blanks before a colour, one row in a line."""
    rows = 1 if is_ascii else 2
    for top in range(0, pictures[0].shape[0], rows):
        line = Text(" ")
        for picture in pictures:
            line.append(" ")
            upper, lower = picture[top].tolist(), picture[top + rows - 1].tolist()
            for above, below in zip(upper, lower):
                line.append(" " if is_ascii else _UPPER_HALF, _style(tuple(above), tuple(below)))
        yield line


@lru_cache(maxsize=4096)
def _style(above: tuple[int, int, int], below: tuple[int, int, int]) -> Style:
    return Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))


_BRAILLE = 0x2800
_EMPTY = f" {chr(_BRAILLE)}"
_DOTS = np.array([[0x40, 0x80], [0x04, 0x20], [0x02, 0x10], [0x01, 0x08]])
"""[4 dots from the bottom, 2 columns]: a dot's bit. Source: Unicode Standard, block Braille Patterns."""
_ASCII = {(1, 0, 0): "_", (0, 1, 0): "-", (0, 0, 1): '"', (0, 0, 0): " "}


def curve_lines(curve: Curve, width: int, height: int, span: tuple[float, float], is_ascii: bool) -> list[str]:
    """The curve in `height` lines of `width` characters, the upper one first, without trailing blanks."""
    if is_ascii:
        dots = _dots(curve, width, 3 * height, span).reshape(height, 3, width)
        lines = ["".join(_ASCII.get(tuple(pixel), "|") for pixel in row.T.astype(int).tolist()) for row in dots]
    else:
        dots = _dots(curve, 2 * width, 4 * height, span).reshape(height, 4, width, 2)
        codes: Any = np.einsum("hdwc,dc->hw", dots.astype(np.int64), _DOTS)
        lines = ["".join(chr(_BRAILLE + code) for code in row) for row in codes.tolist()]
    return [line.rstrip(_EMPTY) for line in lines[::-1]]


def _dots(curve: Curve, count: int, height: int, span: tuple[float, float]) -> Array:
    """[height, count] of bool, row 0 at the bottom."""
    bottom, top = levels(curve, count, height, span)
    rows = np.arange(height)[:, None]
    return (rows >= bottom) & (rows <= top) & (bottom >= 0)


_CURVES = 4
"""Of one column; more are counted."""
_CURVE_LINES = 2
_LEAST_WIDTH, _MOST_WIDTH, _MOST_LABEL = 20, 500, 30
_WIDEST_PICTURE, _HIGHEST_PICTURE = 24, 12
"""Characters, and lines."""


@dataclass(frozen=True)
class Terminal:
    """The output of `show`: rich's console on stdout, its width in characters, whether it takes ASCII only, and whether pictures can be drawn in colour."""

    console: Console
    width: int
    is_ascii: bool
    has_colour: bool

    @staticmethod
    def of(stream: TextIO) -> Terminal:
        """The terminal behind a stream, by the environment (TERM, COLUMNS, NO_COLOR, FORCE_COLOR)."""
        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        is_ascii = not console.encoding.lower().replace("-", "").startswith("utf")
        has_colour = console.color_system is not None and not console.no_color
        return Terminal(console, max(_LEAST_WIDTH, min(console.width, _MOST_WIDTH)), is_ascii, has_colour)

    def fit(self, text: str) -> str:
        """The text with escapes in place of what the stream cannot take."""
        return text.encode("ascii", "backslashreplace").decode("ascii") if self.is_ascii else text


def show(contents: Contents, stream: TextIO, frames: int | None = None) -> None:
    """Prints an episode with at most `frames` pictures of each image column, by default as many as fit beside one another."""
    terminal = Terminal.of(stream)
    for line in _lines(contents, terminal, frames):
        terminal.console.print(line, soft_wrap=True)


def _lines(contents: Contents, terminal: Terminal, frames: int | None) -> Iterator[Text]:
    yield from _wrap(terminal, Text(terminal.fit(contents.title), "bold"))
    yield from _wrap(terminal, Text(terminal.fit(contents.name), "dim"))
    if contents.caption:
        yield from _wrap(terminal, Text(terminal.fit(contents.caption), "italic"))
    yield from _fields(terminal, contents.facts)
    yield from _section(terminal, "metadata", tuple(contents.metadata.items()))
    for pictures in contents.images:
        yield Text("")
        yield from _strip(pictures, terminal, frames)
    yield from _curves(contents, terminal)
    for path, lines in contents.other_texts.items():
        yield from _section(terminal, visible(path), tuple(("", line) for line in lines))
    yield from _section(terminal, "flags", tuple(contents.flags.items()))
    yield from _section(terminal, "not drawn", tuple(contents.others.items()))
    for kind, count in contents.left_out.items():
        yield Text(f"and {counted(count, f'more {kind}')}; --columns chooses which are shown")


def _section(terminal: Terminal, title: str, fields: tuple[tuple[str, str], ...]) -> Iterator[Text]:
    if fields:
        yield Text("")
        yield from _wrap(terminal, Text(terminal.fit(title), "bold"))
        yield from _fields(terminal, fields)


def _fields(terminal: Terminal, fields: tuple[tuple[str, str], ...]) -> Iterator[Text]:
    """Aligned names and values; a value that is too long continues below itself."""
    cleaned = [(terminal.fit(visible(name)), terminal.fit(value)) for name, value in fields]
    most = min(_MOST_LABEL, terminal.width // 3)
    width = min(most, max(cell_len(name) for name, _ in cleaned))
    gap = 2 if width else 0
    for name, value in cleaned:
        label = Text("  ").append(_cut(name, width)).append(" " * gap)
        for line in _wrap(terminal, Text(value), used=2 + width + gap):
            yield label + line
            label = Text(" " * (2 + width + gap))


def _wrap(terminal: Terminal, text: Text, used: int = 0) -> Iterator[Text]:
    """The text in lines that fit a terminal; as it is where there is none."""
    if not terminal.console.is_terminal:
        yield text
        return
    yield from text.wrap(terminal.console, max(1, terminal.width - used), overflow="fold") or [text]


def _cut(text: str, width: int) -> str:
    """The text in exactly `width` cells; of a longer one the end, for paths differ there."""
    if cell_len(text) > width:
        while cell_len(text) > max(0, width - 3):
            text = text[1:]
        text = f"...{text}"[:width] if width < 3 else f"...{text}"
    return text + " " * (width - cell_len(text))


def _curves(contents: Contents, terminal: Terminal) -> Iterator[Text]:
    if contents.constants:
        yield Text("")
        label = Text("constant", "bold").append("  ", "not bold")
        for line in _wrap(terminal, Text(terminal.fit(contents.constants)), used=label.cell_len):
            yield label + line
            label = Text(" " * label.cell_len)
    if not contents.drawn or not contents.steps:
        return
    yield Text("")
    yield Text(f"curves, step 0 to {contents.steps - 1:,}", "bold")
    for panel in contents.drawn:
        for curve in panel.moving[:_CURVES]:
            yield from _curve(panel, curve, terminal)
        more = panel.dimensions - len(panel.curves) + len(panel.moving[_CURVES:])
        if more > 0:
            name = terminal.fit(visible(panel.path))
            yield from _wrap(terminal, Text(f"  {name}: {more:,} more of {panel.kind}"))


def _curve(panel: Panel, curve: Curve, terminal: Terminal) -> Iterator[Text]:
    label = min(_MOST_LABEL, terminal.width // 3)
    width = terminal.width - label - 3
    span = curve.span
    names = [terminal.fit(visible(panel.path)) + curve.label, range_text([curve])]
    if span is None:
        yield Text("  ").append(_cut(names[0], label)).append(f" {names[1]}")
        return
    drawn = curve_lines(curve, width, _CURVE_LINES, span, terminal.is_ascii)
    for name, line in zip(names, drawn):
        yield Text("  ").append(_cut(name, label)).append(" ").append(line, "cyan")


def _strip(pictures: Pictures, terminal: Terminal, frames: int | None) -> Iterator[Text]:
    """A heading, and the pictures beside one another with their steps below, where there is colour."""
    title = Text("").append(terminal.fit(visible(pictures.path)), "bold").append(f"  {pictures.kind}")
    steps: list[int] = []
    drawn: list[Picture] = []
    try:
        height, width = pictures.size
        title.append(f", {counted(len(pictures), 'picture')} of {width:,} x {height:,} pixels{stretch_text(pictures)}")
        if terminal.has_colour:
            across, down = _characters(terminal.width, height, width)
            steps = choose_steps(
                len(pictures), min(frames or len(pictures), max(1, (terminal.width - 1) // (across + 1)))
            )
            tall = down if terminal.is_ascii else 2 * down
            drawn = [fit_picture(pictures.picture(step), tall, across) for step in steps]
        else:
            title.append("; not drawn, for there is no colour here: --save writes them to a file")
    except DecodeError as error:
        title.append(f"; not drawn: {terminal.fit(visible(str(error)))}")
    yield from _wrap(terminal, title)
    if drawn:
        yield from picture_lines(drawn, terminal.is_ascii)
        yield Text("".join(f"  {_cut(f'{step:,}', drawn[0].shape[1] - 1)}" for step in steps).rstrip())


def stretch_text(pictures: Pictures) -> str:
    """The values of black and white, where pixels are not shown as they are."""
    if pictures.span in (None, (0.0, 1.0)):
        return ""
    low, high = pictures.span or (0.0, 1.0)
    return f", black {low:.4g}, white {high:.4g}"


def _characters(terminal_width: int, height: int, width: int) -> tuple[int, int]:
    """Columns and lines of a picture; a character is about twice as high as it is wide."""
    across: Any = min(_WIDEST_PICTURE, max(8, (terminal_width - 2) // 4 - 1))
    down = across * height / width / 2
    if down > _HIGHEST_PICTURE:
        across, down = max(2, round(across * _HIGHEST_PICTURE / down)), _HIGHEST_PICTURE
    return across, max(1, round(down))
