"""The algebra of cuts."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import cuts
from rlds2reverb.cuts import Cut, Field, Window
from rlds2reverb.errors import ViewError
from rlds2reverb.views.trajectory import two_step
from tests.support import strategies
from tests.support.views.cutting import items_of


def a_cut(**rows: Any) -> Cut:
    windows = tuple(Window(-number, 1) for number, _ in enumerate(rows))
    return Cut.of_columns(rows, windows, np.array([2, 3]), np.array([1.0, 2.0]))


@given(st.integers(-5, 5), st.integers(-5, 5), st.booleans())
def test_a_window_has_rows_and_is_squeezed_only_when_it_has_one(start: int, stop: int, squeeze: bool) -> None:
    if stop <= start:
        message = "expected at least one row"
    elif squeeze and stop - start > 1:
        message = "only a window of one row can be squeezed"
    else:
        assert Window(start, stop, squeeze) == Window(start, stop, squeeze)
        return
    with pytest.raises(ViewError, match=rf"window \[{start}, {stop}\): {message}"):
        Window(start, stop, squeeze)


def test_a_squeezed_window_has_no_leading_axis() -> None:
    cut = Cut.of_columns(
        {"a": np.arange(4), "b": np.arange(4)}, (Window(0, 1, True), Window(-1, 1)), np.array([1, 3]), np.ones(2)
    )
    assert [[value.tolist() for value in item] for item in items_of(cut)] == [[1, [0, 1]], [3, [2, 3]]]


def test_fields_may_share_a_column_and_join_rows_at_anchors_of_their_own() -> None:
    rows = {"a": np.arange(6), "unused": np.arange(6)}
    fields = {
        "now": Field("a", (Window(0, 1, squeeze=True),)),
        "joined": Field("a", (Window(1, 2), Window(-1, 1))),
        "goal": Field("a", (Window(0, 1, squeeze=True),), np.array([5, 4])),
    }
    cut = Cut(rows, fields, np.array([1, 3]), np.ones(2)).in_order(["goal", "joined", "now"])
    assert list(cut.rows) == ["a"]
    assert [[value.tolist() for value in item] for item in items_of(cut)] == [[5, [2, 0, 1], 1], [4, [4, 2, 3], 3]]


@pytest.mark.parametrize(
    ("windows", "message"),
    [((), "needs at least one window"), ((Window(0, 1, True), Window(1, 2)), "2 windows cannot be squeezed")],
)
def test_a_field_without_windows_or_with_several_squeezed_is_refused(windows: tuple[Window, ...], message: str) -> None:
    with pytest.raises(ViewError, match=f'column "a": .*{message}'):
        Field("a", windows)


@given(st.permutations(["a", "b", "c", "d"]))
def test_a_cut_in_another_order_has_the_same_columns_and_windows(order: list[str]) -> None:
    cut = a_cut(a=np.arange(4), b=np.arange(4) * 2, c=np.arange(4) * 3, d=np.arange(4) * 4)
    moved = cut.in_order(order)
    assert list(moved.rows) == list(moved.fields) == order
    assert all(moved.fields[path] is cut.fields[path] for path in order)
    assert all(moved.rows[path] is cut.rows[path] for path in order)
    assert moved.anchors is cut.anchors
    assert moved.priorities is cut.priorities
    assert list(cut.rows) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a", "c"], r"missing \['c'\], not in the spec \['b'\]"),
        (["a", "b", "c"], r"missing \['c'\], not in the spec \[\]"),
        (["a"], r"missing \[\], not in the spec \['b'\]"),
    ],
)
def test_other_columns_than_the_tables_are_refused(columns: list[str], message: str) -> None:
    with pytest.raises(ViewError, match=message):
        a_cut(a=np.arange(4), b=np.arange(4)).in_order(columns)


def test_row_counts_and_bytes() -> None:
    cut = a_cut(a=np.zeros((4, 3), np.float32), b=np.zeros(4, np.uint8))
    assert (cut.row_count, cut.row_bytes) == (4, 13)
    assert (a_cut().row_count, a_cut().row_bytes) == (0, 0)
    assert a_cut(a=np.zeros((0, 3))).row_bytes == 0
    assert a_cut(a=np.zeros((1, 3), np.uint8)).row_bytes == 3
    text = a_cut(a=np.array([b"four", "\u00e9tes", b""], object), b=np.zeros(3, np.uint8))
    assert (text.row_bytes, text.text_bytes) == (11 // 3, 8 // 3)


def test_the_example_of_the_docstring_is_true() -> None:
    assert "(r0 r1) (r1 r2) (r2 r3) " in cuts.__doc__
    cut = two_step().cut(strategies.episode(np.random.default_rng(0), 4))
    assert cut.anchors.tolist() == [0, 1, 2]
    assert {field.windows for field in cut.fields.values()} == {(Window(0, 2),)}
    assert cut.row_count == 4


def test_windows_and_cuts_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        cast(Any, Window(0, 1)).start = 1
    with pytest.raises(FrozenInstanceError):
        cast(Any, a_cut()).anchors = np.zeros(0)
