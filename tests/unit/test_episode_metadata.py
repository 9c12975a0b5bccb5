"""Metadata as columns of the steps: any value repeated in every row, or left out when no column can hold it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode, metadata_columns, metadata_path, metadata_specs, with_metadata
from rlds2reverb.specs import ArraySpec, column_spec
from tests.support import strategies

ROWS = 4


def episode(metadata: dict[str, Any], rows: int = ROWS) -> Episode:
    return Episode(strategies.episode(np.random.default_rng(0), rows).columns, metadata, "e")


@given(strategies.dtypes(), strategies.shapes(), st.integers(0, 2**32 - 1))
def test_an_array_is_in_every_row_as_it_is(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> None:
    value = strategies.array(np.random.default_rng(seed), dtype, shape)
    (column,) = metadata_columns(episode({"a/b": value}), ["a/b"]).values()
    assert (column.dtype, column.shape) == (dtype, (ROWS, *shape))
    for row in column:
        np.testing.assert_array_equal(row, value)
    assert metadata_specs(episode({"a/b": value})) == {"a/b": column_spec(column)}
    assert column.base is not None or not column.size  # a view, not copies
    assert not column.flags.writeable


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("Hü", np.array([b"H\xc3\xbc"], object)),
        (b"\x00\x00", np.array([b"\x00\x00"], object)),
        (np.bytes_(b"x"), np.array([b"x"], object)),
        (np.str_("x"), np.array([b"x"], object)),
        (np.array(["a", "bc"]), np.array([[b"a", b"bc"]], object)),
        (np.array([b"a", b"bc"]), np.array([[b"a", b"bc"]], object)),
        (7, np.array([7])),
        (True, np.array([True])),
        (0.5, np.array([0.5])),
        (2j, np.array([2j])),
        (np.float32(0.5), np.array([0.5], np.float32)),
    ],
)
def test_plain_values_become_arrays(value: Any, wanted: np.ndarray) -> None:
    (column,) = metadata_columns(episode({"a": value}, 1), ["a"]).values()
    assert column.dtype == wanted.dtype
    assert column.tolist() == wanted.tolist()


@pytest.mark.parametrize("value", [None, [1, 2], {}, 1 << 90, "\ud800", np.array([b"a", None], object), object()])
def test_what_no_column_holds_is_left_out(value: Any) -> None:
    one = episode({"a": value, "b": 1})
    assert list(metadata_specs(one)) == ["b"]
    assert list(metadata_columns(one, ["a", "b"])) == ["metadata/b"]


def test_only_what_is_asked_for_becomes_columns() -> None:
    one = episode({"a": 1, "b": 2})
    assert with_metadata(one, {}) is one
    spec = ArraySpec((), np.dtype(int))
    found = with_metadata(one, {"b": spec, "absent": spec})
    assert found.columns.keys() - one.columns.keys() == {metadata_path("b")}
    assert (found.id, dict(found.metadata)) == (one.id, dict(one.metadata))


@settings(max_examples=30)
@given(st.integers(0, 5), st.integers(0, 5))
def test_rows_are_those_of_is_first_where_columns_differ(first: int, flags: int) -> None:
    columns = {"observation": np.zeros(first), "is_first": np.zeros(flags, bool)}
    (column,) = metadata_columns(Episode(columns, {"a": 1}, "e"), ["a"]).values()
    assert len(column) == (flags or first)
