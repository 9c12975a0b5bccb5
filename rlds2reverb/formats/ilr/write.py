"""Episodes -> a shard of il-representations: `ilr:PATH[?OPTIONS]`. A folder with one archive, or the archive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    Encode,
    Loss,
    State,
    are_equal,
    rows_that_differ,
    unchanged,
)
from rlds2reverb.formats.ilr import LOSSES, keys
from rlds2reverb.formats.ilr.archives import ArchiveWriter, member
from rlds2reverb.formats.ilr.description import FEATURES, Description
from rlds2reverb.formats.ilr.pickles import around, joined, part_of, pickled, row_pickles, whole
from rlds2reverb.formats.options import Parse, at_least_one, escaped, one_of, path_and_options, unescaped, whole_number
from rlds2reverb.formats.rows import flags, terminal_discount, zero_row
from rlds2reverb.specs import ArraySpec, ImageSpec

ARCHIVE = "demos.tar.zst"
_ENDINGS = (".tar.zst", ".tar")


def _level(text: str) -> int:
    level = whole_number(text)
    if not 1 <= level <= 19:
        raise ValueError("expected 1 to 19")
    return level


_TEXTS = {"benchmark": "benchmark_name", "task": "task_name", "color": "color_space"}
OPTIONS: dict[str, Parse] = {
    "benchmark": str,
    "task": str,
    "color": one_of(RGB="RGB", GRAY="GRAY"),
    "actions": at_least_one,
    "level": _level,
    "terminals": one_of(yes=True, no=False),
}
"""The options, and how each is read."""


@dataclass(frozen=True)
class Choices:
    """The options.

    Attributes:
      texts: features of the description, in place of the episodes'.
      actions: how many discrete actions there are; None for as many as occur.
      level: of zstd.
      terminals: whether a further key marks terminal ends.
    """

    texts: Mapping[str, str]
    actions: int | None = None
    level: int = 3
    terminals: bool = False


def open_ilr(text: str) -> IlrDestination:
    """The destination that the text after "ilr:" names.

    Raises:
      ConfigError: the path is missing, or an option has no valid value.
    """
    people = f"ilr:{text}"
    path, wanted = path_and_options(people, text, OPTIONS, ConfigError)
    if not path:
        raise ConfigError(f'"{people}": expected ilr:FOLDER, or an archive: ilr:NAME.tar.zst')
    texts = {name: wanted.pop(option) for option, name in _TEXTS.items() if option in wanted}
    return IlrDestination(people, Path(unescaped(path)).expanduser(), Choices(texts, **wanted))


class IlrDestination:
    """A folder with one archive, or the archive.

    Attributes:
      name: for messages.
      path: the folder, or the archive.
    """

    def __init__(self, name: str, path: Path, choices: Choices) -> None:
        self.name, self.path, self._choices = name, path, choices
        self._is_archive = path.name.endswith(_ENDINGS)

    def source(self, path: Path) -> str:
        """`ilr:PATH`."""
        return f"ilr:{escaped(path.absolute())}"

    @property
    def marks(self) -> Sequence[str]:
        """Archives."""
        return () if self._is_archive else ("*.tar.zst", "*.tar")

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """None: il-representations reads arrays only."""
        return {}

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns without a key, and features that a description does not have.

        Raises:
          ConfigError: no observation or no action is left.
        """
        placed = {path: _key_of(path, spec) for path, spec in content.columns.items() if path not in NOT_KEPT}
        lost = [
            Loss(code, f"{content.columns[path]}: {LOSSES[code]}", path)
            for path, code in placed.items()
            if isinstance(code, str)
        ]
        lost += [
            Loss("metadata", LOSSES["metadata"], metadata_path(name))
            for name in content.metadata
            if name not in FEATURES
        ]
        kept = _members_of(content.columns)
        if keys.ACTS not in kept or not any(map(keys.is_observation, kept)):
            raise ConfigError(
                f"{self.name}: needs an observation and an action of numbers with fixed sizes; {content.source} has "
                f"{', '.join(f'{path}: {spec}' for path, spec in content.columns.items())}"
            )
        return lost

    @property
    def least_rows(self) -> int:
        """Two: a step has an action and the observation after it."""
        return 2

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """From the length, and from whether the last step is terminal; without terminals=yes every last step is."""
        terminal = episode.columns.get(IS_TERMINAL)
        is_terminal = terminal is None or not self._choices.terminals or bool(terminal[-1])
        return flags(len(episode), is_terminal)

    def encoder(self, content: Content) -> Encode:
        """None: the sink writes episodes as they are."""
        return unchanged

    def sink(self, work: Path, content: Content, state: State | None) -> IlrSink:
        """Starts to write, or continues from a state."""
        return IlrSink(work / (self.path.name if self._is_archive else ARCHIVE), self._choices, content, state)


NOT_KEPT = (*FLAGS, DISCOUNT)
"""Columns that no member has: `dones` stands for them."""

_OWN = (keys.OBS, keys.NEXT_OBS, keys.ACTS, keys.REWS, keys.INFOS, *keys.NOT_COLUMNS)
_KEYS = {OBSERVATION: keys.OBS, ACTION: keys.ACTS, REWARD: keys.REWS, keys.INFOS: keys.INFOS}


@dataclass
class Member:
    """The members of one key.

    Attributes:
      leaves: path within the value, () for a plain one -> path of the column.
    """

    leaves: dict[tuple[str, ...], str] = field(default_factory=dict)

    def rows(self, columns: Mapping[str, Array], rows: slice) -> list[bytes]:
        """The pickles of these rows."""
        if () in self.leaves:
            column = columns[self.leaves[()]][rows]
            if column.dtype == object:
                return [whole(part_of(text)) for text in column]
            return row_pickles(_bytes(column), column.dtype, column.shape[1:])
        parts = {path: _parts(columns[name][rows]) for path, name in self.leaves.items()}
        return [whole(joined(_nested(path_parts))) for path_parts in _by_row(parts)]


def _key_of(path: str, spec: ArraySpec) -> tuple[str, tuple[str, ...]] | str:
    """The key of a column, and the path within its values; or the code of the loss if it cannot have a key."""
    if spec.dtype.kind not in "biufcO" or None in spec.shape or (spec.dtype.kind == "O" and spec.shape):
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


def _members_of(columns: Mapping[str, ArraySpec]) -> dict[str, Member]:
    """Key -> its members, for the columns that have a key."""
    found: dict[str, Member] = {}
    for path, spec in columns.items():
        placed = _key_of(path, spec)
        if path not in NOT_KEPT and not isinstance(placed, str):
            key, leaf = placed
            found.setdefault(key, Member()).leaves[leaf] = path
    return found


def _bytes(column: Array) -> Iterator[bytes]:
    """The bytes of every row."""
    data = column.tobytes()
    size = column[:1].nbytes if len(column) else 0
    return (data[at * size : (at + 1) * size] for at in range(len(column)))


def _parts(column: Array) -> list[bytes]:
    """For every row, the part of a pickle that makes its value."""
    if column.dtype == object:
        return [part_of(text) for text in column]
    start, end = around(column.dtype, column.shape[1:])
    return [start + row + end for row in _bytes(column)]


def _by_row(parts: Mapping[tuple[str, ...], Sequence[bytes]]) -> Iterator[dict[tuple[str, ...], bytes]]:
    return (dict(zip(parts, row)) for row in zip(*parts.values()))


def _nested(parts: Mapping[tuple[str, ...], bytes]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, part in sorted(parts.items()):
        level = made
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = part
    return made


_METADATA = "_metadata.meta.pickle"
_FLAGS = {one: pickled(np.bool_(one)) for one in (False, True)}


class IlrSink:
    """Writes one archive.

    Args:
      path: of the archive.
      choices: how it is to be.
      content: what is to come.
      state: of an earlier run.
    """

    def __init__(self, path: Path, choices: Choices, content: Content, state: State | None) -> None:
        self._choices, self._content = choices, content
        self._members = _members_of(content.columns)
        self._beside = [
            path for key, one in self._members.items() for path in one.leaves.values() if not keys.is_observation(key)
        ]
        self._state: State = state or {
            "bytes": 0,
            "steps": 0,
            "archived": 0,
            "first": 0,
            "actions": 0,
            "told": None,
            "ended": False,
        }
        self._archive = ArchiveWriter(path, None if path.suffix == ".tar" else choices.level, self._state["bytes"])
        self._description: Description | None = None
        if self._state["told"] is not None:
            self._description = self._described(self._state["told"])

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Writes an episode of at least two rows."""
        steps = len(episode) - 1
        description = self._description or self._begin(episode)
        self._count_actions(episode, steps)
        self._archive.add(self._counted(self._packed(episode, steps)))
        self._state["steps"] += steps
        return [*self._lost(episode, steps), *self._other_metadata(episode, description)]

    def sync(self) -> State:
        """Puts everything on disk."""
        self._state["bytes"] = self._archive.sync()
        return dict(self._state)

    def finish(self) -> None:
        """Ends the archive, and puts the number of actions into the description."""
        if self._description is not None and self._description.needs_actions:
            self._archive.begin_anew(self._first(self._description), self._state["first"])
        self._archive.end(self._state["archived"])
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._archive.close()

    def _described(self, texts: dict[str, str]) -> Description:
        columns = self._content.columns
        observation, action = (columns.get(name) for name in (OBSERVATION, ACTION))
        return Description(texts, observation, action)

    def _begin(self, episode: Episode) -> Description:
        """Writes the description, which holds the first episode's metadata."""
        found = {name: _text(episode.metadata[name]) for name in FEATURES if name in episode.metadata}
        texts = {**found, **self._choices.texts}
        self._state["told"], self._description = texts, self._described(texts)
        first = self._first(self._description)
        self._state["first"] = self._archive.begin(first)
        self._state["archived"] += len(first)
        return self._description

    def _first(self, description: Description) -> bytes:
        actions = self._choices.actions or max(1, self._state["actions"])
        return member(_METADATA, description.data(actions))

    def _count_actions(self, episode: Episode, steps: int) -> None:
        action = episode.columns.get(ACTION)
        if action is not None and action.ndim == 1 and action.dtype.kind in "iu":
            self._state["actions"] = max(self._state["actions"], int(action[:steps].max()) + 1)

    def _packed(self, episode: Episode, steps: int) -> Iterator[bytes]:
        """The members of every step, in the order of their names."""
        is_terminal = bool(episode.columns.get(IS_TERMINAL, np.zeros(1, bool))[-1])
        contents: dict[str, Sequence[bytes]] = {
            keys.DONES: [_FLAGS[at == steps - 1] for at in range(steps)],
            keys.FRAME: [pickled(self._state["steps"] + at) for at in range(steps)],
        }
        if self._choices.terminals:
            contents[keys.TERMINALS] = [_FLAGS[is_terminal and at == steps - 1] for at in range(steps)]
        for key, one in self._members.items():
            contents[key] = one.rows(episode.columns, slice(0, steps))
            if keys.is_observation(key):
                contents[keys.next_of(key)] = one.rows(episode.columns, slice(1, steps + 1))
        order = sorted(contents)
        for at in range(steps):
            name = f"frame_{self._state['steps'] + at:03d}"
            for key in order:
                yield member(f"{name}.{key}.pickle", contents[key][at])

    def _counted(self, members: Iterator[bytes]) -> Iterator[bytes]:
        for one in members:
            self._state["archived"] += len(one)
            yield one

    def _lost(self, episode: Episode, steps: int) -> Iterator[Loss]:
        columns = episode.columns
        terminal = columns.get(IS_TERMINAL)
        is_terminal = terminal is not None and bool(terminal[-1])
        if not self._choices.terminals and not is_terminal:
            yield Loss("ends", LOSSES["ends"], IS_TERMINAL)
        read = terminal_discount(steps + 1, is_terminal or not self._choices.terminals)
        for path, discount in columns_under(columns, DISCOUNT).items():
            if odd := rows_that_differ(discount, read):
                yield Loss("discounts", LOSSES["discounts"], path, odd)
        for path in self._beside:
            if not are_equal(columns[path][-1:], zero_row(columns[path])):
                yield Loss("last_row", LOSSES["last_row"], path, LAST_ROW)

    def _other_metadata(self, episode: Episode, description: Description) -> Iterator[Loss]:
        read = description.features(self._choices.actions or max(1, self._state["actions"]))
        for name in FEATURES:
            if name in episode.metadata and read.get(name) != _plain(episode.metadata[name]):
                yield Loss("metadata", LOSSES["metadata"], metadata_path(name))


def _text(value: object) -> str:
    plain = _plain(value)
    return plain.decode("utf-8", "replace") if isinstance(plain, bytes) else str(plain)


def _plain(value: object) -> object:
    """A text as bytes; a numpy scalar as a Python number."""
    plain = value.item() if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 else value
    return plain.encode() if isinstance(plain, str) else plain
