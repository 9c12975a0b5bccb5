"""What only several episodes show: that they end with one and the same observation, which is not their own.

TFDS' d4rl_* sets end every episode with the last observation of the whole file (`tensorflow_datasets/d4rl/dataset_utils.py`, 4.9.10).
A converter that records the reset observation of a deterministic environment as the last one gives the same picture.

An observation is not the episode's own when others have it to the bit, came to it from other rows, and leapt to it (`leaps`). Episodes that
share a true end (a maze's goal) come to it by steps like all others, and often from the same rows. So each episode that ends with a known
observation votes for or against, and `_VOTES` more for than none are needed. What is kept of an episode is two digests of one row.

The state is that of one stream of episodes. Where several processes read it, each tells how its episodes end (`ending_of`, with the leap), and
one that hears of all, in order, finds the problems (`InOrder`).
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

    Values that never changed before say nothing: in a maze they may change in the last step for the first time. So do whole numbers,
    by which games and mazes count, and episodes of fewer than `FEWEST_STEPS`.

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
    def title(self) -> str:
        """As messages name it."""


_Known = TypeVar("_Known")
_Titled = TypeVar("_Titled", bound=Titled)

MOST_HELD = 8
"""Episodes that wait, at most, for those that show what is wrong with them."""

_VOTES = 2
_MOST_SINGLE, _MOST_SHARED, _MOST_BEFORES = 16, 16, 16
"""What is remembered."""
_FEW_BYTES = 512
_DOUBTED = 5
"""Episodes after which a shared observation that was not recognised keeps no others waiting."""


class Ending(NamedTuple):
    """How one episode ends.

    Attributes:
      last, before: what stands for the observations of the last row and of the one before it.
      has_leapt: whether it leapt to the last row; None where that is not looked at yet.
    """

    last: bytes
    before: bytes
    has_leapt: bool | None = None

    def for_others(self, episode: Episode) -> Ending:
        """The same with all that can be asked of the episode, in few bytes."""
        digest = xxhash.xxh3_128_digest
        return self.with_leap(episode)._replace(last=digest(self.last), before=digest(self.before))

    def with_leap(self, episode: Episode) -> Ending:
        """The same with all that can be asked of the episode."""
        return self._replace(has_leapt=_has_leapt(episode))


class Single(NamedTuple):
    """An observation with which one episode ended, so far.

    Attributes:
      title: of the episode.
      before: what stands for the row before it.
    """

    title: str
    before: bytes


@dataclass(frozen=True)
class Shared:
    """An observation with which several episodes ended.

    Attributes:
      title: of the first of them.
      befores: what stands for the rows before it; the first few.
      episodes: how many.
      votes_for, votes_against: of the episodes after the first: whether it is not their own.
    """

    title: str
    befores: tuple[bytes, ...]
    episodes: int = 1
    votes_for: int = 0
    votes_against: int = 0

    @property
    def is_false(self) -> bool:
        """Whether it is not the own observation of those that end with it."""
        return self.votes_for >= _VOTES and self.votes_for > self.votes_against

    @property
    def is_open(self) -> bool:
        """Whether more episodes may show that it is not."""
        return self.episodes < _DOUBTED and not self.is_false

    def with_episode(self, before: bytes, has_leapt: bool) -> Shared:
        """With another one that ends so, and comes to it from the row `before`."""
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
    """What is known of the ends of the episodes so far; a value, so that taking one in gives another.

    Attributes:
      episodes: taken in.
      single: last observations of one episode each, the oldest first; at most `_MOST_SINGLE`.
      shared: last observations of several, the one that was met longest ago first; at most `_MOST_SHARED`.
    """

    episodes: int = 0
    single: Mapping[bytes, Single] = field(default_factory=dict)
    shared: Mapping[bytes, Shared] = field(default_factory=dict)

    def after(self, episode: Titled, ending: Ending | None) -> Endings:
        """What is known once this episode, which ends so, is taken in. It may be a name only where the ending has the leap."""
        if ending is None:
            return Endings(self.episodes + 1, self.single, self.shared)
        if ending.last not in self.single and ending.last not in self.shared:
            single = {**self.single, ending.last: Single(episode.title, ending.before)}
            return Endings(self.episodes + 1, _newest(single, _MOST_SINGLE), self.shared)
        return self._with_another(episode, ending)

    def problems(self, ending: Ending | None) -> list[Problem]:
        """What is wrong with an episode that ends so."""
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
        """Whether the next episodes may show that one of those so far does not own its last observation."""
        return (self.episodes < 2 and bool(self.single)) or any(one.is_open for one in self.shared.values())

    def _with_another(self, episode: Titled, ending: Ending) -> Endings:
        """What is known after an episode that ends as another did."""
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
    """How an episode ends; None where that cannot tell: no observation of floats, one row, columns of several lengths."""
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
    """Finds the problems of ends, told how one episode after the other ends; a few wait for the next ones.

    Args:
      endings: of the episodes before these, where a reading goes on.

    Attributes:
      endings: of all that were told of.
    """

    def __init__(self, endings: Endings = Endings()) -> None:
        self.endings = endings
        self._held = deque[tuple[_Titled, "Ending | None"]]()

    def add(self, episode: _Titled, ending: Ending | None) -> bool:
        """Takes an episode in; whether those that are `held` are to be taken out again, for none of them waits any more."""
        self.endings = self.endings.after(episode, ending)
        self._held.append((episode, ending))
        return not self.endings.is_open or len(self._held) >= MOST_HELD

    def held(self) -> Iterator[tuple[_Titled, list[Problem]]]:
        """Those that wait, in order, with what is known to be wrong with them by now; they wait no more."""
        while self._held:
            episode, ending = self._held.popleft()
            yield episode, self.endings.problems(ending)


def _unheard(_: Endings) -> None:
    """Tells nobody."""


def ending_that_counts(episode: Episode, conventions: Conventions) -> Ending | None:
    """How an episode ends; None where that cannot tell, or the conventions mend it."""
    return None if conventions.mends_end(episode) else ending_of(episode)


def with_problems_of_ends(
    episodes: Iterable[Episode],
    conventions: Conventions = Conventions(),
    endings: Endings = Endings(),
    on_clear: Callable[[Endings], object] = _unheard,
    ending: Callable[[Episode, Conventions], Ending | None] = ending_that_counts,
) -> Iterator[tuple[Episode, list[Problem]]]:
    """Every episode, in order, with the problems that only the others show.

    An episode waits for the next ones while these may show something: the first for the second where it has observations of floats, and those that end alike for a few more.
    At most `MOST_HELD` wait. When something stops the reading, those that wait come first.

    Args:
      episodes: as recorded, in the order of the source.
      conventions: how a push would put them; an end that these mend is no problem.
      endings: of the episodes before these, where a reading goes on.
      on_clear: called with the endings so far whenever no episode waits, and those that came are done with: from here a reading can go on.
      ending: tells how an episode ends.
    """
    return problems_in_order(episodes, lambda episode: ending(episode, conventions), endings, on_clear)


def problems_in_order(
    episodes: Iterable[_Titled],
    ending: Callable[[_Titled], Ending | None],
    endings: Endings = Endings(),
    on_clear: Callable[[Endings], object] = _unheard,
) -> Iterator[tuple[_Titled, list[Problem]]]:
    """As `with_problems_of_ends`, of episodes or of what stands for them; then their endings have the leap."""
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
    """At most so many, the first one goes."""
    if len(known) > most:
        del known[next(iter(known))]
    return known


def _mark(row: Array) -> bytes:
    """What stands for the values of a row: themselves, or a digest where they are many."""
    if row.nbytes <= _FEW_BYTES:
        return row.tobytes()
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(row)))


def state_of(endings: Endings) -> dict[str, Any]:
    """Plain values; digests as hexadecimal text."""
    single = [[last.hex(), one.title, one.before.hex()] for last, one in endings.single.items()]
    shared = [
        [last.hex(), one.title, [row.hex() for row in one.befores], one.episodes, one.votes_for, one.votes_against]
        for last, one in endings.shared.items()
    ]
    return {"episodes": endings.episodes, "single": single, "shared": shared}


def endings_of(state: dict[str, Any]) -> Endings:
    """The way back."""
    from_hex = bytes.fromhex
    single = {from_hex(last): Single(title, from_hex(before)) for last, title, before in state["single"]}
    shared = {
        from_hex(last): Shared(title, tuple(map(from_hex, befores)), *votes)
        for last, title, befores, *votes in state["shared"]
    }
    return Endings(state["episodes"], single, shared)
