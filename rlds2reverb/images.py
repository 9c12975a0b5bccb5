"""Images: what a column holds (`kind`), JPEG and PNG files decoded (`decode_images`, `decode_columns`), and resized.

Tables that were filled with `encoded` hold the bytes of JPEG and PNG files. Decoded here, they are what `push` of a TFDS dataset would
have stored without it, to the bit; with `exact`, what one of a LeRobot or a Minari dataset would have. Rows of zeros that a view puts
before or after an episode hold empty text: they become images of zeros.

For `tf.data` see `rlds2reverb.tf_agents.image_decoder`. Needs the extra `images`.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlds2reverb.compiled import load_library
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, DecodeError, SourceError
from rlds2reverb.extras import needing
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, column_spec, flatten, is_number, map_with_path
from rlds2reverb.text import line_of


class ImageLoader(Protocol):
    """Decodes pictures that are best decoded together, such as frames of one video."""

    def load(self, images: Sequence[LazyImage], size: Size | None) -> None:
        """Sets `pixels` of these images, which are its own. Raises `SourceError` if they cannot be decoded."""


class LazyImage(bytes):
    """A picture that is decoded when a batch needs it, in place of a file's bytes: a frame of a video.

    It is `bytes` so that it can stand wherever a file's bytes stand in a column; the bytes themselves mean nothing. It lives in the
    process that made it, so only batches of `local` have it: no table, no file.

    Attributes:
      loader: decodes it.
      row: which of the loader's pictures it is.
      shape: [height, width, channels] of the whole picture.
      pixels: [height, width, channels], decoded at `size`; None before, and again after a batch has it, unless it was loaded in advance.
      size: that `pixels` were resized to; None for the whole picture.
    """

    loader: ImageLoader
    row: int
    shape: tuple[int, int, int]
    pixels: Array | None = None
    size: Size | None = None

    @classmethod
    def of(cls, loader: ImageLoader, row: int, shape: tuple[int, int, int]) -> LazyImage:
        image = cls(b"image")
        image.loader, image.row, image.shape = loader, row, shape
        return image


def load_images(images: Iterable[LazyImage], size: Size | None) -> list[LazyImage]:
    """Decodes those images that are not loaded, each once, all of a loader together; returns them.

    Raises:
      SourceError: one cannot be decoded.
    """
    loaded: dict[int, LazyImage] = {}
    groups: dict[int, list[LazyImage]] = {}
    for image in images:
        if id(image) not in loaded and (image.pixels is None or image.size != size):
            loaded[id(image)] = image
            groups.setdefault(id(image.loader), []).append(image)
    for group in groups.values():
        group[0].loader.load(group, size)
        for image in group:
            image.size = size
    return list(loaded.values())


FILE, LAST, FIRST, PLANE = "file", "last", "first", "plane"
"""How a row holds an image: the bytes of a JPEG or PNG file; [height, width, channels]; [channels, height, width]; [height, width]."""

_LEAST_SIDE = 8
"""Pixels: smaller arrays are taken for numbers."""
_CHANNELS = (1, 3, 4)


def kind(spec: ArraySpec) -> str:
    """How a row of a column holds an image; "" for a row that holds none.

    >>> kind(ArraySpec((64, 64, 3), np.dtype("uint8"))), kind(ArraySpec((3, 64, 64), np.dtype("float32")))
    ('last', 'first')
    >>> kind(ArraySpec((480, 640), np.dtype("uint16"))), kind(ArraySpec((7,), np.dtype("float32")))
    ('plane', '')

    Args:
      spec: of one row, without the time axis. A free size fits any.

    Returns:
      `FILE`, `LAST`, `FIRST`, `PLANE` or "". Images have 1, 3 or 4 channels, and sides of at least 8 pixels, of any numbers or of bool.
    """
    if spec.dtype.kind == "O":
        return FILE if spec.image is not None else ""
    if not is_number(spec.dtype):
        return ""
    sides = [_LEAST_SIDE if size is None else size for size in spec.shape]
    if len(sides) == 2 and min(sides) >= _LEAST_SIDE:
        return PLANE
    if len(sides) == 3 and spec.shape[2] in (None, *_CHANNELS) and min(sides[:2]) >= _LEAST_SIDE:
        return LAST
    if len(sides) == 3 and spec.shape[0] in _CHANNELS and min(sides[1:]) >= _LEAST_SIDE:
        return FIRST
    return ""


def kind_of(column: Array) -> str:
    """As `kind`, of a column [T, ...] without a spec: `FILE` also where its first value begins as JPEG and PNG files do."""
    if column.dtype.kind != "O":
        return kind(column_spec(column)) if len(column) else ""
    first = column.flat[0] if column.size else None
    return FILE if isinstance(first, bytes) and image_size(first) is not None else ""


def decode_images(
    batch: npt.ArrayLike,
    image: ImageSpec | ArraySpec | Sequence[int],
    threads: int | None = None,
    column: str = "images",
    *,
    exact: bool = False,
    size: SizeLike | None = None,
) -> Array:
    """Decodes a batch of encoded images.

    Args:
      batch: [...] bytes objects (or fixed-width bytes), of any number of axes: [B], [B, T], ...; b"" stands for zeros.
      image: what they decode to: the leaf of the table's signature, its `image`, or a shape (height, width, channels) of
        uint8 pixels. Where a size is free, the images of a batch must have one and the same.
      threads: number of threads; by default as many as there are cores.
      column: the column's name in errors.
      exact: JPEG by the accurate DCT, as Pillow does, and so LeRobot and Minari; else by the fast one, as TensorFlow and TFDS do. Values
        differ by a few of 255 levels.
      size: of the images returned, as (height, width) or "HEIGHTxWIDTH:METHOD"; None for that of the files. JPEG files are decoded at
        the smallest scale of libjpeg that is no smaller, then resized as a push with `resize` does it (`resize_images`): faster, and values
        differ by a few of 255 levels from those of the whole image resized.

    Returns:
      [..., height, width, channels] of the image's dtype.

    Raises:
      DecodeError: a value is no such file, is damaged, or has another size; names the column and the index. Or the libraries
        that decode are missing, or there is a `size` for images of floats.
      ConfigError: a size that makes no sense.
    """
    spec, size = _image_spec(image), None if size is None else Size.of(size)
    if size is not None and spec.dtype.kind == "f":
        raise DecodeError(f'column "{column}": images of {spec.dtype} are not resized here; leave out the size')
    files = np.asarray(batch)
    if files.size and files.dtype.kind not in "OS":
        raise DecodeError(f'column "{column}": expected encoded images (bytes), got {files.dtype}{list(files.shape)}')
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise DecodeError(f"threads {threads!r}: expected a whole number of at least 1")
    flat = files.ravel()  # [n]
    for number, file in enumerate(flat):
        if not isinstance(file, bytes):
            where = _where(column, number, files.shape)
            raise DecodeError(f"{where}: expected the bytes of an image file, got {type(file).__name__}")
    there = np.flatnonzero([bool(file) for file in flat])
    feature, found = ImageSpec(spec.shape, spec.dtype), flat[there].tolist()
    if not found and len(flat) and None in (spec.shape if size is None else spec.shape[2:]):
        raise DecodeError(f'column "{column}": images of {spec}, and none in the batch that shows its size')
    try:
        decoded = decode_files(feature, found, f'column "{column}"', threads, exact=exact, size=size)
    except SourceError as error:
        for number, file in zip(there.tolist(), found):  # which of them is it?
            try:
                decode_files(feature, [file], _where(column, number, files.shape), 1, size=size)
            except SourceError as failure:
                raise DecodeError(str(failure).replace(", image 0", "", 1)) from failure
        raise DecodeError(str(error)) from error
    if len(there) < len(flat):
        whole = np.zeros((len(flat), *decoded.shape[1:]), decoded.dtype)
        whole[there] = decoded
        decoded = whole
    return decoded.reshape(*files.shape, *decoded.shape[1:])


def decode_columns(
    batch: Nest, signature: Nest, threads: int | None = None, *, exact: bool = False, size: SizeLike | None = None
) -> Nest:
    """Decodes all encoded images of a batch; everything else stays as it is.

    Args:
      batch: a nest of arrays of the signature's structure, with any number of leading axes; from Reverb's client
        (`tf.nest.pack_sequence_as`), from `reverb.TrajectoryDataset`, or a list in the signature's order.
      signature: the table's, as `client.server_info().tables[...].signature` has it, or as `reverb.Client` does.
      threads, exact, size: as for `decode_images`.

    Raises:
      DecodeError, ConfigError: as `decode_images`; or the batch is not of that structure.
    """
    leaves = flatten(signature)

    def decoded(path: str, column: Any) -> Any:
        leaf = leaves[path]  # an `ArraySpec`, or a `tf.TensorSpec`
        image = leaf.image if isinstance(leaf, ArraySpec) else ImageSpec.of_name(leaf.name or "")
        return column if image is None else decode_images(column, image, threads, path, exact=exact, size=size)

    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields") and len(batch) == len(leaves):
        return [decoded(path, column) for path, column in zip(leaves, batch)]
    paths = list(flatten(batch))
    if paths != list(leaves):
        raise DecodeError(f"batch: expected the columns {list(leaves)}, got {paths}")
    return map_with_path(decoded, batch)


def _image_spec(image: ImageSpec | ArraySpec | Sequence[int]) -> ImageSpec:
    if isinstance(image, ImageSpec):
        return image
    if isinstance(image, ArraySpec):
        if image.image is None:
            raise DecodeError(f"{image}: expected the spec of encoded images; this one is of something else")
        return image.image
    try:
        height, width, channels = image
        return ImageSpec((height, width, channels), np.dtype(np.uint8))
    except (TypeError, ValueError) as error:
        raise DecodeError(f"image {image!r}: expected an image spec, or (height, width, channels)") from error


def _where(column: str, number: int, shape: tuple[int, ...]) -> str:
    index = ", ".join(map(str, np.unravel_index(number, shape))) if shape else ""
    return f'column "{column}", index [{index}]'


# The size of an image from the first bytes of its JPEG or PNG file; nothing is decoded.
#
# Sources: ITU T.81 B.1.1.3 (markers), B.2.2 (frame header); PNG specification 5.2 (signature), 11.2.2 (IHDR).

JPEG_START = b"\xff\xd8\xff"
PNG_START = b"\x89PNG\r\n\x1a\n"

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of frame headers, which hold the size; the three are tables and reserved."""

_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD8)))
_END = frozenset((0xD9, 0xDA))
"""End of the image, and start of its data: no frame header came."""


def image_size(data: bytes) -> tuple[int, int] | None:
    """Height and width from the header of a JPEG or PNG file, or of a lazy image; None for anything else, and without a whole header."""
    if isinstance(data, LazyImage):
        return data.shape[:2]
    if data.startswith(PNG_START):
        if len(data) < 33 or data[12:16] != b"IHDR":
            return None
        return int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big")
    at = _frame_at(data) if data.startswith(JPEG_START) else None
    return None if at is None else (data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8])


def _frame_at(data: bytes) -> int | None:
    """Where the frame header of a JPEG file begins, with its size; None without a whole one."""
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in _FRAMES:
            return at
        if marker in _END:
            return None
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            at += 2 + max(2, data[at + 2] << 8 | data[at + 3])
    return None


SIXTEEN_BITS = ";16"
"""The end of the modes of PNG files whose values have 16 bits."""

_MODES = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
"""A PNG's kind of colours -> Pillow's mode of it."""


def mode_of(file: bytes) -> str:
    """The mode of a JPEG or PNG file, by its header: Pillow's "1", "L", "LA", "P", "RGB", "RGBA" or "CMYK"; "" for anything else.

    Values of 16 bits, of which Pillow drops the low bytes except in grey ones: "I;16", "LA;16", "RGB;16" or "RGBA;16".
    """
    if file.startswith(PNG_START):
        if len(file) < _HEADER_BYTES:
            return ""
        bits, mode = file[_BITS_AT], _MODES.get(file[_COLOURS_AT], "")
        if mode == "L" and bits in (1, 16):
            return "1" if bits == 1 else f"I{SIXTEEN_BITS}"
        return mode + SIXTEEN_BITS if mode and bits == 16 else mode
    at = _frame_at(file) if file.startswith(JPEG_START) else None
    if at is None or len(file) < at + 10:
        return ""
    return {1: "L", 3: "RGB", 4: "CMYK"}.get(file[at + 9], "")


# The orientation of a file: how its image is turned or mirrored before it is shown, 1 (as it is stored) to 8.
#
# Cameras write it as EXIF; PNG has a chunk for that, and XMP may say it, too. Pillow and TensorFlow decode images as they are stored; who turns
# them calls Pillow's `ImageOps.exif_transpose`, as the `Image` feature of Hugging Face's datasets does.

AS_STORED = 1

_MAY_TURN = (b"Exif\0\0", b"http://ns.adobe.com/xap/")
"""How the data of a JPEG's segments APP1 begin that may hold an orientation."""
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_TEXTS = (b"XML:com.adobe.xmp\0", b"Raw profile type ")
"""How a PNG's texts begin that may hold one."""
_UNTURNED: dict[int, Callable[[Array], Array]] = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: np.rot90(image, 3),
    7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
    8: np.rot90,
}


def orientation_of(file: bytes, where: str) -> int:
    """The orientation of a JPEG or PNG file, 1 to 8; `AS_STORED` without any.

    Raises:
      SourceError: the file says that it has one, and Pillow cannot read it, or is missing.
    """
    if not _may_turn(file):
        return AS_STORED
    with needing("reading the orientation of images", "images", SourceError):
        from PIL import ExifTags, Image
    try:
        with Image.open(io.BytesIO(file), formats=["JPEG", "PNG"]) as image:
            orientation: Any = image.getexif().get(ExifTags.Base.Orientation, AS_STORED)
    except (*PILLOW_ERRORS, Image.DecompressionBombError) as error:
        raise SourceError(f"{where}: cannot be read: {line_of(error)}") from error
    return int(orientation) if orientation in _UNTURNED else AS_STORED


def turn_upright(image: Array, orientation: int) -> Array:
    """[height, width, channels] as stored -> as it is to be shown; height and width change places from 5 on."""
    return image if orientation == AS_STORED else _UNTURNED[orientation](image)


def _may_turn(file: bytes) -> bool:
    """Whether a part of the file's header may hold an orientation. Called for every image, so it looks at the parts' names only."""
    if file.startswith(PNG_START):
        at = len(PNG_START)
        while at + 12 <= len(file):
            kind = file[at + 4 : at + 8]
            if kind == b"eXIf" or (kind in _PNG_TEXTS and file.startswith(_TEXTS, at + 8)):
                return True
            at += 12 + int.from_bytes(file[at : at + 4], "big")
        return False
    at, end = 2, len(file) - 4 if file.startswith(JPEG_START) else 0
    while at <= end and file[at] == 0xFF:
        marker = file[at + 1]
        if marker == 0xE1 and file.startswith(_MAY_TURN, at + 4):
            return True
        if marker in _END:
            return False
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            at += 2 + max(2, file[at + 2] << 8 | file[at + 3])
    return False


# PNG and JPEG files -> arrays, to the bit as TensorFlow decodes them.
#
# | file | read as |
# | --- | --- |
# | JPEG, grey or colour | simplejpeg with TensorFlow's settings: the fast DCT, and smooth upsampling |
# | PNG of 8 and 16 bits, grey, colour, palette, with alpha or without | imagecodecs (libpng) |
# | a PNG of other channels than the feature | alpha is dropped, or made opaque; grey is repeated |
# | a PNG of other bits than the feature | 16 bits to 8: the high byte; 8 bits to 16: times 257; a JPEG to 16 bits: times 256 |
# | a float32 image | its four channels of bytes are the number, little-endian |
# | a colour PNG for one channel, one of fewer than 8 bits for four; a CMYK JPEG; a JPEG with warnings; GIF, BMP, WebP | refused |
#
# A file's own header says how large it is before anything is allocated, and what it claims is compared with its length.
# Sources: decode_image_op.cc, jpeg_mem.cc and png_io.cc of TensorFlow 2.15; image_feature.py of TFDS 4.9.10.


PILLOW_ERRORS = (  # raised by Pillow for a damaged file; warnings if they are errors
    OSError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, SyntaxError, TypeError, ValueError,
    struct.error, Warning,
)  # fmt: skip


def is_refused(file: bytes, image: ImageSpec) -> bool:
    """Whether `decode_files` refuses a JPEG or PNG file for its mode, by its header; other faults show when it is decoded."""
    mode, channels = mode_of(file), 4 if image.dtype.kind == "f" else image.shape[2]  # floats are bytes of RGBA
    if not mode:
        return False
    if file.startswith(JPEG_START):
        return mode == "CMYK" or channels == 4
    if channels == 1:
        return mode.removesuffix(SIXTEEN_BITS) in ("P", "RGB", "RGBA")
    has_alpha = (
        file.find(b"tRNS", 0, file.find(b"IDAT")) >= 0
    )  # a colour, or places of the palette, that is transparent
    return channels == 4 and file[_BITS_AT] < 8 and not has_alpha


class NotReadHere(SourceError):
    """Only the format's own system can read this; the dataset itself may be good."""


_OTHERS = {b"GIF8": "GIF", b"BM": "BMP", b"RIFF": "WebP"}
_SIZE = struct.Struct(">II")
_SIZE_AT = 16  # in a PNG: after its signature, and the length and the name of its first part

_BITS_AT, _COLOURS_AT = 24, 25
_HEADER_BYTES = 26
_PALETTE = 3
_PNG_CHANNELS = {0: 1, 2: 3, 6: 4}
"""A PNG's kind of colours -> channels that TensorFlow makes of it."""

_MOST_TIMES = 1 << 15
"""Most bytes of an image per byte of its file: zlib's 1,032, times 24 where a bit is a palette's colour."""
_SMALL_BYTES = 1 << 24
"""Smaller images may have a file of any length."""
_WORTH_A_THREAD = 1 << 16
"""Bytes of all files below which threads cost more than they save."""
_MOST_THREADS = 16
_PARTS_PER_THREAD = 4


def decode_files(
    image: ImageSpec,
    files: Sequence[bytes],
    where: str,
    threads: int | None = None,
    *,
    exact: bool = False,
    size: Size | None = None,
) -> Array:
    """[n, height, width, channels] of n files, all of one size; or of any sizes, with a `size`.

    Args:
      image: the feature.
      files: PNG or JPEG, in any mixture.
      where: their name in messages.
      threads: most threads; by default as many as there are cores.
      exact: JPEG by the accurate DCT, as Pillow does and not TensorFlow; values differ by a few levels.
      size: of the images returned; None for that of the files. Not for images of floats.

    Raises:
      SourceError: a file is damaged, has another format, or another size than the feature or the first file; or the
        libraries are missing. Says which file.
    """
    if not files:
        height, width, channels = image.shape if size is None else (size.height, size.width, image.shape[2])
        return np.zeros((0, height or 0, width or 0, channels or 0), image.dtype)
    if any(isinstance(file, LazyImage) for file in files):
        return _decode_lazy(image, files, where, threads, exact, size)
    with needing("decoding images", "images", SourceError):
        out = _allocated(image, files, where, size)
        most = min(_MOST_THREADS, threads or os.cpu_count() or 1, len(files))
        if most == 1 or sum(map(len, files)) < _WORTH_A_THREAD:
            _decode_part(files, out, where, exact, size, range(len(files)))
        else:
            length = -(-len(files) // (most * _PARTS_PER_THREAD))
            parts = [range(start, min(start + length, len(files))) for start in range(0, len(files), length)]
            with ThreadPoolExecutor(most) as pool:
                same = map(repeat, (files, out, where, exact, size))
                for _ in pool.map(_decode_part, *same, parts):
                    pass
    return out.view("<f4") if image.dtype.kind == "f" else out


def _decode_lazy(
    image: ImageSpec, files: Sequence[bytes], where: str, threads: int | None, exact: bool, size: Size | None
) -> Array:
    """As `decode_files`, of lazy images, also among files."""
    lazy = [file for file in files if isinstance(file, LazyImage)]
    loaded = load_images(lazy, size)
    pictures = [
        file.pixels
        if isinstance(file, LazyImage)
        else decode_files(image, [file], where, threads, exact=exact, size=size)[0]
        for file in files
    ]
    shapes = {picture.shape for picture in pictures if picture is not None}
    if len(shapes) > 1:
        raise SourceError(f"{where}: images of different sizes, {shapes}; all of an episode must have one")
    batch: Array = np.stack([picture for picture in pictures if picture is not None])
    for loaded_image in loaded:
        loaded_image.pixels = None
    return batch


def _allocated(image: ImageSpec, files: Sequence[bytes], where: str, size_wanted: Size | None) -> Array:
    """An empty array for all images; for the bytes of float32 images."""
    sizes = [_size(file, f"{where}, image {number}") for number, file in enumerate(files)]
    for number, size in enumerate(sizes):
        if any(side not in (None, length) for side, length in zip(image.shape, size)):
            raise SourceError(f"{where}, image {number}: has the size {size}; expected {image.shape[:2]}")
        if size_wanted is None and size != sizes[0]:
            raise SourceError(
                f"{where}: images of different sizes, {sizes[0]} and {size}; all of an episode must have one"
            )
    channels = 4 if image.dtype.kind == "f" else image.shape[2] or _channels(files[0], where)
    height, width = sizes[0] if size_wanted is None else (size_wanted.height, size_wanted.width)
    shape = (len(files), height, width, channels)
    try:
        return np.empty(shape, np.uint8 if image.dtype.kind == "f" else image.dtype)
    except MemoryError as error:
        raise SourceError(f"{where}: no memory for images of the shape {shape}") from error


def _size(file: bytes, where: str) -> tuple[int, int]:
    if file.startswith(PNG_START):
        width, height = _SIZE.unpack_from(file, _SIZE_AT) if len(file) >= _HEADER_BYTES else (0, 0)
    elif file.startswith(JPEG_START):
        height, width, colours = _jpeg_header(file, where)
        if colours in ("CMYK", "YCCK"):
            raise NotReadHere(
                f"{where}: a JPEG of the colours {colours} is not read here; convert the dataset's to RGB"
            )
    else:
        kinds = [f"a {name} file" for start, name in _OTHERS.items() if file.startswith(start)]
        kinds += [f"no image file: it begins with {file[:8]!r}" if file else "an empty file, which is no image"]
        raise NotReadHere(f"{where}: {kinds[0]}; only PNG and JPEG are read here")
    if not height or not width or height * width * 3 > max(_SMALL_BYTES, _MOST_TIMES * len(file)):
        raise SourceError(f"{where}: claims {height} × {width} pixels in {len(file):,} bytes; the file is damaged")
    return height, width


def _jpeg_header(file: bytes, where: str) -> tuple[int, int, str]:
    import simplejpeg

    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(file)
    except ValueError as error:
        raise _damaged(where, error) from error
    return height, width, colours


def _channels(file: bytes, where: str) -> int:
    """Channels of the file, where the feature leaves them free."""
    if file.startswith(JPEG_START):
        return 1 if _jpeg_header(file, where)[2] == "Gray" else 3
    if file[_COLOURS_AT] == _PALETTE:
        return int(_as_3d(_png(file, where)).shape[2])
    if file[_COLOURS_AT] not in _PNG_CHANNELS:
        raise NotReadHere(
            f"{where}: a PNG of grey with alpha is not read here, where the feature leaves the channels free"
        )
    return _PNG_CHANNELS[file[_COLOURS_AT]]


def _decode_part(
    files: Sequence[bytes], out: Array, where: str, exact: bool, size: Size | None, numbers: range
) -> None:
    for number in numbers:
        file, into, place = files[number], out[number], f"{where}, image {number}"
        is_png = file.startswith(PNG_START)
        if size is None and is_png:
            _decode_png(file, into, place)
        elif size is None:
            room = into if into.dtype == np.uint8 else np.empty(into.shape, np.uint8)
            _jpeg(file, place, into.shape[2], exact, buffer=room)
            if room is not into:
                np.multiply(room, 256, out=into, dtype=into.dtype)
        elif is_png:
            whole = np.empty((*_size(file, place), out.shape[3]), out.dtype)
            _decode_png(file, whole, place)
            into[...] = resize_images(whole[None], size)[0]
        else:
            _decode_small_jpeg(file, into, place, exact, size)


def _decode_small_jpeg(file: bytes, out: Array, where: str, exact: bool, size: Size) -> None:
    """By the scale of the decoder first: 1/8, 2/8, ... of the file's size, the smallest that is large enough."""
    decoded = _jpeg(file, where, out.shape[2], exact, min_height=size.height, min_width=size.width)
    whole = decoded.reshape(*decoded.shape[:2], -1)
    if whole.shape != out.shape:
        whole = resize_images(whole[None], size)[0]
    np.multiply(whole, 1 if out.dtype == np.uint8 else 256, out=out, dtype=out.dtype)


def _jpeg(file: bytes, where: str, channels: int, exact: bool, **options: Any) -> Array:
    """[H, W, channels] uint8; options are those of simplejpeg."""
    import simplejpeg

    if channels not in (1, 3):
        raise SourceError(f"{where}: a JPEG has 1 or 3 channels; expected {channels}")
    try:
        colours = "GRAY" if channels == 1 else "RGB"
        decoded: Array = simplejpeg.decode_jpeg(file, colours, fastdct=not exact, fastupsample=False, **options)
    except ValueError as error:
        raise _damaged(where, error) from error
    return decoded


def _decode_png(file: bytes, out: Array, where: str) -> None:
    decoded = _as_3d(_png(file, where))
    if decoded.dtype != out.dtype:
        decoded = decoded >> 8 if out.dtype == np.uint8 else decoded.astype(np.uint16) * np.uint16(257)
    have, want = decoded.shape[2], out.shape[2]
    if (
        decoded.shape[:2] != out.shape[:2]
        or (have > 2 and want == 1)
        or (have % 2 and want == 4 and file[_BITS_AT] < 8)
    ):
        raise NotReadHere(
            f"{where}: a PNG of the shape {decoded.shape}, of {file[_BITS_AT]} bits, is not read here as {out.shape}"
        )
    if have in (2, 4) and want < 4:
        decoded = decoded[..., : have - 1]  # without alpha
    if want == 4 and have != 4:
        out[..., 3] = decoded[..., 1] if have == 2 else np.iinfo(out.dtype).max
        out[..., :3] = decoded[..., :1] if have == 2 else decoded
    else:
        out[...] = decoded


def _png(file: bytes, where: str) -> Any:
    import imagecodecs

    try:
        return imagecodecs.png_decode(file)
    except (imagecodecs.PngError, ValueError) as error:
        raise _damaged(where, error) from error


def _as_3d(image: Array) -> Array:
    return image[..., None] if image.ndim == 2 else image


def _damaged(where: str, error: Exception) -> NotReadHere:
    """TFDS may read it: TensorFlow accepts some files that libjpeg warns of."""
    return NotReadHere(f"{where}: cannot be decoded: {error}")


# Images [T, H, W, C] to another size, as `tf.image.resize` makes them, in numpy alone.
#
# Every output row (column) is a weighted sum of a few neighbouring input rows (columns): a table of places and weights for each axis.
#
# | method | a weight is | same as |
# | --- | --- | --- |
# | area | the part of the input pixel that the output pixel covers; for larger and for smaller images | `tf.image.resize(x, size, method="area")` |
# | lanczos3 | a windowed sinc of radius 3, widened when the image gets smaller, then normed | `tf.image.resize(x, size, method="lanczos3", antialias=True)` |
#
# Sums are taken in float32, in TensorFlow's own order: `area` is equal to the bit. `lanczos3` differs by what two libraries' sines do.
# Integers are then rounded to the nearest (halves to even) and cut to their range: `tf.cast(tf.clip_by_value(tf.round(y), low, high), dtype)`.
# Source: tensorflow/core/kernels/image/resize_area_op.cc and scale_and_translate_op.cc.

AREA, LANCZOS3 = "area", "lanczos3"
METHODS = (AREA, LANCZOS3)

MOST_PIXELS = 8192
"""The longest side of a resized image; more is a slip of the pen."""

_WRITTEN = re.compile(r"([0-9]{1,6})x([0-9]{1,6})(?::(\w+))?")
_RADIUS = np.float32(3)
_NEAR_ZERO = np.float32(1e-3)
"""Below this, TensorFlow uses 1 for sin(x) / x."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Size:
    # in pixels
    height: int
    width: int
    method: str = AREA  # one of `METHODS`

    def __post_init__(self) -> None:
        if not (1 <= self.height <= MOST_PIXELS and 1 <= self.width <= MOST_PIXELS):
            raise ConfigError(f"{self.height}x{self.width}: expected sides of 1 to {MOST_PIXELS} pixels")
        if self.method not in METHODS:
            raise ConfigError(f'method "{self.method}": expected one of {", ".join(METHODS)}')

    def __str__(self) -> str:
        return f"{self.height}x{self.width}:{self.method}"

    @classmethod
    def of(cls, value: SizeLike) -> Size:
        """From a size, (height, width), or its text."""
        if isinstance(value, Size):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        sides: list[Any] = list(value) if isinstance(value, Sequence) else []
        if len(sides) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) for side in sides):
            raise ConfigError(f'size {value!r}: expected (height, width), or text such as "128x128"')
        height, width = sides
        return cls(height, width)

    @classmethod
    def parse(cls, text: object) -> Size:
        """From "HEIGHTxWIDTH" or "HEIGHTxWIDTH:METHOD"."""
        match = _WRITTEN.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(f"{text!r}: expected HEIGHTxWIDTH or HEIGHTxWIDTH:METHOD, such as 256x256:lanczos3")
        return cls(int(match[1]), int(match[2]), match[3] or AREA)


SizeLike = Size | str | Sequence[int]


@dataclass(frozen=True, eq=False)
class _Taps:
    """How one axis is made: output i is the sum over k of weights[i, k] * input[places[i, k]]."""

    places: npt.NDArray[np.int64]  # [out, k] indices into the input; where the weight is 0, any valid one
    weights: Floats  # [out, k]
    scale: np.float32  # what remains to be divided by


def resize_images(images: Array, size: Size) -> Array:
    """[T, H, W, C] -> [T, height, width, C] of the same dtype, one of `IMAGE_DTYPES`; at least one pixel.

    Works image by image, so beside the result it needs memory for one image as float32. Images of bytes are resized by `images.c`, where it
    was compiled, which gives the same.
    """
    steps, height, width, channels = images.shape
    dtype = images.dtype.newbyteorder("=")
    resized_images = np.empty((steps, size.height, size.width, channels), dtype)
    if dtype == np.uint8 and LIBRARY is not None:
        for image, resized in zip(images, resized_images):
            _resize_bytes(image, resized, size.method)
        return resized_images
    taps = _TAPS[size.method]
    rows, columns = taps(height, size.height), taps(width, size.width)
    put = _ORDERS[size.method]
    limits = None if dtype.kind == "f" else np.iinfo(dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # of pixels that are not finite, which validation reports
        for step in range(steps):
            image = put(images[step].astype(np.float32), rows, columns)
            resized_images[step] = image if limits is None else np.clip(np.rint(image), limits.min, limits.max)
    return resized_images


def _resize_bytes(image: Array, resized: Array, method: str) -> None:
    """[H, W, C] uint8 into [height, width, C], by the compiled library."""
    height, width, channels = resized.shape
    rows, columns = _TAPS[method](image.shape[0], height), _TAPS[method](image.shape[1], width)
    factor = np.float32(1) / (rows.scale * columns.scale)
    image = np.ascontiguousarray(image)
    scratch = np.empty(LIBRARY.resize_scratch(image.shape[1], width, channels, rows.places.shape[1]), np.float32)
    LIBRARY.resize_bytes(
        image.ctypes.data, image.shape[1], channels, height, width,
        *_arguments(rows), *_arguments(columns),
        factor, method == AREA, scratch.ctypes.data, resized.ctypes.data,
    )  # fmt: skip


def _arguments(taps: _Taps) -> tuple[int, int, int]:
    return taps.places.ctypes.data, taps.weights.ctypes.data, taps.places.shape[1]


_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
_AXIS = [_POINTER, _POINTER, _INT]
LIBRARY = load_library(
    Path(__file__).with_name("images.c"),
    {
        "resize_scratch": (_INT, [_INT] * 4),
        "resize_bytes": (None, [_POINTER, *[_INT] * 4, *_AXIS, *_AXIS, ctypes.c_float, _INT, _POINTER, _POINTER]),
    },
)
"""None where it was not compiled."""


def _columns_then_rows(image: Floats, rows: _Taps, columns: _Taps) -> Floats:
    """TensorFlow's order for `area`; the areas are divided by last."""
    resized = _along_rows(np.swapaxes(_along_rows(np.swapaxes(image, 0, 1), columns), 0, 1), rows)
    resized *= np.float32(1) / (rows.scale * columns.scale)
    return resized


def _rows_then_columns(image: Floats, rows: _Taps, columns: _Taps) -> Floats:
    """TensorFlow's order for `lanczos3`."""
    return np.swapaxes(_along_rows(np.swapaxes(_along_rows(image, rows), 0, 1), columns), 0, 1)


def _along_rows(image: Floats, taps: _Taps) -> Floats:
    """[in, A, C] -> [out, A, C]: whole rows are added up, first tap first."""
    flat = np.ascontiguousarray(image).reshape(len(image), -1)
    weighted = flat[taps.places[:, 0]] * taps.weights[:, :1]
    addend = np.empty_like(weighted)
    for places, weights in zip(taps.places.T[1:], taps.weights.T[1:]):
        np.take(flat, places, axis=0, out=addend, mode="clip")  # other modes copy once more
        addend *= weights[:, None]
        weighted += addend
    reshaped: Floats = weighted.reshape(len(weighted), *image.shape[1:])
    return reshaped


@lru_cache(maxsize=64)
def _area_taps(before: int, after: int) -> _Taps:
    """Output pixel i covers input [i * scale, (i + 1) * scale]; all in float32, as TensorFlow computes it."""
    one, scale = np.float32(1), np.float32(before) / np.float32(after)
    numbers = np.arange(after, dtype=np.float32)
    low, high = (numbers * scale)[:, None], ((numbers + one) * scale)[:, None]
    first, end = np.floor(low).astype(np.int64), np.ceil(high).astype(np.int64)
    places = first + np.arange(int((end - first).max()))
    left = places.astype(np.float32)
    from_inside = np.where(left + one > high, high - left, one)
    from_before = np.where(left + one > high, scale, left + one - low)
    weights = np.where(left < low, from_before, from_inside)
    return _taps(places, weights, places < end, before, scale)


@lru_cache(maxsize=64)
def _lanczos3_taps(before: int, after: int) -> _Taps:
    """Weights by the distance from the output pixel's centre, each row of them normed to 1."""
    half = np.float32(0.5)
    inverse = np.float32(1.0 / float(np.float32(after) / np.float32(before)))
    widened = max(inverse, np.float32(1))
    centres = ((np.arange(after, dtype=np.float32) + half) * inverse)[:, None]
    reach = _RADIUS * widened
    first = np.clip(np.ceil(centres - reach - half), 0, before - 1).astype(np.int64)
    end = np.clip(np.floor(centres + reach - half), 0, before - 1).astype(np.int64) + 1
    places = first + np.arange(int((end - first).max()))
    distances = np.abs((places.astype(np.float32) + half - centres) * (np.float32(1) / widened))
    weights = np.where(places < end, _lanczos3(distances), np.float32(0))
    total = np.zeros(after, np.float32)
    for column in weights.T:
        total += column
    return _taps(places, weights * (np.float32(1) / total)[:, None], places < end, before, np.float32(1))


def _lanczos3(distances: Floats) -> Floats:
    pi = np.float32(np.pi)
    safe = np.maximum(distances, _NEAR_ZERO)
    sines = [np.sin(angle.astype(np.float64)).astype(np.float32) for angle in (pi * safe, pi * safe / _RADIUS)]
    values = _RADIUS * sines[0] * sines[1] / (pi * pi * safe * safe)
    near = np.where(distances <= _NEAR_ZERO, np.float32(1), values)
    return np.where(distances > _RADIUS, np.float32(0), near).astype(np.float32)


def _taps(places: Array, weights: Array, is_covered: Array, before: int, scale: np.float32) -> _Taps:
    weights = np.where(is_covered, weights, 0).astype(np.float32)
    places = np.ascontiguousarray(np.clip(places, 0, before - 1), np.int64)
    return _Taps(places, np.ascontiguousarray(weights), scale)


_TAPS: dict[str, Callable[[int, int], _Taps]] = {AREA: _area_taps, LANCZOS3: _lanczos3_taps}
_ORDERS: dict[str, Callable[[Floats, _Taps, _Taps], Floats]] = {AREA: _columns_then_rows, LANCZOS3: _rows_then_columns}
