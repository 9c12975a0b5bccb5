"""Varints and fields against the encoding's table and against protobuf's own parser."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.protobuf import KEY_BYTES, bytes_field, int_field, read_varint, varint, varint_columns, varint_width
from rlds2reverb.wire.schema import message_class

TABLE = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (150, "9601"),
    (300, "ac02"),
    (16383, "ff7f"),
    (16384, "808001"),
    (2**32 - 1, "ffffffff0f"),
    (2**63 - 1, "ffffffffffffffff7f"),
    (2**63, "80808080808080808001"),
    (2**64 - 1, "ffffffffffffffffff01"),
]

uint64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))


def parsed(data: bytes) -> int:
    """What a varint says, read bit by bit; it must end with its last byte."""
    assert [byte >> 7 for byte in data] == [1] * (len(data) - 1) + [0]
    return int("".join(f"{byte & 0x7F:07b}" for byte in reversed(data)), 2)


@pytest.mark.parametrize(("value", "text"), TABLE)
def test_a_varint_is_the_one_of_the_table_both_ways(value: int, text: str) -> None:
    assert varint(value).hex() == text
    assert parsed(bytes.fromhex(text)) == value


@given(uint64)
def test_a_varint_says_its_value_in_the_fewest_bytes(value: int) -> None:
    data = varint(value)
    assert parsed(data) == value
    assert len(data) == max(1, -(-value.bit_length() // 7))


@given(uint64, uint64)
def test_the_width_of_the_largest_is_enough_for_all_and_no_wider(one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert len(varint(small)) <= varint_width(large) == len(varint(large))


@given(st.lists(uint64, max_size=20), st.integers(0, 9))
def test_each_row_of_a_column_is_a_varint_of_exactly_that_width(values: list[int], more: int) -> None:
    width = min(KEY_BYTES, varint_width(max(values, default=0)) + more)
    rows = varint_columns(np.array(values, np.uint64), width)
    assert (rows.dtype, rows.shape) == (np.dtype(np.uint8), (len(values), width))
    assert [parsed(row.tobytes()) for row in rows] == values


def test_columns_of_any_rank_are_encoded_along_a_new_last_axis() -> None:
    values = np.arange(6).reshape(2, 3) * 100
    assert varint_columns(values, 2).tolist() == [
        [[*varint_columns(np.array([value]), 2)[0].tolist()] for value in row] for row in values
    ]


@given(uint64, st.integers(0, 4))
def test_protobuf_reads_a_varint_with_padding(value: int, more: int) -> None:
    width = min(KEY_BYTES, varint_width(value) + more)
    padded = b"\x08" + varint_columns(np.array([value], np.uint64), width)[0].tobytes()
    assert message_class("Uint128").FromString(padded).high == value


@given(uint64, st.sampled_from([(1, "high"), (2, "low")]))
def test_protobuf_reads_and_writes_the_same_varint_field(value: int, field: tuple[int, str]) -> None:
    number, name = field
    message = message_class("Uint128").FromString(int_field(number, value))
    assert getattr(message, name) == value
    if value:  # zero is left out by protobuf
        assert message.SerializeToString() == int_field(number, value)


@given(st.binary(max_size=300))
def test_protobuf_reads_and_writes_the_same_bytes_field(payload: bytes) -> None:
    message = message_class("Tensor").FromString(bytes_field(4, payload))
    assert message.tensor_content == payload
    if payload:
        assert message.SerializeToString() == bytes_field(4, payload)


def test_a_field_with_a_large_number_has_a_tag_of_two_bytes() -> None:
    assert int_field(16, 5).hex() == "800105"
    assert message_class("StructuredValue").FromString(bytes_field(33, b"")).HasField("tensor_spec_value")


@given(st.binary(max_size=5), uint64, st.binary(max_size=5))
def test_a_varint_is_read_where_it_stands(before: bytes, value: int, after: bytes) -> None:
    end = len(before) + len(varint(value))
    assert read_varint(before + varint(value) + after, len(before)) == (value, end)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x00"])
def test_what_is_no_varint_of_64_bits_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no varint at byte 0"):
        read_varint(data, 0)
