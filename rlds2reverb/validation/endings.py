"""What only several episodes show: that they end with one and the same observation, which is not their own.

TFDS' d4rl_* sets end every episode with the last observation of the whole file (`tensorflow_datasets/d4rl/dataset_utils.py`, 4.9.10).
A converter that records the reset observation of a deterministic environment as the last one gives the same picture.

An observation is not the episode's own when others have it to the bit, came to it from other rows, and leapt to it (`leaps`). Episodes that
share a true end (a maze's goal) come to it by steps like all others, and often from the same rows. So each episode that ends with a known
observation votes for or against, and `_VOTES` more for than none are needed. What is kept of an episode is two digests of one row.

The state is that of one stream of episodes: a push of one shard sees its shard only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from rlds2reverb.conventions import Conventions
from rlds2reverb.episodes import OBSERVATION, Array, Episode, byte_view
from rlds2reverb.validation.leaps import leaps, numeric_observations
from rlds2reverb.validation.problems import Problem

MOST_HELD = 8
"""Episodes that wait, at most, for those that show what is wrong with them."""

_VOTES = 2
_MOST_KNOWN = 16
"""Observations that are remembered; those that ended several episodes longest."""
_MOST_BEFORES = 16
_DOUBTED = 5
"""Episodes after which a shared observation that was not recognised keeps no others waiting."""


@dataclass(frozen=True)
class Ending:
    """How one episode ends.

    Attributes:
      last, before: what stands for the observations of the last row and of the one before it.
    """

    last: bytes
    before: bytes


@dataclass(frozen=True)
class _Shared:
    """An observation with which episodes ended."""

    last: bytes
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
        return 1 < self.episodes < _DOUBTED and not self.is_false

    def with_episode(self, ending: Ending, has_leapt: bool) -> _Shared:
        is_other_way = ending.before not in self.befores
        befores = (*self.befores, ending.before) if is_other_way else self.befores
        count = "votes_for" if is_other_way and has_leapt else "votes_against"
        changed = replace(self, befores=befores[:_MOST_BEFORES], episodes=self.episodes + 1)
        return replace(changed, **{count: getattr(self, count) + 1})


@dataclass(frozen=True)
class Endings:
    """What is known of the ends of the episodes so far; a value, so that taking one in gives another.

    Attributes:
      episodes: taken in.
      known: observations with which they ended, the newest first.
    """

    episodes: int = 0
    known: tuple[_Shared, ...] = ()

    def after(self, episode: Episode, ending: Ending | None) -> Endings:
        """What is known once this episode, which ends so, is taken in."""
        if ending is None:
            return replace(self, episodes=self.episodes + 1)
        same = self._ended_by(ending)
        others = [one for one in self.known if one is not same]
        if same is None:
            same = _Shared(ending.last, episode.title, (ending.before,))
        else:
            same = same.with_episode(ending, leaps(numeric_observations(episode)))
        return Endings(self.episodes + 1, (same, *_kept(others)))

    def problems(self, ending: Ending | None) -> list[Problem]:
        """What is wrong with an episode that ends so."""
        same = None if ending is None else self._ended_by(ending)
        if same is None or not same.is_false:
            return []
        detail = (
            f"{same.episodes:,} episodes so far, the first is {same.title}, end with this very observation, and leap to it; at most one owns it. "
            'last_observation="repeat" puts the one before it in its place, "drop" leaves the last step out'
        )
        return [Problem("last_observation_shared", OBSERVATION, detail)]

    @property
    def is_open(self) -> bool:
        """Whether the next episodes may show that one of those so far does not own its last observation."""
        return self.episodes < 2 or any(one.is_open for one in self.known)

    def _ended_by(self, ending: Ending) -> _Shared | None:
        return next((one for one in self.known if one.last == ending.last), None)


def ending_of(episode: Episode) -> Ending | None:
    """How an episode ends; None where that cannot tell: no observation of floats, columns of several lengths, nothing but zeros."""
    observations = numeric_observations(episode)
    if len(episode) < 2 or not any(column.dtype.kind == "f" for column in observations.values()):
        return None
    last, before = (_digest(observations.values(), row) for row in (-1, -2))
    return Ending(last, before) if any(np.any(column[-1]) for column in observations.values()) else None


def with_problems_of_ends(
    episodes: Iterable[Episode], conventions: Conventions = Conventions()
) -> Iterator[tuple[Episode, list[Problem]]]:
    """Every episode, in order, with the problems that only the others show.

    An episode waits for the next ones while these may show something: the first for the second, and those that end alike for a few more.
    At most `MOST_HELD` wait. When something stops the reading, those that wait come first.

    Args:
      episodes: as recorded, in the order of the source.
      conventions: how a push would put them; an end that these mend is no problem.
    """
    endings, held = Endings(), deque[tuple[Episode, "Ending | None"]]()

    def judged() -> Iterator[tuple[Episode, list[Problem]]]:
        while held:
            episode, ending = held.popleft()
            problems = endings.problems(ending)
            yield episode, [] if problems and conventions.mends_end(episode) else problems

    try:
        for episode in episodes:
            ending = ending_of(episode)
            endings = endings.after(episode, ending)
            held.append((episode, ending))
            if not endings.is_open or len(held) >= MOST_HELD:
                yield from judged()
    except Exception:
        yield from judged()
        raise
    yield from judged()


def _kept(known: list[_Shared]) -> list[_Shared]:
    """One place fewer than there are: of the observations that ended one episode only, the oldest goes."""
    if len(known) < _MOST_KNOWN:
        return known
    single = [number for number, one in enumerate(known) if one.episodes == 1]
    goes = single[-1] if single else len(known) - 1
    return known[:goes] + known[goes + 1 :]


def _digest(columns: Iterable[Array], row: int) -> bytes:
    digest = xxhash.xxh3_128()
    for column in columns:
        digest.update(byte_view(np.ascontiguousarray(column[row])))
    return digest.digest()
