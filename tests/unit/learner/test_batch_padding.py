"""Filling up: one shape, and masks that tell what is an item's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import pad_columns
from tests.support import strategies


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.integers(0, 1),
    strategies.dtypes(),
    strategies.shapes(),
    st.sampled_from([None, 7, 9]),
    st.booleans(),
)
def test_rows_stay_and_the_rest_is_zero(
    lengths: list[int], extra: int, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int | None, as_list: bool
) -> None:
    """Two columns, of which one has a row more per item."""
    rng = np.random.default_rng(0)
    columns: list[Any] = [
        [strategies.array(rng, dtype, (length + more, *shape)) for length in lengths] for more in (extra, 0)
    ]
    if not as_list and len(set(lengths)) == 1:
        columns = [np.stack(column) for column in columns]
    found, mask, masks = pad_columns([*columns, np.arange(len(lengths))], ["a", "b", "c"], [True, True, False], rows)
    assert found[2].tolist() == list(range(len(lengths)))  # type: ignore[union-attr]
    assert mask is not None
    assert masks is not None
    assert set(masks) == {"a", "b"}
    for name, column, values, more in (("a", columns[0], found[0], extra), ("b", columns[1], found[1], 0)):
        assert isinstance(values, np.ndarray)
        size = rows or max(lengths) + more
        assert (values.dtype, values.shape) == (dtype, (len(lengths), size, *shape))
        for number, length in enumerate(lengths):
            assert values[number, : length + more].tolist() == column[number].tolist()
            assert not values[number, length + more :].any()
            assert masks[name][number].tolist() == [row < length + more for row in range(size)]
    assert mask.tolist() == masks["b"].tolist()


def test_columns_of_one_shape_stay_without_a_mask() -> None:
    column = np.arange(6).reshape(3, 2)
    found, mask, masks = pad_columns([column], ["a"], [False], None)
    assert found[0] is column
    assert (mask, masks) == (None, None)


@pytest.mark.parametrize(
    ("column", "rows", "words"),
    [
        (
            [np.zeros((2, 3)), np.zeros((2, 4))],
            None,
            r'fills rows only; column "a" has items of \[2, 3\], \[2, 4\]; use "list"',
        ),
        ([np.zeros(()), np.zeros(2)], None, "fills rows only"),
        ([np.zeros(2), np.zeros(4)], 3, 'pad_to 3: column "a" has an item of 4 rows'),
    ],
)
def test_what_cannot_be_filled_up_is_refused(column: list[Array], rows: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pad_columns([column], ["a"], [False], rows)
