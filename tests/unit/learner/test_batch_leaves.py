"""Which lists of a batch are containers, and which are leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.learner.batch import Batch, BatchInfo, columns_of, in_structure, paths_of, unbatch
from rlds2reverb.specs import ArraySpec, Nest

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
    for one, other in zip(columns_of(data, found), columns, strict=True):
        assert one is other or all(mine is theirs for mine, theirs in zip(one, other, strict=True))
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
