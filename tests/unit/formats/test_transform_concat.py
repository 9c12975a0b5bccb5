"""Columns joined to one vector: exact, in the order that is written."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.formats.transform import concat_columns, joined_spec, parts_of, too_large, written
from rlds2reverb.specs import ArraySpec, column_spec
from tests.support import strategies

EXACT = ("bool", "int8", "int16", "uint8", "uint16", "float16", "float32", "float64", ml_dtypes.bfloat16)
"""Every number that some float holds exactly, whatever its value."""


@given(st.data())
def test_every_number_is_there_in_its_order_and_exactly(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    steps = data.draw(st.integers(0, 4))
    parts = data.draw(st.lists(st.tuples(st.sampled_from(EXACT), st.sampled_from([(), (0,), (1,), (3,)])), min_size=1))
    columns = [strategies.array(rng, np.dtype(dtype), (steps, *shape)) for dtype, shape in parts]
    spec = joined_spec([column_spec(column) for column in columns])
    assert spec is not None
    made = concat_columns(columns, spec.dtype)
    assert column_spec(made) == spec
    for step in range(steps):
        numbers = [float(number) for column in columns for number in np.ravel(column[step])]
        assert made[step].tolist() == numbers
    assert all(too_large(column, spec.dtype) is None for column in columns)


@pytest.mark.parametrize(
    ("dtypes", "wanted"),
    [
        (["bool"], "float32"),
        (["int64", "uint8"], "float32"),
        (["float16"], "float32"),
        ([ml_dtypes.bfloat16], "float32"),
        (["float32", "bool"], "float32"),
        (["float64", "float32", "int32"], "float64"),
    ],
)
def test_the_floats_are_the_widest_of_the_parts_and_at_least_float32(dtypes: list[str], wanted: str) -> None:
    spec = joined_spec([ArraySpec((2,), np.dtype(dtype)) for dtype in dtypes])
    assert spec == ArraySpec((2 * len(dtypes),), np.dtype(wanted))


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([(), (3,)], (4,)),
        ([(), ()], (2,)),
        ([(5, 2), (5, 3)], (5, 5)),
        ([(None,), (3,)], (None,)),
        ([(5, 2), (4, 2)], None),
        ([(2, 2), (2,)], None),
        ([(2, 2), ()], None),
    ],
)
def test_shapes_go_together_but_for_the_last_axis(
    parts: list[tuple[int, ...]], wanted: tuple[int | None, ...] | None
) -> None:
    spec = joined_spec([ArraySpec(shape, np.dtype(np.float32)) for shape in parts])
    assert (None if spec is None else spec.shape) == wanted


@pytest.mark.parametrize("dtype", [object, np.complex64])
def test_what_is_no_number_is_not_joined(dtype: type) -> None:
    assert joined_spec([ArraySpec((1,), np.dtype(dtype)), ArraySpec((1,), np.dtype(np.float32))]) is None


@pytest.mark.parametrize(
    ("value", "dtype", "into", "fits"),
    [
        (2**24, np.int32, np.float32, True),
        (-(2**24), np.int32, np.float32, True),
        (2**24 + 1, np.int32, np.float32, False),
        (-(2**24) - 1, np.int32, np.float32, False),
        (2**53, np.int64, np.float64, True),
        (2**53 + 1, np.int64, np.float64, False),
        (-(2**63), np.int64, np.float32, False),
        (2**64 - 1, np.uint64, np.float64, False),
    ],
)
def test_integers_that_no_float_holds_are_told(value: int, dtype: type, into: type, fits: bool) -> None:
    column: Array = np.array([[0, 1], [1, value]], dtype)
    reason = too_large(column, np.dtype(into))
    if fits:
        assert reason is None
        assert concat_columns([column], np.dtype(into))[1, 1] == value
    else:
        assert f"step 1 has {value}: expected integers of at most " in str(reason)


@pytest.mark.parametrize("text", ["concat(a)", "concat(a, b/c, /d)"])
def test_the_parts_are_what_stands_between_the_brackets(text: str) -> None:
    parts = parts_of(text)
    assert parts is not None
    assert written(parts) == text


@pytest.mark.parametrize("text", ["", "a", "concat", "concat(a", "concat a)", "sum(a, b)"])
def test_nothing_else_is_taken_for_it(text: str) -> None:
    assert parts_of(text) is None
