"""Trajectories whose beginning or end was not recorded: told, or left out."""

from __future__ import annotations

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.readers.ted.bounds import Bounds
from rlds2reverb.remarks import Remark
from rlds2reverb.wording import counted


def without_incomplete(
    bounds: Bounds, flags: Array | None, cut_start: bool, drop: bool
) -> tuple[Bounds, tuple[Remark, ...]]:
    """The trajectories that are read, and what is to be said.

    Args:
      bounds: all of them.
      flags: [columns, rows] where an end was recorded; None where nothing tells.
      cut_start: whether a ring was overwritten, so that the oldest may lack their beginning.
      drop: whether they are left out.
    """
    keep = np.ones(len(bounds), bool)
    remarks: list[Remark] = []
    if flags is not None:
        remarks += _done_inside(bounds, flags)
        open_ends = ~flags[bounds.column, bounds.stop - 1]
        keep &= ~open_ends
        remarks += no_end(int(open_ends.sum()), drop)
    if cut_start:
        keep &= bounds.start > 0
        remarks += overwritten(int((bounds.start == 0).sum()), drop)
    return (bounds.only(keep) if drop else bounds), tuple(remarks)


def _done_inside(bounds: Bounds, flags: Array) -> list[Remark]:
    """Told of end flags inside trajectories, where ids part them: several that have the same id are one."""
    before = np.zeros((len(flags), flags.shape[1] + 1), np.int64)
    np.cumsum(flags, axis=1, out=before[:, 1:])
    inside = before[bounds.column, bounds.stop - 1] - before[bounds.column, bounds.start]
    count = int(inside.sum())
    text = (
        f"{counted(count, 'end flag')} inside {_trajectories(int((inside > 0).sum()))}, where the id does not change: "
        "one id may stand for several trajectories; trajectories=done parts them by end flags"
    )
    return [Remark("done_inside", text, count)] if count else []


def no_end(count: int, drop: bool) -> list[Remark]:
    """Told of so many trajectories without an end flag."""
    text = f"{_trajectories(count)} without an end flag, where recording stopped or was overwritten; {_done(drop)}"
    return [Remark("no_end", text, count)] if count else []


def overwritten(count: int, drop: bool) -> list[Remark]:
    """Told of so many trajectories that are the oldest of a ring."""
    text = f"a full ring: its oldest {_trajectories(count)} may lack the beginning; {_done(drop)}"
    return [Remark("cut_start", text, count)] if count else []


def final_lost(count: int, empty: int) -> list[Remark]:
    """Told of trajectories that end by their id, in a form that keeps no observation after such an end.

    Args:
      count: how many there are.
      empty: how many of them had one step only, so that nothing is left.
    """
    text = (
        f"{_trajectories(count)} without an end flag before the id changes: this form keeps no observation "
        "after their last step, so that step is left out"
    )
    if empty:
        text += f"; {empty:,} of them had no other step and {'is' if empty == 1 else 'are'} left out whole"
    return [Remark("final_lost", text, count)] if count else []


def _trajectories(count: int) -> str:
    return f"{count:,} {'trajectory' if count == 1 else 'trajectories'}"


def _done(drop: bool) -> str:
    return "left out" if drop else "incomplete=drop leaves these out"
