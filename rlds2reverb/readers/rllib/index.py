"""Where each episode's rows are: numbers of pieces only, so that a large dataset needs little memory.

A *piece* is a run of rows of one episode in one record. Pieces are joined by worker, episode, policy and agent, in the order of the
files, where the later one goes on from the earlier: `t` follows, and no flag ended the earlier one. Where nothing goes on, the same id
names another episode.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.readers.rllib.batches import GOES_ON, Part
from rlds2reverb.readers.rllib.files import DataFile

_NOT_RECORDED = -1
_LOOKED_AT = 64
"""Of the unfinished episodes of one id, how many are looked at; a bound for files in which all is one id."""


@dataclass(frozen=True)
class Place:
    """A part of a record: number of the file, where in it, number of the part."""

    file: int
    at: int
    part: int


@dataclass(frozen=True)
class Found:
    """A part of a record, and whose it is."""

    place: Place
    file: DataFile
    part: Part


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of a part."""

    place: Place
    start: int
    stop: int


@dataclass
class _Chain:
    """Pieces that go on from one another."""

    number: int
    first_t: int
    last_t: int
    ended: int
    is_multi_agent: bool

    def goes_on_at(self, t: int) -> bool:
        """Whether a piece that begins at `t` may be the next."""
        if self.ended != GOES_ON:
            return False
        if t == _NOT_RECORDED or self.last_t == _NOT_RECORDED:
            return t == self.last_t
        return t > self.last_t if self.is_multi_agent else t == self.last_t + 1


class Index:
    """The episodes and their pieces. Filled by `add`, then closed once."""

    def __init__(self) -> None:
        self._places: dict[str, array[int]] = {
            key: array("q") for key in ("file", "at", "part", "start", "stop", "t", "chain")
        }
        self._chains: list[_Chain] = []
        self._open: dict[tuple[str, ...], list[_Chain]] = {}
        self._ids: list[tuple[str, str, str]] = []

    def add(self, found: Found) -> None:
        """Takes the pieces of a part."""
        part = found.part
        for start, stop in part.runs():
            t = _NOT_RECORDED if part.t is None else int(part.t[start])
            key = self._key(found, start)
            chain = self._chain_for(key, t, part.is_multi_agent)
            chain.last_t = _NOT_RECORDED if part.t is None else int(part.t[stop - 1])
            chain.ended = int(part.ended[stop - 1])
            values = (found.place.file, found.place.at, found.place.part, start, stop, t, chain.number)
            for column, value in zip(self._places.values(), values):
                column.append(value)

    def _key(self, found: Found, start: int) -> tuple[str, ...]:
        part, policy = found.part, found.part.policy_of(start)
        agent = "" if part.agents is None else str(part.agents[start])
        if part.episodes is None:
            return f"{found.file.name}@{found.place.at}+{start}", policy, agent, found.file.worker
        return str(part.episodes[start]), policy, agent, found.file.worker

    def _chain_for(self, key: tuple[str, ...], t: int, is_multi_agent: bool) -> _Chain:
        chains = self._open.setdefault(key, [])
        for chain in reversed(chains[-_LOOKED_AT:]):
            if chain.goes_on_at(t):
                return chain
        chain = _Chain(len(self._chains), t, t, GOES_ON, is_multi_agent)
        chains.append(chain)
        self._chains.append(chain)
        self._ids.append((key[0], key[1], key[2]))
        return chain

    def close(self) -> None:
        """Joins what stood in the files in another order, and numbers the episodes by their first piece."""
        into = np.arange(len(self._chains))
        for chains in self._open.values():
            if len(chains) > 1:
                self._join(chains, into)
        self._open.clear()
        columns = {
            key: np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64)
            for key, column in self._places.items()
        }
        kept, episode = np.unique(into[columns["chain"]], return_inverse=True)
        order = np.lexsort((np.arange(len(episode)), columns["t"], episode))
        self._columns: dict[str, Array] = {key: column[order] for key, column in columns.items()}
        self._bounds = np.searchsorted(episode[order], np.arange(len(kept) + 1))
        self._chains = [self._chains[number] for number in kept]
        self._ids = [self._ids[number] for number in kept]
        self.names = list(_names(self._ids, [0 if chain.is_multi_agent else chain.first_t for chain in self._chains]))
        self._places = {}

    def _join(self, chains: list[_Chain], into: Array) -> None:
        waiting = sorted(chains, key=lambda chain: (chain.first_t, chain.number))
        heads: list[_Chain] = []
        for chain in waiting:
            before = next(
                (
                    head
                    for head in heads[-_LOOKED_AT:]
                    if chain.first_t != _NOT_RECORDED and head.goes_on_at(chain.first_t)
                ),
                None,
            )
            if before is None:
                heads.append(chain)
                continue
            into[chain.number] = before.number
            before.last_t, before.ended = chain.last_t, chain.ended

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def has_t(self) -> bool:
        """Whether every piece tells its step number."""
        return bool((self._columns["t"] != _NOT_RECORDED).all())

    def pieces(self, number: int) -> Iterator[Piece]:
        """The pieces of an episode, in the order of its steps."""
        for at in range(int(self._bounds[number]), int(self._bounds[number + 1])):
            one = {key: int(column[at]) for key, column in self._columns.items()}
            yield Piece(Place(one["file"], one["at"], one["part"]), one["start"], one["stop"])

    def ids(self, number: int) -> tuple[str, str, str]:
        """Episode, policy and agent, as recorded."""
        return self._ids[number]

    def first_t(self, number: int) -> int:
        """The number of its first step."""
        return self._chains[number].first_t

    def has_sure_seams(self, number: int) -> bool:
        """Whether step numbers prove that nothing is missing between its pieces."""
        chain = self._chains[number]
        return chain.first_t != _NOT_RECORDED and not chain.is_multi_agent

    def ended(self, number: int) -> int:
        """How it ends: `GOES_ON`, `TERMINATED` or `TRUNCATED`."""
        return self._chains[number].ended


def _names(ids: list[tuple[str, str, str]], first: list[int]) -> Iterator[str]:
    """A name for each episode: its id, policy and agent; where it begins, if that is late; a number where that name is taken."""
    seen: dict[str, int] = {}
    taken: set[str] = set()
    for (episode, policy, agent), t in zip(ids, first):
        is_alone = policy in ("", "default_policy") and agent in ("", "0")
        name = episode if is_alone else "/".join(one for one in (episode, policy, agent) if one)
        name = f"{name}@{t}" if t > 0 else name
        made, number = name, seen.get(name, 1)
        while made in taken:
            number += 1
            made = f"{name}~{number}"
        seen[name] = number
        taken.add(made)
        yield made
