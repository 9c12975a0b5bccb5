"""TorchRL's buffers, written without torch: `ted:PATH[?OPTIONS]`.

| RLDS | TED |
| --- | --- |
| `observation`, or what is nested in it | the same key, at the root and under `next` |
| `action`, or what is nested in it | the same key, at the root |
| `reward` | `next.reward`, a number as [1] |
| `is_terminal`, `is_last` | `next.terminated`, `next.truncated`, `next.done`, each [1] |
| `discount` | `discount`, a number as [1] |
| a column `next/...` | the same key |
| any other column | the same key, at the root and under `next`; at the root only where `steps=` names it |
| the number of the episode | `collector.traj_ids` |

An episode of T + 1 rows has T steps. Columns grow in files of raw bytes (C order, little-endian, no header): those of a memory-mapped
TensorDict are the buffer itself, those of the H5 form are put into the file at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    byte_view,
    is_under,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.files import at_end, put, remove_whole, whole, write_json
from rlds2reverb.formats.destination import (
    LAST_ROW,
    Content,
    Encode,
    Loss,
    Sink,
    State,
    are_equal,
    made_flags,
    unchanged,
)
from rlds2reverb.formats.hdf5 import Output
from rlds2reverb.formats.options import Parse, at_least_one, escaped, one_of, path_and_options, unescaped
from rlds2reverb.formats.rows import zero_row
from rlds2reverb.formats.ted import LOSSES
from rlds2reverb.formats.ted.keys import NAMES, NEXT, TRAJECTORY_IDS
from rlds2reverb.specs import ArraySpec, ImageSpec, nested

_H5, _MEMMAP = "h5", "memmap"
_FILES = (
    "buffer_metadata.json",
    *(f"storage/**/*.{kind}" for kind in ("json", "memmap", "h5", "pickle", "pt", "t")),
    *(f"{part}/**/*.{kind}" for part in ("sampler", "writer") for kind in ("json", "memmap", "pickle", "pt", "t")),
    *("prefetch.pkl", "transform.t", "rng_state"),
)


def open_ted(text: str) -> TedDestination:
    """The destination that the text after "ted:" names.

    Raises:
      ConfigError: the path is missing, or an option has no valid value.
    """
    people = f"ted:{text}"
    path, wanted = path_and_options(people, text, _OPTIONS, ConfigError)
    if not path.strip("/ "):
        raise ConfigError(f'"{people}": expected ted:FOLDER or ted:FILE.h5')
    target = Path(unescaped(path)).expanduser()
    is_h5 = wanted.pop("layout", _H5) == _H5
    wanted["keeps_discount"] = wanted.pop("discount", True)
    choices = Choices(is_h5, **wanted)
    if not choices.is_h5 and target.suffix == ".h5":
        raise ConfigError(f'"{people}": layout=memmap makes a folder; its name must not end in ".h5"')
    if not choices.is_h5 and choices.compression:
        raise ConfigError(f'"{people}": compression goes with layout=h5 only')
    return TedDestination(people, target, choices)


class TedDestination:
    """A folder that `ReplayBuffer.loads` reads, or an H5 file."""

    def __init__(self, name: str, path: Path, choices: Choices) -> None:
        self.name, self.path, self._choices = name, path, choices

    def source(self, path: Path) -> str:
        """`ted:PATH`."""
        return f"ted:{escaped(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        """Those of a buffer that TorchRL dumps."""
        return () if self.path.suffix == ".h5" else _FILES

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """None: tensors are numbers."""
        return {}

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns and features that have no key."""
        unknown = sorted(self._choices.steps - set(content.columns))
        if unknown:
            raise ConfigError(f'{self.name}: steps: no column "{unknown[0]}"; there are: {", ".join(content.columns)}')
        keys, losses = keys_of(content, self._choices)
        if not any(is_under(key.path, OBSERVATION) for key in keys):
            raise ConfigError(f"{self.name}: no observation of {content.source} is a tensor")
        return losses

    @property
    def least_rows(self) -> int:
        """Two: a step has an action and the observation after it."""
        return 2

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """From the length, and from which rows are terminal; the first row has no step that could say so."""
        made, terminal = made_flags(episode), episode.columns.get(IS_TERMINAL)
        return made if terminal is None else {**made, IS_TERMINAL: np.append(False, terminal[1:])}

    def encoder(self, content: Content) -> Encode:
        """None: the sink writes episodes as they are."""
        return unchanged

    def sink(self, work: Path, content: Content, state: State | None) -> Sink:
        """Starts to write, or continues from a state."""
        keys, _ = keys_of(content, self._choices)
        if not self._choices.is_h5:
            return _MemmapSink(work, keys, state, self._choices.batch_size)
        inside = self.path.name if self.path.suffix == ".h5" else "storage/checkpoint.h5"
        return _H5Sink(work, work / inside, keys, state, self._choices)


def _columns(text: str) -> frozenset[str]:
    if not text:
        raise ValueError('expected columns, with "+" between them and "." for "/"')
    return frozenset(part.replace(".", "/") for part in text.split("+"))


_OPTIONS: dict[str, Parse] = {
    "layout": one_of(h5=_H5, memmap=_MEMMAP),
    "steps": _columns,
    "discount": one_of(keep=True, drop=False),
    "compression": one_of(none=None, gzip="gzip", lzf="lzf"),
    "batch_size": at_least_one,
}


IDS = TRAJECTORY_IDS[0]
ENDS = ("done", "terminated", "truncated")
BATCH_SIZE = 32
"""`ReplayBuffer.loads` takes what was saved in place of its own, and `sample` refuses None."""
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_TAKEN = frozenset({*ENDS, "next", "reward", "collector", "index", "episode", "mask", "metadata"})
"""First names of keys that mean something in TED."""
_NOT_IN_META = frozenset({"shape", "device", "_type", "_tensordict", "meta"})
"""Names that `meta.json` has for other things."""


@dataclass(frozen=True)
class Key:
    """One key of TED.

    Attributes:
      name: '/'-joined; without `next/` if it is at both places.
      path: the column.
      spec: of a step's value.
      is_observed: whether it has the value before the step and the one after.
      unpacks: whether a number becomes [1].
    """

    name: str
    path: str
    spec: ArraySpec
    is_observed: bool = False
    unpacks: bool = False

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of a step's value."""
        return (1,) if self.unpacks else tuple(size or 0 for size in self.spec.shape)

    @property
    def in_group(self) -> str:
        """Its name in the H5 form, which has rewards without `next`."""
        return REWARD if self.path == REWARD else self.name

    def values(self, episode: Episode) -> Array:
        """[T, ...], or [T + 1, ...] of what is observed."""
        column = episode.columns[self.path]
        found = column if self.is_observed else column[:-1]
        return found.reshape(len(found), *self.row).astype(self.spec.dtype, copy=False)


@dataclass(frozen=True)
class Choices:
    """How a buffer is to be written.

    Attributes:
      is_h5: as HDF5; else memory-mapped files.
      steps: columns whose last row means nothing, so that they stand at the root only.
      keeps_discount: whether there is a key `discount`.
      compression: of h5py's `create_dataset`; None for none.
      batch_size: of the buffer.
    """

    is_h5: bool = True
    steps: frozenset[str] = frozenset()
    keeps_discount: bool = True
    compression: str | None = None
    batch_size: int = BATCH_SIZE


def keys_of(content: Content, choices: Choices) -> tuple[list[Key], list[Loss]]:
    """The keys of a content, and what is lost because it has no key."""
    keys: list[Key] = []
    losses = [Loss("metadata", LOSSES["metadata"], f"metadata/{path}") for path in content.metadata]
    if IS_TERMINAL not in content.columns:
        losses.append(Loss("unknown_end", LOSSES["unknown_end"], IS_TERMINAL))
    for path, spec in sorted(content.columns.items()):
        if path in FLAGS:
            continue
        code = _unfit(path, spec, choices) or _beside_another(path, content, choices)
        if code:
            losses.append(Loss(code, f"{spec}: {LOSSES[code]}", path))
        if code in ("", "bfloat16", "shape"):
            held = ArraySpec(spec.shape, np.dtype(np.float32)) if _is_widened(spec, choices) else spec
            keys.append(_key(path, held, choices.steps))
    return keys, losses


def _ends_of(episode: Episode) -> dict[str, Array]:
    """`done`, `terminated` and `truncated` of every step, [T, 1]."""
    last = np.zeros((len(episode) - 1, 1), bool)
    terminated = last.copy()
    if IS_TERMINAL in episode.columns:
        terminated[:, 0] = episode.columns[IS_TERMINAL][1:]
    last[-1:] = True
    return {"done": last, "terminated": terminated, "truncated": last & ~terminated}


def _losses_of(episode: Episode, keys: list[Key]) -> Iterator[Loss]:
    """What is lost of the last row of an episode, which is not a step in TED."""
    columns = episode.columns
    is_terminal = IS_TERMINAL in columns and bool(columns[IS_TERMINAL][-1:].any())
    for key in keys:
        last = columns[key.path][-1:]
        if key.path == DISCOUNT:
            if not are_equal(last, np.full_like(last, 0 if is_terminal else 1)):
                yield Loss("last_discount", LOSSES["last_discount"], key.path, LAST_ROW)
        elif not key.is_observed and not are_equal(last, zero_row(last)):
            yield Loss("last_row", LOSSES["last_row"], key.path, LAST_ROW)


def _key(path: str, spec: ArraySpec, steps: frozenset[str]) -> Key:
    if path == REWARD:
        return Key(NEXT + REWARD, path, spec, unpacks=not spec.shape)
    if path == DISCOUNT:
        return Key(path, path, spec, unpacks=not spec.shape)
    is_step = is_under(path, ACTION) or path.startswith(NEXT) or path in steps
    return Key(path, path, spec, is_observed=not is_step)


def _unfit(path: str, spec: ArraySpec, choices: Choices) -> str:
    """The code of the loss; "" if the column can be written."""
    if path == DISCOUNT and not choices.keeps_discount:
        return "discount"
    if spec.dtype.kind in "OSU":
        return "text"
    if spec.dtype.kind == "c" or spec.dtype.newbyteorder("=") not in NAMES:
        return "dtype"
    if path not in (REWARD, DISCOUNT) and _means_something(path, choices.steps):
        return "name"
    if None in spec.shape:
        return "dtype"
    if 0 in spec.shape and not choices.is_h5:
        return "empty_values"
    if path in (REWARD, DISCOUNT) and spec.shape == (1,):
        return "shape"
    return "bfloat16" if _is_widened(spec, choices) else ""


def _beside_another(path: str, content: Content, choices: Choices) -> str:
    """The code of the loss if a column `next/...` would be read as the next value of another column; else ""."""
    below = path.removeprefix(NEXT)
    others = () if choices.is_h5 or below == path else content.columns
    return "name" if any(is_under(one, below) or is_under(below, one) for one in others) else ""


def _is_widened(spec: ArraySpec, choices: Choices) -> bool:
    return choices.is_h5 and spec.dtype == _BFLOAT16


def _means_something(path: str, steps: frozenset[str]) -> bool:
    """Whether readers give the key another meaning, or no file can have its name."""
    parts = path.split("/")
    names = parts[1:] if path.startswith(NEXT) else parts
    if names[0] in _TAKEN or not all(map(_is_name, parts)):
        return True
    return parts[-1] in (*ENDS, REWARD) or (parts[-1] == ACTION and path != ACTION and path in steps)


def _is_name(part: str) -> bool:
    return (
        bool(part) and part.isprintable() and not part.startswith(".") and "\\" not in part and part not in _NOT_IN_META
    )


_STORAGE = "storage"
_SPOOL = ".columns"
_LENGTHS = ".lengths"
_INT64, _BOOL = np.dtype(np.int64), np.dtype(bool)
_TENSOR_DICT = "<class 'tensordict._td.TensorDict'>"


class _MemmapSink:
    """Writes the files of a memory-mapped TensorDict as they will be.

    Args:
      work: the folder of the buffer.
      keys: of a step.
      state: of an earlier run.
      batch_size: of the buffer.
    """

    def __init__(self, work: Path, keys: Sequence[Key], state: State | None, batch_size: int) -> None:
        self._work, self._keys, self._batch_size = work, list(keys), batch_size
        files: dict[str, _Growing] = {IDS: _Growing(_INT64, ())}
        for key in keys:
            files[key.name] = _Growing(key.spec.dtype, key.row)
            if key.is_observed:
                files[NEXT + key.name] = files[key.name]
        for end in ENDS:
            files[end] = files[NEXT + end] = _Growing(_BOOL, (1,))
        self._files = files
        begun = state or {"episodes": 0, "steps": 0}
        named = {f"{_STORAGE}/{name}.memmap": column for name, column in files.items()}
        self._spool = Spool(work, named, begun["episodes"], begun["steps"])

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Writes an episode of at least two rows."""
        steps = len(episode) - 1
        made: dict[str, Array] = {IDS: np.full(steps, self._spool.episodes)}
        for key in self._keys:
            values = key.values(episode)
            made[key.name] = values[:steps]
            if key.is_observed:
                made[NEXT + key.name] = values[1:]
        for end, flags in _ends_of(episode).items():
            made[end], made[NEXT + end] = np.zeros_like(flags), flags
        self._spool.append({f"{_STORAGE}/{name}.memmap": values for name, values in made.items()}, steps)
        return list(_losses_of(episode, self._keys))

    def sync(self) -> State:
        self._spool.sync()
        return {"episodes": self._spool.episodes, "steps": self._spool.steps}

    def finish(self) -> None:
        """Writes the files that describe the columns."""
        self._spool.sync()
        rows = _some(self._spool.steps)
        leaves = {name: _leaf((rows, *column.row), column.dtype) for name, column in self._files.items()}
        _write_meta(self._work / _STORAGE, nested(leaves), rows)
        about = {"metadata": {}, "is_pytree": False, "len": rows}
        write_json(self._work / _STORAGE / "storage_metadata.json", about)
        _write_buffer(self._work, rows, self._batch_size)

    def close(self) -> None:
        self._spool.close()


class _H5Sink:
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
        self._columns: dict[str, _Growing] = {IDS: _Growing(_INT64, ())}
        for key in keys:
            self._columns[key.in_group] = _Growing(key.spec.dtype, key.row, key.is_observed)
        self._columns |= dict.fromkeys(ENDS, _Growing(_BOOL, (1,)))
        begun = state or {"episodes": 0, "steps": 0}
        self._names = {f"{number}": name for number, name in enumerate(self._columns)}
        files = {f"{_SPOOL}/{number}": self._columns[name] for number, name in self._names.items()}
        lengths = {f"{_SPOOL}/{_LENGTHS}": _Growing(_INT64, ())}
        is_done = state is not None and file.exists() and not (work / _SPOOL).exists()
        self._lengths = None if is_done else Spool(work, lengths, 0, begun["episodes"])
        with ExitStack() as opened:
            if self._lengths is not None:
                opened.callback(self._lengths.close)
            self._spool = None if is_done else Spool(work, files, begun["episodes"], begun["steps"])
            opened.pop_all()
        self._steps = begun["steps"]

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Writes an episode of at least two rows."""
        spool, lengths = self._opened
        steps = len(episode) - 1
        made: dict[str, Array] = {IDS: np.full(steps, spool.episodes), **_ends_of(episode)}
        for key in self._keys:
            made[key.in_group] = key.values(episode)
        spool.append({f"{_SPOOL}/{number}": made[name] for number, name in self._names.items()}, steps)
        lengths.append({f"{_SPOOL}/{_LENGTHS}": np.array([steps])}, 1)
        return list(_losses_of(episode, self._keys))

    def sync(self) -> State:
        spool, lengths = self._opened
        spool.sync()
        lengths.sync()
        self._steps = spool.steps
        return {"episodes": spool.episodes, "steps": spool.steps}

    def finish(self) -> None:
        """Writes the H5 file from the columns, and removes the columns."""
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
                _write_h5(unfinished, columns, lengths, self._compression)
        if self._file.parent != self._work:
            _write_buffer(self._work, self._steps, self._batch_size)
        self.close()
        remove_whole(self._work / _SPOOL)

    def close(self) -> None:
        with ExitStack() as spools:
            for spool in (self._spool, self._lengths):
                if spool is not None:
                    spools.callback(spool.close)

    @property
    def _opened(self) -> tuple[Spool, Spool]:
        assert self._spool is not None  # episodes do not come after `finish`
        assert self._lengths is not None
        return self._spool, self._lengths


def _write_buffer(folder: Path, rows: int, batch_size: int) -> None:
    """Writes what `ReplayBuffer.loads` reads beside the storage of a full buffer."""
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
    """Writes `meta.json` of a TensorDict and of the TensorDicts in it."""
    meta: dict[str, Any] = {}
    for name, leaf in leaves.items():
        if "dtype" in leaf and not isinstance(leaf["dtype"], dict):
            meta[name] = leaf
        else:
            meta[name] = {"type": "TensorDict"}
            _write_meta(folder / name, leaf, rows)
    write_json(folder / "meta.json", {**meta, "shape": [rows], "device": "cpu", "_type": _TENSOR_DICT})


def _write_h5(
    path: Path, columns: Mapping[str, tuple[Path, _Growing]], lengths: Array, compression: str | None
) -> None:
    """Writes the file.

    Args:
      path: of the file; one that is there is replaced.
      columns: key -> a file of raw rows, and what they are.
      lengths: [episodes] steps of each.
      compression: of h5py's `create_dataset`.

    Raises:
      OSError: the disk.
    """
    width = math.ceil(math.log10(len(lengths)))
    steps = int(lengths.sum())
    with Output(path) as output, h5py.File(output, "w") as file:
        rows = {name: _mapped(raw, column, steps, len(lengths)) for name, (raw, column) in columns.items()}
        stops = np.cumsum(lengths)
        for number, length in enumerate(lengths.tolist()):
            group = file.create_group(f"traj_{number:0{width}d}")
            start = int(stops[number]) - length
            for name, (_, column) in columns.items():
                more = (number, number + 1) if column.has_ends else (0, 0)
                values = rows[name][start + more[0] : start + length + more[1]]
                group.create_dataset(name, data=values, compression=compression)
                output.check()
        for name, value in (
            ("is_full", True),
            ("shift", steps),
            ("_storage_shape", np.array([steps])),
            ("_len", steps),
        ):
            file.create_dataset(name, data=value)


def _mapped(path: Path, column: _Growing, steps: int, episodes: int) -> Array:
    shape = (column.rows(episodes, steps), *column.row)
    if not column.row_bytes:
        return np.empty(shape, column.dtype)
    return np.memmap(path, column.dtype.newbyteorder("<"), "r", shape=shape)


@dataclass(frozen=True)
class _Growing:
    """A column.

    Attributes:
      dtype, row: of a row.
      has_ends: whether every episode adds one row more than it has steps.
    """

    dtype: np.dtype[Any]
    row: tuple[int, ...]
    has_ends: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return int(np.prod(self.row, dtype=np.int64)) * self.dtype.itemsize

    def rows(self, episodes: int, steps: int) -> int:
        """The number of rows of so many episodes with so many steps in all."""
        return steps + episodes if self.has_ends else steps


class Spool:
    """The files of all columns, and of the episodes' lengths.

    Args:
      folder: where.
      files: name of a file in it -> its column.
      episodes, steps: of an earlier run; what came after them is cut off.

    Raises:
      OSError: a file has fewer of them, or the disk.
    """

    def __init__(self, folder: Path, files: Mapping[str, _Growing], episodes: int = 0, steps: int = 0) -> None:
        self.episodes, self.steps, self._columns = episodes, steps, dict(files)
        self._open: dict[str, Any] = {}
        with ExitStack() as opened:  # a full disk keeps none of them open
            for name, column in self._columns.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._open[name] = opened.enter_context(at_end(path, column.rows(episodes, steps) * column.row_bytes))
            self._files = opened.pop_all()

    def append(self, values: Mapping[str, Array], steps: int) -> None:
        """Takes an episode: file -> its rows."""
        for name, column in self._columns.items():
            ordered = np.ascontiguousarray(values[name], column.dtype.newbyteorder("<"))
            self._open[name].write(byte_view(ordered))
        self.episodes += 1
        self.steps += steps

    def sync(self) -> None:
        """Puts everything on disk."""
        for file in self._open.values():
            put(file)

    def close(self) -> None:
        """Closes the files."""
        self._files.close()
