"""Images out of tables: PNG and JPEG as pixels, and LeRobot's depth maps, which are TIFF files without compression.

LeRobot decodes by Pillow (the `Image` feature of Hugging Face's datasets), whose JPEG is that of libjpeg's accurate DCT.

Source: image_writer.py of lerobot 0.6.1 (`image_array_to_pil_image`, `save_kwargs_for_path`); features/image.py of datasets; TIFF 6.0, part 1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.readers.lerobot.features import Feature
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.tfds_files.images import decode_files

_TIFF: dict[bytes, Literal["<", ">"]] = {b"II*\0": "<", b"MM\0*": ">"}
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _OFFSETS, _SAMPLES, _COUNTS, _KIND = 256, 257, 258, 259, 273, 277, 279, 339
_SIZES = {3: "H", 4: "I"}
"""Types of entries: numbers of two and of four bytes."""
_MOST_STRIPS = 1 << 16


def check_libraries() -> None:
    """Raises `SourceError` where what decodes PNG and JPEG is missing."""
    with needing("decoding the images of a LeRobot dataset", "images", SourceError):
        import imagecodecs  # noqa: F401
        import simplejpeg  # noqa: F401


def decoded(feature: Feature, files: Sequence[bytes], where: str) -> Array:
    """[T, height, width, channels] of files of an image feature.

    Raises:
      BrokenEpisode: a file is damaged, of another format, or of another size or dtype than the feature.
    """
    if feature.dtype == np.float32 and any(file[:4] not in _TIFF for file in files):
        raise BrokenEpisode(feature.path, f"{where}: a depth map in metres that is no TIFF file")
    try:
        if files and all(file[:4] in _TIFF for file in files):
            return np.stack([_tiff(feature, file, f"{where}, image {number}") for number, file in enumerate(files)])
        return decode_files(ImageSpec(feature.shape, feature.dtype), files, where, exact=True)
    except SourceError as error:
        raise BrokenEpisode(feature.path, str(error)) from error


def _tiff(feature: Feature, file: bytes, where: str) -> Array:
    """[height, width, 1]."""
    try:
        found = _entries(file)
        one = {tag: values[0] for tag, values in found.items() if values}
        kind = {(16, 1): "u2", (32, 3): "f4", (8, 1): "u1", (32, 1): "u4"}.get((one[_BITS], one.get(_KIND, 1)), "")
        strips = list(zip(found[_OFFSETS], found[_COUNTS]))
        shape = (one[_HEIGHT], one[_WIDTH], one.get(_SAMPLES, 1))
    except (struct.error, KeyError, IndexError) as error:
        raise SourceError(f"{where}: a damaged TIFF file") from error
    if one.get(_COMPRESSION, 1) != 1 or not kind:
        raise SourceError(f"{where}: a TIFF file of another kind than LeRobot writes: compressed, or of other numbers")
    data = b"".join(file[offset : offset + size] for offset, size in strips)
    dtype = np.dtype(kind).newbyteorder(_TIFF[file[:4]])
    if shape != feature.shape or dtype.newbyteorder("=") != feature.dtype:
        raise SourceError(f"{where}: holds {dtype.name}{list(shape)}; expected {feature.spec}")
    if len(data) != feature.size * dtype.itemsize:
        raise SourceError(f"{where}: has {len(data):,} bytes of pixels; expected {feature.size * dtype.itemsize:,}")
    return np.frombuffer(data, dtype).reshape(shape).astype(feature.dtype)


def _entries(file: bytes) -> dict[int, tuple[int, ...]]:
    """Tag -> its numbers, of the first image of the file."""
    order = _TIFF[file[:4]]
    (at,) = struct.unpack_from(f"{order}I", file, 4)
    (count,) = struct.unpack_from(f"{order}H", file, at)
    entries: dict[int, tuple[int, ...]] = {}
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, many = struct.unpack_from(f"{order}HHI", file, entry)
        size = _SIZES.get(kind)
        if size is not None and many <= _MOST_STRIPS:
            inline = struct.calcsize(size) * many <= 4
            (place,) = (entry + 8,) if inline else struct.unpack_from(f"{order}I", file, entry + 8)
            entries[tag] = struct.unpack_from(f"{order}{many}{size}", file, place)
    return entries
