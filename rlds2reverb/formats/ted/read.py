"""TorchRL's buffers as a source: `ted:PATH[?OPTIONS]`.

| path | is |
| --- | --- |
| a folder with `storage/` | what `ReplayBuffer.dumps` wrote; `writer/metadata.json` has the write cursor |
| ... with `storage/0/`, `storage/1/` and so on | of a ReplayBufferEnsemble |
| a folder with `storage_metadata.json` | a storage |
| a folder with `meta.json` | a TensorDict, such as a dataset that TorchRL downloaded |
| `checkpoint.h5` in a storage, or a file | the H5 form |

| TED | RLDS |
| --- | --- |
| `observation` (with what is nested in it), at the root and under `next` | `observation`, T + 1 rows |
| `action` | `action` |
| `next.reward` | `reward`, without its last size where that is 1 |
| `next.terminated` | `is_terminal` of the row after; without it `next.done` less `next.truncated` |
| `discount` | `discount` |
| any other key at the root and under `next` | a column of that name, T + 1 rows |
| any other key at the root | a column of that name, a row of zeros at its end |
| any other key under `next` | a column `next/...`, a row of zeros at its end |

Without a key `observation`, all that stands at the root and under `next` is the observation. Without `action` or `next.reward`, a
single key whose innermost name is that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Notice,
    columns_below,
    columns_under,
    is_under,
    note,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.files import read_object
from rlds2reverb.formats.options import Parse, one_of, whole_number, words
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked
from rlds2reverb.formats.rows import LAST_STEPS, MARK, steps, with_last, zero_row
from rlds2reverb.formats.source import Source
from rlds2reverb.formats.ted.folders import META, Folder, as_metadata, read_folder, read_pytree
from rlds2reverb.formats.ted.h5 import H5Trajectories
from rlds2reverb.formats.ted.keys import CHECK, KEEP, LAST, NEXT, TedOptions, last_part, renamed
from rlds2reverb.formats.ted.trajectories import (
    FlatTrajectories,
    Grid,
    RingTrajectories,
    Trajectories,
    TrajectoryRows,
    any_of,
    is_flat,
)
from rlds2reverb.specs import ArraySpec, Nest, column_spec, differences
from rlds2reverb.text import counted


def _key(text: str) -> str:
    if not text or text.startswith(".") or text.endswith(".") or ".." in text:
        raise ValueError('expected a key, nested ones with ".": collector.traj_ids')
    return text.replace(".", "/")


def _keys(text: str) -> tuple[str, ...]:
    return tuple(map(_key, text.split("+")))


_NAMED = {
    "observation": "observation",
    "next_observation": "next/observation",
    "action": "action",
    "reward": "next/reward",
    "done": "next/done",
    "terminated": "next/terminated",
    "truncated": "next/truncated",
}
"""Option -> TED's key that the named one is taken for."""

_OPTIONS: dict[str, Parse] = {
    "trajectories": _key,
    "next": words(LAST, CHECK, KEEP),
    "cursor": whole_number,
    "incomplete": one_of(keep=False, drop=True),
    "buffer": whole_number,
    "done_means": one_of(terminal=True, timeout=False),
    "items": one_of(steps=False, trajectories=True),
    "last_step": words(*LAST_STEPS),
    **dict.fromkeys(_NAMED, _keys),
}
_FIELDS = {"incomplete": "drop_incomplete", "done_means": "done_is_terminal", "items": "holds_trajectories"}
"""Option -> its name in `TedOptions`, where that is another."""


def open_ted(text: str) -> Source:
    """Opens TorchRL's buffers by the text after "ted:".

    Raises:
      SourceError: no such file or folder, it is damaged or none of TorchRL's, or an option makes no sense.
    """
    wanted = asked("ted", text, _OPTIONS)
    people, given = wanted.name, wanted.renamed(_FIELDS)
    names = {key: given.pop(option) for option, key in _NAMED.items() if option in given}
    options = TedOptions(**given, names=names)
    found = places(wanted.path)
    if options.buffer is not None:
        if options.buffer >= len(found):
            raise SourceError(f"{people}: buffer {options.buffer}: there are {len(found):,}, from 0")
        found = [found[options.buffer]]
    buffers = [open_buffer(people, one, options) for one in found]
    return wanted.source_of(TedRecordings(people, buffers, options))


_STORAGE, _WRITER = "storage", "writer"
_STORAGE_METADATA = "storage_metadata.json"
_CHECKPOINT = "checkpoint.h5"
_MASKS = ("mask", "collector/mask")


@dataclass(frozen=True)
class _BufferFiles:
    """One buffer's files.

    Attributes:
      storage: the folder of the storage, or the H5 file.
      writer: the folder that the writer would have been dumped to; None for none.
    """

    storage: Path
    writer: Path | None = None


def places(path: Path) -> list[_BufferFiles]:
    """The buffers at a path: one, or those of an ensemble.

    Raises:
      SourceError: there is none.
    """
    try:
        if path.is_file():
            return [_BufferFiles(path)]
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


def _members(storage: Path, writer: Path | None) -> list[_BufferFiles]:
    """The storage, or the storages of an ensemble."""
    if any((storage / name).exists() for name in (META, _STORAGE_METADATA, _CHECKPOINT)):
        return [_BufferFiles(storage, writer)]
    numbers = sorted(int(below.name) for below in storage.iterdir() if below.name.isdigit() and below.is_dir())
    if (storage / "data_indices.json").exists():
        raise SourceError(
            f"{storage}: a CompressedListStorage; how it was compressed is known to its own code only. Dump it from a LazyMemmapStorage"
        )
    if not numbers:
        raise SourceError(
            f"{storage}: expected a folder that ReplayBuffer.dumps or TensorDict.memmap wrote (with {META}), or a file checkpoint.h5"
        )
    return [_BufferFiles(storage / str(number), None if writer is None else writer / str(number)) for number in numbers]


def open_buffer(name: str, place: _BufferFiles, options: TedOptions) -> Trajectories:
    """The trajectories of one buffer.

    Raises:
      SourceError: it is damaged, of a kind that is not read, or an option does not go with it.
    """
    storage = place.storage
    is_folder = not storage.is_file()
    if not is_folder or ((storage / _CHECKPOINT).is_file() and not (storage / META).exists()):
        _refuse_for_compact(name, options)
        return H5Trajectories(name, storage / _CHECKPOINT if is_folder else storage, options)
    about = _storage_metadata(storage)
    folder = read_pytree(storage, about["metadata"]) if about.get("is_pytree") else read_folder(storage)
    leaves = renamed(name, folder.leaves, options.names)
    if is_flat(folder):
        _refuse_for_compact(name, options)
        return FlatTrajectories(name, folder, leaves, about.get("len"), options)
    if not folder.batch:
        raise SourceError(
            f"{name}: {storage}: a TensorDict without a batch size; expected one of [steps] or [batch, time]"
        )
    writer = _writer(place)
    if "rank_key" in writer and options.trajectories != "rows":
        raise SourceError(
            f"{name}: written by a TensorDictMaxValueWriter, so its steps stand in no order; trajectories=rows makes each an episode"
        )
    grid, cut_start = _grid(name, folder, about.get("len"), _cursor(writer, options), options)
    written = writer.get("write_count", 0)
    cut_start = cut_start or (type(written) is int and grid.time_first and written > grid.held == grid.rows)
    return RingTrajectories(name, folder, leaves, grid, options, cut_start)


def _refuse_for_compact(name: str, options: TedOptions) -> None:
    """Refuses options that have no meaning for the Flat, Nested and H5 forms."""
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


def _writer(place: _BufferFiles) -> dict[str, Any]:
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
    """Whether items are trajectories: `len` counts items, else steps. If both are possible, the write cursor decides."""
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
    """[columns] how many steps a mask keeps; all steps without a mask."""
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


_ID = "trajectory_id"
_LOOKED_AT = 32
"""Trajectories, and steps of each, in which `next` is compared with what the next step saw."""


class TedRecordings(Recordings):
    """The trajectories of some buffers with the same columns, one buffer after the other: one, or those of an ensemble.

    Args:
      name: for messages.
      buffers: the trajectories of each.
      options: how to read.

    Raises:
      SourceError: the keys make no columns, or the buffers have other ones.
    """

    def __init__(self, name: str, buffers: Sequence[Trajectories], options: TedOptions) -> None:
        self.name = name
        self._buffers = [_Buffer(name, one, options) for one in buffers]
        self._starts = [0, *accumulate(buffer.count for buffer in self._buffers)]
        self._spec, self._metadata_spec = self._buffers[0].spec(), self._buffers[0].metadata_spec()
        for number, buffer in enumerate(self._buffers[1:], 1):
            found = differences(buffer.spec(), self._spec) + differences(buffer.metadata_spec(), self._metadata_spec)
            if found:
                raise SourceError(
                    f"{name}: buffer {number} has other columns than buffer 0: {'; '.join(found)}. Open one by buffer={number}, or join them by a mix"
                )

    @property
    def count(self) -> int:
        """The trajectories of all."""
        return self._starts[-1]

    @cached_property
    def notices(self) -> tuple[Notice, ...]:
        """What was guessed, where recording stopped, and whether `next` is what the next step saw; of several, each says of which."""
        if len(self._buffers) == 1:
            return self._buffers[0].notices()
        return tuple(
            replace(notice, text=f"buffer {number}: {notice.text}")
            for number, buffer in enumerate(self._buffers)
            for notice in buffer.notices()
        )

    def spec(self) -> Nest:
        """Columns by path."""
        return self._spec

    def metadata_spec(self) -> Nest:
        """The trajectory's id, and values of the whole buffer."""
        return self._metadata_spec

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The trajectories of these numbers, over all buffers."""
        for at, buffer in enumerate(self._buffers):
            start, stop = self._starts[at], self._starts[at + 1]
            inside = [number - start for number in numbers if start <= number < stop]
            for number, recording in zip(inside, buffer.read(inside)):
                yield recording if len(self._buffers) == 1 else replace(recording, name=f"{at}/{number}")

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """What is known of a trajectory without its steps."""
        at = bisect_right(self._starts, number) - 1
        return self._buffers[at].metadata_of(number - self._starts[at])


class _Buffer:
    """The trajectories of one buffer as recordings."""

    def __init__(self, name: str, held: Trajectories, options: TedOptions) -> None:
        self._held, self._options = held, options
        self._roles = _Roles.of(held)
        if not self._roles.observed and not self._roles.steps:
            raise SourceError(f"{name}: no key that could be a column")
        self._constants = {key: as_metadata(value) for key, value in held.constants.items()}
        if _ID in self._constants and held.id_key:
            raise SourceError(f'{name}: a value "{_ID}" stands beside the ids of trajectories')

    @property
    def count(self) -> int:
        return self._held.count

    def notices(self) -> tuple[Notice, ...]:
        return (*self._held.notices, *self._roles.notices, *self._next_notices())

    def spec(self) -> Nest:
        return self._roles.spec(self._held, self._options)

    def metadata_spec(self) -> Nest:
        made: dict[str, ArraySpec] = {key: column_spec(_one(value)) for key, value in self._constants.items()}
        if self._held.id_key:
            keys = {**self._held.observed, **self._held.steps}
            made[_ID] = ArraySpec((), keys[self._held.id_key].dtype)
        return made

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        with self._held.reading() as rows:
            for number in numbers:
                try:
                    yield self._one(rows, number)
                except BrokenEpisode as broken:
                    yield Recording({}, self._constants, faults=((broken.path, broken.why),))

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        if not self._held.id_key:
            return self._constants
        with self._held.reading() as rows:
            return self._metadata(rows, number)

    def _one(self, rows: TrajectoryRows, number: int) -> Recording:
        columns = self._roles.columns(rows, number, self._options)
        if self._options.next == CHECK and isinstance(self._held, RingTrajectories):
            for key in self._held.observed:
                differing = self._held.differs(key, number)
                if len(differing):
                    raise BrokenEpisode(
                        key,
                        f"next is not what the step after saw, in {len(differing):,} steps, first in step {int(differing[0])}; "
                        "next=keep keeps both, trajectories=rows makes every step an episode",
                    )
        return Recording(columns, self._metadata(rows, number))

    def _metadata(self, rows: TrajectoryRows, number: int) -> Mapping[str, Any]:
        return {**self._constants, _ID: rows.id(number)} if self._held.id_key else self._constants

    def _next_notices(self) -> tuple[Notice, ...]:
        """Compares `next` with the next step in a sample of steps; MultiStep, for example, puts a later observation there."""
        held = self._held
        if not isinstance(held, RingTrajectories) or self._options.next == KEEP:
            return ()
        looked_at = _sampled(held.count, _LOOKED_AT)
        differing = {
            key: sum(len(held.differs(key, number, _LOOKED_AT)) for number in looked_at)
            for key in sorted(held.observed)
        }
        keys = [f"next.{key.replace('/', '.')}" for key, count in differing.items() if count]
        if not keys:
            return ()
        text = (
            f"{', '.join(keys)}: not what the step after saw, in up to {counted(max(differing.values()), 'step')} of those looked at, as after "
            "MultiStep; only the last of each trajectory is read. next=keep keeps both, next=check refuses such trajectories, "
            "trajectories=rows makes every step an episode"
        )
        return (Notice("next_differs", text, max(differing.values())),)


def _sampled(count: int, most: int) -> list[int]:
    """At most `most` numbers below `count`, spread evenly, the first and the last included."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).astype(int).tolist())) if count else []


def _one(value: Any) -> np.ndarray[Any, Any]:
    """[1, ...] the value; text as an object."""
    if isinstance(value, bytes):
        column = np.empty(1, object)
        column[0] = value
        return column
    return np.asarray(value)[None]


_REWARD = NEXT + REWARD
_FLAG = ArraySpec((), np.dtype(bool))
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class _Roles:
    """What each key is taken for: path of a column -> key.

    Attributes:
      observed: columns with T + 1 rows.
      steps: columns with T rows, beside those that follow.
      reward, discount, terminated, truncated, done: keys, "" for none.
      notices: of what was guessed.
    """

    observed: Mapping[str, str]
    steps: Mapping[str, str]
    reward: str
    discount: str
    terminated: str
    truncated: str
    done: str
    notices: tuple[Notice, ...]

    @staticmethod
    def of(held: Trajectories) -> _Roles:
        """The roles of a buffer's keys.

        Raises:
          SourceError: two keys would be one column.
        """
        notices: list[Notice] = []
        observed = {key: key for key in held.observed if key != held.id_key}
        single = {key for key in held.steps if is_under(key, OBSERVATION)}
        if observed and not single and not any(is_under(key, OBSERVATION) for key in observed):
            notices.append(_guess("the observation is", observed, "observation"))
            alone = len(observed) == 1
            observed = {OBSERVATION if alone else f"{OBSERVATION}/{key}": key for key in observed}
        steps = {key: key for key in held.steps}
        reward = _single(held, REWARD, _REWARD, steps, notices)
        action = "" if any(is_under(key, ACTION) for key in steps) else _single(held, ACTION, ACTION, steps, notices)
        if action:
            steps[ACTION] = action
        found = {key: NEXT + key if NEXT + key in steps else "" for key in ("terminated", "truncated", "done")}
        discount = DISCOUNT if DISCOUNT in steps else ""
        for key in (*found.values(), discount, held.id_key):
            steps.pop(key, None)
        taken = [
            path for path in (*observed, *steps) if path in (REWARD, DISCOUNT, *FLAGS) or path.startswith("metadata/")
        ]
        if taken or set(observed) & set(steps):
            raise SourceError(
                f'a key "{(taken or sorted(set(observed) & set(steps)))[0]}" has the name of a column of another meaning'
            )
        return _Roles(observed, steps, reward, discount, notices=tuple(notices), **found)

    def spec(self, held: Trajectories, options: TedOptions) -> dict[str, ArraySpec]:
        """Path -> spec of a step's value."""
        made = {path: held.observed[key] for path, key in self.observed.items()}
        made |= {path: held.steps[key] for path, key in self.steps.items()}
        if self.reward:
            made[REWARD] = _unpacked(held.steps[self.reward])
        if self.discount:
            made[DISCOUNT] = _unpacked(held.steps[self.discount])
        elif self.tells_terminals(options):
            made[DISCOUNT] = ArraySpec((), _FLOAT32)
        flags = FLAGS if self.tells_terminals(options) else tuple(name for name in FLAGS if name != IS_TERMINAL)
        return {**made, **dict.fromkeys(flags, _FLAG)}

    def tells_terminals(self, options: TedOptions) -> bool:
        """Whether it is known which episodes end in a terminal state."""
        return bool(self.terminated or (self.done and (self.truncated or options.done_is_terminal is not None)))

    def columns(self, rows: TrajectoryRows, number: int, options: TedOptions) -> dict[str, Array]:
        """RLDS' columns of one trajectory."""
        read = {path: rows.step(key, number) for path, key in self.steps.items()}
        observed = {path: rows.observe(key, number) for path, key in self.observed.items()}
        observation = columns_under(observed, OBSERVATION) or self._closed(columns_under(read, OBSERVATION), options)
        reward = _flat(rows.step(self.reward, number)) if self.reward else None
        discount = _flat(rows.step(self.discount, number)) if self.discount else None
        terminals = self._terminals(rows, number, options)
        count = len(terminals) if terminals is not None else _first_length(read, observed, reward)
        if options.last_step == MARK and not columns_under(observed, OBSERVATION):
            count -= 1
            read, terminals = (
                {path: column[:count] for path, column in read.items()},
                None if terminals is None else terminals[:count],
            )
            reward, discount = (
                None if reward is None else reward[:count],
                None if discount is None else discount[:count],
            )
        others = {
            path: column
            for path, column in (observed | read).items()
            if not is_under(path, OBSERVATION) and not is_under(path, ACTION)
        }
        ends = None if terminals is None else bool(terminals[-1:].any())
        made = steps(
            columns_below(observation, OBSERVATION),
            columns_below(read, ACTION),
            reward,
            ends,
            _padded(others, count),
            discount,
        )
        if discount is not None:
            made[DISCOUNT][-1:] = 0 if ends else 1
        if terminals is not None and terminals[:-1].any():
            made[IS_TERMINAL] = np.append(False, terminals)
        if len(made[IS_LAST]) != count + 1:
            raise BrokenEpisode("", f"has {len(made[IS_LAST]):,} rows; expected {count + 1:,}, one more than steps")
        return made

    def _closed(self, columns: Mapping[str, Array], options: TedOptions) -> dict[str, Array]:
        """Observations [T] of data without `next` -> [T + 1]."""
        if options.last_step == MARK:
            return dict(columns)
        return {path: with_last(column, column[-1]) for path, column in columns.items()}

    def _terminals(self, rows: TrajectoryRows, number: int, options: TedOptions) -> Array | None:
        """[T] whether the state after each step is terminal."""
        if self.terminated:
            return any_of(rows.step(self.terminated, number))
        if self.done and self.truncated:
            return any_of(rows.step(self.done, number)) & ~any_of(rows.step(self.truncated, number))
        if self.done and options.done_is_terminal is not None:
            return any_of(rows.step(self.done, number)) & options.done_is_terminal
        return None


def _single(held: Trajectories, name: str, usual: str, steps: dict[str, str], notices: list[Notice]) -> str:
    """The key of a role, taken out of `steps`: the usual key, or the only key of that innermost name."""
    if usual in steps:
        return steps.pop(usual)
    at = usual.startswith(NEXT)
    alike = [key for key in steps if last_part(key) == name and key.startswith(NEXT) == at]
    if len(alike) != 1:
        return ""
    notices.append(_guess(f"the {name} is", alike, name))
    return steps.pop(alike[0])


def _guess(what: str, keys: Any, option: str) -> Notice:
    names = "+".join(key.removeprefix(NEXT).replace("/", ".") for key in keys)
    return note("keys", f"{what} taken from {names}, as there is no key of the usual name; {option}=KEY says otherwise")


def _first_length(*groups: Any) -> int:
    read, observed, reward = groups
    if read:
        return len(next(iter(read.values())))
    return len(reward) if reward is not None else len(next(iter(observed.values()))) - 1


def _padded(columns: Mapping[str, Array], count: int) -> dict[str, Array]:
    return {path: np.concatenate([one, zero_row(one)]) if len(one) == count else one for path, one in columns.items()}


def _unpacked(spec: ArraySpec) -> ArraySpec:
    return ArraySpec((), spec.dtype) if spec.shape == (1,) else spec


def _flat(column: Array) -> Array:
    return column[:, 0] if column.shape[1:] == (1,) else column
