"""Flags and numbers in .npz files that say where episodes end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlds2reverb.episodes import IS_FIRST, IS_LAST, IS_TERMINAL, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.flat.cutting import Cuts, at_stops, cut
from rlds2reverb.readers.npz.keys import ENDS, TERMINALS, TIMEOUTS, Keys
from rlds2reverb.readers.npz.members import Member
from rlds2reverb.readers.npz.options import NpzOptions
from rlds2reverb.readers.recordings import BrokenEpisode


def cuts_of(where: str, members: Mapping[str, Member], keys: Keys, rows: int, options: NpzOptions) -> Cuts:
    """Where episodes end: by the numbers of `episode_ends`, RLDS' flags, or flags as D4RL's; one episode without any.

    Raises:
      SourceError: numbers do not ascend, or lead beyond the rows.
      BrokenEpisode: flags are none.
    """
    no = np.zeros(rows, bool)
    terminals = _truths(members[keys.ends[TERMINALS]]) if TERMINALS in keys.ends else no
    if ENDS in keys.ends:
        return at_stops(_stops(where, members[keys.ends[ENDS]], rows), terminals, options.keeps_tail)
    if keys.is_of_rlds:
        terminals = _truths(members[keys.columns[IS_TERMINAL]]) if IS_TERMINAL in keys.columns else no
        return at_stops(_rlds_stops(members, keys, rows), terminals, options.keeps_tail)
    timeouts = _truths(members[keys.ends[TIMEOUTS]]) if TIMEOUTS in keys.ends else None
    return cut(terminals, timeouts, options.ends, options.max_episode_steps, options.keeps_tail)


def ends_terminal(path: Path, members: Mapping[str, Member], keys: Keys, steps: int) -> bool | None:
    """Whether a file of one episode ends in a terminal state; None where it does not tell.

    Raises:
      SourceError: numbers of `episode_ends` do not ascend, or lead beyond the steps.
      BrokenEpisode: flags are none, are not as many as steps, or something says that an episode ends before the last step.
    """
    is_terminal = None
    for kind in (TERMINALS, TIMEOUTS):
        if kind in keys.ends:
            member = members[keys.ends[kind]]
            flags = _truths(member)
            if len(flags) != steps:
                raise BrokenEpisode(
                    member.key, f"{member.where}: has {len(flags):,} rows; expected {steps:,}, one for each action"
                )
            _check_whole(path, member, np.flatnonzero(flags[:-1]))
            is_terminal = bool(flags[-1]) if kind == TERMINALS else is_terminal
    if ENDS in keys.ends:
        stops = _stops(str(path), members[keys.ends[ENDS]], steps)
        _check_whole(path, members[keys.ends[ENDS]], stops[(stops > 0) & (stops < steps)] - 1)
    return is_terminal


def _check_whole(path: Path, member: Member, before: Array) -> None:
    """Nothing ends before the last step."""
    if len(before):
        raise BrokenEpisode(
            member.key,
            f"{member.where}: an episode ends at step {int(before[0]):,}, before the last one; here a file is one episode. "
            f"One with several is read by itself: npz:{path}",
        )


def _rlds_stops(members: Mapping[str, Member], keys: Keys, rows: int) -> Array:
    if IS_LAST in keys.columns:
        return np.flatnonzero(_truths(members[keys.columns[IS_LAST]])) + 1
    starts = np.flatnonzero(_truths(members[keys.columns[IS_FIRST]]))
    return np.append(starts[starts > 0], rows) if rows else starts


def _stops(where: str, member: Member, rows: int) -> Array:
    """`episode_ends` as numbers, checked."""
    stops = member.rows() if len(member.shape) == 1 else np.zeros(0)
    if (
        stops.dtype.kind not in "iu"
        or (len(stops) and (int(stops[0]) < 0 or int(stops[-1]) > rows))
        or np.any(stops[1:] < stops[:-1])
    ):
        raise SourceError(
            f"{where}: {member.key}: expected ascending whole numbers up to {rows:,}, the row after each episode's last"
        )
    return stops.astype(np.int64)


def _truths(member: Member) -> Array:
    values = member.rows()
    flags = values.reshape(-1)
    if values.dtype.kind not in "biuf" or len(flags) != len(values) or not np.isin(flags, (0, 1)).all():
        raise BrokenEpisode(
            member.key,
            f"{member.where}: expected a flag of 0 or 1 for each row, found {values.dtype}{list(values.shape)}",
        )
    return np.asarray(flags != 0)
