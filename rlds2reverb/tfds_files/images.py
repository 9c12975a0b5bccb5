"""PNG and JPEG files -> arrays, to the bit as TensorFlow decodes them, in threads.

| file | read as |
| --- | --- |
| JPEG, grey or colour | simplejpeg with TensorFlow's settings: the fast DCT, and smooth upsampling |
| PNG of 8 and 16 bits, grey, colour, palette, with alpha or without | imagecodecs (libpng) |
| a PNG of other channels than the feature | alpha is dropped, or made opaque; grey is repeated |
| a PNG of other bits than the feature | 16 bits to 8: the high byte; 8 bits to 16: times 257; a JPEG to 16 bits: times 256 |
| a float32 image | its four channels of bytes are the number, little-endian |
| a colour PNG for one channel, one of fewer than 8 bits for four; a CMYK JPEG; a JPEG with warnings; GIF, BMP, WebP | refused |

A file's own header says how large it is before anything is allocated, and what it claims is compared with its length.
Sources: decode_image_op.cc, jpeg_mem.cc and png_io.cc of TensorFlow 2.15; image_feature.py of TFDS 4.9.10.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.image_headers import JPEG_START, PNG_START
from rlds2reverb.image_spec import ImageSpec


class NotReadHere(SourceError):
    """Something that only the format's own system can read; the message names it. The dataset itself may be good."""


_OTHERS = {b"GIF8": "GIF", b"BM": "BMP", b"RIFF": "WebP"}
_SIZE = struct.Struct(">II")
_SIZE_AT = 16  # in a PNG: after its signature, and the length and the name of its first part

_BITS_AT, _COLOURS_AT = 24, 25
_HEADER_BYTES = 26
_PALETTE = 3
_CHANNELS = {0: 1, 2: 3, 6: 4}
"""A PNG's kind of colours -> how many channels TensorFlow makes of it."""

_EXTRA = "images"
_MOST_TIMES = 1 << 15
"""An image has at most so many times the bytes of its file: zlib's 1,032, times 24 where a bit is a palette's colour."""
_SMALL_BYTES = 1 << 24
"""An image of that size may have a file of any length."""
_WORTH_A_THREAD = 1 << 16
"""Bytes of files in all, below which threads cost more than they give."""
_MOST_THREADS = 16
_PARTS_PER_THREAD = 4


def decode_files(
    image: ImageSpec, files: Sequence[bytes], where: str, threads: int | None = None, *, exact: bool = False
) -> Array:
    """[n, height, width, channels] of n files, all of one size.

    Args:
      image: the feature.
      files: PNG or JPEG, in any mixture.
      where: what messages call them.
      threads: how many decode, at most; by default as many as there are cores.
      exact: JPEG by the accurate DCT, as Pillow does and not TensorFlow; values differ by a few levels.

    Raises:
      SourceError: a file that is damaged, of another format or of another size than the feature and the others; or the
        libraries are missing. Says which file.
    """
    if not files:
        return np.zeros((0, *(size or 0 for size in image.shape)), image.dtype)
    with needing("decoding images", _EXTRA, SourceError):
        out = _room(image, files, where)
        _in_threads(files, out, where, threads, exact)
    return out.view("<f4") if image.dtype.kind == "f" else out


def _room(image: ImageSpec, files: Sequence[bytes], where: str) -> Array:
    """An array for all images; as a float32 image's bytes."""
    sizes = [_size(file, f"{where}, image {number}") for number, file in enumerate(files)]
    for number, size in enumerate(sizes):
        if any(wanted not in (None, found) for wanted, found in zip(image.shape, size)):
            raise SourceError(f"{where}, image {number}: has the size {size}; expected {image.shape[:2]}")
        if size != sizes[0]:
            raise SourceError(
                f"{where}: images of different sizes, {sizes[0]} and {size}; all of an episode must have one"
            )
    channels = 4 if image.dtype.kind == "f" else image.shape[2] or _channels(files[0], where)
    shape = (len(files), *sizes[0], channels)
    try:
        return np.empty(shape, np.uint8 if image.dtype.kind == "f" else image.dtype)
    except MemoryError as error:
        raise SourceError(f"{where}: no memory for images of the shape {shape}") from error


def _size(file: bytes, where: str) -> tuple[int, int]:
    """Height and width, as the file's header has them."""
    if file.startswith(PNG_START):
        width, height = _SIZE.unpack_from(file, _SIZE_AT) if len(file) >= _HEADER_BYTES else (0, 0)
    elif file.startswith(JPEG_START):
        height, width, colours = _jpeg_header(file, where)
        if colours in ("CMYK", "YCCK"):
            raise NotReadHere(
                f"{where}: a JPEG of the colours {colours} is not read here; convert the dataset's to RGB"
            )
    else:
        raise NotReadHere(f"{where}: {_name(file)}; only PNG and JPEG are read here")
    if not height or not width or height * width * 3 > max(_SMALL_BYTES, _MOST_TIMES * len(file)):
        raise SourceError(f"{where}: claims {height} × {width} pixels in {len(file):,} bytes; the file is damaged")
    return height, width


def _name(file: bytes) -> str:
    if not file:
        return "an empty file, which is no image"
    known = [f"a {name} file" for start, name in _OTHERS.items() if file.startswith(start)]
    return known[0] if known else f"no image file: it begins with {file[:8]!r}"


def _jpeg_header(file: bytes, where: str) -> tuple[int, int, str]:
    import simplejpeg

    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(file)
    except ValueError as error:
        raise _damaged(where, error) from error
    return height, width, colours


def _channels(file: bytes, where: str) -> int:
    """Those of the file, where the feature leaves them free."""
    if file.startswith(JPEG_START):
        return 1 if _jpeg_header(file, where)[2] == "Gray" else 3
    if file[_COLOURS_AT] == _PALETTE:
        return int(_as_3d(_png(file, where)).shape[2])
    if file[_COLOURS_AT] not in _CHANNELS:
        raise NotReadHere(
            f"{where}: a PNG of grey with alpha is not read here, where the feature leaves the channels free"
        )
    return _CHANNELS[file[_COLOURS_AT]]


def _in_threads(files: Sequence[bytes], out: Array, where: str, asked: int | None, exact: bool) -> None:
    """Decodes each file into its row."""
    threads = min(_MOST_THREADS, asked or os.cpu_count() or 1, len(files))
    if threads == 1 or sum(map(len, files)) < _WORTH_A_THREAD:
        _decode_part(files, out, where, exact, range(len(files)))
        return
    with ThreadPoolExecutor(threads) as pool:
        parts = _parts(len(files), threads)
        for _ in pool.map(_decode_part, repeat(files), repeat(out), repeat(where), repeat(exact), parts):
            pass


def _parts(count: int, threads: int) -> Iterator[range]:
    length = -(-count // (threads * _PARTS_PER_THREAD))
    for start in range(0, count, length):
        yield range(start, min(start + length, count))


def _decode_part(files: Sequence[bytes], out: Array, where: str, exact: bool, numbers: range) -> None:
    for number in numbers:
        if files[number].startswith(PNG_START):
            _decode_png(files[number], out[number], f"{where}, image {number}")
        else:
            _decode_jpeg(files[number], out[number], f"{where}, image {number}", exact)


def _decode_jpeg(file: bytes, out: Array, where: str, exact: bool) -> None:
    import simplejpeg

    channels = out.shape[2]
    if channels not in (1, 3):
        raise SourceError(f"{where}: a JPEG has 1 or 3 channels; expected {channels}")
    room = out if out.dtype == np.uint8 else np.empty(out.shape, np.uint8)
    try:
        colours = "GRAY" if channels == 1 else "RGB"
        simplejpeg.decode_jpeg(file, colours, fastdct=not exact, fastupsample=False, buffer=room)
    except ValueError as error:
        raise _damaged(where, error) from error
    if room is not out:
        np.multiply(room, 256, out=out, dtype=out.dtype)


def _decode_png(file: bytes, out: Array, where: str) -> None:
    found = _as_3d(_png(file, where))
    if found.dtype != out.dtype:
        found = found >> 8 if out.dtype == np.uint8 else found.astype(np.uint16) * np.uint16(257)
    have, want = found.shape[2], out.shape[2]
    if found.shape[:2] != out.shape[:2] or (have > 2 and want == 1) or (have % 2 and want == 4 and file[_BITS_AT] < 8):
        raise NotReadHere(
            f"{where}: a PNG of the shape {found.shape}, of {file[_BITS_AT]} bits, is not read here as {out.shape}"
        )
    if have in (2, 4) and want < 4:
        found = found[..., : have - 1]  # without alpha
    if want == 4 and have != 4:
        out[..., 3] = found[..., 1] if have == 2 else np.iinfo(out.dtype).max
        out[..., :3] = found[..., :1] if have == 2 else found
    else:
        out[...] = found


def _png(file: bytes, where: str) -> Any:
    import imagecodecs

    try:
        return imagecodecs.png_decode(file)
    except (imagecodecs.PngError, ValueError) as error:
        raise _damaged(where, error) from error


def _as_3d(found: Array) -> Array:
    return found[..., None] if found.ndim == 2 else found


def _damaged(where: str, error: Exception) -> NotReadHere:
    """TFDS may read it: TensorFlow takes some files that libjpeg warns of."""
    return NotReadHere(f"{where}: cannot be decoded: {error}")
