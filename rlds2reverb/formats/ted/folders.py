"""TensorDicts that were memory-mapped to a folder: each leaf a file of raw bytes, `meta.json` says of which dtype and shape.

| in the folder | is |
| --- | --- |
| `<key>.memmap` | a leaf: C order, little-endian, no header |
| `<key>.shape.memmap` | of a nested tensor: int64 [trajectories, dimensions] |
| `<key>/` with a `meta.json` | a nested TensorDict, or a value that is no tensor |
| `0/`, `1/`, ... | the parts of a lazy stack |
| `_tensordict/` | what a tensorclass holds |

Of a storage of PyTrees, `storage_metadata.json` names the files instead: `a/b.memmap` for what was `{"a": {"b": ...}}`, numbers for tuples
and lists.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import read_object
from rlds2reverb.formats.paths import stays_in
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.formats.ted.keys import DTYPES
from rlds2reverb.text import shortened

META = "meta.json"
_MOST_PARTS = 1 << 20
_MOST_PICKLED_BYTES = 64 << 20


@dataclass(frozen=True)
class Folder:
    """A TensorDict.

    Attributes:
      path: where it is.
      batch: its batch shape.
      leaves: '/'-joined key -> values.
      others: key -> what is no tensor: a value, or a `PerRow` of them.
    """

    path: Path
    batch: tuple[int, ...] = ()
    leaves: Mapping[str, Leaf] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PerRow:
    """Values that are no tensors, one for each row."""

    values: list[Any]


def read_folder(path: Path) -> Folder:
    """Reads a TensorDict and everything nested in it.

    Raises:
      SourceError: it is damaged, leads out of the folder, or a file is not as long as `meta.json` says.
    """
    return _Reader(path.resolve()).folder(path, 0)


class _Reader:
    """Reads a folder and what is nested in it; nothing outside of `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, path: Path, depth: int) -> Folder:
        if depth > MOST_NESTED:
            raise SourceError(f"{path}: nested more than {MOST_NESTED} deep")
        meta = self.meta(path)
        kind = str(meta.get("_type", ""))
        if "LazyStackedTensorDict" in kind:
            return self.stack(path, meta, depth)
        if (path / "_tensordict" / META).is_file():
            return self.folder(self.inside(path, "_tensordict"), depth + 1)
        leaves: dict[str, Leaf] = {}
        others: dict[str, Any] = {}
        for key in self.nested_keys(path, meta):
            below = self.inside(path, key)
            found, is_other = self.other(below)
            if is_other:
                others[key] = found
                continue
            nested = self.folder(below, depth + 1)
            leaves |= {f"{key}/{name}": leaf for name, leaf in nested.leaves.items()}
            others |= {f"{key}/{name}": value for name, value in nested.others.items()}
        leaves |= {
            key: self.leaf(path, key, one) for key, one in meta.items() if isinstance(one, dict) and "dtype" in one
        }
        return Folder(path, _shape_of(path / META, meta.get("shape", [])), leaves, others)

    def meta(self, path: Path) -> dict[str, Any]:
        self.inside(path, META)
        return read_object(path / META, "a TensorDict's folder, with meta.json")

    def inside(self, path: Path, name: str) -> Path:
        """A file or folder of that name, which must not lead out of the dataset."""
        below = path / name
        if not stays_in(self._root, below) or not name or "/" in name or "\\" in name or name in (".", ".."):
            raise SourceError(f"{path}: {shortened(repr(name))} leads out of the folder; it is not followed")
        return below

    def nested_keys(self, path: Path, meta: Mapping[str, Any]) -> list[str]:
        """Those that meta.json has, and folders with a meta.json, which those before tensordict 0.5 do not name."""
        named = {key for key, one in meta.items() if isinstance(one, dict) and "type" in one and "dtype" not in one}
        try:
            found = {below.name for below in path.iterdir() if (below / META).is_file()}
        except OSError as error:
            raise SourceError(f"{path}: cannot be listed: {error.strerror}") from error
        return sorted(named | found)

    def leaf(self, path: Path, key: str, meta: Mapping[str, Any]) -> _FileLeaf:
        file = self.inside(path, f"{key}.memmap")
        if meta.get("is_nested"):
            return self.nested_tensor(path, key, meta)
        return _sized_leaf(file, meta["dtype"], meta.get("shape"))

    def nested_tensor(self, path: Path, key: str, meta: Mapping[str, Any]) -> _FileLeaf:
        """A nested tensor as the rows of all of its parts: [rows, ...]."""
        shapes = _sized_leaf(self.inside(path, f"{key}.shape.memmap"), "torch.int64", meta.get("shape"))
        file = path / f"{key}.memmap"
        if len(shapes.shape) != 2 or not shapes.shape[0] or not shapes.shape[1]:
            raise SourceError(f"{shapes.path}: expected shapes [trajectories, dimensions], found {list(shapes.shape)}")
        each = shapes.values
        if (each < 0).any() or (each[:, 1:] != each[0, 1:]).any():
            raise SourceError(f"{shapes.path}: expected trajectories that differ in their first size only")
        dtype = _dtype_of(file, meta["dtype"])
        row = tuple(map(int, each[0, 1:]))
        row_bytes, stamp = math.prod(row) * dtype.itemsize, stamp_of(file)
        found = stamp[0]
        rows = int(sum(map(int, each[:, 0])))
        if row_bytes == 0 or found % row_bytes or found < rows * row_bytes:
            raise SourceError(
                f"{file}: has {found:,} bytes; expected {rows:,} rows of {row_bytes:,} bytes, as {shapes.path.name} says"
            )
        return _FileLeaf(file, dtype, (found // row_bytes, *row), stamp)

    def other(self, path: Path) -> tuple[Any, bool]:
        """A value that is not a tensor, and whether the folder is one."""
        meta = self.meta(path)
        kind = str(meta.get("_type", ""))
        if "NonTensorStack" in kind:
            data = meta.get("data")
            if data == "pickle.pkl":
                data = self.pickled(path, "pickle.pkl")
            return PerRow(data if isinstance(data, list) else [data]), True
        if "NonTensorData" not in kind and not meta.get("_is_non_tensor"):
            return None, False
        if "data" in meta:
            return meta["data"], True
        return self.pickled(path, "other.pickle"), True

    def pickled(self, path: Path, name: str) -> Any:
        file = self.inside(path, name)
        if stamp_of(file)[0] > _MOST_PICKLED_BYTES:
            raise SourceError(f"{file}: expected at most {_MOST_PICKLED_BYTES:,} bytes")
        found = safe_loads(file.read_bytes(), str(file))
        return found.get("data", found) if isinstance(found, dict) and name.startswith("other") else found

    def stack(self, path: Path, meta: Mapping[str, Any], depth: int) -> Folder:
        """A lazy stack with its parts stacked; all parts must have the same layout."""
        parts: list[Folder] = []
        while (path / str(len(parts)) / META).is_file() and len(parts) < _MOST_PARTS:
            parts.append(self.folder(self.inside(path, str(len(parts))), depth + 1))
        if not parts:
            raise SourceError(f"{path}: a lazy stack without parts")
        at = meta.get("stack_dim", 0)
        first = parts[0]
        if not isinstance(at, int) or not 0 <= at <= len(first.batch):
            raise SourceError(f"{path / META}: stack_dim {shortened(repr(at))}: expected 0 to {len(first.batch)}")
        for number, part in enumerate(parts):
            if _layout(part) != _layout(first):
                raise SourceError(
                    f"{path}: part {number} of the lazy stack has other keys or shapes than part 0; read each by itself: {path}/{number}"
                )
        leaves = {
            key: HeldLeaf(np.stack([part.leaves[key].values for part in parts], at), leaf.dtype)
            for key, leaf in first.leaves.items()
        }
        return Folder(path, (*first.batch[:at], len(parts), *first.batch[at:]), leaves, {})


def _layout(folder: Folder) -> Any:
    return folder.batch, {key: (leaf.dtype, leaf.shape) for key, leaf in folder.leaves.items()}


_SINGLE = "_-single-tensor-_"


def read_pytree(path: Path, metadata: Mapping[str, Any]) -> Folder:
    """The leaves of a PyTree; their first size is the batch.

    Raises:
      SourceError: there are none, they differ in their first size, or one is not as the metadata say.
    """
    if not isinstance(metadata, dict) or not metadata:
        raise SourceError(f"{path}: storage_metadata.json names no leaf of the PyTree")
    leaves = {}
    for name, one in metadata.items():
        file = path / f"{name.replace('.', '/')}.memmap"
        if not isinstance(one, dict) or not stays_in(path, file):
            raise SourceError(f"{path}: leaf {shortened(repr(name))} of the PyTree leads out of the folder, or is none")
        key = "observation" if name == _SINGLE else name.replace(".", "/")
        leaves[key] = _sized_leaf(file, one.get("dtype"), one.get("shape"))
    sizes = {leaf.shape[:1] for leaf in leaves.values()}
    if len(sizes) != 1 or () in sizes:
        raise SourceError(f"{path}: leaves of the PyTree differ in their first size: {sorted(sizes)}")
    return Folder(path, sizes.pop(), leaves)


MOST_NESTED = 32
"""Sizes of a shape; levels of a nest."""


class Leaf(Protocol):
    """The values of one key."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all of them."""

    @property
    def values(self) -> Array:
        """All of them, mapped or in memory. Bool is given as uint8, for any byte but 0 is true."""


_Stamp = tuple[int, int]
"""Size in bytes, and the time of the last change in nanoseconds."""


@dataclass(frozen=True)
class _FileLeaf:
    """A leaf in a file of its own."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stamp: _Stamp

    @cached_property
    def values(self) -> Array:
        """The file, mapped for reading."""
        held = np.dtype(np.uint8) if self.dtype == bool else self.dtype
        if not math.prod(self.shape):
            return np.empty(self.shape, held)
        try:
            return np.memmap(self.path, held, "r", shape=self.shape).view(np.ndarray)
        except (OSError, ValueError) as error:
            raise SourceError(f"{self.path}: cannot be read: {error}") from error


@dataclass(frozen=True)
class HeldLeaf:
    """A leaf in memory."""

    values: Array
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        return self.values.shape


def _sized_leaf(path: Path, dtype: Any, shape: Any) -> _FileLeaf:
    """A leaf whose file has the bytes that its dtype and shape make.

    Raises:
      SourceError: it has others, or dtype and shape make no sense.
    """
    known = _dtype_of(path, dtype)
    sizes = _shape_of(path, shape)
    expected, stamp = math.prod(sizes) * known.itemsize, stamp_of(path)
    if expected != stamp[0]:
        raise SourceError(f"{path}: has {stamp[0]:,} bytes; expected {expected:,} for {dtype} {list(sizes)}")
    return _FileLeaf(path, known, sizes, stamp)


@contextmanager
def unchanged(leaves: Iterable[Leaf]) -> Iterator[None]:
    """Checks, before and after the body, that no file of the leaves has changed.

    Raises:
      SourceError: a file has changed since it was opened.
    """
    files = [leaf for leaf in leaves if isinstance(leaf, _FileLeaf)]
    _check_stamps(files)
    yield
    _check_stamps(files)


def _check_stamps(files: Iterable[_FileLeaf]) -> None:
    for one in files:
        if stamp_of(one.path) != one.stamp:
            raise SourceError(f"{one.path}: was written anew after it was first looked at; open the source again")


def stamp_of(path: Path) -> _Stamp:
    """The stamp of a regular file.

    Raises:
      SourceError: it is missing, or no regular file.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{path}: not a regular file")
    return found.st_size, found.st_mtime_ns


def _dtype_of(path: Path, name: Any) -> np.dtype[Any]:
    """Numpy's dtype of a torch one.

    Raises:
      SourceError: there is none.
    """
    if not isinstance(name, str) or name not in DTYPES:
        raise SourceError(f"{path}: dtype {shortened(repr(name))}: expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _shape_of(path: Path, sizes: Any) -> tuple[int, ...]:
    """A shape as JSON has it.

    Raises:
      SourceError: it is none.
    """
    if not isinstance(sizes, list) or len(sizes) > MOST_NESTED:
        raise SourceError(f"{path}: shape {shortened(repr(sizes))}: expected a list of sizes")
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 62:
            raise SourceError(f"{path}: shape {shortened(repr(sizes))}: expected sizes of at least 0")
    return tuple(sizes)


def as_column(values: list[Any]) -> Array:
    """[T]: bools and numbers of one kind as such, anything else as text."""
    kinds = {type(value) for value in values}
    if kinds in ({bool}, {int}, {float}):
        plain = np.array(values)
        if plain.dtype != object:
            return plain
    column = np.empty(len(values), object)
    column[:] = [_as_text(value) for value in values]
    return column


def as_metadata(value: Any) -> Any:
    """A number as numpy's, anything else as text."""
    if isinstance(value, (bool, int, float)):
        plain = np.asarray(value)
        if plain.dtype != object:
            return plain[()]
    return value if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object else _as_text(value)


def _as_text(value: Any) -> bytes:
    """Texts unchanged, other values as JSON, or as Python writes them."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        return repr(value).encode("utf-8", "backslashreplace")
