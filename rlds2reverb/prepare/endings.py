"""Finds episodes that end with the same observation, which is not their own. Only several episodes together show it.

TFDS' d4rl_* sets end every episode with the last observation of the whole file (`tensorflow_datasets/d4rl/dataset_utils.py`, 4.9.10).
A converter that records the reset observation of a deterministic environment as the last one does the same.

An observation is not the episode's own when other episodes end with the same bits, came to it from different rows, and leapt to it
(`leaps`). Episodes that share a true end (a maze's goal) reach it by a step like any other, and often from the same rows. So each episode
that ends with a known observation votes for or against; it takes `_VOTES` votes for, and more than against. Two digests of a row are kept per
episode.

The state belongs to one stream of episodes. Where several processes read it, each reports how its episodes end (`Ending`, with the leap), and
one process takes these reports in order and finds the problems (`InOrder`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import xxhash

from rlds2reverb.episode import OBSERVATION, Array, Episode, byte_view, columns_under
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.problems import ENDS_ALIKE, Problem

FEWEST_STEPS = 5
"""Shorter episodes do not show how far a step takes."""

_FARTHER = 1.1
"""By how much a leap must exceed the longest step before it; steps of one grid differ by rounding."""


def numeric_observations(episode: Episode) -> dict[str, Array]:
    """The observation's columns of numbers by path; {} where one has another length than the episode, or no rows."""
    columns = columns_under(episode.columns, OBSERVATION)
    numeric = {path: column for path, column in columns.items() if column.dtype.kind in "biufc"}
    return numeric if all(len(column) == len(episode) > 0 for column in numeric.values()) else {}


def leaps(observations: Mapping[str, Array]) -> bool:
    """Whether the last row lies farther from the one before it than any step before took, by some value of a column of floats.

    Left out are values that never changed before (in a maze they may change in the last step for the first time), whole numbers (games and
    mazes count by them), and episodes of fewer than `FEWEST_STEPS`.

    Args:
      observations: path -> [T, ...] of one length.
    """
    return any(_leaps(column) for column in observations.values() if column.dtype.kind == "f")


def _leaps(column: Array) -> bool:
    if len(column) < FEWEST_STEPS:
        return False
    rows = column.reshape(len(column), -1)  # [T, values]
    if not _is_fractional(rows[-1]) and not _is_fractional(rows[-2]):
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        longest = np.abs(np.diff(rows[:-1], axis=0)).max(axis=0, initial=0)
        last = np.abs(rows[-1] - rows[-2])
        return bool(np.any((longest > 0) & (last > _FARTHER * longest)))


def _is_fractional(row: Array) -> bool:
    finite = row[np.isfinite(row)]
    return bool(np.any(finite != np.rint(finite)))


class Titled(Protocol):
    """An episode, or what stands for one."""

    @property
    def title(self) -> str: ...


_Known = TypeVar("_Known")
_Titled = TypeVar("_Titled", bound=Titled)

MOST_HELD = 8
"""Most episodes that wait for later ones."""

_VOTES = 2
_MOST_SINGLE, _MOST_SHARED, _MOST_BEFORES = 16, 16, 16
"""How much is remembered."""
_FEW_BYTES = 512
_DOUBTED = 5
"""After so many episodes with it, an observation that was not recognised makes no episode wait."""


class Ending(NamedTuple):
    """How one episode ends.

    Attributes:
      last, before: the observations of the last row and of the row before it, or digests.
      has_leapt: whether it leapt to the last row; None before this is computed.
    """

    last: bytes
    before: bytes
    has_leapt: bool | None = None

    def for_others(self, episode: Episode) -> Ending:
        """With the leap, and in few bytes: to be sent to another process."""
        digest = xxhash.xxh3_128_digest
        return self.with_leap(episode)._replace(last=digest(self.last), before=digest(self.before))

    def with_leap(self, episode: Episode) -> Ending:
        """With the leap."""
        return self._replace(has_leapt=_has_leapt(episode))


class Single(NamedTuple):
    """An observation with which one episode ended, so far.

    Attributes:
      title: of the episode.
      before: the row before it.
    """

    title: str
    before: bytes


@dataclass(frozen=True)
class Shared:
    """An observation with which several episodes ended.

    Attributes:
      title: of the first of them.
      befores: the rows before it; the first few.
      episodes: how many.
      votes_for, votes_against: of the episodes after the first, on whether it is not their own.
    """

    title: str
    befores: tuple[bytes, ...]
    episodes: int = 1
    votes_for: int = 0
    votes_against: int = 0

    @property
    def is_false(self) -> bool:
        """Whether it does not belong to the episodes that end with it."""
        return self.votes_for >= _VOTES and self.votes_for > self.votes_against

    @property
    def is_open(self) -> bool:
        """Whether more episodes may show that it is not."""
        return self.episodes < _DOUBTED and not self.is_false

    def with_episode(self, before: bytes, has_leapt: bool) -> Shared:
        """With one more episode, which comes to it from the row `before`."""
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
    """What is known of the ends of the episodes so far. A value: taking one in gives a new one.

    Attributes:
      episodes: how many were taken in.
      single: last observations of one episode each, the oldest first; at most `_MOST_SINGLE`.
      shared: last observations of several episodes, the least recently met first; at most `_MOST_SHARED`.
    """

    episodes: int = 0
    single: Mapping[bytes, Single] = field(default_factory=dict)
    shared: Mapping[bytes, Shared] = field(default_factory=dict)

    def after(self, episode: Titled, ending: Ending | None) -> Endings:
        """With one more episode. It must be an `Episode` where the ending has no leap."""
        if ending is None:
            return Endings(self.episodes + 1, self.single, self.shared)
        if ending.last not in self.single and ending.last not in self.shared:
            single = {**self.single, ending.last: Single(episode.title, ending.before)}
            return Endings(self.episodes + 1, _newest(single, _MOST_SINGLE), self.shared)
        return self._with_another(episode, ending)

    def problems(self, ending: Ending | None) -> list[Problem]:
        """The problems of an episode with this ending."""
        same = None if ending is None else self.shared.get(ending.last)
        if same is None or not same.is_false:
            return []
        detail = (
            f"{same.episodes:,} episodes so far, the first is {same.title}, end with this very observation, and leap to it; at most one owns it. "
            'last_observation="repeat" puts the one before it in its place, "drop" leaves the last step out'
        )
        return [Problem(ENDS_ALIKE, OBSERVATION, detail)]

    @property
    def is_open(self) -> bool:
        """Whether later episodes may show a problem of those so far."""
        return (self.episodes < 2 and bool(self.single)) or any(one.is_open for one in self.shared.values())

    def _with_another(self, episode: Titled, ending: Ending) -> Endings:
        single, shared = dict(self.single), dict(self.shared)
        first = single.pop(ending.last, None)
        same = shared.pop(ending.last) if first is None else Shared(first.title, (first.before,))
        has_leapt = ending.has_leapt
        if has_leapt is None:
            assert isinstance(episode, Episode)  # a name comes with the leap
            has_leapt = _has_leapt(episode)
        shared[ending.last] = same.with_episode(ending.before, has_leapt)
        return Endings(self.episodes + 1, single, _newest(shared, _MOST_SHARED))


def ending_of(episode: Episode) -> Ending | None:
    """How an episode ends; None without an observation of floats, with one row, or with columns of different lengths."""
    columns = list(numeric_observations(episode).values())
    if "f" not in [column.dtype.kind for column in columns] or len(columns[0]) < 2:
        return None
    return Ending(
        b"".join([_mark(column[-1]) for column in columns]), b"".join([_mark(column[-2]) for column in columns])
    )


def _has_leapt(episode: Episode) -> bool:
    """Whether the last observation is not all zeros, and farther from the one before it than any step before took."""
    observations = numeric_observations(episode)
    return any(np.any(column[-1]) for column in observations.values()) and leaps(observations)


class InOrder(Generic[_Titled]):
    """Finds the problems of ends, episode by episode; a few wait for the next ones.

    Args:
      endings: of the episodes before these, where a reading continues.

    Attributes:
      endings: of all so far.
    """

    def __init__(self, endings: Endings = Endings()) -> None:
        self.endings = endings
        self._held = deque[tuple[_Titled, "Ending | None"]]()

    def add(self, episode: _Titled, ending: Ending | None) -> bool:
        """Takes an episode in. Returns whether the waiting episodes are decided, and can be taken (`held`)."""
        self.endings = self.endings.after(episode, ending)
        self._held.append((episode, ending))
        return not self.endings.is_open or len(self._held) >= MOST_HELD

    def held(self) -> Iterator[tuple[_Titled, list[Problem]]]:
        """Takes out the waiting episodes, in order, with their problems."""
        while self._held:
            episode, ending = self._held.popleft()
            yield episode, self.endings.problems(ending)


def ending_that_counts(episode: Episode, conventions: Conventions) -> Ending | None:
    """As `ending_of`; None also where the conventions mend the end."""
    return None if conventions.mends_end(episode) else ending_of(episode)


def with_problems_of_ends(
    episodes: Iterable[Episode],
    conventions: Conventions = Conventions(),
    endings: Endings = Endings(),
    on_clear: Callable[[Endings], object] = lambda _: None,
    ending: Callable[[Episode, Conventions], Ending | None] = ending_that_counts,
) -> Iterator[tuple[Episode, list[Problem]]]:
    """Every episode, in order, with the problems that only other episodes show.

    An episode waits while later ones may show a problem: the first for the second, where it has observations of floats, and episodes that end
    alike for a few more. At most `MOST_HELD` wait. When an error stops the reading, the waiting ones come first.

    Args:
      episodes: as recorded, in the order of the source.
      conventions: an end that these mend is no problem.
      endings: of the episodes before these, where a reading continues.
      on_clear: called with the endings so far whenever no episode waits: from here a reading can continue.
      ending: how an episode ends.
    """
    return problems_in_order(episodes, lambda episode: ending(episode, conventions), endings, on_clear)


def problems_in_order(
    episodes: Iterable[_Titled],
    ending: Callable[[_Titled], Ending | None],
    endings: Endings = Endings(),
    on_clear: Callable[[Endings], object] = lambda _: None,
) -> Iterator[tuple[_Titled, list[Problem]]]:
    """As `with_problems_of_ends`, of anything with a title whose endings have the leap."""
    order = InOrder[_Titled](endings)
    try:
        for episode in episodes:
            if order.add(episode, ending(episode)):
                yield from order.held()
                on_clear(order.endings)
    except Exception:
        yield from order.held()
        raise
    yield from order.held()
    on_clear(order.endings)


def _newest(known: dict[bytes, _Known], most: int) -> dict[bytes, _Known]:
    """Without the first one, if there are more."""
    if len(known) > most:
        del known[next(iter(known))]
    return known


def _mark(row: Array) -> bytes:
    """The values of a row, or a digest where they are many."""
    if row.nbytes <= _FEW_BYTES:
        return row.tobytes()
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(row)))


def state_of(endings: Endings) -> dict[str, Any]:
    """Endings as plain values for JSON; digests as hexadecimal text."""
    single = [[last.hex(), one.title, one.before.hex()] for last, one in endings.single.items()]
    shared = [
        [last.hex(), one.title, [row.hex() for row in one.befores], one.episodes, one.votes_for, one.votes_against]
        for last, one in endings.shared.items()
    ]
    return {"episodes": endings.episodes, "single": single, "shared": shared}


def endings_of(state: dict[str, Any]) -> Endings:
    """Endings of `state_of`."""
    from_hex = bytes.fromhex
    single = {from_hex(last): Single(title, from_hex(before)) for last, title, before in state["single"]}
    shared = {
        from_hex(last): Shared(title, tuple(map(from_hex, befores)), *votes)
        for last, title, befores, *votes in state["shared"]
    }
    return Endings(state["episodes"], single, shared)
