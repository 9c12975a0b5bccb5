"""A column in a few words, whatever it holds."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from rlds2reverb.cli import output
from rlds2reverb.look.brief import MOST_CHARACTERS, brief

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000300000002008020000000000000000")
"""The first bytes of a file of 48 columns and 32 rows."""


def texts(*values: bytes) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (np.float32(0.25), "float32[]", "0.25"),
        (np.array([1, 0], np.int64), "int64[2]", "1, 0 (0 to 1)"),
        (np.array([True, False]), "bool[2]", "True, False (0 to 1)"),
        (np.arange(6.0).reshape(2, 3), "float64[2, 3]", "0, 1, 2, ... (0 to 5)"),
        (np.array([math.nan, 2.0, math.inf]), "float64[3]", "nan, 2, inf (2 to 2) (2 values not finite)"),
        (np.array([math.nan]), "float64[1]", "nan"),
        (np.zeros((0, 4), np.float32), "float32[0, 4]", "no values"),
        (np.array([1.5], ml_dtypes.bfloat16), "bfloat16[1]", "1.5"),
        (np.array([2**64 - 1], np.uint64), "uint64[1]", "18446744073709551615"),
        (np.array([1 + 2j], np.complex64), "complex64[1]", '"(1+2j)"'),
        (np.full((2, 84, 84, 3), 7, np.uint8), "uint8[2, 84, 84, 3]", "(7 to 7)"),
        (np.zeros((1, 1, 3), np.uint8), "uint8[1, 1, 3]", "0, 0, 0 (0 to 0)"),
        (b"pick up the cup\x00", "string[]", '"pick up the cup\\x00" (16 bytes)'),
        (texts(b"a", b"\xff"), "string[2]", '"a", "\\xff" (2 bytes)'),
        (texts(PNG), "string[1]", f'"png image of 32 x 48" ({len(PNG)} bytes)'),
    ],
)
def test_a_column_is_told_in_a_few_words(value: Any, kind: str, text: str) -> None:
    told = brief(value, 3)
    assert (told.kind, told.text()) == (kind, text)


def test_a_text_cannot_move_the_cursor_and_is_short() -> None:
    told = brief(b"\x1b[2J\x07\xc2\x9b31m" + "\u202e\u00e9".encode() * 100, 1)
    (text,) = told.values
    assert text.isprintable()
    assert text.startswith("\\x1b[2J\\x07\\x9b31m\\u202e\u00e9")
    assert len(text) == MOST_CHARACTERS + len("...")
    assert told.text_bytes == 10 + 500


def test_no_values_are_wanted() -> None:
    told = brief(np.arange(5), 0)
    assert told.text() == "(0 to 4)"
    assert told.as_dict() == {
        "dtype": "int64", "shape": [5], "values": [], "min": 0.0, "max": 4.0, "mean": 2.0, "not_finite": 0,
    }  # fmt: skip


@given(
    numpy_strategies.arrays(
        numpy_strategies.scalar_dtypes().filter(lambda dtype: dtype.kind not in "mM"),
        numpy_strategies.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    st.integers(0, 20),
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_any_array_has_a_text_and_is_plain_json(array: Any, most: int) -> None:
    told = brief(array, most)
    assert "\n" not in told.text()
    again = json.loads(json.dumps(output.plain(told.as_dict()), allow_nan=False))
    assert again["shape"] == list(array.shape)
    assert len(again["values"]) == min(most, array.size)
    if array.dtype.kind in "iub":
        assert again["values"] == array.reshape(-1)[:most].tolist()


@given(st.lists(st.binary(max_size=600), min_size=1, max_size=4))
def test_any_bytes_are_printable_text(values: list[bytes]) -> None:
    told = brief(texts(*values), 4)
    assert told.as_dict()["bytes"] == sum(map(len, values))
    assert all(text.isprintable() for text in told.values)
    json.dumps(told.as_dict(), ensure_ascii=False).encode()
