"""Parts of batches put together and cut anew: no value changes on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, WireError
from rlds2reverb.learner.batch import pad_columns
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo, in_batches


def flat(*columns: Column) -> FlatBatch:
    count = len(columns[0])
    ones = np.ones(count)
    return FlatBatch(columns, SampleInfo(ones.astype(np.uint64), ones, ones.astype("i8"), ones, ones.astype("i4")))


EXACT = 2**53 + 1
"""No float64 holds it."""


def test_dtypes_that_differ_are_not_converted() -> None:
    integer, floating = np.array([[EXACT]]), np.array([[0.5]], np.float32)
    (whole,) = in_batches([flat(integer), flat(floating)], 2)
    assert [(str(value.dtype), value.tolist()) for value in whole.columns[0]] == [
        ("int64", [EXACT]),
        ("float32", [0.5]),
    ]
    mixed = flat([*integer, *floating], np.arange(2))
    (whole,) = in_batches([mixed], 2)
    assert isinstance(whole.columns[0], list)
    first, second = in_batches([mixed], 1)
    assert isinstance(first.columns[0], np.ndarray)
    assert isinstance(second.columns[0], np.ndarray)
    assert (str(first.columns[0].dtype), str(second.columns[0].dtype)) == ("int64", "float32")
    (same, _) = in_batches([flat([*integer, *floating, floating[0]])], 2)
    assert isinstance(same.columns[0], list)
    with pytest.raises(ConfigError, match='"x" has items of float32, int64'):
        pad_columns([[integer[0], floating[0]]], ["x"], [False], None)


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["i8", "f4"])), min_size=1)), st.integers(1, 5))
def test_all_values_come_in_order(parts: Sequence[Sequence[tuple[int, str]]], size: int) -> None:
    def values(part: Sequence[tuple[int, str]]) -> Column:
        made: list[Array] = [np.full(rows, EXACT if dtype == "i8" else 0.5, dtype) for rows, dtype in part]
        return np.stack(made) if len(set(part)) == 1 else made

    found = list(in_batches([flat(values(part)) for part in parts], size))
    expected = [one for part in parts for one in values(part)]
    came = [one for piece in found for one in piece.columns[0]]
    assert [(one.dtype, one.tolist()) for one in came] == [(one.dtype, one.tolist()) for one in expected]
    assert [len(piece) for piece in found[:-1]] == [size] * (len(found) - 1)


def test_parts_of_other_columns_are_no_samples_of_one_table() -> None:
    with pytest.raises(WireError, match=r"\[1, 2\] columns"):
        list(in_batches([flat(np.ones(1)), flat(np.ones(1), np.ones(1))], 2))
