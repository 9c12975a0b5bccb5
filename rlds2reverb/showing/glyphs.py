"""Curves as lines of text: braille dots where the terminal has UTF-8, else ASCII.

A braille character has 2 × 4 dots, so `width` characters are 2 × `width` bins of steps; an ASCII character is one bin, and shows
its third of a line's height by "_", "-" or a quotation mark, and more than one of them by "|".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.showing.curves import Curve, levels

_BRAILLE = 0x2800
_EMPTY = f" {chr(_BRAILLE)}"
_DOTS = np.array([[0x40, 0x80], [0x04, 0x20], [0x02, 0x10], [0x01, 0x08]])
"""[4 dots from the bottom, 2 columns]: a dot's bit. Source: Unicode Standard, block Braille Patterns."""
_ASCII = {(1, 0, 0): "_", (0, 1, 0): "-", (0, 0, 1): '"', (0, 0, 0): " "}


def curve_lines(curve: Curve, width: int, height: int, span: tuple[float, float], is_ascii: bool) -> list[str]:
    """The curve in `height` lines of `width` characters, the upper one first; without what is empty at their ends."""
    if is_ascii:
        dots = _dots(curve, width, 3 * height, span).reshape(height, 3, width)
        lines = ["".join(_ASCII.get(tuple(one), "|") for one in row.T.astype(int).tolist()) for row in dots]
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
