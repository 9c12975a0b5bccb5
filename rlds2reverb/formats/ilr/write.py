"""Episodes -> shards of il-representations: `ilr:PATH[?OPTIONS]`. A folder with one archive or several, or the archive; `write_arrays` writes the dict format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_TERMINAL,
    METADATA,
    OBSERVATION,
    REWARD,
    STEP_FIELDS,
    Array,
    Episode,
    columns_under,
    metadata_path,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.destination import (
    LAST_ROW,
    Content,
    Destination,
    Loss,
    Sink,
    State,
    are_equal,
    rows_that_differ,
)
from rlds2reverb.formats.ilr import LOSSES, keys
from rlds2reverb.formats.ilr.archives import METADATA as METADATA_MEMBER
from rlds2reverb.formats.ilr.archives import ArchiveWriter, make_member
from rlds2reverb.formats.ilr.description import FEATURES, Description, features_of
from rlds2reverb.formats.ilr.pickles import around, close_pickle, join_parts, part_of, pickle_value, row_pickles
from rlds2reverb.formats.options import escape_text
from rlds2reverb.formats.rows import flags, terminal_discount, zero_row
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec, is_plain_number
from rlds2reverb.text import counted

ARCHIVE = "demos.tar.zst"
SHARD = "demos-{:06d}.tar.zst"  # of several: webdataset takes them as demos-{000000..000041}.tar.zst
_ENDINGS = (".tar.zst", ".tar")
ARRAYS = (".npz", ".pkl.gz", ".pickle.gz", ".pickle", ".pkl")  # endings of a dictionary of arrays in one file


@dataclass(frozen=True)
class IlrWriteOptions:
    """The parsed options; `actions` is None to count the discrete actions that occur, `shards` and `shard_frames` for one shard of any size."""

    texts: Mapping[str, str]
    actions: int | None = None
    level: int = 3
    terminals: bool = False
    shard_frames: int | None = None
    shards: int | None = None


class IlrDestination(Destination):
    """A folder with one archive or several, or the archive."""

    def __init__(self, name: str, path: Path, options: IlrWriteOptions) -> None:
        self.name, self.path, self._options = name, path, options
        self._is_archive = path.name.endswith(_ENDINGS)
        if "{" in path.name:
            raise ConfigError(
                f'"{name}": braces name shards to read; several are written into a folder: ilr:FOLDER?shards=4'
            )
        several = "shards" if options.shards is not None else "shard_frames"
        if self._is_archive and getattr(options, several) is not None:
            raise ConfigError(f'"{name}": {several}: several shards lie in a folder; name one instead of {path.name}')
        if options.shards is not None and options.shard_frames is not None:
            raise ConfigError(f'"{name}": shards and shard_frames: each says where a shard ends; leave one out')

    def source(self, path: Path) -> str:
        return f"ilr:{escape_text(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        return () if self._is_archive else ("*.tar.zst", "*.tar")

    def losses(self, content: Content) -> Sequence[Loss]:
        losses = [
            Loss(code, f"{spec}: {LOSSES[code]}", path)
            for path, spec in content.columns.items()
            if path not in NOT_KEPT and isinstance(code := _key_of(path, spec), str)
        ]
        reward = content.columns.get(REWARD)
        if reward is not None and reward.shape == (1,):
            losses.append(Loss("shape", f"{reward}: {LOSSES['shape']}", REWARD))
        unknown = [name for name in content.metadata if name not in FEATURES]
        losses += [Loss("metadata", LOSSES["metadata"], metadata_path(name)) for name in unknown]
        if self._options.shards is not None:
            self._check_shards(content, self._options.shards)
        kept = members_of(content.columns)
        if keys.ACTS not in kept or not any(map(keys.is_observation, kept)):
            raise ConfigError(
                f"{self.name}: needs an observation and an action of numbers with fixed sizes; {content.source} has "
                f"{', '.join(f'{path}: {spec}' for path, spec in content.columns.items())}"
            )
        return losses

    def _check_shards(self, content: Content, shards: int) -> Source:
        """The episodes that shards divide. Raises `ConfigError` if it is not known how many there will be, or there are too few."""
        source = content.episodes
        if not isinstance(source, Source) or source.is_live:
            raise ConfigError(
                f"{self.name}: shards={shards} divides episodes that are there; those of {content.source} come while they are written: use shard_frames"
            )
        count = source.episode_count
        if count is not None and count < shards:
            raise self._too_few(content, shards, count)
        return source

    def _too_few(self, content: Content, shards: int, count: int) -> ConfigError:
        return ConfigError(
            f"{self.name}: shards={shards}: {content.source} has {counted(count, 'episode')}, and no shard may be empty; expected at most {count}, or shard_frames instead"
        )

    @property
    def least_rows(self) -> int:
        return 2  # a step has an action and the observation after it

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        terminal = episode.columns.get(IS_TERMINAL)  # without terminals=yes every end is read as terminal
        is_terminal = terminal is None or not self._options.terminals or bool(terminal[-1])
        return flags(len(episode), is_terminal)

    def sink(self, work: Path, content: Content, state: State | None) -> Sink:
        if self._options.shard_frames is not None or self._options.shards is not None:
            if state is None:
                state = {"full": [], "current": None, "ends": self._divide(content), "written": 0}
            return ShardsSink(work, self._options, content, state)
        return IlrSink(work / (self.path.name if self._is_archive else ARCHIVE), self._options, content, state)

    def _divide(self, content: Content) -> list[int]:
        """For each shard but the last, the number of episodes up to its end; [] where sizes alone divide."""
        shards = self._options.shards
        if shards is None:
            return []
        lengths = self._check_shards(content, shards).count_lengths()
        if len(lengths) < shards:
            raise self._too_few(content, shards, len(lengths))
        return divide(lengths, shards)


def divide(lengths: Sequence[int], parts: int) -> list[int]:
    """Divides episodes into parts one after the other, of steps as equal as their order allows; for each part but the last, the episode behind its end.

    >>> divide([10, 1, 1, 10, 2], 3), divide([1, 1, 50], 3)
    ([1, 3], [1, 2])
    """
    steps = np.cumsum(lengths)
    ends: list[int] = []
    for part in range(1, parts):
        goal = steps[-1] * part / parts
        nearest = int(np.argmin(np.abs(steps - goal))) + 1
        least = ends[-1] + 1 if ends else 1
        ends.append(min(max(nearest, least), len(lengths) - (parts - part)))
    return ends


NOT_KEPT = (*FLAGS, DISCOUNT)  # columns without a member: `dones` replaces them

_OWN = (keys.OBS, keys.NEXT_OBS, keys.ACTS, keys.REWS, keys.INFOS, *keys.NOT_COLUMNS)
_KEYS = {column: key for key, column in keys.COLUMNS.items()}


Leaves = dict[tuple[str, ...], str]  # path within the value of a key, () for a plain one -> path of the column


def pickles_of_rows(leaves: Leaves, columns: Mapping[str, Array], rows: slice) -> list[bytes]:
    """The pickles of the values of one key in these rows."""
    if () in leaves:
        column = columns[leaves[()]][rows]
        if column.dtype == object:
            return [pickle_value(text) for text in column]
        return row_pickles(_bytes(column), column.dtype, column.shape[1:])
    parts: dict[tuple[str, ...], list[bytes]] = {}
    for path, name in sorted(leaves.items()):
        column = columns[name][rows]
        if column.dtype == object:
            parts[path] = [part_of(text) for text in column]
        else:
            start, end = around(column.dtype, column.shape[1:])
            parts[path] = [start + row + end for row in _bytes(column)]
    pickles = []
    for row in zip(*parts.values()):
        value: dict[str, Any] = {}
        for path, part in zip(parts, row):
            level = value
            for name in path[:-1]:
                level = level.setdefault(name, {})
            level[path[-1]] = part
        pickles.append(close_pickle(join_parts(value)))
    return pickles


def _key_of(path: str, spec: ArraySpec) -> tuple[str, tuple[str, ...]] | str:
    """The key of a column, and the path within its values; or the code of the loss if it cannot have a key."""
    is_text = spec.dtype.kind == "O"
    if not (is_text or is_plain_number(spec.dtype)) or None in spec.shape or (is_text and spec.shape):
        return "kinds"
    field_name, *rest = path.split("/")
    if field_name == OBSERVATION and rest:
        key, rest = f"{keys.OBS}_{rest[0]}", rest[1:]
    elif field_name in _KEYS and (field_name != keys.INFOS or rest):
        key = _KEYS[field_name]
    elif field_name == keys.EXTRAS and rest and rest[0] in (*STEP_FIELDS, METADATA):
        key, rest = rest[0], rest[1:]
    else:
        key = field_name
        if key in (*_OWN, *STEP_FIELDS, METADATA) or keys.is_observation(key) or keys.is_next(key):
            return "names"
    return "names" if not key or "." in key or len(key.encode()) > 60 or "" in rest else (key, tuple(rest))


def members_of(columns: Mapping[str, ArraySpec]) -> dict[str, Leaves]:
    """Key -> its leaves, for the columns that have a key."""
    members: dict[str, Leaves] = {}
    for path, spec in columns.items():
        place = _key_of(path, spec)
        if path not in NOT_KEPT and not isinstance(place, str):
            key, leaf = place
            members.setdefault(key, {})[leaf] = path
    return members


def _bytes(column: Array) -> Iterator[bytes]:
    data = column.tobytes()
    size = column[:1].nbytes if len(column) else 0
    return (data[at * size : (at + 1) * size] for at in range(len(column)))


_FLAGS = {flag: pickle_value(np.bool_(flag)) for flag in (False, True)}


class IlrSink:
    """Writes one archive; `before` is the state of the shard before it, whose description it shares."""

    def __init__(
        self,
        path: Path,
        options: IlrWriteOptions,
        content: Content,
        state: State | None,
        before: State | None = None,
    ) -> None:
        self._options, self._content = options, content
        self._members = members_of(content.columns)
        self._beside = [
            path for key, leaves in self._members.items() for path in leaves.values() if not keys.is_observation(key)
        ]
        counts = dict.fromkeys(("bytes", "steps", "archived", "first", "actions"), 0)
        self._state: State = state or {**counts, "texts": None, "ended": False}
        self._archive = ArchiveWriter(path, None if path.suffix == ".tar" else options.level, self._state["bytes"])
        self._description: Description | None = None
        if self._state["texts"] is not None:
            self._description = self._describe(self._state["texts"])
        elif before is not None and before["texts"] is not None:
            self._state["actions"] = before["actions"]
            self._begin(before["texts"])

    @property
    def steps(self) -> int:
        """Number of steps written so far."""
        return int(self._state["steps"])

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Writes an episode of at least two rows."""
        steps = len(episode) - 1
        description = self._description or self._begin(self._texts_of(episode))
        action = episode.columns.get(ACTION)
        if action is not None and action.ndim == 1 and action.dtype.kind in "iu":
            self._state["actions"] = max(self._state["actions"], int(action[:steps].max()) + 1)
        self._archive.add(self._pack(episode, steps))
        self._state["steps"] += steps
        return [
            *find_losses(episode, steps, self._options.terminals, self._beside),
            *self._other_metadata(episode, description),
        ]

    def sync(self) -> State:
        self._state["bytes"] = self._archive.sync()
        return dict(self._state)

    def finish(self, actions: int | None = None) -> None:
        """Completes the archive; `actions` is the number of discrete ones of all shards, by default that of this one."""
        if actions is not None:
            self._state["actions"] = actions
        if self._description is not None and self._description.needs_actions:  # all of them are counted now
            self._archive.begin_anew(self._first(self._description), self._state["first"])
        self._archive.end(self._state["archived"])
        self.close()

    def close(self) -> None:
        self._archive.close()

    def _describe(self, texts: dict[str, str]) -> Description:
        columns = self._content.columns
        observation, action = (columns.get(name) for name in (OBSERVATION, ACTION))
        return Description(texts, observation, action)

    def _texts_of(self, episode: Episode) -> dict[str, str]:
        recorded = {name: _text(episode.metadata[name]) for name in FEATURES if name in episode.metadata}
        return {**recorded, **self._options.texts}

    def _begin(self, texts: dict[str, str]) -> Description:
        self._state["texts"], self._description = texts, self._describe(texts)
        first = self._first(self._description)
        self._state["first"] = self._archive.begin(first)
        self._state["archived"] += len(first)
        return self._description

    def _first(self, description: Description) -> bytes:
        actions = self._options.actions or max(1, self._state["actions"])
        return make_member(METADATA_MEMBER, description.data(actions))

    def _pack(self, episode: Episode, steps: int) -> Iterator[bytes]:
        """The members of every step, in the order of their names; counts their bytes."""
        is_terminal = bool(episode.columns.get(IS_TERMINAL, np.zeros(1, bool))[-1])
        contents: dict[str, Sequence[bytes]] = {
            keys.DONES: [_FLAGS[at == steps - 1] for at in range(steps)],
            keys.FRAME: [pickle_value(self._state["steps"] + at) for at in range(steps)],
        }
        if self._options.terminals:
            contents[keys.TERMINALS] = [_FLAGS[is_terminal and at == steps - 1] for at in range(steps)]
        for key, leaves in self._members.items():
            contents[key] = pickles_of_rows(leaves, episode.columns, slice(0, steps))
            if keys.is_observation(key):
                contents[keys.next_of(key)] = pickles_of_rows(leaves, episode.columns, slice(1, steps + 1))
        order = sorted(contents)
        for at in range(steps):
            name = f"frame_{self._state['steps'] + at:03d}"
            for key in order:
                member = make_member(f"{name}.{key}.pickle", contents[key][at])
                self._state["archived"] += len(member)
                yield member

    def _other_metadata(self, episode: Episode, description: Description) -> Iterator[Loss]:
        actions = self._options.actions or max(1, self._state["actions"])
        read = features_of(description.data(actions), "the description")
        for name in FEATURES:
            if name in episode.metadata and read.get(name) != _plain(episode.metadata[name]):
                yield Loss("metadata", LOSSES["metadata"], metadata_path(name))


def find_losses(episode: Episode, steps: int, terminals: bool, beside: Sequence[str]) -> Iterator[Loss]:
    """What an episode has that shards and dictionaries cannot hold.

    Args:
      terminals: whether it is written which ends are terminal.
      beside: paths of the columns that are written, and are no observations.
    """
    columns = episode.columns
    terminal = columns.get(IS_TERMINAL)
    is_terminal = terminal is not None and bool(terminal[-1])
    if not terminals and not is_terminal:
        yield Loss("ends", LOSSES["ends"], IS_TERMINAL)
    read = terminal_discount(steps + 1, is_terminal or not terminals)
    for path, discount in columns_under(columns, DISCOUNT).items():
        if odd := rows_that_differ(discount, read):
            yield Loss("discounts", LOSSES["discounts"], path, odd)
    for path in beside:
        if not are_equal(columns[path][-1:], zero_row(columns[path])):
            yield Loss("last_row", LOSSES["last_row"], path, LAST_ROW)


class ShardsSink:
    """Writes archives of at most so many steps, or of so many episodes each; an episode is never divided, and one longer than that has its own.

    Frames count from 0 in each. All have the first episode's description, with the number of actions of all, so archives are completed together.
    """

    def __init__(self, folder: Path, options: IlrWriteOptions, content: Content, state: State) -> None:
        self._folder, self._options, self._content = folder, options, content
        self._full: list[State] = list(state["full"])
        self._ends, self._written = list(state["ends"]), int(state["written"])
        for path in sorted(folder.glob(SHARD.format(0).replace("000000", "*")))[len(self._full) + 1 :]:
            path.unlink()  # begun after the state was saved
        self._current = self._open(len(self._full), state["current"])

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Writes an episode of at least two rows."""
        most = self._options.shard_frames
        is_full = most is not None and self._current.steps + len(episode) - 1 > most
        if self._current.steps and (is_full or self._written in self._ends):
            self._full.append(self._current.sync())
            self._current.close()
            self._current = self._open(len(self._full), None, self._full[-1])
        self._written += 1
        return self._current.write(episode)

    def sync(self) -> State:
        return {
            "full": list(self._full),
            "current": self._current.sync(),
            "ends": self._ends,
            "written": self._written,
        }

    def finish(self) -> None:
        actions = self._current.sync()["actions"]  # counted from shard to shard
        self._current.finish()
        for number, state in enumerate(self._full):
            self._open(number, state).finish(actions)

    def close(self) -> None:
        self._current.close()

    def _open(self, number: int, state: State | None, before: State | None = None) -> IlrSink:
        path = self._folder / SHARD.format(number)
        return IlrSink(path, self._options, self._content, None if state is None else dict(state), before)


def _text(value: object) -> str:
    plain = _plain(value)
    return plain.decode("utf-8", "replace") if isinstance(plain, bytes) else str(plain)


def _plain(value: object) -> object:
    """A text as bytes; a numpy scalar as a Python number."""
    plain = value.item() if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 else value
    return plain.encode() if isinstance(plain, str) else plain
