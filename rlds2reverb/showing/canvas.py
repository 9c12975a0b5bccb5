"""A picture that is drawn on: text, other pictures, curves. What lies outside of it is cut off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb.showing.curves import Curve, levels
from rlds2reverb.showing.font import HEIGHT, WIDTH, letters
from rlds2reverb.showing.pictures import Picture

Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
INK: Colour = (32, 33, 36)
FAINT: Colour = (95, 99, 104)
LINE: Colour = (218, 220, 224)
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

LETTER_HEIGHT, LETTER_WIDTH = HEIGHT, WIDTH


@dataclass(frozen=True)
class Box:
    """A place on a canvas, in pixels."""

    top: int
    left: int
    height: int
    width: int


def blank(height: int, width: int) -> Picture:
    """An empty canvas."""
    return np.full((height, width, 3), PAPER, np.uint8)


def paste(canvas: Picture, picture: Picture, top: int, left: int) -> None:
    """Puts a picture on it."""
    room = canvas[top : top + picture.shape[0], left : left + picture.shape[1]]
    room[...] = picture[: room.shape[0], : room.shape[1]]


def write(canvas: Picture, text: str, top: int, left: int, colour: Colour = INK) -> None:
    """Writes a text, cut off at the right edge."""
    ink = letters(text[: max(0, (canvas.shape[1] - left) // WIDTH)])
    room = canvas[top : top + ink.shape[0], left : left + ink.shape[1]]
    room[ink[: room.shape[0]]] = colour


def fill(canvas: Picture, box: Box, colour: Colour) -> None:
    """Fills a box."""
    canvas[box.top : box.top + box.height, box.left : box.left + box.width] = colour


def frame(canvas: Picture, box: Box, colour: Colour = LINE) -> None:
    """Draws the edge of a box."""
    fill(canvas, box, colour)
    fill(canvas, Box(box.top + 1, box.left + 1, box.height - 2, box.width - 2), PAPER)


def plot(canvas: Picture, curve: Curve, box: Box, span: tuple[float, float], colour: Colour) -> None:
    """Draws a curve, two pixels thick, over the whole width of a box; `span` are the values at its bottom and its top."""
    bottom, top = levels(curve, box.width, box.height - 1, span)
    rows = np.arange(box.height)[:, None]
    ink = (rows >= bottom) & (rows <= top + 1) & (bottom >= 0)  # [height, width], row 0 at the bottom
    room = canvas[box.top : box.top + box.height, box.left : box.left + box.width]
    room[ink[::-1]] = colour


def step_columns(step: int, steps: int, width: int) -> tuple[int, int]:
    """The pixels of a plot of that width, from and to (left out), that belong to a step."""
    start = step * width // steps
    return start, max(start + 1, (step + 1) * width // steps)
