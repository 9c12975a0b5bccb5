"""Pictures as coloured characters: the upper half of a character is one pixel, the lower half another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from rich.color import Color
from rich.style import Style
from rich.text import Text

from rlds2reverb.look.pictures import Picture

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
