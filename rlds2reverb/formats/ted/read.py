"""TorchRL's buffers as a source: `ted:PATH[?OPTIONS]`; docs/formats/ted.md has what a path may be, which key becomes which column, and the options.

T steps become T + 1 rows: keys that are at the root and under `next` have the value after the last step, all others a row of zeros. A key
without its usual name is guessed where only one can be meant, and a notice says so.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
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
from rlds2reverb.formats.agreement import MOST, SPEC_OPTIONS
from rlds2reverb.formats.buckets import canonical
from rlds2reverb.formats.options import Parse, one_of, read_options, whole_number, words
from rlds2reverb.formats.recordings import (
    CHOICES,
    BrokenEpisode,
    EpisodeChoice,
    Recording,
    Recordings,
    SourceRequest,
    parse_source_name,
    read_each,
)
from rlds2reverb.formats.rows import (
    LAST_STEPS,
    MARK,
    mark_rows,
    scalars,
    step_specs,
    steps,
    unread_of,
    with_last,
    zero_row,
)
from rlds2reverb.formats.source import About, Source
from rlds2reverb.formats.ted import memory
from rlds2reverb.formats.ted.folders import META, Folder, as_metadata, leaf_of, read_folder, read_pytree
from rlds2reverb.formats.ted.grids import is_of_atari, lay_out, unpack_atari
from rlds2reverb.formats.ted.keys import CHECK, DROP, KEEP, LAST, NEXT, TedOptions, last_part, rename_keys
from rlds2reverb.formats.ted.memory import HeldBuffer
from rlds2reverb.formats.ted.sampler import PRIORITY, SAMPLER, Priorities, read_priorities
from rlds2reverb.formats.ted.torch_files import is_torch_file, read_torch_file
from rlds2reverb.formats.ted.trajectories import (
    FlatTrajectories,
    RingTrajectories,
    Trajectories,
    TrajectoryRows,
    any_of,
    is_flat,
)
from rlds2reverb.specs import ArraySpec, Nest, differences, value_spec
from rlds2reverb.text import counted


def _key(text: str) -> str:
    if not text or text.startswith(".") or text.endswith(".") or ".." in text:
        raise ValueError('expected a key, nested ones with ".": collector.traj_ids')
    return text.replace(".", "/")


_NAMED = {  # option -> TED's key that it renames others to
    "observation": "observation",
    "next_observation": "next/observation",
    "action": "action",
    "reward": "next/reward",
    "done": "next/done",
    "terminated": "next/terminated",
    "truncated": "next/truncated",
}

_OPTIONS: dict[str, Parse] = {
    "trajectories": _key,
    "next": words(LAST, CHECK, KEEP, DROP),
    "cursor": whole_number,
    "incomplete": one_of(keep=False, drop=True),
    "buffer": whole_number,
    "priorities": one_of(keep=True, drop=False),
    "done_means": one_of(terminal=True, timeout=False),
    "items": one_of(steps=False, trajectories=True),
    "last_step": words(*LAST_STEPS),
    **SPEC_OPTIONS,
    **dict.fromkeys(_NAMED, lambda text: tuple(map(_key, text.split("+")))),
}
_FIELDS = {
    "incomplete": "drop_incomplete",
    "done_means": "done_is_terminal",
    "items": "holds_trajectories",
    "priorities": "keeps_priorities",
}
"""Option -> its name in `TedOptions`, where that differs."""


def open_ted(text: str) -> Source:
    """Opens TorchRL's buffers by the text after "ted:".

    Raises:
      SourceError: there is no such file or folder, it is damaged or not TorchRL's, or an option makes no sense.
    """
    request = parse_source_name("ted", text, _OPTIONS)
    name, options = request.name, _ted_options(request)
    root = request.files.pin(request.path)
    if _is_torch_file(root):
        return _open_torch_file(request, root, options)
    places = _find_buffers(root)
    for _, writer_folder in places:  # they lie beside a storage that is named itself, and belong to the dataset
        for beside in (writer_folder, _sampler_folder(writer_folder)):
            if beside is not None and not beside.is_relative_to(root) and beside.is_dir():
                request.files.pin(beside)
    if options.buffer is not None:
        if options.buffer >= len(places):
            raise SourceError(f"{name}: buffer {options.buffer}: there are {len(places):,}, from 0")
        places = [places[options.buffer]]
    buffers, abouts = [], []
    for storage, writer in places:
        sampler = _sampler_folder(writer) if options.keeps_priorities else None
        priorities = None if sampler is None else read_priorities(sampler)
        buffers.append(_open_buffer(name, storage, writer, options, priorities))
        abouts.append(About() if priorities is None else About.of("ted", priorities.facts))
    request.files.restrict_to_looked()
    # Trajectories of each buffer count from 0, so that one of several has a place of its own.
    dataset = "" if options.buffer is None else canonical(places[0][0])
    about = abouts[0] if abouts and all(other == abouts[0] for other in abouts) else About()
    return request.make_source(TedRecordings(name, buffers, options, about), dataset)


def _is_torch_file(path: Path) -> bool:
    try:
        return path.is_file() and is_torch_file(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _open_torch_file(request: SourceRequest, path: Path, options: TedOptions) -> Source:
    """The buffers of a file of `torch.save`."""
    if options.spec_from != MOST:
        raise SourceError(
            f"{request.name}: spec_from: only the H5 form has keys for each trajectory; leave the option out"
        )
    saved = read_torch_file(path)
    if options.buffer is not None:
        if options.buffer >= len(saved):
            raise SourceError(f"{request.name}: buffer {options.buffer}: there are {len(saved):,}, from 0")
        saved = [saved[options.buffer]]
    kept = [buffer.priorities if options.keeps_priorities else None for buffer in saved]
    buffers = [
        _lay_out_buffer(request.name, str(path), buffer.folder, buffer.length, buffer.writer, options, priorities)
        for buffer, priorities in zip(saved, kept)
    ]
    abouts = [About() if priorities is None else About.of("ted", priorities.facts) for priorities in kept]
    about = abouts[0] if all(other == abouts[0] for other in abouts) else About()
    dataset = "" if options.buffer is None else f"{canonical(path)}#{options.buffer}"
    return request.make_source(TedRecordings(request.name, buffers, options, about), dataset)


_IN_MEMORY = {option: parse for option, parse in _OPTIONS.items() if option not in ("buffer", *SPEC_OPTIONS)}


def open_tensordicts(data: Any, options: str = "") -> Source:
    """Opens TensorDicts, or a replay buffer, in memory (`memory`).

    Args:
      options: as behind the "?" of a name, "items=trajectories"; those that are about files are none.

    Raises:
      SourceError: it may be read in several ways, has a tensor of a kind that cannot be read, or an option makes no sense.
    """
    is_buffer = memory.is_buffer(data)
    name = "a TensorDict" if memory.is_tensordict(data) else "a list of TensorDicts"
    name = f"a {type(data).__name__}" if is_buffer else name
    chosen = read_options(name, options, {**_IN_MEMORY, **CHOICES})
    request = SourceRequest(name, "", chosen, EpisodeChoice.take_from(chosen))
    reading = _ted_options(request)
    held = memory.hold_buffer(data, reading.keeps_priorities) if is_buffer else HeldBuffer(memory.folder_of(data))
    about = About() if held.priorities is None else About.of("ted", held.priorities.facts)
    try:
        buffer = _lay_out_buffer(name, "in memory", held.folder, held.length, held.writer, reading, held.priorities)
        return request.make_source(TedRecordings(name, [buffer], reading, about))
    except SourceError as error:
        if options:
            raise
        how = "options of a TensorDict or a buffer are given by rlds2reverb.adapters.torchrl.tensordict_source(data, OPTIONS)"
        raise SourceError(f"{error}; {how}") from error


def _ted_options(request: SourceRequest) -> TedOptions:
    chosen = request.rename_options(_FIELDS)
    names = {key: chosen.pop(option) for option, key in _NAMED.items() if option in chosen}
    return TedOptions(**chosen, names=names)


_STORAGE, _WRITER = "storage", "writer"
_STORAGE_METADATA = "storage_metadata.json"
_CHECKPOINT = "checkpoint.h5"


def _find_buffers(path: Path) -> list[tuple[Path, Path | None]]:
    """The buffers at a path, one or those of an ensemble: the storage, and the folder that the writer would have been dumped to."""
    try:
        if path.is_file():
            return [(path, None)]
        if not path.is_dir():
            raise SourceError(f"{path}: no such file or folder")
        if (path / _STORAGE).is_dir() and not (path / META).exists():
            return _list_members(path / _STORAGE, path / _WRITER)
        if path.parent.name == _STORAGE and path.name.isdigit():
            return _list_members(path, path.parent.parent / _WRITER / path.name)
        if path.name == _STORAGE or (path / _STORAGE_METADATA).exists():
            return _list_members(path, path.parent / _WRITER)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    return _list_members(path, None)


def _sampler_folder(writer: Path | None) -> Path | None:
    """The folder that the sampler beside a writer would have been dumped to."""
    if writer is None:
        return None
    return writer.parent / SAMPLER if writer.name == _WRITER else writer.parent.parent / SAMPLER / writer.name


def _list_members(storage: Path, writer: Path | None) -> list[tuple[Path, Path | None]]:
    if any((storage / name).exists() for name in (META, _STORAGE_METADATA, _CHECKPOINT)):
        return [(storage, writer)]
    numbers = sorted(int(below.name) for below in storage.iterdir() if below.name.isdigit() and below.is_dir())
    if (storage / "data_indices.json").exists():
        raise SourceError(
            f"{storage}: a CompressedListStorage; how it was compressed is known to its own code only. Dump it from a LazyMemmapStorage"
        )
    if not numbers:
        raise SourceError(
            f"{storage}: expected a folder that ReplayBuffer.dumps or TensorDict.memmap wrote (with {META}), or a file checkpoint.h5"
        )
    return [(storage / str(number), None if writer is None else writer / str(number)) for number in numbers]


def _open_buffer(
    name: str, storage: Path, writer_folder: Path | None, options: TedOptions, priorities: Priorities | None
) -> Trajectories:
    is_folder = not storage.is_file()
    if not is_folder or ((storage / _CHECKPOINT).is_file() and not (storage / META).exists()):
        from rlds2reverb.formats.ted.h5 import H5Trajectories  # which imports h5py

        _refuse_for_compact(name, options)
        return H5Trajectories(name, storage / _CHECKPOINT if is_folder else storage, options, priorities)
    if options.spec_from != MOST:
        raise SourceError(f"{name}: spec_from: only the H5 form has keys for each trajectory; leave the option out")
    about: dict[str, Any] = {}
    if (storage / _STORAGE_METADATA).exists():
        about = read_object(storage / _STORAGE_METADATA, "TorchRL's description of a storage")
        length = about.get("len")
        if type(length) is not int or length < 0:
            raise SourceError(f"{storage / _STORAGE_METADATA}: len {length!r}: expected a number of rows")
    folder = read_pytree(storage, about.get("metadata")) if about.get("is_pytree") else read_folder(storage)
    writer: dict[str, Any] = {}
    if writer_folder is not None and (writer_folder / "metadata.json").exists():
        writer = read_object(writer_folder / "metadata.json", "TorchRL's description of a writer")
    if is_of_atari(folder):
        folder, about["len"], writer = unpack_atari(name, folder)
    return _lay_out_buffer(name, str(storage), folder, about.get("len"), writer, options, priorities)


def _lay_out_buffer(
    name: str,
    where: str,
    folder: Folder,
    length: int | None,
    writer: Mapping[str, Any],
    options: TedOptions,
    priorities: Priorities | None,
) -> Trajectories:
    """The trajectories of a storage. `length` is of `lay_out`, `writer` what the writer beside it says of itself."""
    leaves = rename_keys(name, folder.leaves, options.names)
    if priorities is not None and PRIORITY in leaves:
        raise SourceError(
            f'{name}: a key "{PRIORITY}" stands beside the priorities of the sampler; priorities=drop leaves those out'
        )
    if is_flat(folder):
        _refuse_for_compact(name, options)
        return FlatTrajectories(name, folder, leaves, length, options, priorities)
    if not folder.batch:
        raise SourceError(
            f"{name}: {where}: a TensorDict without a batch size; expected one of [steps] or [batch, time]"
        )
    if "rank_key" in writer and options.trajectories != "rows":
        raise SourceError(
            f"{name}: written by a TensorDictMaxValueWriter, so its steps stand in no order; trajectories=rows makes each an episode"
        )
    # The cursor says which row of a full ring is the oldest; without it, rows are taken in their own order.
    cursor = writer.get("cursor") if options.cursor is None else options.cursor
    cursor = cursor if type(cursor) is int and cursor >= 0 else None
    layout = lay_out(name, folder, leaves, length, cursor, options)
    grid, written = layout.grid, writer.get("write_count", 0)
    leaves = dict(layout.leaves)
    if priorities is not None:
        of_rows = priorities.of_rows(name, layout.folder.batch, layout.counts_items)
        leaves[PRIORITY] = leaf_of(of_rows)
    cut_start = grid.first > 0 or (type(written) is int and grid.time_first and written > grid.held == grid.rows)
    return RingTrajectories(name, layout.folder, leaves, grid, options, cut_start, layout.notices)


def _refuse_for_compact(name: str, options: TedOptions) -> None:
    """Refuses options that have no meaning for the Flat, Nested and H5 forms."""
    misplaced = {
        "next": options.next != LAST,
        "cursor": options.cursor is not None,
        "items": options.holds_trajectories is not None,
    }
    odd = [option for option, is_set in misplaced.items() if is_set]
    if odd:
        raise SourceError(
            f"{name}: {odd[0]}: the Flat, Nested and H5 forms keep every observation once, in the order of recording; leave the option out"
        )


_ID = "trajectory_id"
_OF_SAMPLER = f"the column {PRIORITY} has the priorities of the PrioritizedSampler; priority={PRIORITY} of a view gives them to its items, priorities=drop leaves them out"
_LOOKED_AT = 32  # trajectories, and steps of each, in which `next` is compared with the following observation


class TedRecordings(Recordings):
    """The trajectories of one or several buffers with the same columns, one buffer after the other."""

    def __init__(
        self, name: str, buffers: Sequence[Trajectories], options: TedOptions, about: About | None = None
    ) -> None:
        self.name, self._about = name, about or About()
        self._buffers = [_BufferColumns(name, buffer, options) for buffer in buffers]
        self._starts = [0, *accumulate(buffer.count for buffer in self._buffers)]
        self._spec, self._metadata_spec = self._buffers[0].spec(), self._buffers[0].metadata_spec()
        for number, buffer in enumerate(self._buffers[1:], 1):
            unlike = differences(buffer.spec(), self._spec) + differences(buffer.metadata_spec(), self._metadata_spec)
            if unlike:
                raise SourceError(
                    f"{name}: buffer {number} has other columns than buffer 0: {'; '.join(unlike)}. Open one by buffer={number}, or join them by a mix"
                )

    @property
    def count(self) -> int:
        return self._starts[-1]

    @property
    def about(self) -> About:
        return self._about

    @cached_property
    def notices(self) -> tuple[Notice, ...]:
        if len(self._buffers) == 1:
            return self._buffers[0].notices()
        return tuple(
            replace(notice, text=f"buffer {number}: {notice.text}")
            for number, buffer in enumerate(self._buffers)
            for notice in buffer.notices()
        )

    def spec(self) -> Nest:
        return self._spec

    def metadata_spec(self) -> Nest:
        return self._metadata_spec

    def without(self, paths: Collection[str]) -> TedRecordings:
        fewer = copy.copy(self)
        fewer.__dict__.pop("notices", None)  # these may be about columns that are left out
        fewer._buffers = [buffer.without(paths) for buffer in self._buffers]
        return fewer

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        for at, buffer in enumerate(self._buffers):
            start, stop = self._starts[at], self._starts[at + 1]
            inside = [number - start for number in numbers if start <= number < stop]
            for recording, number in zip(buffer.read(inside), inside):  # so that `read` comes to its end
                yield recording if len(self._buffers) == 1 else replace(recording, name=f"{at}/{number}")

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        at = bisect_right(self._starts, number) - 1
        return self._buffers[at].metadata_of(number - self._starts[at])


class _BufferColumns:
    """The trajectories of one buffer as recordings: decides which key becomes which column."""

    def __init__(self, name: str, held: Trajectories, options: TedOptions) -> None:
        self._held, self._options = held, options
        self._unread: frozenset[str] = frozenset()
        self._guesses: list[Notice] = []
        observed = {key: key for key in held.observed if key != held.id_key}
        single = {key for key in held.steps if is_under(key, OBSERVATION)}
        if observed and not single and not any(is_under(key, OBSERVATION) for key in observed):
            self._guess("the observation is", observed, "observation")
            alone = len(observed) == 1
            observed = {OBSERVATION if alone else f"{OBSERVATION}/{key}": key for key in observed}
        steps = {key: key for key in held.steps}
        if options.next == DROP and isinstance(held, RingTrajectories):
            steps, observed = {**observed, **steps}, {}
        self._reward = self._take_key(REWARD, NEXT + REWARD, steps)
        action = "" if any(is_under(key, ACTION) for key in steps) else self._take_key(ACTION, ACTION, steps)
        if action:
            steps[ACTION] = action
        self._terminated, self._truncated, self._done = (
            steps.pop(NEXT + key, "") for key in ("terminated", "truncated", "done")
        )
        self._discount = steps.pop(DISCOUNT, "")
        steps.pop(held.id_key, None)
        taken = [
            path for path in (*observed, *steps) if path in (REWARD, DISCOUNT, *FLAGS) or path.startswith("metadata/")
        ]
        taken += sorted(set(observed) & set(steps))
        if taken:
            raise SourceError(f'a key "{taken[0]}" has the name of a column of another meaning')
        if not observed and not steps:
            raise SourceError(f"{name}: no key that could be a column")
        self._observed, self._steps = observed, steps
        """Path -> key of the columns with T + 1 rows and of those with T rows."""
        self._has_terminals = bool(
            self._terminated or (self._done and (self._truncated or options.done_is_terminal is not None))
        )
        self._constants = {key: as_metadata(value) for key, value in held.constants.items()}
        if _ID in self._constants and held.id_key:
            raise SourceError(f'{name}: a value "{_ID}" stands beside the ids of trajectories')

    @property
    def count(self) -> int:
        return self._held.count

    def without(self, paths: Collection[str]) -> _BufferColumns:
        fewer = copy.copy(self)
        fewer._unread = unread_of(paths, self.spec())
        return fewer

    @property
    def _compared(self) -> list[str]:
        """The keys of `next` that are compared with the following step."""
        unread = {key for path, key in self._observed.items() if path in self._unread}
        return sorted(key for key in self._held.observed if key not in unread)

    def _take_key(self, name: str, usual: str, steps: dict[str, str]) -> str:
        """A key, taken out of `steps`: the usual one, or the only one of that innermost name; "" for neither."""
        if usual in steps:
            return steps.pop(usual)
        at = usual.startswith(NEXT)
        alike = [key for key in steps if last_part(key) == name and key.startswith(NEXT) == at]
        if len(alike) != 1:
            return ""
        self._guess(f"the {name} is", alike, name)
        return steps.pop(alike[0])

    def _guess(self, what: str, keys: Iterable[str], option: str) -> None:
        names = "+".join(key.removeprefix(NEXT).replace("/", ".") for key in keys)
        text = f"{what} taken from {names}, as there is no key of the usual name; {option}=KEY says otherwise"
        self._guesses.append(note("keys", text))

    def notices(self) -> tuple[Notice, ...]:
        priorities = (note("priorities", _OF_SAMPLER),) if PRIORITY in self._held.steps else ()
        return (*self._held.notices, *self._guesses, *priorities, *self._next_notices(), *self._last_notices())

    def _next_notices(self) -> tuple[Notice, ...]:
        """Compares `next` with the next step in a sample of steps; MultiStep, for example, puts a later observation there."""
        held = self._held
        if not isinstance(held, RingTrajectories) or self._options.next in (KEEP, DROP) or not held.count:
            return ()
        sampled = self._sampled
        differing = {
            key: sum(len(held.differs(key, number, _LOOKED_AT)) for number in sampled) for key in self._compared
        }
        keys = [f"next.{key.replace('/', '.')}" for key, count in differing.items() if count]
        if not keys:
            return ()
        text = (
            f"{', '.join(keys)}: not the observation of the following step, in up to {counted(max(differing.values()), 'step')} of those compared, as after "
            "MultiStep, or where an overwritten ring is read without its cursor (cursor=ROW); only the last of each trajectory is read. next=keep keeps both, next=check refuses such trajectories, "
            "trajectories=rows makes every step an episode"
        )
        return (Notice("next_differs", text, max(differing.values())),)

    @property
    def _sampled(self) -> list[int]:
        """The trajectories that are looked at."""
        count = self._held.count
        return sorted(set(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(int).tolist()))

    def _last_notices(self) -> tuple[Notice, ...]:
        """Looks whether the observations after the last steps were recorded: where it had none, TorchRL leaves zeros."""
        held, keys = self._held, [key for path, key in self._observed.items() if is_under(path, OBSERVATION)]
        if not isinstance(held, RingTrajectories) or not keys:
            return ()
        sampled = self._sampled
        count = sum(not any(held.has_last(key, number) for key in keys) for number in sampled)
        if not count:
            return ()
        names = ", ".join(f"next.{key.replace('/', '.')}" for key in sorted(keys))
        text = (
            f"the observation after the last step is 0 in {names}, in {count:,} of "
            f"{counted(len(sampled), 'trajectory')} looked at, as where none was recorded; next=drop reads the data as without next, so that last_step says "
            "which last row they have"
        )
        return (Notice("no_last_observation", text, count),)

    def spec(self) -> Nest:
        held = self._held
        specs = {path: held.observed[key] for path, key in self._observed.items()}
        keys = {**held.observed, **held.steps}
        specs |= {path: keys[key] for path, key in self._steps.items()}
        for path, key in ((REWARD, self._reward), (DISCOUNT, self._discount)):
            if key:
                specs[path] = held.steps[key]
        return step_specs(specs, self._has_terminals)

    def metadata_spec(self) -> Nest:
        specs: dict[str, ArraySpec] = {key: value_spec(value) for key, value in self._constants.items()}
        if self._held.id_key:
            keys = {**self._held.observed, **self._held.steps}
            specs[_ID] = ArraySpec((), keys[self._held.id_key].dtype)
        return specs

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        with self._held.reading() as rows:
            yield from read_each(partial(self._read_one, rows), numbers, lambda _: "", lambda _: self._constants)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        if not self._held.id_key:
            return self._constants
        with self._held.reading() as rows:
            return self._metadata(rows, number)

    def _metadata(self, rows: TrajectoryRows, number: int) -> Mapping[str, Any]:
        return {**self._constants, _ID: rows.id(number)} if self._held.id_key else self._constants

    def _read_one(self, rows: TrajectoryRows, number: int) -> Recording:
        columns = self._read_columns(rows, number)
        if self._options.next == CHECK and isinstance(self._held, RingTrajectories):
            for key in self._compared:
                differing = self._held.differs(key, number)
                if len(differing):
                    raise BrokenEpisode(
                        key,
                        f"next is not the observation of the following step, in {len(differing):,} steps, first in step {int(differing[0])}; "
                        "next=keep keeps both, trajectories=rows makes every step an episode",
                    )
        return Recording(columns, self._metadata(rows, number))

    def _read_columns(self, rows: TrajectoryRows, number: int) -> dict[str, Array]:
        read = {path: rows.step(key, number) for path, key in self._steps.items() if path not in self._unread}
        observed = {path: rows.observe(key, number) for path, key in self._observed.items() if path not in self._unread}
        reward = rows.step(self._reward, number) if self._reward and REWARD not in self._unread else None
        has_discount = self._discount and DISCOUNT not in self._unread
        discount = rows.step(self._discount, number) if has_discount else None
        terminals = self._read_terminals(rows, number)
        lengths = [len(column) for column in (terminals, *read.values(), reward) if column is not None]
        lengths += [len(column) - 1 for column in observed.values()]
        count = lengths[0]
        ends = None if terminals is None else bool(terminals[-1:].any())
        has_next = any(is_under(path, OBSERVATION) for path in self._observed)
        if self._options.last_step == MARK and not has_next:
            columns = {path: column[:count] for path, column in (observed | read).items()}
            columns |= {
                path: scalars(column) for path, column in ((REWARD, reward), (DISCOUNT, discount)) if column is not None
            }
            rows_of_rlds = mark_rows(columns, ends)
        else:
            observation = columns_under(observed, OBSERVATION)
            if not has_next:
                observation = {
                    path: with_last(column, column[-1]) for path, column in columns_under(read, OBSERVATION).items()
                }
            other_columns = {
                path: np.concatenate([column, zero_row(column)]) if len(column) == count else column
                for path, column in (observed | read).items()
                if not is_under(path, OBSERVATION) and not is_under(path, ACTION)
            }
            observation, action = columns_below(observation, OBSERVATION), columns_below(read, ACTION)
            rows_of_rlds = steps(observation, action, reward, ends, other_columns, discount)
            if discount is not None:
                rows_of_rlds[DISCOUNT][-1:] = 0 if ends else 1
            if len(rows_of_rlds[IS_LAST]) != count + 1:
                raise BrokenEpisode(
                    "", f"has {len(rows_of_rlds[IS_LAST]):,} rows; expected {count + 1:,}, one more than steps"
                )
        if terminals is not None and terminals[:-1].any():
            later = rows_of_rlds[IS_TERMINAL][1:]
            later |= terminals[: len(later)]
        return rows_of_rlds

    def _read_terminals(self, rows: TrajectoryRows, number: int) -> Array | None:
        """[T] whether the state after each step is terminal; None if that is unknown."""
        if not self._has_terminals:
            return None
        if self._terminated:
            return any_of(rows.step(self._terminated, number))
        done = any_of(rows.step(self._done, number))
        if self._truncated:
            return done & ~any_of(rows.step(self._truncated, number))
        return done & bool(self._options.done_is_terminal)
