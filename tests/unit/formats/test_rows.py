"""Rows of RLDS, casts that change no value, and columns that differ; the last two against Python's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2reverb.episode import FLAGS
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rows import differing, exactly, mark_rows, steps, with_last

THREE = np.arange(3)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_recorded_column_with_the_name_of_a_flag_is_refused(flag: str) -> None:
    column = {flag: THREE == 2}
    with pytest.raises(BrokenEpisode, match="have a column of this name") as broken:
        steps({"": np.arange(4)}, {"": THREE}, None, True, column)
    assert broken.value.path == flag
    with pytest.raises(BrokenEpisode, match="have a column of this name"):
        mark_rows({"observation": THREE, "action": THREE, **column}, None)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(BrokenEpisode, match="two columns"):
        steps({"": np.arange(4)}, {"": THREE}, THREE, None, {"reward": THREE})


@pytest.mark.parametrize("last", [b"z", np.array(b"z", object), np.array([b"z"], object)[0]])
def test_a_last_text_is_a_text(last: Any) -> None:
    column = with_last(np.array([b"x", b"y"], object), last)
    assert column.tolist() == [b"x", b"y", b"z"]
    assert {type(value) for value in column} == {bytes}


@pytest.mark.parametrize("last", [b"z", np.array([b"z"], object), np.array([[b"z", b"z"]], object)])
def test_a_last_row_of_texts_of_another_shape_is_refused(last: Any) -> None:
    with pytest.raises(BrokenEpisode, match="expected object\\[2\\]"):
        with_last(np.array([[b"x", b"y"]], object), last)


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
        assert list(map(repr, made.tolist())) == [repr(np.dtype(other).type(value).item()) for value in column.tolist()]
    else:
        assert made is None


@pytest.mark.parametrize("column", [np.array([True]), np.array([b"1"], object), np.array(["1"])])
def test_what_is_no_number_is_not_cast(column: Any) -> None:
    assert exactly(column, np.dtype(np.int64)) is None
    assert exactly(column, column.dtype) is column


FLOATS = st.sampled_from([0.0, -0.0, 1.0, np.nan, np.inf])


@given(st.data(), st.sampled_from([(4,), (4, 2), (4, 0), (0, 3), (3, 2, 2)]))
def test_nan_is_like_nan(data: st.DataObject, shape: tuple[int, ...]) -> None:
    one, other = (data.draw(arrays.arrays(np.float32, shape, elements=FLOATS)) for _ in range(2))
    wanted = [not np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other)]
    assert differing(one, other).tolist() == wanted


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, object])
def test_what_is_no_float_is_compared_as_it_is(dtype: type) -> None:
    one = np.array([b"a", b"b"], object) if dtype is object else np.array([0, 1], dtype)
    assert differing(one, one[::-1]).tolist() == [True, True]
    assert differing(one, one.copy()).tolist() == [False, False]


def test_columns_of_other_shapes_differ() -> None:
    assert differing(np.zeros((2, 3)), np.zeros((2, 1))).tolist() == [True, True]
