"""What an encoded image decodes to, and how a spec's name says so.

A column of encoded images is a column of text: the bytes of JPEG or PNG files. What tells it from text is the name of its
spec, which every signature carries: through Reverb's protocol, a checkpoint, a server's config, and TensorFlow. It uses
characters that TensorFlow takes in a name; `_` stands for a size that is free.

>>> import numpy as np
>>> spec = ImageSpec((480, None, 3), np.dtype(np.uint8), "jpeg")
>>> spec.name, str(spec)
('encoded_image.jpeg.uint8.480x_x3', 'jpeg of uint8[480, ?, 3]')
>>> ImageSpec.of_name(spec.name) == spec, ImageSpec.of_name("image")
(True, None)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

JPEG, PNG = "jpeg", "png"
FORMATS = (JPEG, PNG)

IMAGE_DTYPES = tuple(np.dtype(kind) for kind in (np.uint8, np.uint16, np.float32))
"""Dtypes of images in TFDS; float32 is one channel whose four bytes are a PNG's RGBA."""

_ANY = "any"
_FREE = "_"
_NAME = re.compile(
    r"encoded_image\.(jpeg|png|any)\.(uint8|uint16|float32)\.(\d{1,9}|_)x(\d{1,9}|_)x(\d{1,9}|_)", re.ASCII
)


@dataclass(frozen=True)
class ImageSpec:
    """What an encoded image decodes to.

    Attributes:
      shape: height, width and channels; None where it is free.
      dtype: one of `IMAGE_DTYPES`.
      format: one of `FORMATS`, or "" where files may be of either.
      is_accurate: whether the system that a dataset's format belongs to decodes JPEG by libjpeg's accurate DCT, as Pillow does, and not by
        the fast one, as TensorFlow does; values differ by a few of 255 levels. No part of the name, nor of what is equal.

    Raises:
      ValueError: not three sizes, or another dtype or format.
    """

    shape: tuple[int | None, int | None, int | None]
    dtype: np.dtype[Any]
    format: str = ""
    is_accurate: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or any(size is not None and size < 0 for size in self.shape):
            raise ValueError(f"image of shape {self.shape}: expected height, width and channels")
        if self.dtype not in IMAGE_DTYPES:
            raise ValueError(f"image of {self.dtype}: expected one of {', '.join(map(str, IMAGE_DTYPES))}")
        if self.format not in ("", *FORMATS):
            raise ValueError(f'image format "{self.format}": expected one of {", ".join(FORMATS)}, or none')

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.format or 'jpeg or png'} of {self.dtype.name}[{sizes}]"

    @property
    def name(self) -> str:
        """The name of the spec of a column of such images."""
        sizes = "x".join(_FREE if size is None else str(size) for size in self.shape)
        return f"encoded_image.{self.format or _ANY}.{self.dtype.name}.{sizes}"

    @staticmethod
    def of_name(name: str) -> ImageSpec | None:
        """The image spec that a spec's name tells; None for any other name."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        height, width, channels = (None if size == _FREE else int(size) for size in match.groups()[2:])
        return ImageSpec((height, width, channels), np.dtype(match[2]), "" if match[1] == _ANY else match[1])

    @property
    def nbytes(self) -> int | None:
        """Bytes of an image once it is decoded; None where a size is free."""
        sizes = [size for size in self.shape if size is not None]
        return math.prod(sizes) * self.dtype.itemsize if len(sizes) == len(self.shape) else None

    def fits(self, wanted: ImageSpec) -> bool:
        """Whether such images are of the wanted kind: where that leaves a size or the format free, any is."""
        sizes = all(size is None or one == size for one, size in zip(self.shape, wanted.shape))
        return sizes and self.dtype == wanted.dtype and wanted.format in ("", self.format)
