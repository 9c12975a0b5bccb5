"""The described messages: numbers, types, and that they live beside other packages' classes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.protobuf import (
    KEY_BYTES,
    bytes_field,
    int_field,
    message_classes,
    read_varint,
    varint,
    varint_columns,
    varint_width,
)
from rlds2reverb.wire.schema import MESSAGES, PACKAGE, message_class

_TYPES = {"double", "float", "int64", "uint64", "int32", "uint32", "bool", "string", "bytes"}
_DECLARATION = re.compile(r"(repeated )?(\w+) (\w+) = (\d+)")

# Field numbers as WIRE messages of Reverb 0.14 and TensorFlow 2.15 have them, written out by hand.
WIRE = [
    ("Dim", {"size": 3, "name": "x"}, "0803 120178"),
    ("TensorShape", {"dim": [{"size": 2}], "unknown_rank": True}, "12020802 1801"),
    ("Tensor", {"dtype": 1, "tensor_shape": {"dim": []}, "tensor_content": b"\x00"}, "0801 1200 220100"),
    ("Tensor", {"float_val": [1.0], "string_val": [b"a"]}, "2a040000803f 420161"),
    ("Tensor", {"int_val": [1, 2], "half_val": [3]}, "3a020102 6a0103"),
    ("Tensor", {"uint32_val": [1], "uint64_val": [2]}, "82010101 8a010102"),
    ("TensorSpec", {"name": "r", "shape": {}, "dtype": 1}, "0a0172 1200 1801"),
    ("BoundedTensorSpec", {"minimum": {}, "maximum": {}}, "2200 2a00"),
    ("StructuredValue", {"none_value": {}}, "0a00"),
    ("StructuredValue", {"tensor_spec_value": {}}, "8a0200"),
    ("StructuredValue", {"bounded_tensor_spec_value": {}}, "9a0200"),
    ("StructuredValue", {"list_value": {}}, "9a0300"),
    ("StructuredValue", {"tuple_value": {}}, "a20300"),
    ("StructuredValue", {"dict_value": {}}, "aa0300"),
    ("StructuredValue", {"named_tuple_value": {}}, "b20300"),
    ("SequenceRange", {"episode_id": 1, "start": 2, "end": 3, "sparse": True}, "0801 1002 1803 2001"),
    ("ChunkData", {"chunk_key": 1, "sequence_range": {}, "delta_encoded": True}, "0801 1200 2001"),
    ("ChunkData", {"data": {}, "data_tensors_len": 6, "data_uncompressed_size": 7}, "2a00 3006 3807"),
    ("ChunkSlice", {"chunk_key": 1, "offset": 2, "length": 3, "index": 4}, "0801 1002 1803 2004"),
    ("Column", {"chunk_slices": [{}], "squeeze": True}, "0a00 1001"),
    ("PrioritizedItem", {"key": 1, "table": "t", "priority": 1.0}, "0801 120174 29000000000000f03f"),
    ("PrioritizedItem", {"times_sampled": 6, "flat_trajectory": {"columns": [{}]}}, "3006 42020a00"),
    ("KeyDistribution", {"fifo": True, "uniform": True, "lifo": True}, "0801 1001 3001"),
    ("KeyDistribution", {"prioritized": {"priority_exponent": 1.0}}, "1a09 09000000000000f03f"),
    ("KeyDistribution", {"heap": {"min_heap": True}}, "22020801"),
    ("RateLimiter", {"samples_per_insert": 1.0, "min_size_to_sample": 4}, "09000000000000f03f 2004"),
    ("RateLimiter", {"insert_stats": {"completed": 5}, "sample_stats": {"completed": 6}}, "2a021005 32021006"),
    ("Table", {"sampler_options": {}, "remover_options": {}, "max_size": 3}, "0a00 1200 1803"),
    ("Table", {"max_times_sampled": 4, "rate_limiter_info": {}, "signature": {}}, "2004 2a00 3200"),
    ("Table", {"current_size": 7, "name": "t", "num_episodes": 9}, "3807 420174 4809"),
    ("Table", {"num_deleted_episodes": 10, "num_unique_samples": 11}, "500a 580b"),
    ("ServerInfoResponse", {"tables_state_id": {"high": 1, "low": 2}, "table_info": [{}]}, "0a0408011002 1200"),
    ("InsertStreamRequest", {"chunks": [{}], "items": [{}], "keep_chunk_keys": [3]}, "0a00 1200 1a0103"),
    ("InsertStreamResponse", {"keys": [1, 2]}, "0a020102"),
]


@pytest.mark.parametrize(("name", "fields", "text"), WIRE)
def test_a_message_has_the_field_numbers_of_the_protocol_both_ways(
    name: str, fields: dict[str, Any], text: str
) -> None:
    data = bytes.fromhex(text)
    assert message_class(name)(**fields).SerializeToString(deterministic=True) == data
    assert message_class(name).FromString(data) == message_class(name)(**fields)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_class_has_exactly_the_declared_fields(name: str) -> None:
    descriptor = message_class(name).DESCRIPTOR
    assert descriptor.full_name == f"{PACKAGE}.{name}"
    declared = {}
    for declaration in MESSAGES[name]:
        _, type_name, field, number = _DECLARATION.fullmatch(declaration).groups()
        assert type_name in _TYPES or type_name in MESSAGES
        declared[field] = int(number)
    assert {field.name: field.number for field in descriptor.fields} == declared
    assert len(set(declared.values())) == len(declared)


def test_nothing_is_put_into_the_pool_that_other_packages_share() -> None:
    for name in MESSAGES:
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(f"{PACKAGE}.{name}")


def test_building_again_makes_classes_of_its_own() -> None:
    again = message_classes(PACKAGE, MESSAGES)
    assert again.keys() == MESSAGES.keys()
    data = message_class("Dim")(size=3).SerializeToString()
    assert again["Dim"] is not message_class("Dim")
    assert again["Dim"].FromString(data).size == 3


def test_fields_that_are_not_described_are_skipped() -> None:
    unknown = bytes.fromhex("e80705")  # field 125, varint 5
    assert message_class("Dim").FromString(bytes.fromhex("0803") + unknown).size == 3


def test_an_unknown_message_has_no_class() -> None:
    with pytest.raises(KeyError):
        message_class("Checkpoint")


# Varints and fields against the encoding's table and against protobuf's own parser.

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
