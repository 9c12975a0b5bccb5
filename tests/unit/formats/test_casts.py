"""Casts that change no value, against Python's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.formats.rows import exactly

DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
EDGES = [
    sign * (1 << bits) + more for bits in (7, 8, 11, 24, 31, 32, 53, 63) for more in (-1, 0, 1) for sign in (1, -1)
]


def holds(dtype: str, value: Any) -> bool:
    kind = np.dtype(dtype)
    if kind.kind != "f":
        return value == value and value == int(value) and np.iinfo(kind).min <= value <= np.iinfo(kind).max
    with np.errstate(all="ignore"):
        made = float(np.asarray(float(value)).astype(kind))
    return made != made if value != value else made == value


@given(
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.lists(st.sampled_from(EDGES) | st.integers(-300, 300) | st.floats(width=16, allow_infinity=False), min_size=1),
)
def test_a_cast_is_made_where_every_value_stays(one: str, other: str, values: list[Any]) -> None:
    column = np.array([np.dtype(one).type(value) for value in values if holds(one, value)], one)
    made = exactly(column, np.dtype(other))
    if all(holds(other, value) for value in column.tolist()):
        assert made is not None
        assert made.dtype == other
        assert list(map(repr, made.tolist())) == [repr(np.dtype(other).type(one).item()) for one in column.tolist()]
    else:
        assert made is None


@pytest.mark.parametrize("column", [np.array([True]), np.array([b"1"], object), np.array(["1"])])
def test_what_is_no_number_is_not_cast(column: Any) -> None:
    assert exactly(column, np.dtype(np.int64)) is None
    assert exactly(column, column.dtype) is column
