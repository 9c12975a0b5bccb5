"""TensorDicts that were memory-mapped to a folder: each leaf a file of raw bytes, `meta.json` says of which dtype and shape.

| in the folder | is |
| --- | --- |
| `<key>.memmap` | a leaf: C order, little-endian, no header |
| `<key>.shape.memmap` | of a nested tensor: int64 [trajectories, dimensions] |
| `<key>/` with a `meta.json` | a nested TensorDict, or a value that is no tensor |
| `0/`, `1/`, ... | the parts of a lazy stack |
| `_tensordict/` | what a tensorclass holds |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.json_files import read_object
from rlds2reverb.readers.paths import stays_in
from rlds2reverb.readers.pickles import safe_loads
from rlds2reverb.readers.ted.leaves import (
    MOST_NESTED,
    FileLeaf,
    HeldLeaf,
    Leaf,
    dtype_of,
    shape_of,
    sized_leaf,
    stamp_of,
)
from rlds2reverb.wording import shortened

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
    """A TensorDict, and all that is nested in it.

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
        return Folder(path, shape_of(path / META, meta.get("shape", [])), leaves, others)

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

    def leaf(self, path: Path, key: str, meta: Mapping[str, Any]) -> FileLeaf:
        file = self.inside(path, f"{key}.memmap")
        if meta.get("is_nested"):
            return self.nested_tensor(path, key, meta)
        return sized_leaf(file, meta["dtype"], meta.get("shape"))

    def nested_tensor(self, path: Path, key: str, meta: Mapping[str, Any]) -> FileLeaf:
        """A nested tensor as the rows of all of its parts: [rows, ...]."""
        shapes = sized_leaf(self.inside(path, f"{key}.shape.memmap"), "torch.int64", meta.get("shape"))
        file = path / f"{key}.memmap"
        if len(shapes.shape) != 2 or not shapes.shape[0] or not shapes.shape[1]:
            raise SourceError(f"{shapes.path}: expected shapes [trajectories, dimensions], found {list(shapes.shape)}")
        each = shapes.values
        if (each < 0).any() or (each[:, 1:] != each[0, 1:]).any():
            raise SourceError(f"{shapes.path}: expected trajectories that differ in their first size only")
        dtype = dtype_of(file, meta["dtype"])
        row = tuple(map(int, each[0, 1:]))
        row_bytes, stamp = math.prod(row) * dtype.itemsize, stamp_of(file)
        found = stamp[0]
        rows = int(sum(map(int, each[:, 0])))
        if row_bytes == 0 or found % row_bytes or found < rows * row_bytes:
            raise SourceError(
                f"{file}: has {found:,} bytes; expected {rows:,} rows of {row_bytes:,} bytes, as {shapes.path.name} says"
            )
        return FileLeaf(file, dtype, (found // row_bytes, *row), stamp)

    def other(self, path: Path) -> tuple[Any, bool]:
        """A value that is no tensor, and whether there is one."""
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
        """A lazy stack, its parts put together; they must be alike."""
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
