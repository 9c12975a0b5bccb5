"""Last observations that are not the episode's own, found by comparison with other episodes (`Endings`).

TFDS' d4rl_* sets end every episode with the last observation of the whole file (`tensorflow_datasets/d4rl/dataset_utils.py`, 4.9.10). A
converter that records the reset observation of a deterministic environment as the last one does the same.

An observation is not the episode's own when other episodes end with the same bits, came to it from different rows, and leapt to it
(`leaps`). Episodes that share a true end (a maze's goal) reach it by a step like any other, and often from the same rows. So each episode
that ends with an observation seen before votes for or against; the verdict takes `_VOTES` votes for, and more for than against. Two
digests of a row are kept for each episode.

The state belongs to one stream of episodes. Where several processes read it, each reports how its episodes end (`Ending`, with the leap),
and one process takes these reports in order and finds the problems (`InOrder`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import xxhash

from rlds2reverb.episode import OBSERVATION, Array, Episode, byte_view, columns_under
from rlds2reverb.interrupts import raise_lost_interrupt
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.problems import ENDS_ALIKE, OTHER_END, Problem

FEWEST_STEPS = 5
"""Shorter episodes do not show how far a step takes."""

_FARTHER = 1.1
"""By how much a leap must exceed the longest step before it; steps of one grid differ by rounding."""


def is_numeric(column: Array) -> bool:
    return column.dtype.kind in "biufc"


def numeric_observations(episode: Episode) -> dict[str, Array]:
    """The observation's columns of numbers by path; {} if one has another length than the episode, or no rows."""
    columns = columns_under(episode.columns, OBSERVATION)
    numeric = {path: column for path, column in columns.items() if is_numeric(column)}
    return numeric if all(len(column) == len(episode) > 0 for column in numeric.values()) else {}


def leaps(observations: Mapping[str, Array]) -> bool:
    """Whether some value of a float column changes more in the last step than in any step before.

    Ignored are values that never changed before (in a maze they may change in the last step for the first time), whole numbers (games and
    mazes count by them), and episodes of fewer than `FEWEST_STEPS` rows.

    Args:
      observations: path -> [T, ...] of one length.
    """
    for column in observations.values():
        if column.dtype.kind != "f" or len(column) < FEWEST_STEPS:
            continue
        rows = column.reshape(len(column), -1)  # [T, values]
        if not _is_fractional(rows[-1]) and not _is_fractional(rows[-2]):
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            longest = np.abs(np.diff(rows[:-1], axis=0)).max(axis=0, initial=0)
            last = np.abs(rows[-1] - rows[-2])
            if np.any((longest > 0) & (last > _FARTHER * longest)):
                return True
    return False


def _is_fractional(row: Array) -> bool:
    finite = row[np.isfinite(row)]
    return bool(np.any(finite != np.rint(finite)))


class Titled(Protocol):
    @property
    def title(self) -> str: ...


_Remembered = TypeVar("_Remembered")
_Titled = TypeVar("_Titled", bound=Titled)

MOST_HELD = 8
"""Most episodes that wait for later ones."""

_VOTES = 2
"""The first episode with an observation casts no vote, so at least three must end alike."""

_MOST_SINGLE, _MOST_SHARED, _MOST_BEFORES = 16, 16, 16
"""Observations and rows that are remembered; a dataset of any length is judged in memory of one size."""

_FEW_BYTES = 512
"""A row of more bytes is remembered by its digest."""
_DOUBTED = 5
"""After so many episodes with it, an observation that was not recognised makes no episode wait."""


class Ending(NamedTuple):
    # the observations of the last row and of the row before it, or digests
    last: bytes
    before: bytes
    has_leapt: bool | None = None  # whether it leapt to the last row; None before this is computed
    floats: Mapping[str, Array] | None = None  # the columns of which that is computed, while it is None

    def for_others(self) -> Ending:
        """The ending with its leap, in few bytes: to be sent to another process."""
        digest = xxhash.xxh3_128_digest
        return Ending(digest(self.last), digest(self.before), self.leaps())

    def with_leap(self) -> Ending:
        """The ending with its leap, and without the columns of which that is computed."""
        return Ending(self.last, self.before, self.leaps())

    def leaps(self) -> bool:
        """Whether the last observation has a value other than zero, and a leap leads to it."""
        # An end of zeros only has a code of its own, "zero_last_observation", which no other episode is needed for.
        return leaps(self.floats or {}) if self.has_leapt is None else self.has_leapt


class Single(NamedTuple):
    """An observation with which one episode has ended: the episode's title, and the row before it."""

    title: str
    before: bytes


@dataclass(frozen=True)
class Shared:
    """An observation with which several episodes have ended.

    Attributes:
      title: of the first of them.
      befores: the rows before it; the first few.
      episodes: their number.
      votes_for, votes_against: of the episodes after the first, on whether it is not their own.
    """

    title: str
    befores: tuple[bytes, ...]
    episodes: int = 1
    votes_for: int = 0
    votes_against: int = 0

    @property
    def is_false(self) -> bool:
        return self.votes_for >= _VOTES and self.votes_for > self.votes_against

    @property
    def is_open(self) -> bool:
        """Whether more episodes may still show that it is not theirs."""
        return self.episodes < _DOUBTED and not self.is_false

    def with_episode(self, before: bytes, has_leapt: bool) -> Shared:
        is_other_way = before not in self.befores
        is_for = is_other_way and has_leapt
        return Shared(
            self.title,
            (*self.befores, before)[:_MOST_BEFORES] if is_other_way else self.befores,
            self.episodes + 1,
            self.votes_for + is_for,
            self.votes_against + (not is_for),
        )


@dataclass(frozen=True)
class Endings:
    """The ends of the episodes so far. A value: adding one gives a new one."""

    episodes: int = 0  # their number
    # last observations of one episode each, the oldest first; at most `_MOST_SINGLE`
    single: Mapping[bytes, Single] = field(default_factory=dict)
    # last observations of several episodes, the least recently met first; at most `_MOST_SHARED`
    shared: Mapping[bytes, Shared] = field(default_factory=dict)

    def after(self, episode: Titled, ending: Ending | None) -> Endings:
        """The ends with one more episode."""
        if ending is None:
            return Endings(self.episodes + 1, self.single, self.shared)
        if ending.last not in self.single and ending.last not in self.shared:
            single = {**self.single, ending.last: Single(episode.title, ending.before)}
            return Endings(self.episodes + 1, _drop_oldest(single, _MOST_SINGLE), self.shared)
        single, shared = dict(self.single), dict(self.shared)
        first = single.pop(ending.last, None)
        same = shared.pop(ending.last) if first is None else Shared(first.title, (first.before,))
        is_other_way = ending.before not in same.befores
        # The leap is looked for only where the vote depends on it: most episodes end with an observation of their own.
        shared[ending.last] = same.with_episode(ending.before, is_other_way and ending.leaps())
        return Endings(self.episodes + 1, single, _drop_oldest(shared, _MOST_SHARED))

    def problems(self, ending: Ending | None) -> list[Problem]:
        same = None if ending is None else self.shared.get(ending.last)
        if same is None or not same.is_false:
            return []
        fact = (
            f"{same.episodes:,} episodes so far, the first is {same.title}, end with this very observation, and leap to it; "
            "at most one owns it"
        )
        return [Problem(ENDS_ALIKE, OBSERVATION, fact, OTHER_END)]

    @property
    def is_open(self) -> bool:
        """Whether later episodes may show a problem of those so far."""
        return (self.episodes < 2 and bool(self.single)) or any(shared.is_open for shared in self.shared.values())


def ending_of(episode: Episode, conventions: Conventions = Conventions()) -> Ending | None:
    """How an episode ends; None without an observation of floats, with one row, with columns of different lengths, or where the end is mended."""
    if conventions.mends_end(episode):
        return None
    observations = numeric_observations(episode)
    columns = list(observations.values())
    floats = {path: column for path, column in observations.items() if column.dtype.kind == "f"}
    if not floats or len(columns[0]) < 2:
        return None
    last = b"".join([_mark(column[-1]) for column in columns])
    before = b"".join([_mark(column[-2]) for column in columns])
    if not any(column[-1].any() for column in columns):
        return Ending(last, before, False)
    return Ending(last, before, None, floats)


class InOrder(Generic[_Titled]):
    """Finds the problems of ends, episode by episode; a few episodes wait for the next ones.

    Args:
      endings: of the episodes before these, where a reading continues.

    Attributes:
      endings: of all so far.
    """

    def __init__(self, endings: Endings = Endings()) -> None:
        self.endings = endings
        self._held = deque[tuple[_Titled, "Ending | None"]]()

    def add(self, episode: _Titled, ending: Ending | None) -> bool:
        """Adds an episode. Returns whether the waiting episodes are decided, so that `held` can give them."""
        self.endings = self.endings.after(episode, ending)
        self._held.append((episode, ending))
        return not self.endings.is_open or len(self._held) >= MOST_HELD

    def held(self) -> Iterator[tuple[_Titled, list[Problem]]]:
        """Removes the waiting episodes, and gives them in order, with their problems."""
        while self._held:
            episode, ending = self._held.popleft()
            yield episode, self.endings.problems(ending)


def with_problems_of_ends(
    episodes: Iterable[_Titled],
    conventions: Conventions = Conventions(),
    endings: Endings = Endings(),
    on_clear: Callable[[Endings], object] = lambda _: None,
    ending: Callable[[Any], Ending | None] | None = None,
) -> Iterator[tuple[_Titled, list[Problem]]]:
    """Every episode, in order, with the problems that only comparison with others shows.

    An episode waits while later ones may show a problem: the first for the second, where it has observations of floats, and episodes that end
    alike for a few more. At most `MOST_HELD` wait. When an error stops the reading, the waiting ones come first.

    Args:
      episodes: as recorded, in the order of the source; or anything with a title, where `ending` is given.
      conventions: an end that these mend is no problem.
      endings: of the episodes before these, where a reading continues.
      on_clear: called with the endings so far whenever no episode waits: from here a reading can continue.
      ending: how an episode ends, with the leap; by default `ending_of`.
    """
    order, ending = InOrder[_Titled](endings), ending or partial(ending_of, conventions=conventions)
    try:
        for episode in episodes:
            raise_lost_interrupt()  # else what is read may be spoiled by it
            if order.add(episode, ending(episode)):
                yield from order.held()
                on_clear(order.endings)
    except Exception:
        yield from order.held()
        raise
    yield from order.held()
    on_clear(order.endings)


def _drop_oldest(remembered: dict[bytes, _Remembered], most: int) -> dict[bytes, _Remembered]:
    """Drops the first entry, if there are more than `most`."""
    if len(remembered) > most:
        del remembered[next(iter(remembered))]
    return remembered


def _mark(row: Array) -> bytes:
    """The bytes of a row, or their digest where they are many."""
    if row.nbytes <= _FEW_BYTES:
        return row.tobytes()
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(row)))


def state_of(endings: Endings) -> dict[str, Any]:
    """Plain values for JSON, which `endings_of` reads; digests as hexadecimal text."""
    singles = [[last.hex(), single.title, single.before.hex()] for last, single in endings.single.items()]
    shareds = [
        [last.hex(), own.title, [row.hex() for row in own.befores], own.episodes, own.votes_for, own.votes_against]
        for last, own in endings.shared.items()
    ]
    return {"episodes": endings.episodes, "single": singles, "shared": shareds}


def endings_of(state: dict[str, Any]) -> Endings:
    from_hex = bytes.fromhex
    single = {from_hex(last): Single(title, from_hex(before)) for last, title, before in state["single"]}
    shared = {
        from_hex(last): Shared(title, tuple(map(from_hex, befores)), *votes)
        for last, title, befores, *votes in state["shared"]
    }
    return Endings(state["episodes"], single, shared)
