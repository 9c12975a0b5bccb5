"""Image columns of any dtype -> RGB pictures of 8 bits, frame by frame, and pictures -> files that a page holds.

Only what is shown is decoded and converted.

| values | shown as |
| --- | --- |
| uint8 | as they are |
| uint16, in colour | the high byte |
| float in [0, 1] | 0 is black, 1 is white |
| uint16 or other numbers of one channel (depth), floats beyond [0, 1] | the lowest of the column is black, the highest white |
| bool | False is black, True is white |
| NaN and infinities | black |
| one channel | grey |
| four channels | RGBA, over white |
| encoded files (JPEG, PNG) | decoded first; needs the extra `images` |
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2reverb.episode import Array
from rlds2reverb.images import FILE, FIRST, JPEG_START, Size, decode_images, kind, kind_of, resize_images
from rlds2reverb.specs import ArraySpec, ImageSpec, column_spec

Picture = npt.NDArray[np.uint8]
"""[height, width, 3]"""

_ANY_IMAGE = ImageSpec((None, None, None), np.dtype(np.uint8))
_FRAMES_KEPT = 64
_QUALITY = 80
"""Of JPEG."""


@dataclass(frozen=True)
class Pictures:
    """A column of images.

    Attributes:
      column: [T, height, width], [T, height, width, channels], [T, channels, height, width], or [T] files.
      spec: of the files; None for arrays.
      is_channels_first: whether the channels stand before the height.
    """

    path: str
    column: Array
    spec: ImageSpec | None = None
    is_channels_first: bool = False

    def __len__(self) -> int:
        return len(self.column)

    @property
    def kind(self) -> str:
        """A row in words: "uint8[64, 64, 3]"."""
        return str(column_spec(self.column)) if self.spec is None else str(self.spec)

    def picture(self, step: int) -> Picture:
        """The picture of a step. Raises `DecodeError` if the file is damaged, or what decodes it is missing."""
        picture: Picture = self._made(step)
        return picture

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels, of the first picture. Raises as `picture`."""
        height, width = self.picture(0).shape[:2]
        return height, width

    @cached_property
    def span(self) -> tuple[float, float] | None:
        """Values that are black and white; None where pixels are shown as they are. Raises as `picture`."""
        first = self._pixels(0)
        dtype = first.dtype
        if dtype == np.uint8 or dtype.kind == "b" or (dtype == np.uint16 and first.shape[-1] > 1):
            return None
        low, high = np.inf, -np.inf
        for step in range(len(self)):
            values = self._pixels(step).astype(np.float64)
            finite = values[np.isfinite(values)]
            low, high = float(min(low, finite.min(initial=np.inf))), float(max(high, finite.max(initial=-np.inf)))
        if low > high:
            low, high = 0.0, 1.0
        return (0.0, 1.0) if dtype.kind not in "iu" and low >= 0 and high <= 1 else (low, high)

    @cached_property
    def _made(self) -> Any:
        return lru_cache(maxsize=_FRAMES_KEPT)(lambda step: _rgb(_to_bytes(self._pixels(step), self.span)))

    def _pixels(self, step: int) -> Array:
        """[height, width, channels] as recorded."""
        row: Array = self.column[step]
        if self.spec is not None:
            files = self.column[step : step + 1]
            return np.asarray(decode_images(files, self.spec, 1, self.path)[0])
        if self.is_channels_first:
            return np.moveaxis(row, 0, -1)
        return row if row.ndim == 3 else row[..., None]


def pictures_of(path: str, column: Array, leaf: ArraySpec | None = None) -> Pictures | None:
    """The column [T, ...] as images; None when it holds none. Text that begins as JPEG and PNG files do holds images, too; `leaf` is its spec, where the source has one."""
    if not len(column):
        return None
    if column.dtype.kind == "O":
        if column.ndim != 1:
            return None
        if leaf is not None and kind(leaf) == FILE:
            return Pictures(path, column, leaf.image)
        return Pictures(path, column, _ANY_IMAGE) if kind_of(column) == FILE else None
    image_kind = kind_of(column)
    return Pictures(path, column, is_channels_first=image_kind == FIRST) if image_kind else None


def fit_picture(picture: Picture, height: int, width: int) -> Picture:
    """The picture in another size: pixels are averaged where it shrinks, and repeated where it grows by a whole number."""
    before = picture.shape[:2]
    if before == (height, width):
        return picture
    if height % before[0] == 0 and width % before[1] == 0:
        return np.asarray(picture.repeat(height // before[0], axis=0).repeat(width // before[1], axis=1))
    return np.asarray(resize_images(picture[None], Size(height, width))[0], np.uint8)


def thumbnail_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Height and width of a picture whose longer side has `side` pixels at most.

    >>> thumbnail_size((480, 640), 320), thumbnail_size((24, 32), 320)
    ((240, 320), (24, 32))
    """
    share = min(1.0, side / max(size))
    return max(1, round(size[0] * share)), max(1, round(size[1] * share))


def choose_steps(steps: int, count: int) -> list[int]:
    """At most `count` of so many steps, evenly, the first and the last among them.

    >>> choose_steps(10, 4), choose_steps(3, 4), choose_steps(5, 1)
    ([0, 3, 6, 9], [0, 1, 2], [0])
    """
    if steps <= count:
        return list(range(steps))
    if count == 1:
        return [0]
    return [round(number * (steps - 1) / (count - 1)) for number in range(count)]


def png_file(picture: Picture) -> bytes:
    """The picture as a PNG file; without the extra `images` a larger one. Source: PNG specification 5.3 (chunks), 11.2 (IHDR), 9.2 (filter 0)."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        height, width, _ = picture.shape
        # Each row of a PNG begins with its filter: 0, none.
        rows = np.concatenate((np.zeros((height, 1), np.uint8), picture.reshape(height, -1)), axis=1)
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def small_file(picture: Picture) -> bytes:
    """The picture as a PNG or a JPEG file, whichever is smaller; without the extra `images` as PNG."""
    lossless = png_file(picture)
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return lossless
    file = BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=_QUALITY, subsampling=0)
    return min(lossless, file.getvalue(), key=len)


def data_uri(file: bytes) -> str:
    """A PNG or JPEG file as the address of an image that holds itself."""
    kind_of_file = "jpeg" if file.startswith(JPEG_START) else "png"
    return f"data:image/{kind_of_file};base64,{base64.b64encode(file).decode('ascii')}"


def _to_bytes(pixels: Array, span: tuple[float, float] | None) -> Array:
    if span is None:
        if pixels.dtype.kind == "b":
            return np.where(pixels, np.uint8(255), np.uint8(0))
        return pixels if pixels.dtype == np.uint8 else np.asarray(pixels >> 8, np.uint8)
    low, high = span
    half = high / 2 - low / 2  # without overflow
    values = pixels.astype(np.float64)
    share = (values / 2 - low / 2) / (half or 1.0)
    there = np.where(np.isfinite(values), share, 0)
    return np.asarray(np.rint(np.clip(there, 0, 1) * 255), np.uint8)


def _rgb(pixels: Array) -> Picture:
    """[height, width, 1, 3 or 4] of uint8 -> RGB."""
    if pixels.shape[-1] == 4:
        opaque = pixels[..., 3:].astype(np.uint16)
        over_white = pixels[..., :3] * opaque + 255 * (255 - opaque)
        return ((over_white + 127) // 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels[..., :3], (*pixels.shape[:2], 3)))
