"""One view requirement: the rows that its shift names, as a list says them, and what it is made from."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ViewError
from rlds2reverb.views.requirements import ViewRequirement

SMALL = st.integers(-50, 50)


@given(SMALL, SMALL, st.integers(1, 5))
def test_a_range_is_the_list_of_its_rows_the_last_included(first: int, last: int, step: int) -> None:
    text = f"{first}:{last}:{step}"
    rows = list(range(first, last + 1, step))
    if rows:
        assert ViewRequirement(shift=text).offsets == ViewRequirement(shift=rows).offsets == tuple(rows)
    else:
        with pytest.raises(ViewError, match="names no row"):
            ViewRequirement(shift=text)


@given(SMALL)
def test_one_row_can_be_written_in_four_ways(row: int) -> None:
    ways: tuple[Any, ...] = (row, [row], f"{row}:{row}", np.array([row]))
    assert {ViewRequirement(shift=way).offsets for way in ways} == {(row,)}


@pytest.mark.parametrize("shift", ["", "1", "1:", "0:4:0", "a:b", True, 1.5, [1.5], None, {}])
def test_what_names_no_rows_is_refused(shift: Any) -> None:
    with pytest.raises(ViewError, match="requirements: shift"):
        ViewRequirement(shift=shift)


def test_a_range_beyond_all_memory_is_refused() -> None:
    with pytest.raises(ViewError, match="would be made up"):
        ViewRequirement(shift="0:99999999999")


def test_it_is_made_from_itself_a_mapping_or_an_object_that_has_its_fields() -> None:
    requirement = ViewRequirement("obs", "-3:0")
    for value in (requirement, {"data_col": "obs", "shift": "-3:0"}):
        assert ViewRequirement.of("frames", value) == requirement
    rllibs = SimpleNamespace(data_col="obs", shift="-3:0", something_else=1)
    assert ViewRequirement.of("frames", rllibs) == replace(requirement, optional=True)


@pytest.mark.parametrize("optional", [None, 1, "yes"])
def test_optional_is_true_or_false(optional: Any) -> None:
    with pytest.raises(ViewError, match=r"requirements: optional .*: expected true or false"):
        ViewRequirement(optional=optional)


def test_without_a_data_column_it_reads_the_one_of_its_name() -> None:
    assert ViewRequirement().column_for("obs") == "obs"
    assert ViewRequirement("rewards").column_for("obs") == "rewards"
