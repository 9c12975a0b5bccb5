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
        open_ends = ~flags[bounds.column, bounds.stop - 1]
        keep &= ~open_ends
        remarks += no_end(int(open_ends.sum()), drop)
    if cut_start:
        keep &= bounds.start > 0
        remarks += overwritten(int((bounds.start == 0).sum()), drop)
    return (bounds.only(keep) if drop else bounds), tuple(remarks)


def no_end(count: int, drop: bool) -> list[Remark]:
    """Told of so many trajectories without an end flag."""
    text = f"{counted(count, 'trajectory').replace('ys', 'ies')} without an end flag, where recording stopped or was overwritten; {_done(drop)}"
    return [Remark("no_end", text, count)] if count else []


def overwritten(count: int, drop: bool) -> list[Remark]:
    """Told of so many trajectories that are the oldest of a ring."""
    text = f"a full ring: its oldest {counted(count, 'trajectory').replace('ys', 'ies')} may lack the beginning; {_done(drop)}"
    return [Remark("cut_start", text, count)] if count else []


def _done(drop: bool) -> str:
    return "left out" if drop else "incomplete=drop leaves these out"
