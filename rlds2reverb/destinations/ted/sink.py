"""Episodes -> files that TorchRL loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.destinations.base import Loss, State
from rlds2reverb.destinations.ted.h5 import write_h5
from rlds2reverb.destinations.ted.layout import ENDS, IDS, NEXT, Choices, Key, ends_of, losses_of
from rlds2reverb.destinations.ted.spool import Growing, Spool
from rlds2reverb.destinations.whole_files import remove_whole, whole, write_json
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.ted.dtypes import NAMES

_STORAGE = "storage"
_SPOOL = ".columns"
_LENGTHS = ".lengths"
_INT64, _BOOL = np.dtype(np.int64), np.dtype(bool)
_TENSOR_DICT = "<class 'tensordict._td.TensorDict'>"


class MemmapSink:
    """Writes the files of a memory-mapped TensorDict as they will be.

    Args:
      work: the folder of the buffer.
      keys: of a step.
      state: of an earlier run.
      batch_size: of the buffer.
    """

    def __init__(self, work: Path, keys: Sequence[Key], state: State | None, batch_size: int) -> None:
        self._work, self._keys, self._batch_size = work, list(keys), batch_size
        files: dict[str, Growing] = {IDS: Growing(_INT64, ())}
        for key in keys:
            files[key.name] = Growing(key.spec.dtype, key.row)
            if key.is_observed:
                files[NEXT + key.name] = files[key.name]
        for end in ENDS:
            files[end] = files[NEXT + end] = Growing(_BOOL, (1,))
        self._files = files
        told = state or {"episodes": 0, "steps": 0}
        named = {f"{_STORAGE}/{name}.memmap": column for name, column in files.items()}
        self._spool = Spool(work, named, told["episodes"], told["steps"])

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Takes an episode of at least two rows."""
        steps = len(episode) - 1
        made: dict[str, Array] = {IDS: np.full(steps, self._spool.episodes)}
        for key in self._keys:
            values = key.values(episode)
            made[key.name] = values[:steps]
            if key.is_observed:
                made[NEXT + key.name] = values[1:]
        for end, flags in ends_of(episode).items():
            made[end], made[NEXT + end] = np.zeros_like(flags), flags
        self._spool.append({f"{_STORAGE}/{name}.memmap": values for name, values in made.items()}, steps)
        return list(losses_of(episode, self._keys))

    def sync(self) -> State:
        """Puts all columns on disk."""
        self._spool.sync()
        return {"episodes": self._spool.episodes, "steps": self._spool.steps}

    def finish(self) -> None:
        """Says what the files are."""
        self._spool.sync()
        rows = _some(self._spool.steps)
        leaves = {name: _leaf((rows, *column.row), column.dtype) for name, column in self._files.items()}
        _write_meta(self._work / _STORAGE, nested(leaves), rows)
        told = {"metadata": {}, "is_pytree": False, "len": rows}
        write_json(self._work / _STORAGE / "storage_metadata.json", told)
        write_buffer(self._work, rows, self._batch_size)

    def close(self) -> None:
        """Lets go of the files."""
        self._spool.close()


class H5Sink:
    """Writes columns beside the file, and the file of these at the end.

    Args:
      work: the folder of the buffer, or where the file is to be.
      file: the H5 file.
      keys: of a step.
      state: of an earlier run.
      choices: how the file is to be.
    """

    def __init__(self, work: Path, file: Path, keys: Sequence[Key], state: State | None, choices: Choices) -> None:
        self._work, self._file, self._keys = work, file, list(keys)
        self._compression, self._batch_size = choices.compression, choices.batch_size
        self._columns: dict[str, Growing] = {IDS: Growing(_INT64, ())}
        for key in keys:
            self._columns[key.in_group] = Growing(key.spec.dtype, key.row, key.is_observed)
        self._columns |= dict.fromkeys(ENDS, Growing(_BOOL, (1,)))
        told = state or {"episodes": 0, "steps": 0}
        self._names = {f"{number}": name for number, name in enumerate(self._columns)}
        files = {f"{_SPOOL}/{number}": self._columns[name] for number, name in self._names.items()}
        lengths = {f"{_SPOOL}/{_LENGTHS}": Growing(_INT64, ())}
        is_done = state is not None and file.exists() and not (work / _SPOOL).exists()
        self._lengths = None if is_done else Spool(work, lengths, 0, told["episodes"])
        with ExitStack() as opened:
            if self._lengths is not None:
                opened.callback(self._lengths.close)
            self._spool = None if is_done else Spool(work, files, told["episodes"], told["steps"])
            opened.pop_all()
        self._steps = told["steps"]

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Takes an episode of at least two rows."""
        spool, lengths = self._opened
        steps = len(episode) - 1
        made: dict[str, Array] = {IDS: np.full(steps, spool.episodes), **ends_of(episode)}
        for key in self._keys:
            made[key.in_group] = key.values(episode)
        spool.append({f"{_SPOOL}/{number}": made[name] for number, name in self._names.items()}, steps)
        lengths.append({f"{_SPOOL}/{_LENGTHS}": np.array([steps])}, 1)
        return list(losses_of(episode, self._keys))

    def sync(self) -> State:
        """Puts all columns on disk."""
        spool, lengths = self._opened
        spool.sync()
        lengths.sync()
        self._steps = spool.steps
        return {"episodes": spool.episodes, "steps": spool.steps}

    def finish(self) -> None:
        """Makes the file of the columns, and removes these."""
        if self._spool is not None:
            spool, _ = self._opened
            self.sync()
            _some(spool.steps)
            lengths = np.fromfile(self._work / _SPOOL / _LENGTHS, "<i8")
            columns = {
                name: (self._work / _SPOOL / number, self._columns[name]) for number, name in self._names.items()
            }
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with whole(self._file) as unfinished:
                write_h5(unfinished, columns, lengths, self._compression)
        if self._file.parent != self._work:
            write_buffer(self._work, self._steps, self._batch_size)
        self.close()
        remove_whole(self._work / _SPOOL)

    def close(self) -> None:
        """Lets go of the files."""
        with ExitStack() as spools:
            for spool in (self._spool, self._lengths):
                if spool is not None:
                    spools.callback(spool.close)

    @property
    def _opened(self) -> tuple[Spool, Spool]:
        assert self._spool is not None  # episodes do not come after `finish`
        assert self._lengths is not None
        return self._spool, self._lengths


def write_buffer(folder: Path, rows: int, batch_size: int) -> None:
    """What `ReplayBuffer.loads` reads beside the storage, of a full buffer."""
    (folder / "writer").mkdir(exist_ok=True)
    write_json(folder / "writer" / "metadata.json", {"cursor": 0, "write_count": rows})
    write_json(folder / "buffer_metadata.json", {"batch_size": batch_size, "consume_after_n_samples": None})


def _some(rows: int) -> int:
    if not rows:
        raise ConfigError("no episode was written; TorchRL has no buffer without steps")
    return rows


def _leaf(shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    return {"device": "cpu", "shape": list(shape), "dtype": NAMES[dtype.newbyteorder("=")], "is_nested": False}


def _write_meta(folder: Path, leaves: Mapping[str, Any], rows: int) -> None:
    """`meta.json` of a TensorDict and of those in it."""
    meta: dict[str, Any] = {}
    for name, leaf in leaves.items():
        if "dtype" in leaf and not isinstance(leaf["dtype"], dict):
            meta[name] = leaf
        else:
            meta[name] = {"type": "TensorDict"}
            _write_meta(folder / name, leaf, rows)
    write_json(folder / "meta.json", {**meta, "shape": [rows], "device": "cpu", "_type": _TENSOR_DICT})
