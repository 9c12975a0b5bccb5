"""Encoded images out of samples -> arrays: for batches as Reverb's client, `reverb.TrajectoryDataset` and any learner have them.

Tables that were filled with `encoded` hold the bytes of JPEG and PNG files. Here they become what `push` of a TFDS dataset would
have stored without it, to the bit; with `exact`, what one of a LeRobot or a Minari dataset would have. Rows that a view puts before or after an episode, and that are zero, hold empty text: they
become images of zeros.

For `tf.data` see `rlds2reverb.tf_agents.image_decoder`. Needs the extra `images`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2reverb.episodes import Array
from rlds2reverb.errors import DecodeError, SourceError
from rlds2reverb.image_headers import image_size
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.specs import ArraySpec, Nest, column_spec, flatten, map_with_path
from rlds2reverb.tfds_files.images import decode_files

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
