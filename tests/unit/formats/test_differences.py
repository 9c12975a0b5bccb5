"""Which rows of two columns differ, against a comparison value by value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2reverb.formats.rows import differing

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
