"""Pixels to JPEG and PNG files: how a column is to be encoded (`Encoding`), and the files (`encode_images`, `encode_again`, `png_files`).

JPEG files are libjpeg's, with the accurate DCT: the bytes of Pillow's `save(quality=..., subsampling=...)`, where both have one version of libjpeg.
PNG files lose nothing. Needs the extra `images`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.extras import needing
from rlds2reverb.images import AS_STORED, Size, decode_files, orientation_of, resize_images
from rlds2reverb.specs import FORMATS, JPEG, PNG, ArraySpec, ImageSpec
from rlds2reverb.text import did_you_mean

QUALITY = 95
SUBSAMPLINGS = ("420", "422", "444")
"""How many colours JPEG keeps: of 2x2 pixels one (Pillow's and OpenCV's choice), of 2x1 pixels one, or all of them."""

_EXPECTED = "expected png, jpeg, jpeg:quality=1..100 or jpeg:quality=1..100:subsampling=" + "|".join(SUBSAMPLINGS)
_CHANNELS = {JPEG: (1, 3), PNG: (1, 3, 4)}
_DTYPES = {JPEG: ("uint8",), PNG: ("uint8", "uint16")}
_THREADS = min(16, os.cpu_count() or 1)
_PARTS_PER_THREAD = 4
_WORTH_A_THREAD = 1 << 16
"""Bytes of all images below which threads cost more than they save."""
_TOGETHER = 16
"""Images that are decoded at a time, so that an episode of large images need not fit into memory."""


@dataclass(frozen=True)
class Encoding:
    """What files are made of images.

    >>> str(Encoding.of("jpeg")), Encoding.of("jpeg:quality=80").quality, str(Encoding.of("png"))
    ('jpeg:quality=95', 80, 'png')

    Attributes:
      format: "jpeg" or "png".
      quality: of JPEG, 1 to 100.
      subsampling: of JPEG's colours, one of `SUBSAMPLINGS`.
    """

    format: str
    quality: int = QUALITY
    subsampling: str = SUBSAMPLINGS[0]

    def __str__(self) -> str:
        if self.format == PNG:
            return PNG
        colours = "" if self.subsampling == SUBSAMPLINGS[0] else f":subsampling={self.subsampling}"
        return f"{JPEG}:quality={self.quality}{colours}"

    @staticmethod
    def of(text: object) -> Encoding:
        """Parses "jpeg", "jpeg:quality=95", "jpeg:quality=95:subsampling=444" or "png"; raises ConfigError for anything else."""
        image_format, *parts = text.replace(" ", "").split(":") if isinstance(text, str) else [""]
        if image_format not in FORMATS or (parts and image_format == PNG):
            raise ConfigError(f"{text!r}: {_EXPECTED}{did_you_mean(image_format, FORMATS)}")
        values: dict[str, Any] = {}
        for part in parts:
            name, _, value = part.partition("=")
            is_quality = name == "quality" and value.isascii() and value.isdigit() and 1 <= int(value) <= 100
            if name in values or not (is_quality or (name == "subsampling" and value in SUBSAMPLINGS)):
                raise ConfigError(f'{text!r}: {_EXPECTED}; got "{part}"')
            values[name] = int(value) if is_quality else value
        return Encoding(image_format, **values)

    def problem(self, spec: ArraySpec) -> str | None:
        """Why rows of a spec cannot be encoded so; None when they can."""
        if spec.image is not None:
            return "it holds image files already; with a size (resize), they are decoded and encoded again"
        dtypes, channels = _DTYPES[self.format], _CHANNELS[self.format]
        if len(spec.shape) == 3 and spec.dtype.name in dtypes and spec.shape[2] in channels:
            return None
        return (
            f"{self.format} is made of images [height, width, {'|'.join(map(str, channels))}] of {' or '.join(dtypes)}"
        )

    def spec(self, spec: ArraySpec) -> ArraySpec:
        """The spec of the files of images [height, width, channels]."""
        height, width, channels = spec.shape
        return ArraySpec.of_images(ImageSpec((height, width, channels), spec.dtype.newbyteorder("="), self.format))


def check_encoding_library() -> None:
    """Raises ConfigError, before anything is read, if the libraries that make files are not installed."""
    with needing("encoding images", "images", ConfigError):
        import imagecodecs  # noqa: F401


def encode_images(pixels: Array, encoding: Encoding) -> Array:
    """[T, height, width, channels] -> [T] bytes of files, made in threads."""
    encode = _ENCODERS[encoding.format]
    images = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("="))

    def encode_part(start: int) -> list[bytes]:
        return [encode(image, encoding) for image in images[start : start + length]]

    length = max(1, -(-len(images) // (_THREADS * _PARTS_PER_THREAD)))
    starts = range(0, len(images), length)
    parts = (
        map(encode_part, starts)
        if images.nbytes < _WORTH_A_THREAD
        else _threads_of(os.getpid()).map(encode_part, starts)
    )
    files = np.empty(len(images), object)
    files[:] = list(chain.from_iterable(parts))
    return files


def encode_again(files: Array, image: ImageSpec, size: Size, encoding: Encoding, where: str) -> Array:
    """[T] bytes of files -> [T] bytes of files of another size: decoded, resized, encoded.

    Args:
      image: what the files decode to.
      where: their name in messages.

    Raises:
      SourceError: a file is damaged, or no such image; or it says how it is to be turned (EXIF), which would be lost.
    """
    for number, file in enumerate(files):
        if isinstance(file, bytes) and orientation_of(file, f"{where}, image {number}") != AS_STORED:
            raise SourceError(
                f"{where}, image {number}: has an orientation (EXIF), which a new file would lose; leave encoded (--encoded) out, so that "
                "the format's reader applies it or not"
            )
    encoded = np.empty(len(files), object)
    for start in range(0, len(files), _TOGETHER):
        part = slice(start, start + _TOGETHER)
        pixels = decode_files(image, files[part].tolist(), f"{where}, from image {start}")
        encoded[part] = encode_images(resize_images(pixels, size), encoding)
    return encoded


_PNG_LEVEL = 3
"""Of zlib: twice as fast as the usual 6, for a few percent of the size."""


def check_png_library(instead: str) -> None:
    """Checks before anything is written that PNG files can be made.

    Args:
      instead: the option that writes images as numbers.

    Raises:
      ConfigError: the library is not installed.
    """
    with needing(f"writing images as PNG files (or {instead}, as numbers)", "images", ConfigError):
        import imagecodecs  # noqa: F401


def png_files(pixels: Array) -> list[bytes]:
    """[n, height, width, channels] of uint8 or uint16 -> n PNG files, losslessly, made in threads."""
    return list(encode_images(pixels, Encoding(PNG)))


def _jpeg_file(pixels: Array, encoding: Encoding) -> bytes:
    import imagecodecs

    if pixels.shape[2] == 1:
        return bytes(imagecodecs.jpeg8_encode(pixels[..., 0], encoding.quality))
    return bytes(imagecodecs.jpeg8_encode(pixels, encoding.quality, subsampling=encoding.subsampling))


def _png_file(pixels: Array, _: Encoding) -> bytes:
    import imagecodecs

    plain = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return bytes(imagecodecs.png_encode(plain, level=_PNG_LEVEL))


_ENCODERS: Mapping[str, Callable[[Array, Encoding], bytes]] = {JPEG: _jpeg_file, PNG: _png_file}


@lru_cache(maxsize=1)
def _threads_of(process: int) -> ThreadPoolExecutor:
    """The threads of a process, by its id: a forked one, such as a worker of PyTorch's DataLoader, has none of its parent's."""
    return ThreadPoolExecutor(_THREADS, f"encode-{process}")
