"""TorchRL's buffers, written without torch: `ted:PATH[?OPTIONS]`.

| RLDS | TED |
| --- | --- |
| `observation`, with everything nested in it | the same key, at the root and under `next` |
| `action`, with everything nested in it | the same key, at the root |
| `reward` | `next.reward`, a number as [1] |
| `is_terminal`, `is_last` | `next.terminated`, `next.truncated`, `next.done`, each [1] |
| `discount` | `discount`, a number as [1] |
| a column `next/...` | the same key |
| `sampler_priority`, or the column that `priorities=` names | the sum tree of a PrioritizedSampler, beside the storage |
| any other column | the same key, at the root and under `next`; at the root only where `steps=` names it |
| the number of the episode | `collector.traj_ids` |

An episode of T + 1 rows has T steps. Columns grow in files of raw bytes (C order, little-endian, no header): those of a memory-mapped
TensorDict are the buffer itself, those of the H5 form are put into the file at the end.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

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
    Destination,
    Encode,
    Loss,
    Sink,
    State,
    UnfitEpisode,
    are_equal,
    made_flags,
    place_named,
)
from rlds2reverb.formats.hdf5 import Output
from rlds2reverb.formats.options import Parse, at_least_one, escape_text, one_of, read_path_and_options
from rlds2reverb.formats.rows import zero_row
from rlds2reverb.formats.ted import LOSSES
from rlds2reverb.formats.ted.keys import NAMES, NEXT, TRAJECTORY_IDS
from rlds2reverb.formats.ted.sampler import FACTS, PRIORITY, SAMPLER, SUM_TREE, finish_sampler, tree_of
from rlds2reverb.specs import ArraySpec, nested

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
    name = f"ted:{text}"
    path, chosen = read_path_and_options(name, text, _OPTIONS, ConfigError)
    if not path.strip("/ "):
        raise ConfigError(f'"{name}": expected ted:FOLDER or ted:FILE.h5')
    target = place_named(path)
    is_h5 = chosen.pop("layout", _H5) == _H5
    has_sampler = target.suffix != ".h5"
    options = TedWriteOptions(is_h5, keeps_discount=chosen.pop("discount", True), has_sampler=has_sampler, **chosen)
    of_sampler = [option for option in ("priorities", *FACTS[:3]) if option in chosen]
    if of_sampler and not has_sampler:
        raise ConfigError(
            f'"{name}": {of_sampler[0]}: an H5 file has no place for a sampler; write a folder, whose storage is the same file'
        )
    if not options.is_h5 and target.suffix == ".h5":
        raise ConfigError(f'"{name}": layout=memmap makes a folder; its name must not end in ".h5"')
    if not options.is_h5 and options.compression:
        raise ConfigError(f'"{name}": compression goes with layout=h5 only')
    return TedDestination(name, target, options)


class TedDestination(Destination):
    """A folder that `ReplayBuffer.loads` reads, or an H5 file."""

    def __init__(self, name: str, path: Path, options: TedWriteOptions) -> None:
        self.name, self.path, self._options = name, path, options

    def source(self, path: Path) -> str:
        return f"ted:{escape_text(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        return () if self.path.suffix == ".h5" else _FILES

    def losses(self, content: Content) -> Sequence[Loss]:
        unknown = sorted(self._options.steps - set(content.columns))
        if unknown:
            raise ConfigError(f'{self.name}: steps: no column "{unknown[0]}"; there are: {", ".join(content.columns)}')
        self._check_column(content)
        keys, losses = keys_of(content, self._options)
        if not any(is_under(key.path, OBSERVATION) for key in keys):
            raise ConfigError(f"{self.name}: no observation of {content.source} is a tensor")
        return losses

    def _check_column(self, content: Content) -> None:
        path = self._options.priorities_of(content)
        if not path:
            given = [name for name in FACTS[:3] if getattr(self._options, name) is not None]
            if given:
                raise ConfigError(
                    f"{self.name}: {given[0]}: {content.source} has no column {PRIORITY}; name one by priorities=COLUMN"
                )
            return
        if path not in content.columns:
            raise ConfigError(f'{self.name}: priorities: no column "{path}"; there are: {", ".join(content.columns)}')
        spec = content.columns[path]
        if spec.shape not in ((), (1,)) or spec.dtype.kind not in "fiu":
            raise ConfigError(f"{self.name}: priorities: {path} is {spec}; expected one number for each step")

    def encoder(self, content: Content) -> Encode:
        path = self._options.priorities_of(content)
        check: Encode = partial(_check_priorities, path)
        return check if path else super().encoder(content)

    def kept_facts(self, content: Content) -> Collection[str]:
        return FACTS if content.about.system == "ted" and self._options.priorities_of(content) else ()

    @property
    def least_rows(self) -> int:
        return 2  # a step has an action and the observation after it

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        flags, terminal = made_flags(episode), episode.columns.get(IS_TERMINAL)
        # no step leads to the first row, so none can say that it is terminal
        return flags if terminal is None else {**flags, IS_TERMINAL: np.append(False, terminal[1:])}

    def sink(self, work: Path, content: Content, state: State | None) -> Sink:
        keys, _ = keys_of(content, self._options)
        sampler = _SamplerColumn(self._options.priorities_of(content), self._options.facts_of(content))
        if not self._options.is_h5:
            return _MemmapSink(work, keys, state, self._options, sampler)
        inside = self.path.name if self.path.suffix == ".h5" else "storage/checkpoint.h5"
        return _H5Sink(work, work / inside, keys, state, self._options, sampler)


def _columns(text: str) -> frozenset[str]:
    if not text:
        raise ValueError('expected columns, with "+" between them and "." for "/"')
    return frozenset(part.replace(".", "/") for part in text.split("+"))


def _column(text: str) -> str:
    if not text:
        raise ValueError('expected a column, with "." for "/"')
    return text.replace(".", "/")


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError("expected a number of at least 0")
    return value


_OPTIONS: dict[str, Parse] = {
    "layout": one_of(h5=_H5, memmap=_MEMMAP),
    "steps": _columns,
    "discount": one_of(keep=True, drop=False),
    "compression": one_of(none=None, gzip="gzip", lzf="lzf"),
    "batch_size": at_least_one,
    "priorities": _column,
    **dict.fromkeys(FACTS[:3], _number),
}


IDS = TRAJECTORY_IDS[0]
ENDS = ("done", "terminated", "truncated")
BATCH_SIZE = 32  # `ReplayBuffer.loads` replaces its own by the saved one, and `sample` refuses None
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_TAKEN = frozenset({*ENDS, "next", "reward", "collector", "index", "episode", "mask", "metadata"})
"""First names of keys that mean something in TED."""
_NOT_IN_META = frozenset({"shape", "device", "_type", "_tensordict", "meta"})
"""Names that mean something else in `meta.json`."""


@dataclass(frozen=True)
class TedKey:
    """One key of TED: '/'-joined, without `next/` if it is at both places.

    Attributes:
      path: the column.
      spec: of a step's value.
      is_observed: whether it has the value before the step and the one after.
      is_number: whether a number is written as [1].
    """

    name: str
    path: str
    spec: ArraySpec
    is_observed: bool = False
    is_number: bool = False

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of a step's value, as written."""
        return (1,) if self.is_number else tuple(size or 0 for size in self.spec.shape)

    @property
    def in_group(self) -> str:
        """Its name in the H5 form, which has rewards without `next`."""
        return REWARD if self.path == REWARD else self.name

    def values(self, episode: Episode) -> Array:
        """[T, ...], or [T + 1, ...] of an observed key."""
        column = episode.columns[self.path]
        rows = column if self.is_observed else column[:-1]
        return rows.reshape(len(rows), *self.row).astype(self.spec.dtype, copy=False)


@dataclass(frozen=True)
class TedWriteOptions:
    """The parsed options; `steps` are columns whose last row means nothing, so that they stand at the root only.

    `has_sampler` says that a folder for a sampler lies beside the storage. `priorities` names the column of a sampler's priorities, whose alpha, beta and eps are those of the source where they are None.
    """

    is_h5: bool = True
    steps: frozenset[str] = frozenset()
    keeps_discount: bool = True
    compression: str | None = None
    batch_size: int = BATCH_SIZE
    has_sampler: bool = True
    priorities: str = ""
    alpha: float | None = None
    beta: float | None = None
    eps: float | None = None

    def priorities_of(self, content: Content) -> str:
        """The column that has the priorities of a sampler; "" for none."""
        return self.priorities or (PRIORITY if self.has_sampler and PRIORITY in content.columns else "")

    def facts_of(self, content: Content) -> dict[str, Any]:
        """What the sampler says beside its priorities."""
        own = {name: value for name in FACTS[:3] if (value := getattr(self, name)) is not None}
        return {**(content.about.facts if content.about.system == "ted" else {}), **own}


def keys_of(content: Content, options: TedWriteOptions) -> tuple[list[TedKey], list[Loss]]:
    """The keys of a content, and the losses: everything that has no key."""
    keys: list[TedKey] = []
    losses = [Loss("metadata", LOSSES["metadata"], f"metadata/{path}") for path in content.metadata]
    if IS_TERMINAL not in content.columns:
        losses.append(Loss("unknown_end", LOSSES["unknown_end"], IS_TERMINAL))
    priorities = options.priorities_of(content)
    for path, spec in sorted(content.columns.items()):
        if path in FLAGS or (priorities and path == priorities):  # a column may be called "", which is no priorities
            continue
        is_widened = options.is_h5 and spec.dtype == _BFLOAT16
        code = _loss_code(path, spec, content, options) or ("bfloat16" if is_widened else "")
        if code:
            losses.append(Loss(code, f"{spec}: {LOSSES[code]}", path))
        if code in ("", "bfloat16", "shape"):
            held = ArraySpec(spec.shape, np.dtype(np.float32)) if is_widened else spec
            if path in (REWARD, DISCOUNT):
                name = NEXT + REWARD if path == REWARD else path
                keys.append(TedKey(name, path, held, is_number=not spec.shape))
            else:
                is_step = is_under(path, ACTION) or path.startswith(NEXT) or path in options.steps
                keys.append(TedKey(path, path, held, is_observed=not is_step))
    return keys, losses


def _ends_of(episode: Episode) -> dict[str, Array]:
    """`done`, `terminated` and `truncated` of every step, [T, 1]."""
    last = np.zeros((len(episode) - 1, 1), bool)
    terminated = last.copy()
    if IS_TERMINAL in episode.columns:
        terminated[:, 0] = episode.columns[IS_TERMINAL][1:]
    last[-1:] = True
    return {"done": last, "terminated": terminated, "truncated": last & ~terminated}


def _losses_of(episode: Episode, keys: Sequence[TedKey]) -> Iterator[Loss]:
    """The losses of the last row of an episode, which is not a step in TED."""
    columns = episode.columns
    is_terminal = IS_TERMINAL in columns and bool(columns[IS_TERMINAL][-1:].any())
    for key in keys:
        last = columns[key.path][-1:]
        if key.path == DISCOUNT:
            if not are_equal(last, np.full_like(last, 0 if is_terminal else 1)):
                yield Loss("last_discount", LOSSES["last_discount"], key.path, LAST_ROW)
        elif not key.is_observed and not are_equal(last, zero_row(last)):
            yield Loss("last_row", LOSSES["last_row"], key.path, LAST_ROW)


def _loss_code(path: str, spec: ArraySpec, content: Content, options: TedWriteOptions) -> str:
    """The code of the loss; "" if the column can be written as it is."""
    if path == PRIORITY and options.priorities:
        return "name"  # the priorities of another column are the sampler's
    if path == DISCOUNT and not options.keeps_discount:
        return "discount"
    if spec.dtype.kind in "OSU":
        return "text"
    if spec.dtype.kind == "c" or spec.dtype.newbyteorder("=") not in NAMES:
        return "dtype"
    if path not in (REWARD, DISCOUNT) and _means_something(path, options.steps):
        return "name"
    if None in spec.shape:
        return "dtype"
    if 0 in spec.shape:
        return "empty_values"
    if path in (REWARD, DISCOUNT) and spec.shape == (1,):
        return "shape"
    if not options.is_h5 and path.startswith(NEXT):
        below = path.removeprefix(NEXT)  # would be read as the next value of a column of this name
        if any(is_under(column, below) or is_under(below, column) for column in content.columns):
            return "name"
    return ""


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


@dataclass(frozen=True)
class _GrowingColumn:
    """A column that grows: its file, dtype and shape of a row, rows that each step and each episode adds."""

    file: str
    dtype: np.dtype[Any]
    row: tuple[int, ...]
    per_step: int = 1
    per_episode: int = 0

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.row, dtype=np.int64)) * self.dtype.itemsize

    def rows(self, episodes: int, steps: int) -> int:
        return self.per_step * steps + self.per_episode * episodes


def _check_priorities(path: str, episode: Episode) -> Episode:
    """The episode; raises `UnfitEpisode` where a priority is negative or not finite."""
    values = episode.columns[path][:-1].reshape(-1)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        step = int(wrong[0])
        raise UnfitEpisode(path, f"step {step}: {values[step]} is no priority; expected finite numbers of at least 0")
    return episode


_TREE = f"{SAMPLER}/{SUM_TREE}"


@dataclass(frozen=True)
class _SamplerColumn:
    """The column that has a sampler's priorities, "" for none, and the sampler's facts."""

    path: str
    facts: Mapping[str, Any]

    def columns(self) -> dict[str, _GrowingColumn]:
        return {_TREE: _GrowingColumn(_TREE, np.dtype(np.float64), ())} if self.path else {}

    def rows(self, episode: Episode) -> dict[str, Array]:
        """[T] what an episode adds to the sum tree."""
        return {_TREE: tree_of(episode.columns[self.path][:-1].reshape(-1), self.facts)} if self.path else {}

    def finish(self, work: Path, steps: int) -> None:
        if self.path:
            finish_sampler(work / SAMPLER, steps, self.facts)


class _TedSink(ABC):
    """Writes columns to files of raw rows. Everything after the rows of the episodes and steps of the state is cut off.

    Raises:
      OSError: a file has fewer of them, or the disk fails.
    """

    def __init__(
        self,
        work: Path,
        keys: Sequence[TedKey],
        columns: Mapping[str, _GrowingColumn],
        state: State | None,
        sampler: _SamplerColumn,
    ) -> None:
        columns = {**columns, **sampler.columns()} if columns else columns
        self._work, self._keys, self._columns, self._sampler = work, keys, columns, sampler
        begun = state or {"episodes": 0, "steps": 0}
        self._episodes, self._steps = begun["episodes"], begun["steps"]
        self._open: dict[str, BinaryIO] = {}
        with ExitStack() as opened:  # a full disk keeps none of them open
            for name, column in columns.items():
                path = work / column.file
                path.parent.mkdir(parents=True, exist_ok=True)
                size = column.rows(self._episodes, self._steps) * column.row_bytes
                self._open[name] = opened.enter_context(at_end(path, size))
            self._files = opened.pop_all()

    @abstractmethod
    def _rows(self, episode: Episode, steps: int) -> Mapping[str, Array]:
        """The rows that an episode adds to each column."""

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Writes an episode of at least two rows."""
        steps = len(episode) - 1
        rows = {**self._rows(episode, steps), **self._sampler.rows(episode)}
        for name, column in self._columns.items():
            ordered = np.ascontiguousarray(rows[name], column.dtype.newbyteorder("<"))
            self._open[name].write(byte_view(ordered))
        self._episodes += 1
        self._steps += steps
        return list(_losses_of(episode, self._keys))

    def sync(self) -> State:
        for file in self._open.values():
            put(file)
        return {"episodes": self._episodes, "steps": self._steps}

    def close(self) -> None:
        self._files.close()


class _MemmapSink(_TedSink):
    """Writes the files of a memory-mapped TensorDict in place, in the folder of the buffer."""

    def __init__(
        self,
        work: Path,
        keys: Sequence[TedKey],
        state: State | None,
        options: TedWriteOptions,
        sampler: _SamplerColumn,
    ) -> None:
        rows = [(IDS, _INT64, ()), *((key.name, key.spec.dtype, key.row) for key in keys)]
        rows += [(end, _BOOL, (1,)) for end in ENDS]
        both = {*ENDS, *(key.name for key in keys if key.is_observed)}
        rows += [(NEXT + name, dtype, row) for name, dtype, row in rows if name in both]
        columns = {name: _GrowingColumn(f"{_STORAGE}/{name}.memmap", dtype, row) for name, dtype, row in rows}
        super().__init__(work, keys, columns, state, sampler)
        self._batch_size = options.batch_size

    def _rows(self, episode: Episode, steps: int) -> Mapping[str, Array]:
        rows: dict[str, Array] = {IDS: np.full(steps, self._episodes)}
        for key in self._keys:
            values = key.values(episode)
            rows[key.name] = values[:steps]
            if key.is_observed:
                rows[NEXT + key.name] = values[1:]
        for end, flags in _ends_of(episode).items():
            rows[end], rows[NEXT + end] = np.zeros_like(flags), flags
        return rows

    def finish(self) -> None:
        self.sync()
        _check_some(self._steps)
        leaves = {
            name: {
                "device": "cpu",
                "shape": [self._steps, *column.row],
                "dtype": NAMES[column.dtype.newbyteorder("=")],
                "is_nested": False,
            }
            for name, column in self._columns.items()
            if name != _TREE
        }
        _write_meta(self._work / _STORAGE, nested(leaves), self._steps)
        about = {"metadata": {}, "is_pytree": False, "len": self._steps}
        write_json(self._work / _STORAGE / "storage_metadata.json", about)
        self._sampler.finish(self._work, self._steps)
        _write_buffer(self._work, self._steps, self._batch_size)


class _H5Sink(_TedSink):
    """Writes columns beside the H5 file, and the file from these at the end."""

    def __init__(
        self,
        work: Path,
        file: Path,
        keys: Sequence[TedKey],
        state: State | None,
        options: TedWriteOptions,
        sampler: _SamplerColumn,
    ) -> None:
        rows: list[tuple[str, np.dtype[Any], tuple[int, ...], int]] = [(IDS, _INT64, (), 0)]
        rows += [(key.in_group, key.spec.dtype, key.row, int(key.is_observed)) for key in keys]
        rows += [(end, _BOOL, (1,), 0) for end in ENDS]
        columns = {
            name: _GrowingColumn(f"{_SPOOL}/{number}", dtype, row, per_episode=more)
            for number, (name, dtype, row, more) in enumerate(rows)
        }
        columns[_LENGTHS] = _GrowingColumn(f"{_SPOOL}/{_LENGTHS}", _INT64, (), per_step=0, per_episode=1)
        self._is_done = state is not None and file.exists() and not (work / _SPOOL).exists()
        super().__init__(work, keys, {} if self._is_done else columns, state, sampler)
        self._file, self._options = file, options

    def _rows(self, episode: Episode, steps: int) -> Mapping[str, Array]:
        own: dict[str, Array] = {IDS: np.full(steps, self._episodes), _LENGTHS: np.array([steps])}
        return {**own, **_ends_of(episode), **{key.in_group: key.values(episode) for key in self._keys}}

    def finish(self) -> None:
        if not self._is_done:
            self.sync()
            _check_some(self._steps)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with whole(self._file) as unfinished:
                self._write_h5(unfinished)
        self._sampler.finish(self._work, self._steps)
        if self._file.parent != self._work:
            _write_buffer(self._work, self._steps, self._options.batch_size)
        self.close()
        remove_whole(self._work / _SPOOL)

    def _write_h5(self, path: Path) -> None:
        rows = {name: self._mapped(column) for name, column in self._columns.items()}
        lengths = rows.pop(_LENGTHS)
        rows.pop(_TREE, None)
        # As H5Split pads the numbers: TorchRL reads groups in the order of their names.
        width = math.ceil(math.log10(len(lengths)))
        form = {"is_full": True, "shift": self._steps, "_storage_shape": np.array([self._steps]), "_len": self._steps}
        with Output(path) as output, h5py.File(output, "w") as file:
            stops = np.cumsum(lengths)
            for number, length in enumerate(lengths.tolist()):
                group = file.create_group(f"traj_{number:0{width}d}")
                start = int(stops[number]) - length
                for name, column in rows.items():
                    more = self._columns[name].per_episode
                    values = column[start + number * more : start + length + (number + 1) * more]
                    group.create_dataset(name, data=values, compression=self._options.compression)
                    output.check()
            for name, value in form.items():
                file.create_dataset(name, data=value)

    def _mapped(self, column: _GrowingColumn) -> Array:
        shape = (column.rows(self._episodes, self._steps), *column.row)
        if not column.row_bytes:
            return np.empty(shape, column.dtype)
        return np.memmap(self._work / column.file, column.dtype.newbyteorder("<"), "r", shape=shape)


def _write_buffer(folder: Path, rows: int, batch_size: int) -> None:
    """Writes the files that `ReplayBuffer.loads` reads beside the storage of a full buffer."""
    (folder / "writer").mkdir(exist_ok=True)
    write_json(folder / "writer" / "metadata.json", {"cursor": 0, "write_count": rows})
    write_json(folder / "buffer_metadata.json", {"batch_size": batch_size, "consume_after_n_samples": None})


def _check_some(steps: int) -> None:
    if not steps:
        raise ConfigError("no episode was written; TorchRL has no buffer without steps")


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
