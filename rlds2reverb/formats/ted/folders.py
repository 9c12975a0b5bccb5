"""TensorDicts that were memory-mapped to a folder: each leaf a file of raw bytes, whose dtype and shape stand in `meta.json`.

| in the folder | content |
| --- | --- |
| `<key>.memmap` | a leaf: C order, little-endian, no header |
| `<key>.shape.memmap` | of a nested tensor: int64 [trajectories, dimensions] |
| `<key>/` with a `meta.json` | a nested TensorDict, or a value that is not a tensor |
| `0/`, `1/`, ... | the parts of a lazy stack |
| `_tensordict/` | the content of a tensorclass |

For a storage of PyTrees, `storage_metadata.json` names the files instead: `a/b.memmap` for `{"a": {"b": ...}}`, numbers for tuples and lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular, read_object
from rlds2reverb.formats.buckets import local_copy
from rlds2reverb.formats.paths import Stamp, check_unchanged, stamp_of
from rlds2reverb.formats.pickles import safe_loads, stable_repr
from rlds2reverb.formats.ted.keys import DTYPES
from rlds2reverb.text import shortened

META = "meta.json"
MOST_NESTED = 32  # levels of a nest; sizes of a shape
_MOST_PARTS = 1 << 20
_MOST_PICKLED_BYTES = 64 << 20
_SINGLE = "_-single-tensor-_"
_WHOLE_BYTES = 16 << 20  # of a file that is read whole when rows here and there are asked for
_BLOCK_BYTES = 1 << 20  # read at once in search of rows here and there
_AHEAD_BYTES = 256 << 10  # read at once where few are asked for, one after the other
_NEAR_BYTES = 4 << 10  # skipped at most where rows follow one another
_APART_BYTES = 64 << 10  # from one row to the next, beyond which each is read by itself


@dataclass(frozen=True)
class Folder:
    """A TensorDict.

    Attributes:
      batch: its batch shape.
      leaves: '/'-joined key -> values.
      others: key -> a value that is not a tensor, or a `PerRow` of them.
      is_whole: all of its rows were recorded, although no metadata say how many were; a folder may have room for more.
      time: the size of the batch that is named "time", by its number; None where none is.
      stops: [n] the rows behind the ends of trajectories, ascending, where it is made of as many parts; None where keys say where they end.
    """

    batch: tuple[int, ...] = ()
    leaves: Mapping[str, Leaf] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = False
    time: int | None = None
    stops: Array | None = None


@dataclass(frozen=True)
class PerRow:
    """Values that are not tensors, one for each row."""

    values: list[Any]


def read_folder(path: Path, depth: int = 0) -> Folder:
    """Reads a TensorDict and everything nested in it; raises `SourceError` if it is damaged, or leads out of the folder."""
    if depth > MOST_NESTED:
        raise SourceError(f"{path}: nested more than {MOST_NESTED} deep")
    meta = _read_meta(path)
    kind = str(meta.get("_type", ""))
    if "LazyStackedTensorDict" in kind:
        return _read_stack(path, meta, depth)
    if (path / "_tensordict" / META).is_file():
        return read_folder(_inside(path, "_tensordict"), depth + 1)
    leaves: dict[str, Leaf] = {}
    other_values: dict[str, Any] = {}
    entries = {key: entry for key, entry in meta.items() if isinstance(entry, dict)}
    try:  # before tensordict 0.5, meta.json does not name nested folders
        nested_keys = {below.name for below in path.iterdir() if (below / META).is_file()}
    except OSError as error:
        raise SourceError(f"{path}: cannot be listed: {error.strerror}") from error
    nested_keys |= {key for key, entry in entries.items() if "type" in entry and "dtype" not in entry}
    for key in sorted(nested_keys):
        below = _inside(path, key)
        value, is_other = _read_other(below)
        if is_other:
            other_values[key] = value
            continue
        nested = read_folder(below, depth + 1)
        leaves |= {f"{key}/{name}": leaf for name, leaf in nested.leaves.items()}
        other_values |= {f"{key}/{name}": value for name, value in nested.others.items()}
    for key, entry in entries.items():
        if "dtype" in entry:
            file = _inside(path, f"{key}.memmap")
            if entry.get("is_nested"):
                leaves[key] = _read_nested_tensor(path, key, entry)
            else:
                leaves[key] = _make_leaf(file, entry["dtype"], entry.get("shape"))
    return Folder(_shape_of(path / META, meta.get("shape", [])), leaves, other_values)


def _read_meta(path: Path) -> dict[str, Any]:
    _inside(path, META)
    return read_object(path / META, "a TensorDict's folder, with meta.json")


def _inside(path: Path, name: str) -> Path:
    """A file or folder of that name, which must not lead out of the dataset."""
    below = path / name
    if not name or "/" in name or "\\" in name or name in (".", ".."):
        raise SourceError(f"{path}: {shortened(repr(name))} leads out of the folder; it is not followed")
    return below


def _read_nested_tensor(path: Path, key: str, meta: Mapping[str, Any]) -> Leaf:
    """A nested tensor as the rows of all of its parts: [rows, ...]."""
    about = _inside(path, f"{key}.shape.memmap")
    shapes = _make_leaf(about, "torch.int64", meta.get("shape"))
    file = path / f"{key}.memmap"
    if len(shapes.shape) != 2 or not shapes.shape[0] or not shapes.shape[1]:
        raise SourceError(f"{about}: expected shapes [trajectories, dimensions], found {list(shapes.shape)}")
    sizes = shapes.read()
    if (sizes < 0).any() or (sizes[:, 1:] != sizes[0, 1:]).any():
        raise SourceError(f"{about}: expected trajectories that differ in their first size only")
    dtype = _dtype_of(file, meta["dtype"])
    row = tuple(map(int, sizes[0, 1:]))
    row_bytes, stamp = math.prod(row) * dtype.itemsize, _stamp_regular(file)
    held = stamp[0]
    rows = int(sum(map(int, sizes[:, 0])))
    if row_bytes == 0 or held % row_bytes or held < rows * row_bytes:
        raise SourceError(
            f"{file}: has {held:,} bytes; expected {rows:,} rows of {row_bytes:,} bytes, as {about.name} says"
        )
    return Leaf(dtype, (held // row_bytes, *row), RawFile(file, stamp))


def _read_other(path: Path) -> tuple[Any, bool]:
    """A value that is not a tensor, and whether the folder holds one."""
    meta = _read_meta(path)
    kind = str(meta.get("_type", ""))
    if "NonTensorStack" in kind:
        data = meta.get("data")
        if data == "pickle.pkl":
            data = _unpickle(path, "pickle.pkl")
        return PerRow(data if isinstance(data, list) else [data]), True
    if "NonTensorData" not in kind and not meta.get("_is_non_tensor"):
        return None, False
    if "data" in meta:
        return meta["data"], True
    value = _unpickle(path, "other.pickle")
    return value.get("data", value) if isinstance(value, dict) else value, True


def _unpickle(path: Path, name: str) -> Any:
    file = _inside(path, name)
    if _stamp_regular(file)[0] > _MOST_PICKLED_BYTES:
        raise SourceError(f"{file}: expected at most {_MOST_PICKLED_BYTES:,} bytes")
    return safe_loads(file.read_bytes(), str(file))


def _read_stack(path: Path, meta: Mapping[str, Any], depth: int) -> Folder:
    """A lazy stack with its parts stacked; all parts must have the same layout."""
    parts: list[Folder] = []
    while (path / str(len(parts)) / META).is_file() and len(parts) < _MOST_PARTS:
        parts.append(read_folder(_inside(path, str(len(parts))), depth + 1))
    if not parts:
        raise SourceError(f"{path}: a lazy stack without parts")
    at = meta.get("stack_dim", 0)
    first = parts[0]
    if not isinstance(at, int) or not 0 <= at <= len(first.batch):
        raise SourceError(f"{path / META}: stack_dim {shortened(repr(at))}: expected 0 to {len(first.batch)}")
    layouts = [(part.batch, {key: (leaf.dtype, leaf.shape) for key, leaf in part.leaves.items()}) for part in parts]
    for number, layout in enumerate(layouts):
        if layout != layouts[0]:
            raise SourceError(
                f"{path}: part {number} of the lazy stack has other keys or shapes than part 0; read each by itself: {path}/{number}"
            )
    leaves = {}
    for key, leaf in first.leaves.items():
        values = np.stack([part.leaves[key].read() for part in parts], at)
        leaves[key] = Leaf(leaf.dtype, values.shape, held=values)
    return Folder((*first.batch[:at], len(parts), *first.batch[at:]), leaves)


def read_pytree(path: Path, metadata: Any) -> Folder:
    """The leaves of a PyTree, whose first size is the batch; raises `SourceError` if they differ in it, or do not match the metadata."""
    if not isinstance(metadata, dict) or not metadata:
        raise SourceError(f"{path}: storage_metadata.json names no leaf of the PyTree")
    leaves = {}
    for name, about in metadata.items():
        parts = name.split(".")
        # An empty part would begin a path anew: ".tmp.x" is the leaf /tmp/x.
        if not isinstance(about, dict) or not all(parts) or any(sign in name for sign in "/\\\0"):
            raise SourceError(
                f"{path}: leaf {shortened(repr(name))} of the PyTree leads out of the folder, or has no dtype and shape"
            )
        key = "observation" if name == _SINGLE else "/".join(parts)
        leaves[key] = _make_leaf(
            path.joinpath(*parts[:-1], f"{parts[-1]}.memmap"), about.get("dtype"), about.get("shape")
        )
    sizes = {leaf.shape[:1] for leaf in leaves.values()}
    if len(sizes) != 1 or () in sizes:
        raise SourceError(f"{path}: leaves of the PyTree differ in their first size: {sorted(sizes)}")
    return Folder(sizes.pop(), leaves)


class RawFile:
    """A file of raw bytes, read in pieces. A path in a bucket is read from a local copy.

    The file is not mapped: where somebody cuts a file that is mapped, the system ends the process that looks at it (SIGBUS).

    Args:
      stamp: of the file when it was first looked at.
      begin: the byte of the file that counts as the first one.
    """

    def __init__(self, path: Path, stamp: Stamp | None, begin: int = 0) -> None:
        self.path, self.stamp, self._begin = path, stamp, begin
        self._lock = Lock()
        self._file: FileIO | None = None
        self._readers = 0

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Inside, the file stays open from its first piece on; else it is opened for each piece."""
        with self._lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                if not self._readers:
                    self._close()

    def read(self, start: int, into: Array) -> None:
        """Fills an array with the bytes from `start` on.

        Raises:
          WrittenAnew: the file ends before, for it has been written anew.
          SourceError: it cannot be read.
        """
        buffer = into.reshape(-1).view(np.uint8).data
        with self._lock:
            try:
                if self._file is None:
                    self._file = FileIO(local_copy(self.path))
                self._file.seek(self._begin + start)
                while buffer and (count := self._file.readinto(buffer)):
                    buffer = buffer[count:]
            except (OSError, ValueError) as error:
                raise SourceError(f"{self.path}: cannot be read: {error}") from error
            finally:
                if not self._readers:
                    self._close()
        if buffer:
            check_unchanged(self.path, self.stamp)
            end = self._begin + start + into.nbytes
            raise SourceError(f"{self.path}: ends at byte {end - len(buffer):,}; expected at least {end:,} bytes")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class FileArray:
    """The rows of an array in a file; read are those that are asked for."""

    def __init__(self, file: RawFile, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file, self.dtype, self.shape = file, dtype, shape
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._next = -1  # the row behind those that were asked for last
        self._ahead: tuple[int, Array] = 0, np.empty((0, *shape[1:]), dtype)
        self._whole: Array | None = None

    def reshape(self, *shape: int) -> FileArray:
        """The same values with other rows."""
        return FileArray(self._file, self.dtype, shape)

    def __getitem__(self, rows: slice) -> Array:
        """Raises as `RawFile.read` does."""
        start, stop, step = rows.indices(self.shape[0])
        stop = max(start, stop)
        if step == 1 or stop - start <= 1:
            return self.read(start, stop)
        if self._whole is None and self.shape[0] * self._row_bytes <= _WHOLE_BYTES:
            self._whole = self._read(0, self.shape[0])
        if self._whole is not None:
            return self._whole[rows].copy()
        numbers = range(start, stop, step)
        if step * self._row_bytes > _APART_BYTES:
            values = np.empty((len(numbers), *self.shape[1:]), self.dtype)
            for place, number in enumerate(numbers):
                self._file.read(number * self._row_bytes, values[place : place + 1])
            return values
        block = max(_BLOCK_BYTES // self._row_bytes // step, 1) * step
        pieces = [self._read(first, min(first + block, stop))[::step] for first in range(start, stop, block)]
        return np.concatenate(pieces)

    def read(self, start: int, stop: int, spare: int = 0) -> Array:
        """[stop - start + spare, ...]: the rows [start, stop), and room for further ones.

        Raises as `RawFile.read` does. Where few bytes are asked for, one after the other, further ones are read ahead.
        """
        skipped, self._next = (start - self._next) * self._row_bytes, stop
        first, ahead = self._ahead
        if start < first or stop > first + len(ahead):
            most = start + _AHEAD_BYTES // self._row_bytes
            if stop >= most or not 0 <= skipped <= _NEAR_BYTES:
                return self._read(start, stop, spare)
            first, ahead = self._ahead = start, self._read(start, min(most, self.shape[0]))
        # Copied, for whoever keeps some rows would keep all of these.
        values = np.empty((stop - start + spare, *self.shape[1:]), self.dtype)
        values[: stop - start] = ahead[start - first : stop - first]
        return values

    def _read(self, start: int, stop: int, spare: int = 0) -> Array:
        values = np.empty((stop - start + spare, *self.shape[1:]), self.dtype)
        self._file.read(start * self._row_bytes, values[: stop - start])
        return values


@dataclass(frozen=True, eq=False)
class Leaf:
    """The values of one key, in memory or in a file. Bool is held as uint8, of which any byte but 0 is true."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    file: RawFile | None = None
    held: Array | None = None

    @cached_property
    def stored(self) -> Array | FileArray:
        """The values as rows; those of a file are read when they are asked for."""
        if self.held is not None:
            return self.held
        dtype = np.dtype(np.uint8) if self.dtype == bool else self.dtype
        if self.file is None or not math.prod(self.shape):
            return np.empty(self.shape, dtype)
        return FileArray(self.file, dtype, self.shape)

    def read(self) -> Array:
        """All values, in memory. Raises as `RawFile.read` does."""
        return self.stored[:] if self.shape else np.asarray(self.stored.reshape(1)[:].reshape(()))


def read_numbers(path: Path, dtype: str, shape: list[int]) -> Array:
    """All values of a file of raw bytes, of a dtype by torch's name. Raises `SourceError` if it has another size, or cannot be read."""
    return _make_leaf(path, dtype, shape).read()


def leaf_of(values: Array) -> Leaf:
    """A leaf of values in memory."""
    held = values.view(np.uint8) if values.dtype == bool else values
    return Leaf(values.dtype, values.shape, held=held)


def _make_leaf(path: Path, dtype: Any, shape: Any) -> Leaf:
    """A leaf. Raises `SourceError` if dtype or shape is invalid, or the file has another size than they make."""
    numpy_dtype = _dtype_of(path, dtype)
    sizes = _shape_of(path, shape)
    expected, stamp = math.prod(sizes) * numpy_dtype.itemsize, _stamp_regular(path)
    if expected != stamp[0]:
        with path.open("rb"):  # which says so if it is a git-lfs pointer, or a link that leads out
            raise SourceError(f"{path}: has {stamp[0]:,} bytes; expected {expected:,} for {dtype} {list(sizes)}")
    return Leaf(numpy_dtype, sizes, RawFile(path, stamp))


@contextmanager
def reading(leaves: Iterable[Leaf]) -> Iterator[None]:
    """Inside, the files of the leaves stay open. Checks, before and after, that none has changed since it was first looked at."""

    def check() -> None:
        for file in files:
            check_unchanged(file.path, file.stamp)

    files = [leaf.file for leaf in leaves if leaf.file is not None]
    check()
    with ExitStack() as stack:
        for file in files:
            stack.enter_context(file.kept_open())
        yield
    check()


def _stamp_regular(path: Path) -> Stamp:
    stamp = stamp_of(path)
    check_regular(path)
    return stamp


def _dtype_of(path: Path, name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in DTYPES:
        raise SourceError(f"{path}: dtype {shortened(repr(name))}: expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _shape_of(path: Path, sizes: Any) -> tuple[int, ...]:
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
        if plain.dtype != object:  # as numpy makes of whole numbers beyond 64 bits
            return plain
    return np.array([_as_text(value) for value in values], object)


def as_metadata(value: Any) -> Any:
    """A number or array as numpy's, anything else as text."""
    if isinstance(value, (bool, int, float)):
        plain = np.asarray(value)
        if plain.dtype != object:
            return plain[()]
    return value if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object else _as_text(value)


def _as_text(value: Any) -> bytes:
    """Texts unchanged, other values as JSON; as `repr` if JSON cannot hold them."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        return stable_repr(value).encode("utf-8", "backslashreplace")
