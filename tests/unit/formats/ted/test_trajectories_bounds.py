"""Trajectories from ids and end flags, against a loop over the rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.formats.ted.trajectories import cut_at_ends, cut_each_row, find_id_changes

COLUMNS = st.integers(1, 4).flatmap(
    lambda rows: st.lists(st.lists(st.booleans(), min_size=rows, max_size=rows), min_size=1, max_size=4)
)


def slowly(ends: np.ndarray, valid: list[int]) -> list[tuple[int, int, int]]:
    found = []
    for column, flags in enumerate(ends):
        start = 0
        for row in range(valid[column]):
            if flags[row] or row == valid[column] - 1:
                found.append((column, start, row + 1))
                start = row + 1
    return found


@given(COLUMNS, st.data())
def test_cutting_is_what_a_loop_over_rows_does(flags: list[list[bool]], data: st.DataObject) -> None:
    ends = np.array(flags)
    valid = [data.draw(st.integers(0, ends.shape[1])) for _ in flags]
    bounds = cut_at_ends(ends.copy(), np.array(valid))
    assert list(zip(bounds.column, bounds.start, bounds.stop)) == slowly(ends, valid)
    rows = cut_each_row(len(valid), np.array(valid))
    assert list(zip(rows.column, rows.start, rows.stop)) == slowly(np.ones_like(ends), valid)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9))
def test_an_id_that_changes_ends_a_trajectory(ids: list[int]) -> None:
    wanted = [before != other for before, other in pairwise(ids)] + [False]
    assert find_id_changes(np.array([ids]))[0].tolist() == wanted


def test_the_example_of_torchrl() -> None:
    """10 rows, ends at 2 and 7, the writer wrote row 4 last: starts 8, 3, 5; lengths 5, 2, 3 (docs of find_start_stop_traj)."""
    ends = np.zeros(10, bool)
    ends[[2, 7]] = True
    bounds = cut_at_ends(np.roll(ends, -5)[None])
    assert ((bounds.start + 5) % 10).tolist() == [5, 8, 3]
    assert (bounds.stop - bounds.start).tolist() == [3, 5, 2]
