"""What a record of a file has of each policy: whose rows they are, and where episodes begin and end in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib import names as n

GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2
ENDINGS = (b"unfinished", b"terminated", b"truncated")


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one policy in a record, by what the index needs of them.

    Attributes:
      rows: how many.
      policy: its name; "" where there is one only, or `modules` tell.
      is_multi_agent: whether other agents may act between its rows, so that `t` has gaps.
      episodes: [rows] ids, or None where none are recorded.
      agents: [rows] ids or numbers, or None.
      t: [rows] numbers of steps, or None.
      ended: [rows] `GOES_ON`, `TERMINATED` or `TRUNCATED`.
      columns: names of those that have a value per row.
      rewards: [rows] or None; to tell rows that were written twice.
      ends: the first observation and the last next one, as text; "" where that is not needed.
      modules: [rows] names of policies, or None.
    """

    rows: int
    policy: str
    is_multi_agent: bool
    episodes: Array | None
    agents: Array | None
    t: Array | None
    ended: Array
    columns: frozenset[str]
    rewards: Array | None = None
    ends: tuple[str, str] = ("", "")
    modules: Array | None = None

    def policy_of(self, row: int) -> str:
        """The name of the policy that acted in a row; "" where there is one only."""
        return self.policy if self.policy or self.modules is None else str(self.modules[row])

    def runs(self) -> list[tuple[int, int]]:
        """Where one episode's rows follow one another: (start, stop)."""
        if self.rows == 0:
            return []
        changes = self.ended[:-1] != GOES_ON
        for ids in (self.episodes, self.agents, self.modules):
            if ids is not None:
                changes = changes | (ids[1:] != ids[:-1])
        if self.t is not None:
            ahead = self.t[1:] - self.t[:-1]
            changes = changes | (ahead <= 0 if self.is_multi_agent else ahead != 1)
        stops = [*(np.flatnonzero(changes) + 1).tolist(), self.rows]
        return list(zip([0, *stops[:-1]], stops))


Take = Callable[[str], Any]
"""RLlib's name of a column -> its values [rows], a list or an array; None where there is none."""


@dataclass(frozen=True)
class Head:
    """What is known of a part before its columns are looked at; see `Part`."""

    rows: int
    policy: str
    is_multi_agent: bool
    columns: frozenset[str]
    rewards: Array | None = None
    ends: tuple[str, str] = ("", "")


def part_of(head: Head, take: Take, done_means: int) -> Part:
    """Makes a part of recorded columns.

    Args:
      head: of the part.
      take: gives them.
      done_means: what `dones` are where there are no terminateds.

    Raises:
      BrokenEpisode: one of them is not what it should be.
    """
    agents = take(n.AGENT_ID)
    agents = take(n.AGENT_INDEX) if agents is None or _nothing(agents) else agents
    return Part(
        head.rows,
        head.policy,
        head.is_multi_agent,
        _ids(n.EPS_ID, take(n.EPS_ID), head.rows),
        _ids(n.AGENT_ID, agents, head.rows),
        _times(take(n.T), head.rows),
        _ended(take, head.rows, done_means),
        head.columns,
        head.rewards,
        head.ends,
        None if head.policy else _ids(n.MODULE_ID, take(n.MODULE_ID), head.rows),
    )


def _nothing(values: Any) -> bool:
    return len(values) > 0 and all(one is None for one in values)


def _ids(name: str, values: Any, rows: int) -> Array | None:
    if values is None or _nothing(values):
        return None
    _check(name, values, rows)
    column = values if isinstance(values, np.ndarray) else _array(name, values)
    if column.dtype.kind in "iuSU" and column.ndim == 1:
        return column
    return np.asarray([str(one) for one in values])


def _times(values: Any, rows: int) -> Array | None:
    if values is None or _nothing(values):
        return None
    _check(n.T, values, rows)
    column = np.asarray(_array(n.T, values)).reshape(rows, -1 if rows else 1)
    if (
        column.shape[1] != 1
        or column.dtype.kind not in "iuf"
        or not np.isfinite(column).all()
        or (np.abs(column.astype(np.float64)) > 1 << 53).any()
    ):
        raise BrokenEpisode(n.T, f'column "{n.T}": expected the numbers of steps')
    return column[:, 0].astype(np.int64)


def _ended(take: Take, rows: int, done_means: int) -> Array:
    ended = np.zeros(rows, np.uint8)
    terminateds = take(n.TERMINATEDS)
    means = TERMINATED
    if terminateds is None:
        terminateds, means = take(n.DONES), done_means
    for values, meaning in ((take(n.TRUNCATEDS), TRUNCATED), (terminateds, means)):
        if values is not None:
            ended[_flags(values, rows)] = meaning
    return ended


def _flags(values: Any, rows: int) -> Array:
    _check(n.TERMINATEDS, values, rows)
    column = _array(n.TERMINATEDS, values)
    if column.dtype.kind not in "biuf" or column.size != rows:
        raise BrokenEpisode(n.TERMINATEDS, "flags of the ends of episodes: expected true or false per step")
    return np.asarray(column.reshape(rows) != 0)


def _array(name: str, values: Sequence[Any]) -> Array:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise BrokenEpisode(name, f'column "{name}": its rows have different shapes') from error


def _check(name: str, values: Any, rows: int) -> None:
    if not isinstance(values, (list, np.ndarray)) or len(values) != rows:
        raise BrokenEpisode(name, f'column "{name}": expected a value for each of {rows:,} rows')
