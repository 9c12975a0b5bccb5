"""Specs: shapes and dtypes of nested data without TensorFlow, and what an encoded image decodes to.

A *nest* is a dict, a list, a tuple or a namedtuple of nests, with `ArraySpec` leaves. Leaves are ordered
as TensorFlow and Reverb order them: dict keys sorted, namedtuple fields in their order. A leaf is
named by its '/'-joined path.

A column of encoded images is a column of text: the bytes of JPEG or PNG files. The name of its spec distinguishes it from text, and
every signature carries it: through Reverb's protocol, a checkpoint, a server's config, and TensorFlow. It uses
characters that TensorFlow takes in a name; `_` stands for a free size.

>>> import numpy as np
>>> spec = ImageSpec((480, None, 3), np.dtype(np.uint8), "jpeg")
>>> spec.name, str(spec)
('encoded_image.jpeg.uint8.480x_x3', 'jpeg of uint8[480, ?, 3]')
>>> ImageSpec.of_name(spec.name) == spec, ImageSpec.of_name("image")
(True, None)
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2reverb.errors import SourceError, SpecError

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
      is_upright: whether that system turns images by the orientation in their files (EXIF). No part of the name, nor of what is equal.
    """

    shape: tuple[int | None, int | None, int | None]
    dtype: np.dtype[Any]
    format: str = ""
    is_accurate: bool = field(default=False, compare=False)
    is_upright: bool = field(default=False, compare=False)

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
        sizes = "x".join(_FREE if size is None else str(size) for size in self.shape)
        return f"encoded_image.{self.format or _ANY}.{self.dtype.name}.{sizes}"

    @staticmethod
    def of_name(name: str) -> ImageSpec | None:
        """The image spec with this name; None for any other name."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        height, width, channels = (None if size == _FREE else int(size) for size in match.groups()[2:])
        return ImageSpec((height, width, channels), np.dtype(match[2]), "" if match[1] == _ANY else match[1])

    @property
    def nbytes(self) -> int | None:
        """Bytes of a decoded image; None where a size is free."""
        sizes = [size for size in self.shape if size is not None]
        return math.prod(sizes) * self.dtype.itemsize if len(sizes) == len(self.shape) else None

    def fits(self, wanted: ImageSpec) -> bool:
        """Whether such images are of the wanted kind, where a free size or format fits any."""
        sizes = all(wanted_size is None or size == wanted_size for size, wanted_size in zip(self.shape, wanted.shape))
        return sizes and self.dtype == wanted.dtype and wanted.format in ("", self.format)


_REAL = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
REAL_NUMBERS: Mapping[str, np.dtype[Any]] = {name: np.dtype(name) for name in _REAL.split()}
"""Name -> dtype, of numpy's own that nearly every system's files hold. Those of ml_dtypes may have the same kind: float8_e5m2 is an "f"."""

NUMBERS: Mapping[str, np.dtype[Any]] = {
    **REAL_NUMBERS,
    **{name: np.dtype(name) for name in ("complex64", "complex128")},
}
_PLAIN = frozenset(NUMBERS.values())


def is_plain_number(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype, of any byte order, is one of `NUMBERS`."""
    return dtype.newbyteorder("=") in _PLAIN


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether values are real numbers or truth values; bfloat16, which numpy takes for raw bytes, included."""
    return dtype.kind in "biuf" or dtype.name == "bfloat16"


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether values are floats, bfloat16 included."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


_LONGEST_VIEW = 400
"""Characters of a view's name in a signature."""

Nest = Any
"""A dict, list, tuple or namedtuple of nests, or a leaf."""


@dataclass(frozen=True)
class ArraySpec:
    """What one leaf holds.

    Attributes:
      shape: sizes, None where the size is free.
      dtype: a numpy dtype; object stands for text (`bytes`).
      name: TensorFlow's name of the spec, "" for none; not compared. That of encoded images says what they decode to.
      minimum, maximum: bounds where the spec is a bounded one; not compared.
      view: in a table's signature, on one leaf: the view whose items the table is for; see `with_view`. Not compared.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    name: str = field(default="", compare=False)
    minimum: Any = field(default=None, compare=False)
    maximum: Any = field(default=None, compare=False)
    view: str = field(default="", compare=False, repr=False, kw_only=True)

    def __str__(self) -> str:
        dims = ", ".join("?" if size is None else str(size) for size in self.shape)
        plain = f"{dtype_name(self.dtype)}[{dims}]"
        return plain if self.image is None else f"{plain} ({self.image})"

    @property
    def image(self) -> ImageSpec | None:
        """What each value decodes to, where the leaf holds encoded images; None for text and for numbers."""
        return ImageSpec.of_name(self.name) if self.name and self.dtype.kind == "O" else None

    @staticmethod
    def of_images(image: ImageSpec, shape: tuple[int | None, ...] = ()) -> ArraySpec:
        """The spec of encoded images: one, or an array of `shape`."""
        return ArraySpec(shape, np.dtype(object), image.name)

    def with_leading(self, size: int | None) -> ArraySpec:
        """The spec of a window of `size` such leaves (None: any number)."""
        return replace(self, shape=(size, *self.shape))


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The dtype's name in messages and configs: object is "string"."""
    return "string" if dtype.kind == "O" else dtype.name


def flatten(nest: Nest, path: str = "") -> dict[str, Any]:
    """Leaf path -> leaf, in the order of TensorFlow's nest."""
    leaves: dict[str, Any] = {}
    for leaf_path, leaf in _walk(nest, path):
        if leaf_path in leaves:
            raise SpecError(f'two columns are both named "{leaf_path}": a key holds a "/"')
        leaves[leaf_path] = leaf
    return leaves


def column_spec(column: npt.NDArray[Any]) -> ArraySpec:
    """The spec of a row of a column [T, ...]; text of any dtype is object."""
    dtype = np.dtype(object) if column.dtype.kind in "SU" else column.dtype
    return ArraySpec(column.shape[1:], dtype)


def spec_texts(nest: Nest) -> dict[str, str]:
    """Leaf path -> the leaf as text, such as `float32[2, 4]`."""
    return {path: str(leaf) for path, leaf in flatten(nest).items()}


def same_dtype(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether two dtypes differ at most in their byte order: the wire has only one."""
    return dtype.newbyteorder("=") == other.newbyteorder("=")


def shape_fits(found: tuple[int | None, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether a shape is the wanted one, where None fits any size."""
    return len(found) == len(wanted) and all(
        wanted_size is None or size == wanted_size for size, wanted_size in zip(found, wanted)
    )


def map_leaves(function: Callable[[Any], Any], nest: Nest) -> Nest:
    """The same nest with `function` applied to every leaf."""
    return map_with_path(lambda _, leaf: function(leaf), nest)


def map_with_path(function: Callable[[str, Any], Any], nest: Nest, path: str = "") -> Nest:
    """The same nest with `function(path, leaf)` in place of every leaf."""
    if not _is_container(nest):
        return function(path, nest)
    mapped: dict[str, Nest] = {}
    for key, child in _children(nest):
        mapped[key] = map_with_path(function, child, _join(path, key))
    if isinstance(nest, Mapping):
        return mapped
    return type(nest)(*mapped.values()) if hasattr(nest, "_fields") else type(nest)(mapped.values())


def only(nest: Nest, paths: Collection[str], path: str = "") -> Nest:
    """The nest with the leaves of these paths; a container that loses some becomes a dict, `{}` when it loses all."""
    paths = frozenset(paths)  # the same one in the calls below
    if flatten(nest, path).keys() <= paths:
        return nest
    if not _is_container(nest):
        return {}
    kept = {str(key): only(child, paths, _join(path, key)) for key, child in _children(nest)}
    return {key: child for key, child in kept.items() if flatten(child)}


def with_view(signature: Nest, view: str) -> Nest:
    """The signature of a table for the items of one view.

    One leaf carries it: the first that has axes, else the first without a name of its own. A signature of named scalars only cannot.

    Args:
      signature: the table's.
      view: what people call the view (`views.trajectory.name_of`); a very long one is cut, and ends in a digest of all of it.
    """
    text = view.encode(errors="backslashreplace").decode()
    if len(text) > _LONGEST_VIEW:
        text = f"{text[:_LONGEST_VIEW]}...{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    leaves = flatten(signature).items()
    able = [path for path, leaf in leaves if leaf.shape] + [path for path, leaf in leaves if not leaf.name]
    return map_with_path(lambda path, leaf: replace(leaf, view=text if path in able[:1] else ""), signature)


def view_in(signature: Nest | None) -> str:
    """The view whose items a table with this signature is for; "" when the signature does not say, or is None."""
    leaves = () if signature is None else (leaf for _, leaf in _walk(signature, ""))
    return next((leaf.view for leaf in leaves if leaf.view), "")


@lru_cache(maxsize=256)
def named_tuple_type(name: str, fields: tuple[str, ...]) -> type[Any]:
    """One namedtuple class per name and field list, so that equal nests compare equal; its values pickle."""
    plain: Any = namedtuple(name, fields)  # type: ignore[misc]
    members = {"__slots__": (), "__reduce__": lambda self: (_named_tuple, (name, fields, tuple(self)))}
    return type(name, (plain,), members)


def _named_tuple(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Nest:
    return named_tuple_type(name, fields)(*values)


def differences(expected: Nest, other: Nest) -> list[str]:
    """What keeps items of spec `expected` out of a table with signature `found`: one line per leaf.

    Sizes that the table leaves free (None) fit any size. The order and the names of the leaves
    are compared, for the wire carries them; the kinds of containers are not. A leaf of plain text takes encoded images, one
    of encoded images takes those of its kind only. Where both say which view they are for, it must be the same, whatever the leaves
    are; the first line then names both views, and the next ones the leaves that they make differently.

    Raises:
      SpecError: two leaves of `expected` have the same path. Two of `found` are a difference.
    """
    try:
        present = flatten(other)
    except SpecError as error:
        return [f"table: {error}"]
    item_specs = flatten(expected)
    views = view_in(expected), view_in(other)
    is_other_view = all(views) and views[0] != views[1]
    lines = [f"view: items are of {views[0]}, table is for {views[1]}"] if is_other_view else []
    lines += [
        f"{path}: items have {item_specs[path]}, table has {present[path]}"
        for path in item_specs
        if path in present
        and (
            str(item_specs[path]) != str(present[path]) if is_other_view else not _fits(item_specs[path], present[path])
        )
    ]
    lines += [
        f"{path}: items have {item_specs[path]}, table has no such column" for path in item_specs if path not in present
    ]
    lines += [
        f"{path}: table has {present[path]}, items have no such column" for path in present if path not in item_specs
    ]
    if not lines and list(item_specs) != list(present):
        lines.append(f"column order: items have {list(item_specs)}, table has {list(present)}")
    return lines


def _fits(wanted: ArraySpec, present: ArraySpec) -> bool:
    return (
        same_dtype(wanted.dtype, present.dtype)
        and shape_fits(wanted.shape, present.shape)
        and (present.image is None or (wanted.image is not None and wanted.image.fits(present.image)))
    )


def _is_container(nest: Nest) -> bool:
    return isinstance(nest, (Mapping, list, tuple))


def _children(nest: Nest) -> Iterable[tuple[str, Nest]]:
    if isinstance(nest, Mapping):
        return sorted(nest.items(), key=itemgetter(0))
    return zip(getattr(nest, "_fields", map(str, range(len(nest)))), nest)


def _walk(nest: Nest, path: str) -> Iterator[tuple[str, Any]]:
    if not _is_container(nest):
        yield path, nest
        return
    for key, child in _children(nest):
        yield from _walk(child, _join(path, key))


def _join(path: str, key: str) -> str:
    return f"{path}/{key}" if path else str(key)


def nested(leaves: Mapping[str, Any], name: str = "") -> Nest:
    """The inverse of `flatten`: '/'-joined paths become nested dicts.

    Args:
      leaves: path -> leaf.
      name: the dataset's name in messages; "" for a message without.
    """
    where = f"{name}: " if name else ""
    nest: dict[str, Nest] = {}
    for path, value in leaves.items():
        *parents, leaf = path.split("/")
        level = nest
        for parent in parents:
            below = level.setdefault(parent, {})
            if not isinstance(below, dict):
                raise SourceError(f'{where}column "{path}" lies below another column; rename one of them')
            level = below
        if leaf in level:
            raise SourceError(f'{where}column "{path}" has the name of a group of columns; rename one of them')
        level[leaf] = value
    return nest


def value_spec(value: Any) -> ArraySpec:
    """The spec of a feature of an episode; text is object."""
    array = np.asarray(value)
    return ArraySpec(array.shape, np.dtype(object) if array.dtype.kind in "OSU" else array.dtype)
