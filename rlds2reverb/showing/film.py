"""An episode as a film: the images of a step side by side, the curves below them, and a line at the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlds2reverb.episodes import ACTION, REWARD
from rlds2reverb.errors import ConfigError
from rlds2reverb.showing.canvas import (
    CURSOR,
    FAINT,
    INK,
    LETTER_HEIGHT,
    LETTER_WIDTH,
    Box,
    blank,
    fill,
    paste,
    step_columns,
    write,
)
from rlds2reverb.showing.contents import Contents, Panel
from rlds2reverb.showing.panels import draw_panel, panel_height, plot_box
from rlds2reverb.showing.pictures import Picture, Pictures, chosen_steps, fitted
from rlds2reverb.wording import visible

MARGIN = 8
_LINE = LETTER_HEIGHT + 5
_LEAST_WIDTH, _MOST_WIDTH = 480, 1280
_LONGEST_SIDE = 8192
"""Of a film; H.264 has few levels beyond, and players fewer."""
_LEAST_SIDE = 160
"""Images whose longer side is shorter are enlarged by a whole number."""
_PANELS, _PLOT = 6, 40
_STEP_LETTERS = 24


@dataclass(frozen=True)
class Seen:
    """An image column, and where its pictures are.

    Attributes:
      pictures: the column.
      box: where.
    """

    pictures: Pictures
    box: Box


@dataclass(frozen=True)
class Film:
    """The pictures of a film, made when they are asked for.

    Attributes:
      contents: what is in the episode.
      frames: how many pictures at most; None for one per step.

    Raises:
      ConfigError: from any method, when there is neither an image nor a curve, or no step; or the pictures would be too large.
      DecodeError: likewise, when an image is damaged, or what decodes it is missing.
    """

    contents: Contents
    frames: int | None = None

    @property
    def steps(self) -> list[int]:
        """Which step each picture shows."""
        steps = self.contents.steps
        return chosen_steps(steps, self.frames or steps)

    @cached_property
    def seen(self) -> tuple[Seen, ...]:
        """The image columns, from left to right and then below."""
        return tuple(_placed(self.contents.images))

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width, both even, as video codecs want them."""
        height, width = self._still.shape[:2]
        return height, width

    def pictures(self) -> Iterator[Picture]:
        """The pictures, one after the other: [height, width, 3]."""
        return map(self.picture, self.steps)

    def picture(self, step: int) -> Picture:
        """That of a step."""
        canvas = self._still.copy()
        write(canvas, f"step {step:,} of {self.contents.steps:,}", MARGIN, MARGIN, INK)
        for one in self.seen:
            if step < len(one.pictures):
                paste(
                    canvas, fitted(one.pictures.picture(step), one.box.height, one.box.width), one.box.top, one.box.left
                )
        for _, place in self._panels:
            room = plot_box(place)
            start, stop = step_columns(step, self.contents.steps, room.width)
            middle = (start + stop) // 2
            fill(canvas, Box(room.top, room.left + min(middle, room.width - 1), room.height, 1), CURSOR)
        return canvas

    @cached_property
    def _still(self) -> Picture:
        """What does not move."""
        if not self.contents.steps or not (self.contents.images or self.contents.panels):
            raise ConfigError(
                "a film needs steps with images or numbers, and this episode has none; show it without --save"
            )
        below = [place.top + place.height for _, place in self._panels]
        height = max([self._images_end, *below]) + MARGIN
        if max(height, self._width) > _LONGEST_SIDE:
            raise ConfigError(
                f"a film of {self._width:,} x {height:,} pixels is larger than {_LONGEST_SIDE:,}; choose fewer --columns, "
                "or make the images smaller: --transform resize=PATH:HEIGHTxWIDTH"
            )
        canvas = blank(height + height % 2, self._width)
        at = MARGIN + LETTER_WIDTH * _STEP_LETTERS
        write(canvas, self.contents.title, MARGIN, at, FAINT)
        for one in self.seen:
            letters = one.box.width // LETTER_WIDTH
            write(canvas, visible(one.pictures.path)[-letters:], one.box.top - _LINE + 2, one.box.left, FAINT)
        for panel, place in self._panels:
            draw_panel(canvas, panel, place)
        return canvas

    @property
    def _width(self) -> int:
        widest = max((one.box.left + one.box.width for one in self.seen), default=0) + MARGIN
        width = max(_LEAST_WIDTH, widest)
        return width + width % 2

    @property
    def _images_end(self) -> int:
        return max((one.box.top + one.box.height for one in self.seen), default=MARGIN + _LINE)

    @cached_property
    def _panels(self) -> list[tuple[Panel, Box]]:
        """The first panels, reward and action before all others."""
        chosen = sorted(self.contents.panels, key=lambda panel: panel.path.split("/")[0] not in (REWARD, ACTION))
        height, top = panel_height(_PLOT), self._images_end + _LINE
        return [
            (panel, Box(top + number * height, MARGIN, height, self._width - 2 * MARGIN))
            for number, panel in enumerate(chosen[:_PANELS])
        ]


def _placed(images: Sequence[Pictures]) -> Iterator[Seen]:
    """Side by side; a new row begins where there is no room."""
    top, left, lowest = MARGIN + 2 * _LINE, MARGIN, 0
    for pictures in images:
        height, width = _shown_size(*pictures.size)
        if left > MARGIN and left + width + MARGIN > _MOST_WIDTH:
            top, left = lowest + 2 * _LINE, MARGIN
        yield Seen(pictures, Box(top, left, height, width))
        left, lowest = left + width + MARGIN, max(lowest, top + height)


def _shown_size(height: int, width: int) -> tuple[int, int]:
    times = max(1, -(-_LEAST_SIDE // max(height, width)))
    return height * times, width * times
