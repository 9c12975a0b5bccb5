"""What one value of a step may be, and what its column makes of it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.recording import RecordedColumns, StepLayout, spec_of_value, value_for
from rlds2reverb.specs import ArraySpec, column_spec
from tests.support import strategies


class Move(IntEnum):
    """Actions with names."""

    LEFT = 2


def column_of(spec: ArraySpec, *values: Any) -> Any:
    """A column with these values, as a writer records it."""
    columns = RecordedColumns(StepLayout({"x": None}), {"x": spec}, 1 << 20, 1)
    for value in values:
        columns.append({"x": value})
    return columns.finished()["x"]


@given(strategies.dtypes(), strategies.shapes(), st.integers(1, 9), st.integers(0, 99))
def test_arrays_and_scalars_of_any_dtype_are_kept_to_the_bit(dtype: Any, shape: Any, rows: int, seed: int) -> None:
    wanted = strategies.array(np.random.default_rng(seed), dtype, (rows, *shape))
    spec, _ = spec_of_value("x", wanted[0])
    assert spec == column_spec(wanted)
    found = column_of(spec, *wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found, wanted)


@given(strategies.dtypes(), strategies.shapes(), strategies.dtypes(), strategies.shapes())
def test_another_dtype_or_shape_is_refused(dtype: Any, shape: Any, other: Any, another: Any) -> None:
    rng = np.random.default_rng(0)
    spec, _ = spec_of_value("x", strategies.array(rng, dtype, (1, *shape))[0])
    value = strategies.array(rng, other, (1, *another))[0]
    number = isinstance(value, float) and spec.dtype.kind in "f" and shape == another == ()
    if (dtype, shape) == (other, another) or number or (isinstance(value, float) and "bfloat16" in str(dtype)):
        return
    with pytest.raises(ConfigError, match='column "x": expected'):
        value_for("x", value, spec)


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (1.1, "float32", np.float32(1.1)),
        (1.1, "float64", 1.1),
        (1.1, ml_dtypes.bfloat16, ml_dtypes.bfloat16(1.1)),
        (np.float64(1.1), "float32", np.float32(1.1)),
        (1, "float32", 1.0),
        (255, "uint8", 255),
        (Move.LEFT, "int32", 2),
        (True, "bool", True),
        (np.True_, "bool", True),
        (np.array(2.5, ">f4"), "float32", 2.5),
        ("ü", object, "ü".encode()),
        (np.str_("a"), object, b"a"),
        (b"a", object, b"a"),
        (np.array("a"), object, b"a"),
    ],
    ids=str,
)
def test_what_fits(value: Any, dtype: Any, stored: Any) -> None:
    assert column_of(ArraySpec((), np.dtype(dtype)), value)[0] == stored


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (256, "uint8", "holds 0 to 255; got 256"),
        (True, "int64", r"expected int64\[\], got bool\[\]"),
        (1, "bool", r"expected bool\[\], got int64\[\]"),
        (1.0, "int64", r"expected int64\[\], got float32\[\]"),
        (np.float32(1), "float64", r"expected float64\[\], got float32\[\]"),
        (np.int64(1), "int32", r"expected int32\[\], got int64\[\]"),
        (1j, "float32", r"expected float32\[\], got complex128\[\]"),
        (1, object, r"expected string\[\], got int64\[\]"),
        (np.array([b"a"]), object, r"expected string\[\], got string\[1\]"),
        (np.array(None), object, "expected text"),
        (np.datetime64("2020-01-01"), "int64", 'column "x"'),
        (np.ma.masked_array([1.0], [True]), "float64", "a masked array"),
        pytest.param(object(), "float32", "expected a number, text or a numpy array, got object", id="object"),
    ],
    ids=str,
)
def test_what_does_not(value: Any, dtype: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        value_for("x", value, ArraySpec((), np.dtype(dtype)))


def test_text_of_several_values_becomes_bytes() -> None:
    found = column_of(ArraySpec((2,), np.dtype(object)), np.array(["a", "bc"]), np.array([b"d", "e"], object))
    assert found.tolist() == [[b"a", b"bc"], [b"d", b"e"]]


def test_what_turns_into_an_array_is_taken() -> None:
    class Tensor:
        def __array__(self, *_: Any, **__: Any) -> Any:
            return np.arange(3, dtype=np.float32)

    assert column_of(ArraySpec((3,), np.dtype(np.float32)), Tensor()).tolist() == [[0, 1, 2]]
