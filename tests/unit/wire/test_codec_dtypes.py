"""Every dtype has the number that TensorFlow gives it, and comes back from it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rlds2reverb.errors import WireError
from rlds2reverb.wire.codec import NUMPY_DTYPES, STRING, as_wire_array, numpy_dtype, wire_number
from tests.support import strategies

# types.proto of TensorFlow 2.15.
NUMBERS = [
    ("float32", 1), ("float64", 2), ("int32", 3), ("uint8", 4), ("int16", 5), ("int8", 6), ("object", 7),
    ("complex64", 8), ("int64", 9), ("bool", 10), ("bfloat16", 14), ("uint16", 17), ("complex128", 18),
    ("float16", 19), ("uint32", 22), ("uint64", 23),
]  # fmt: skip


def named(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_a_dtype_and_its_number_stand_for_each_other(name: str, number: int) -> None:
    assert wire_number(named(name)) == number
    assert numpy_dtype(number) == named(name)


def test_the_table_lists_every_dtype_that_reverb_stores() -> None:
    assert {number for _, number in NUMBERS} == set(NUMPY_DTYPES)
    assert set(NUMPY_DTYPES.values()) == set(strategies.DTYPES)


@pytest.mark.parametrize("kind", [">f4", ">f8", ">i2", ">u8", ">c16", ">f2", "<i4", "=i4", "longlong", "intc"])
def test_byte_order_and_aliases_do_not_matter(kind: str) -> None:
    dtype = np.dtype(kind)
    assert numpy_dtype(wire_number(dtype)) == dtype.newbyteorder("=")


@pytest.mark.parametrize("kind", ["S5", "U7", "S", "U", "O"])
def test_every_kind_of_text_is_a_string(kind: str) -> None:
    assert wire_number(np.dtype(kind)) == STRING


@pytest.mark.parametrize(
    "dtype",
    [
        *map(np.dtype, ("datetime64[s]", ">M8[ns]", "timedelta64[ms]", "V8", "longdouble", "clongdouble")),
        np.dtype([("x", "f4")]),
        np.dtype(ml_dtypes.float8_e4m3fn),
        np.dtype(ml_dtypes.int4),
    ],
    ids=str,
)
def test_a_dtype_that_reverb_cannot_store_is_refused_by_name(dtype: np.dtype) -> None:
    with pytest.raises(WireError, match="Reverb cannot store it; convert the column to one of float32") as error:
        wire_number(dtype)
    assert str(dtype) in str(error.value)


@pytest.mark.parametrize("number", [0, -1, 11, 12, 13, 15, 16, 20, 21, 24, 101, 2**31 - 1])
def test_a_number_that_reverb_does_not_store_is_refused(number: int) -> None:
    with pytest.raises(WireError, match=f"tensor dtype number {number}: expected one of"):
        numpy_dtype(number)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
def test_a_column_that_fits_the_wire_is_not_copied(dtype: np.dtype) -> None:
    column = strategies.array(np.random.default_rng(0), dtype, (4, 3))
    assert as_wire_array(column) is column


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
def test_a_column_out_of_order_is_copied_to_c_order(dtype: np.dtype) -> None:
    column = strategies.array(np.random.default_rng(0), dtype, (8, 3))
    for view in (column[::2], column[::-1], np.asfortranarray(column), column[:, 1:]):
        out = as_wire_array(view)
        assert out.flags.c_contiguous
        assert out.dtype == dtype
        assert out.tolist() == view.tolist()


@pytest.mark.parametrize("kind", [">f4", ">i8", ">u2", ">c8"])
def test_a_big_endian_column_is_swapped(kind: str) -> None:
    column = np.arange(6).astype(kind).reshape(2, 3)
    out = as_wire_array(column)
    assert out.dtype == np.dtype(kind).newbyteorder("<")
    assert out.tobytes() == column.astype(np.dtype(kind).newbyteorder("<")).tobytes()


@pytest.mark.parametrize("kind", ["S", "U"])
def test_fixed_width_text_becomes_objects(kind: str) -> None:
    out = as_wire_array(np.array([["a", "bcd"]], kind))
    assert out.dtype == object
    assert [text if isinstance(text, bytes) else text.encode() for text in out.ravel()] == [b"a", b"bcd"]
