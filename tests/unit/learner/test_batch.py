"""Filling up: one shape, and masks that tell what is an item's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, WireError
from rlds2reverb.learner.batch import Batch, BatchInfo, columns_of, in_structure, pad_columns, paths_of, unbatch
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo, in_batches
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


# Which lists of a batch are containers, and which are leaves.

INT = np.dtype(np.int64)
ROWS = ArraySpec((None,), INT)
A, B = np.arange(3), np.arange(5)


@pytest.mark.parametrize(
    ("data", "told", "paths", "columns"),
    [
        ({"x": [A, B]}, None, {"x": "x"}, [[A, B]]),
        ({"x": [A, B]}, {"x": ROWS}, {"x": "x"}, [[A, B]]),
        ({"x": [A, B]}, {"x": [ROWS, ROWS]}, {"x": ["x/0", "x/1"]}, [A, B]),
        ([A, B], None, ["0", "1"], [A, B]),
        ([A, B], ROWS, "", [[A, B]]),
        (([A, B], {"z": B, "a": A}), None, ("0", {"a": "1/a", "z": "1/z"}), [[A, B], A, B]),
    ],
)
def test_only_the_structure_tells_containers_from_items_that_differ(
    data: Nest, told: Nest, paths: Nest, columns: list[Any]
) -> None:
    found = paths_of(data, told)
    assert found == paths
    for column, other in zip(columns_of(data, found), columns, strict=True):
        assert column is other or all(mine is theirs for mine, theirs in zip(column, other, strict=True))
    assert columns_of(in_structure(columns_of(data, found), found), found) == columns_of(data, found)


@pytest.mark.parametrize(
    ("data", "told", "item"),
    [
        ({"x": [A]}, None, {"x": A}),
        ({"x": [A]}, {"x": ROWS}, {"x": A}),
        ({"x": [A[None], B[None]]}, {"x": [ROWS, ROWS]}, {"x": [A, B]}),
        ([A[None], [B]], None, [A, B]),
        ([B], ROWS, B),
    ],
)
def test_one_sample_of_a_list_is_the_array_in_it(data: Nest, told: Nest, item: Nest) -> None:
    one = np.ones(1)
    masks = {"x": np.ones((1, 3), bool)}
    batch = Batch(data, BatchInfo(np.array([7], np.uint64), one, one, one, one, masks=masks))
    found, info = unbatch(batch, told)
    np.testing.assert_equal(found, item)
    assert int(info.key) == 7
    assert info.masks is not None
    assert info.masks["x"].shape == (3,)


# Parts of batches put together and cut anew: no value changes on the way.


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
    expected = [value for part in parts for value in values(part)]
    came = [column for piece in found for column in piece.columns[0]]
    assert [(array.dtype, array.tolist()) for array in came] == [(array.dtype, array.tolist()) for array in expected]
    assert [len(piece) for piece in found[:-1]] == [size] * (len(found) - 1)


def test_parts_of_other_columns_are_no_samples_of_one_table() -> None:
    with pytest.raises(WireError, match=r"\[1, 2\] columns"):
        list(in_batches([flat(np.ones(1)), flat(np.ones(1), np.ones(1))], 2))
