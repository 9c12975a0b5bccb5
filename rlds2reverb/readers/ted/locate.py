"""From a path to the buffers that it holds.

| path | is |
| --- | --- |
| a folder with `storage/` | what `ReplayBuffer.dumps` wrote; `writer/metadata.json` has the write cursor |
| ... with `storage/0/`, `storage/1/` and so on | of a ReplayBufferEnsemble |
| a folder with `storage_metadata.json` | a storage |
| a folder with `meta.json` | a TensorDict, such as a dataset that TorchRL downloaded |
| `checkpoint.h5` in a storage, or a file | the H5 form |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.json_files import read_object
from rlds2reverb.readers.ted.flat import FlatTrajectories, is_flat
from rlds2reverb.readers.ted.folders import META, Folder, read_folder
from rlds2reverb.readers.ted.h5 import H5Trajectories
from rlds2reverb.readers.ted.keys import LAST, TedOptions, renamed
from rlds2reverb.readers.ted.pytrees import read_pytree
from rlds2reverb.readers.ted.ring import Grid, RingTrajectories
from rlds2reverb.readers.ted.trajectories import Trajectories

_STORAGE, _WRITER = "storage", "writer"
_STORAGE_METADATA = "storage_metadata.json"
_CHECKPOINT = "checkpoint.h5"
_MASKS = ("mask", "collector/mask")


@dataclass(frozen=True)
class Place:
    """One buffer's files.

    Attributes:
      storage: the folder of the storage, or the H5 file.
      writer: the folder that the writer would have been dumped to; None for none.
    """

    storage: Path
    writer: Path | None = None


def places(path: Path) -> list[Place]:
    """The buffers at a path: one, or those of an ensemble.

    Raises:
      SourceError: there is none.
    """
    try:
        if path.is_file():
            return [Place(path)]
        if not path.is_dir():
            raise SourceError(f"{path}: no such file or folder")
        if (path / _STORAGE).is_dir() and not (path / META).exists():
            return _members(path / _STORAGE, path / _WRITER)
        if path.parent.name == _STORAGE and path.name.isdigit():
            return _members(path, path.parent.parent / _WRITER / path.name)
        if path.name == _STORAGE or (path / _STORAGE_METADATA).exists():
            return _members(path, path.parent / _WRITER)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    return _members(path, None)


def _members(storage: Path, writer: Path | None) -> list[Place]:
    """A storage, or those of an ensemble."""
    if any((storage / name).exists() for name in (META, _STORAGE_METADATA, _CHECKPOINT)):
        return [Place(storage, writer)]
    numbers = sorted(int(below.name) for below in storage.iterdir() if below.name.isdigit() and below.is_dir())
    if (storage / "data_indices.json").exists():
        raise SourceError(
            f"{storage}: a CompressedListStorage; how it was compressed is known to its own code only. Dump it from a LazyMemmapStorage"
        )
    if not numbers:
        raise SourceError(
            f"{storage}: expected a folder that ReplayBuffer.dumps or TensorDict.memmap wrote (with {META}), or a file checkpoint.h5"
        )
    return [Place(storage / str(number), None if writer is None else writer / str(number)) for number in numbers]


def open_buffer(name: str, place: Place, options: TedOptions) -> Trajectories:
    """The trajectories of one buffer.

    Raises:
      SourceError: it is damaged, of a kind that is not read, or an option does not go with it.
    """
    storage = place.storage
    is_folder = not storage.is_file()
    if not is_folder or ((storage / _CHECKPOINT).is_file() and not (storage / META).exists()):
        _refuse_for_compact(name, options)
        return H5Trajectories(name, storage / _CHECKPOINT if is_folder else storage, options)
    told = _storage_metadata(storage)
    folder = read_pytree(storage, told["metadata"]) if told.get("is_pytree") else read_folder(storage)
    leaves = renamed(name, folder.leaves, options.names)
    if is_flat(folder):
        _refuse_for_compact(name, options)
        return FlatTrajectories(name, folder, leaves, told.get("len"), options)
    if not folder.batch:
        raise SourceError(
            f"{name}: {storage}: a TensorDict without a batch size; expected one of [steps] or [batch, time]"
        )
    writer = _writer(place)
    if "rank_key" in writer and options.trajectories != "rows":
        raise SourceError(
            f"{name}: written by a TensorDictMaxValueWriter, so its steps stand in no order; trajectories=rows makes each an episode"
        )
    grid, cut_start = _grid(name, folder, told.get("len"), _cursor(writer, options), options)
    written = writer.get("write_count", 0)
    cut_start = cut_start or (type(written) is int and grid.time_first and written > grid.held == grid.rows)
    return RingTrajectories(name, folder, leaves, grid, options, cut_start)


def _refuse_for_compact(name: str, options: TedOptions) -> None:
    """Options of TED's own form, which the Flat, Nested and H5 forms have nothing for."""
    given = {
        "next": options.next != LAST,
        "cursor": options.cursor is not None,
        "items": options.holds_trajectories is not None,
    }
    odd = [option for option, is_given in given.items() if is_given]
    if odd:
        raise SourceError(
            f"{name}: {odd[0]}: the Flat, Nested and H5 forms keep every observation once, in the order of recording; leave the option out"
        )


def _storage_metadata(storage: Path) -> dict[str, Any]:
    if not (storage / _STORAGE_METADATA).exists():
        return {}
    found = read_object(storage / _STORAGE_METADATA, "what TorchRL tells of a storage")
    length = found.get("len")
    if type(length) is not int or length < 0:
        raise SourceError(f"{storage / _STORAGE_METADATA}: len {length!r}: expected a number of rows")
    return found


def _writer(place: Place) -> dict[str, Any]:
    if place.writer is None or not (place.writer / "metadata.json").exists():
        return {}
    return read_object(place.writer / "metadata.json", "what TorchRL tells of a writer")


def _cursor(writer: dict[str, Any], options: TedOptions) -> int | None:
    if options.cursor is not None:
        return options.cursor
    cursor = writer.get("cursor")
    return cursor if type(cursor) is int and cursor >= 0 else None


def _grid(name: str, folder: Folder, length: int | None, cursor: int | None, options: TedOptions) -> tuple[Grid, bool]:
    """Where steps are, and whether the oldest were overwritten.

    A storage with ndim > 1 has time first; without its metadata time is last, as collectors and datasets have it.
    """
    batch, dims = folder.batch, len(folder.batch)
    held, others = batch[0], math.prod(batch[1:])
    if length is not None and length > math.prod(batch):
        raise SourceError(
            f"{name}: len {length:,}: expected at most {math.prod(batch):,}, as the batch size {list(batch)} says"
        )
    if dims == 1:
        rows = held if length is None else length
        return _ring(name, held, rows, 1, dims, cursor)
    if (
        options.holds_trajectories
        if options.holds_trajectories is not None
        else length is None or _are_items(batch, length, cursor)
    ):
        columns = math.prod(batch[:-1]) if length is None else min(length, math.prod(batch[:-1]))
        rows = batch[-1]
        return Grid(columns, rows, _masked(name, folder, columns, rows), 0, False, math.prod(batch[:-1]), dims), False
    length = math.prod(batch) if length is None else length
    if others == 0 or length % others:
        raise SourceError(
            f"{name}: len {length:,}: expected a multiple of {others:,}, as the batch size {list(batch)} says"
        )
    return _ring(name, held, length // others, others, dims, cursor)


def _are_items(batch: tuple[int, ...], length: int, cursor: int | None) -> bool:
    """Whether items are trajectories: `len` counts these, else steps. Where both are possible the write cursor decides."""
    others = math.prod(batch[1:])
    if length > batch[0] or others == 0 or length % others:
        return length <= batch[0]
    return others > 1 and cursor is not None and cursor % batch[0] == length % batch[0]


def _ring(name: str, held: int, rows: int, columns: int, dims: int, cursor: int | None) -> tuple[Grid, bool]:
    first = cursor if cursor is not None and rows == held else 0
    if rows == held and first > held:
        raise SourceError(f"{name}: write cursor {first:,}: expected at most {held:,}")
    first %= max(held, 1)
    return Grid(columns, rows, np.full(columns, rows), first, True, held, dims), first > 0


def _masked(name: str, folder: Folder, columns: int, rows: int) -> Any:
    """[columns] how many steps a mask keeps; all without one."""
    key = next((key for key in _MASKS if key in folder.leaves), None)
    if key is None:
        return np.full(columns, rows)
    leaf = folder.leaves[key]
    if math.prod(leaf.shape) != math.prod(folder.batch):
        raise SourceError(f"{name}: {key}: has shape {list(leaf.shape)}; expected {list(folder.batch)}")
    kept = leaf.values.reshape(-1, rows)[:columns] != 0
    valid = kept.sum(axis=1)
    if (kept != (np.arange(rows) < valid[:, None])).any():
        raise SourceError(f"{name}: {key}: expected steps that are kept to come first in each trajectory")
    return valid
