"""Image columns -> film strips: a few small pictures as data URIs, within a bound of bytes.

| column | picture |
| --- | --- |
| uint8 [T, height, width], or with 1, 3 or 4 channels behind, or more axes before | every nth pixel, as PNG; of the further axes the first |
| text that is JPEG or PNG files | the file itself when it is small, or else decoded and as above |

Both need the extra `images`, but for files that are small. What is no picture, or too much of it, keeps its shape and dtype.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from rlds2reverb.destinations.png import png_files
from rlds2reverb.episodes import Array
from rlds2reverb.errors import DecodeError, Rlds2ReverbError
from rlds2reverb.extras import how_to_install
from rlds2reverb.image_headers import JPEG_START, image_size
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.images import decode_images
from rlds2reverb.notebook.markup import Html, guarded, joined, line, quiet, text

MOST_PICTURES = 300_000
"""Characters of all pictures of a card."""
MOST_STRIPS = 4
FRAMES = 8
PIXELS = 72
"""Of the longer side."""

_LEAST_PIXELS = 8
_SMALL_FILE = 8_000
"""Bytes of a file that is shown as it is."""
_SMALL_SIDE = 1_024
"""Of its picture: a small file may claim a large one, which a browser would make."""
_MOST_SIDE = 4_096
"""A file of more pixels a side is not decoded."""
_CHANNELS = (1, 3, 4)
_PICTURE = f"height:{PIXELS}px;max-width:{2 * PIXELS}px;image-rendering:pixelated;margin:1px;vertical-align:top"


@dataclass(frozen=True)
class Frame:
    """One picture: its row, and the file.

    Attributes:
      row: of the column.
      file: PNG or JPEG.
    """

    row: int
    file: bytes

    def as_html(self, noun: str) -> Html:
        """The picture; its row is told where pictures are not shown, and under the pointer."""
        kind = "jpeg" if self.file.startswith(JPEG_START) else "png"
        data = base64.b64encode(self.file).decode("ascii")
        told = f"{noun} {self.row:,}"
        return Html(f'<img src="data:image/{kind};base64,{data}" alt="{told}" title="{told}" style="{_PICTURE}">')


def strips(columns: Mapping[str, Array], noun: str) -> Html:
    """Film strips of the first few image columns; "" where there are none.

    Args:
      columns: path -> [T, ...].
      noun: what a row is: "step".
    """
    found = [path for path, column in columns.items() if is_images(column)]
    left, made = MOST_PICTURES, []
    for path in found[:MOST_STRIPS]:
        strip = guarded(partial(_strip, path, columns[path], noun))
        if len(strip) > left:
            strip = line(joined([text(path), quiet("its pictures are too large for a notebook")]))
        left -= len(strip)
        made.append(strip)
    if len(found) > MOST_STRIPS:
        made.append(line(quiet(f"and {len(found) - MOST_STRIPS:,} more image columns")))
    return Html("".join(made))


def is_images(column: Array) -> bool:
    """Whether a column looks like pictures, or like the files of some."""
    if not column.size:
        return False
    if column.dtype.kind == "O":
        first = column.flat[0]
        return isinstance(first, bytes) and image_size(first) is not None
    return column.dtype == np.uint8 and column.ndim >= 3 and min(_sides(column.shape)) >= _LEAST_PIXELS


def _sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width of [..., height, width, channels], or of [T, height, width]."""
    return shape[-3:-1] if len(shape) >= 4 and shape[-1] in _CHANNELS else shape[-2:]


def _strip(path: str, column: Array, noun: str) -> Html:
    try:
        frames = list(_frames(column))
    except ModuleNotFoundError:
        return line(
            joined([text(path), quiet(f"its pictures are shown with the extra images: {how_to_install('images')}")])
        )
    except Rlds2ReverbError as error:
        return line(joined([text(path), quiet(f"its pictures cannot be shown: {error}")]))
    of = f"{len(frames)} of {len(column):,} {noun}s" if len(frames) < len(column) else ""
    return joined(
        [line(joined([text(path), quiet(of)] if of else [text(path)])), *(one.as_html(noun) for one in frames)], ""
    )


def _frames(column: Array) -> Iterator[Frame]:
    """A few rows, spread evenly over all; those of text that hold no file are passed over.

    Raises:
      DecodeError: a file cannot be decoded, or is too large.
      ModuleNotFoundError: what encodes is not installed.
    """
    count = len(column)
    for row in dict.fromkeys(np.linspace(0, count - 1, min(FRAMES, count)).astype(int).tolist()):
        value = column[row]
        if column.dtype.kind != "O":
            yield Frame(row, _of_pixels(value))
            continue
        file = np.asarray(value, object).flat[0]  # of several cameras the first
        if isinstance(file, bytes) and (size := image_size(file)) is not None:
            yield Frame(row, _of_file(file, size))


def _of_file(file: bytes, size: tuple[int, int]) -> bytes:
    """A file that is small enough; itself, or decoded and made smaller."""
    if len(file) <= _SMALL_FILE and max(size) <= _SMALL_SIDE:
        return file
    if max(size) > _MOST_SIDE:
        raise DecodeError(f"one of {size[0]:,} x {size[1]:,} pixels; at most {_MOST_SIDE:,} a side are decoded here")
    return _of_pixels(decode_images([file], ImageSpec((None, None, 3), np.dtype(np.uint8)), threads=1)[0])


def _of_pixels(pixels: Array) -> bytes:
    """A PNG file of every nth pixel of [..., height, width] or [..., height, width, channels]."""
    axes = 3 if pixels.ndim >= 3 and pixels.shape[-1] in _CHANNELS else 2
    while pixels.ndim > axes:
        pixels = pixels[0]
    step = math.ceil(max(pixels.shape[:2]) / PIXELS)
    small = pixels[::step, ::step]
    return png_files((small if axes == 3 else small[..., None])[None])[0]
