"""The described messages: numbers, types, and that they live beside other packages' classes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf import descriptor_pool

from rlds2reverb.protobuf import message_classes
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
