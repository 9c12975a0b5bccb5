"""Images: what a column holds (`kind`), JPEG and PNG files decoded (`decode_images`, `decode_columns`), resized, and written as PNG.

Tables that were filled with `encoded` hold the bytes of JPEG and PNG files. Here they become what `push` of a TFDS dataset would
have stored without it, to the bit; with `exact`, what one of a LeRobot or a Minari dataset would have. Rows that a view puts before or after an episode, and that are zero, hold empty text: they
become images of zeros.

For `tf.data` see `rlds2reverb.tf_agents.image_decoder`. Needs the extra `images`.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, DecodeError, SourceError
from rlds2reverb.extras import needing
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, column_spec, flatten, map_with_path

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
      spec: of one row, without the time axis. A size that is free may be any.

    Returns:
      `FILE`, `LAST`, `FIRST`, `PLANE` or "". Images have 1, 3 or 4 channels, and sides of at least 8 pixels, of any numbers or of bool.
    """
    if spec.dtype.kind == "O":
        return FILE if spec.image is not None else ""
    if spec.dtype.kind not in "buif" and spec.dtype.name != "bfloat16":
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
) -> Array:
    """A batch of encoded images, decoded.

    Args:
      batch: [...] bytes objects (or fixed-width bytes), of any number of axes: [B], [B, T], ...; b"" stands for zeros.
      image: what they decode to: the leaf of the table's signature, its `image`, or a shape (height, width, channels) of
        uint8 pixels. Where a size is free, the images of a batch must have one and the same.
      threads: how many decode; by default as many as there are cores.
      column: what errors call the column.
      exact: JPEG by the accurate DCT, as Pillow does, and so LeRobot and Minari; else by the fast one, as TensorFlow and TFDS do. Values
        differ by a few of 255 levels.

    Returns:
      [..., height, width, channels] of the image's dtype.

    Raises:
      DecodeError: a value is no such file, is damaged, or has another size; names the column and the index. Or the libraries
        that decode are missing.
    """
    spec = _image_spec(image)
    files = np.asarray(batch)
    if files.size and files.dtype.kind not in "OS":
        raise DecodeError(f'column "{column}": expected encoded images (bytes), got {files.dtype}{list(files.shape)}')
    _check_threads(threads)
    flat = files.ravel()  # [n]
    there = np.flatnonzero([_is_there(file, column, number, files.shape) for number, file in enumerate(flat)])
    decoded = _decoded(spec, flat, there, files.shape, column, threads, exact)
    if len(there) < len(flat):
        whole = np.zeros((len(flat), *decoded.shape[1:]), decoded.dtype)
        whole[there] = decoded
        decoded = whole
    return decoded.reshape(*files.shape, *decoded.shape[1:])


def decode_columns(batch: Nest, signature: Nest, threads: int | None = None, *, exact: bool = False) -> Nest:
    """A batch with all of its encoded images decoded; everything else as it is.

    Args:
      batch: a nest of arrays of the signature's structure, with any number of leading axes; from Reverb's client
        (`tf.nest.pack_sequence_as`), from `reverb.TrajectoryDataset`, or a list in the signature's order.
      signature: the table's, as `client.server_info().tables[...].signature` has it, or as `reverb.Client` does.
      threads, exact: as for `decode_images`.

    Raises:
      DecodeError: as `decode_images`; or the batch is not of that structure.
    """
    leaves = flatten(signature)
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields") and len(batch) == len(leaves):
        return [_column(path, leaf, column, threads, exact) for (path, leaf), column in zip(leaves.items(), batch)]
    found = list(flatten(batch))
    if found != list(leaves):
        raise DecodeError(f"batch: expected the columns {list(leaves)}, got {found}")
    return map_with_path(lambda path, column: _column(path, leaves[path], column, threads, exact), batch)


def _column(path: str, leaf: Any, column: Any, threads: int | None, exact: bool) -> Any:
    """The column, decoded if its leaf (of ours, or a `tf.TensorSpec`) says so."""
    image = leaf.image if isinstance(leaf, ArraySpec) else ImageSpec.of_name(leaf.name or "")
    return column if image is None else decode_images(column, image, threads, path, exact=exact)


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


def _is_there(file: Any, column: str, number: int, shape: tuple[int, ...]) -> bool:
    """Whether there is a file at all; a row of zeros has none."""
    if not isinstance(file, bytes):
        where = _where(column, number, shape)
        raise DecodeError(f"{where}: expected the bytes of an image file, got {type(file).__name__}")
    return bool(file)


def _decoded(
    spec: ImageSpec, flat: Array, there: Array, shape: tuple[int, ...], column: str, threads: int | None, exact: bool
) -> Array:
    """[len(there), height, width, channels]."""
    if not len(there):
        if None in spec.shape and len(flat):
            raise DecodeError(f'column "{column}": images of {spec}, and none in the batch that tells its size')
        return np.zeros((0, *(size or 0 for size in spec.shape)), spec.dtype)
    feature, files = ImageSpec(spec.shape, spec.dtype), flat[there].tolist()
    try:
        return decode_files(feature, files, f'column "{column}"', threads, exact=exact)
    except SourceError as error:
        _name_index(feature, dict(zip(there.tolist(), files)), shape, column)
        raise DecodeError(str(error)) from error


def _name_index(feature: ImageSpec, files: Mapping[int, bytes], shape: tuple[int, ...], column: str) -> None:
    """Decodes one by one what could not be decoded at once, and raises for the first one that is to blame."""
    for number, file in files.items():
        try:
            decode_files(feature, [file], _where(column, number, shape), 1)
        except SourceError as error:
            raise DecodeError(str(error).replace(", image 0", "", 1)) from error


def _where(column: str, number: int, shape: tuple[int, ...]) -> str:
    index = ", ".join(map(str, np.unravel_index(number, shape))) if shape else ""
    return f'column "{column}", index [{index}]'


def _check_threads(threads: int | None) -> None:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise DecodeError(f"threads {threads!r}: expected a whole number of at least 1")


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
    """Height and width that a file's header tells; None when it is neither JPEG nor PNG, or has no whole header."""
    if data.startswith(JPEG_START):
        return _jpeg_size(data)
    if data.startswith(PNG_START):
        return _png_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in _FRAMES:
            return data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
        if marker in _END:
            return None
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            at += 2 + max(2, data[at + 2] << 8 | data[at + 3])
    return None


def _png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 33 or data[12:16] != b"IHDR":
        return None
    return int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big")


# PNG and JPEG files -> arrays, to the bit as TensorFlow decodes them, in threads.
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


class NotReadHere(SourceError):
    """Something that only the format's own system can read; the message names it. The dataset itself may be good."""


_OTHERS = {b"GIF8": "GIF", b"BM": "BMP", b"RIFF": "WebP"}
_SIZE = struct.Struct(">II")
_SIZE_AT = 16  # in a PNG: after its signature, and the length and the name of its first part

_BITS_AT, _COLOURS_AT = 24, 25
_HEADER_BYTES = 26
_PALETTE = 3
_PNG_CHANNELS = {0: 1, 2: 3, 6: 4}
"""A PNG's kind of colours -> how many channels TensorFlow makes of it."""

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
    with needing("decoding images", "images", SourceError):
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
    if file[_COLOURS_AT] not in _PNG_CHANNELS:
        raise NotReadHere(
            f"{where}: a PNG of grey with alpha is not read here, where the feature leaves the channels free"
        )
    return _PNG_CHANNELS[file[_COLOURS_AT]]


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
"""The longest side of an image that is made; more is a slip of the pen."""

_WRITTEN = re.compile(r"([0-9]{1,6})x([0-9]{1,6})(?::(\w+))?")
_RADIUS = np.float32(3)
_NEAR_ZERO = np.float32(1e-3)
"""Where TensorFlow takes sin(x) / x as 1."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Size:
    """What an image becomes.

    Attributes:
      height, width: in pixels.
      method: one of `METHODS`.

    Raises:
      ConfigError: a side below 1 or above `MOST_PIXELS`, or another method.
    """

    height: int
    width: int
    method: str = AREA

    def __post_init__(self) -> None:
        if not (1 <= self.height <= MOST_PIXELS and 1 <= self.width <= MOST_PIXELS):
            raise ConfigError(f"{self.height}x{self.width}: expected sides of 1 to {MOST_PIXELS} pixels")
        if self.method not in METHODS:
            raise ConfigError(f'method "{self.method}": expected one of {", ".join(METHODS)}')

    def __str__(self) -> str:
        return f"{self.height}x{self.width}:{self.method}"

    @classmethod
    def parse(cls, text: object) -> Size:
        """From "HEIGHTxWIDTH" or "HEIGHTxWIDTH:METHOD".

        Raises:
          ConfigError: it is not of that form.
        """
        found = _WRITTEN.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
        if found is None:
            raise ConfigError(f"{text!r}: expected HEIGHTxWIDTH or HEIGHTxWIDTH:METHOD, such as 256x256:lanczos3")
        return cls(int(found[1]), int(found[2]), found[3] or AREA)


@dataclass(frozen=True, eq=False)
class _Taps:
    """How one axis is made: output i is the sum over k of weights[i, k] * input[places[i, k]].

    Attributes:
      places: [out, k] indices into the input; where the weight is 0, any valid one.
      weights: [out, k].
      scale: what remains to be divided by.
    """

    places: npt.NDArray[np.int64]
    weights: Floats
    scale: np.float32


def resized(images: Array, size: Size) -> Array:
    """[T, H, W, C] -> [T, height, width, C] of the same dtype, one of `IMAGE_DTYPES`; at least one pixel.

    Works image by image, so beside the result it needs memory for one image as float32.
    """
    steps, height, width, channels = images.shape
    dtype = images.dtype.newbyteorder("=")
    made = np.empty((steps, size.height, size.width, channels), dtype)
    taps = _TAPS[size.method]
    rows, columns = taps(height, size.height), taps(width, size.width)
    put = _ORDERS[size.method]
    with np.errstate(invalid="ignore", over="ignore"):  # of pixels that are not finite; validation tells them
        for step in range(steps):
            made[step] = _as(put(images[step].astype(np.float32), rows, columns), dtype)
    return made


def _as(image: Floats, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return image
    limits = np.iinfo(dtype)
    return np.clip(np.rint(image), limits.min, limits.max).astype(dtype)


def _columns_then_rows(image: Floats, rows: _Taps, columns: _Taps) -> Floats:
    """TensorFlow's order for `area`; the areas are divided by last."""
    made = _along_rows(np.swapaxes(_along_rows(np.swapaxes(image, 0, 1), columns), 0, 1), rows)
    made *= np.float32(1) / (rows.scale * columns.scale)
    return made


def _rows_then_columns(image: Floats, rows: _Taps, columns: _Taps) -> Floats:
    """TensorFlow's order for `lanczos3`."""
    return np.swapaxes(_along_rows(np.swapaxes(_along_rows(image, rows), 0, 1), columns), 0, 1)


def _along_rows(image: Floats, taps: _Taps) -> Floats:
    """[in, A, C] -> [out, A, C]: whole rows are added up, first tap first."""
    flat = np.ascontiguousarray(image).reshape(len(image), -1)
    made = flat[taps.places[:, 0]] * taps.weights[:, :1]
    addend = np.empty_like(made)
    for places, weights in zip(taps.places.T[1:], taps.weights.T[1:]):
        np.take(flat, places, axis=0, out=addend, mode="clip")  # other modes copy once more
        addend *= weights[:, None]
        made += addend
    reshaped: Floats = made.reshape(len(made), *image.shape[1:])
    return reshaped


@lru_cache(maxsize=64)
def _area_taps(before: int, after: int) -> _Taps:
    """Output pixel i covers input [i * scale, (i + 1) * scale]; all in float32, as TensorFlow reckons."""
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
    return _Taps(np.clip(places, 0, before - 1), weights, scale)


_TAPS: dict[str, Callable[[int, int], _Taps]] = {AREA: _area_taps, LANCZOS3: _lanczos3_taps}
_ORDERS: dict[str, Callable[[Floats, _Taps, _Taps], Floats]] = {
    AREA: _columns_then_rows,
    LANCZOS3: _rows_then_columns,
}


# Arrays of pixels -> PNG files, in threads; nothing of them is lost.

_PNG_LEVEL = 3
"""Of zlib: twice as fast as the usual 6, for a few percent of the size."""


def check_png_library(instead: str) -> None:
    """Refuses to begin without what makes PNG files.

    Args:
      instead: the option that writes images as numbers.

    Raises:
      ConfigError: it is not installed.
    """
    with needing(f"writing images as PNG files (or {instead}, as numbers)", "images", ConfigError):
        import imagecodecs  # noqa: F401


def png_files(pixels: Array) -> list[bytes]:
    """[n, height, width, channels] of uint8 or uint16 -> n files."""
    return list(_threads().map(_png_file, np.ascontiguousarray(pixels)))


def _png_file(pixels: Array) -> bytes:
    import imagecodecs

    plain = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return bytes(imagecodecs.png_encode(plain, level=_PNG_LEVEL))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1), "png")
