"""Episodes -> a shard of il-representations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rlds2reverb.destinations.base import LAST_ROW, Content, Loss, State
from rlds2reverb.destinations.comparing import are_equal, rows_that_differ
from rlds2reverb.destinations.ilr import LOSSES
from rlds2reverb.destinations.ilr.archive import ArchiveWriter, member
from rlds2reverb.destinations.ilr.description import Description
from rlds2reverb.destinations.ilr.members import members_of
from rlds2reverb.destinations.ilr.naming import Target
from rlds2reverb.destinations.ilr.pickling import pickled
from rlds2reverb.episodes import ACTION, DISCOUNT, IS_TERMINAL, OBSERVATION, Episode, columns_under
from rlds2reverb.metadata import metadata_path
from rlds2reverb.readers.alignment import terminal_discount, zero_row
from rlds2reverb.readers.ilr import keys
from rlds2reverb.readers.ilr.metadata import FEATURES

_METADATA = "_metadata.meta.pickle"
_FLAGS = {one: pickled(np.bool_(one)) for one in (False, True)}


class IlrSink:
    """Writes one archive.

    Args:
      path: of the archive.
      target: how it is to be.
      content: what is to come.
      state: of an earlier run.
    """

    def __init__(self, path: Path, target: Target, content: Content, state: State | None) -> None:
        self._target, self._content = target, content
        self._members = members_of(content.columns)
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
        self._archive = ArchiveWriter(path, target.zstd_level, self._state["bytes"])
        self._description: Description | None = None
        if self._state["told"] is not None:
            self._description = self._described(self._state["told"])

    def write(self, episode: Episode) -> Sequence[Loss]:
        """Takes an episode of at least two rows."""
        steps = len(episode) - 1
        description = self._description or self._begin(episode)
        self._count_actions(episode, steps)
        self._archive.add(self._counted(self._packed(episode, steps)))
        self._state["steps"] += steps
        return [*self._lost(episode, steps), *self._other_metadata(episode, description)]

    def sync(self) -> State:
        """Puts all on disk."""
        self._state["bytes"] = self._archive.sync()
        return dict(self._state)

    def finish(self) -> None:
        """Ends the archive, and tells how many actions there were."""
        if self._description is not None and self._description.needs_actions:
            self._archive.begin_anew(self._first(self._description), self._state["first"])
        self._archive.end(self._state["archived"])
        self.close()

    def close(self) -> None:
        """Lets go of the file."""
        self._archive.close()

    def _described(self, told: dict[str, str]) -> Description:
        columns = self._content.columns
        observation, action = (columns.get(name) for name in (OBSERVATION, ACTION))
        return Description(told, observation, action)

    def _begin(self, episode: Episode) -> Description:
        """Writes the description, of what the first episode tells."""
        found = {name: _text(episode.metadata[name]) for name in FEATURES if name in episode.metadata}
        told = {**found, **self._target.told}
        self._state["told"], self._description = told, self._described(told)
        first = self._first(self._description)
        self._state["first"] = self._archive.begin(first)
        self._state["archived"] += len(first)
        return self._description

    def _first(self, description: Description) -> bytes:
        actions = self._target.actions or max(1, self._state["actions"])
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
        if self._target.terminals:
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
        if not self._target.terminals and not is_terminal:
            yield Loss("ends", LOSSES["ends"], IS_TERMINAL)
        read = terminal_discount(steps + 1, is_terminal or not self._target.terminals)
        for path, discount in columns_under(columns, DISCOUNT).items():
            if odd := rows_that_differ(discount, read):
                yield Loss("discounts", LOSSES["discounts"], path, odd)
        for path in self._beside:
            if not are_equal(columns[path][-1:], zero_row(columns[path])):
                yield Loss("last_row", LOSSES["last_row"], path, LAST_ROW)

    def _other_metadata(self, episode: Episode, description: Description) -> Iterator[Loss]:
        read = description.features(self._target.actions or max(1, self._state["actions"]))
        for name in FEATURES:
            if name in episode.metadata and read.get(name) != _plain(episode.metadata[name]):
                yield Loss("metadata", LOSSES["metadata"], metadata_path(name))


def _text(value: object) -> str:
    plain = _plain(value)
    return plain.decode("utf-8", "replace") if isinstance(plain, bytes) else str(plain)


def _plain(value: object) -> object:
    """A text as bytes; a number without numpy around it."""
    plain = value.item() if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 else value
    return plain.encode() if isinstance(plain, str) else plain
