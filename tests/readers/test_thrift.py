"""Thrift's compact protocol, against a slow writer of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.readers import thrift
from rlds2reverb.readers.thrift import NUMBER, TEXT, Each

numbers = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.binary(max_size=9)
kinds = st.dictionaries(
    st.integers(1, 40),
    st.recursive(
        st.one_of(numbers, texts, st.lists(numbers, max_size=20), st.lists(texts, max_size=3)),
        lambda inner: (
            st.dictionaries(st.integers(1, 300), inner, max_size=3)
            | st.lists(st.dictionaries(st.integers(1, 9), inner, max_size=2), max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=5,
)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def kind_of(value: Any) -> int:
    return {int: 6, bytes: 8, list: 9, dict: 12}[type(value)]


def written(value: Any) -> bytes:
    if isinstance(value, int):
        return zigzag(value)
    if isinstance(value, bytes):
        return varint(len(value)) + value
    if isinstance(value, list):
        kind = kind_of(value[0]) if value else 6
        head = bytes([len(value) << 4 | kind]) if len(value) < 15 else bytes([0xF0 | kind]) + varint(len(value))
        return head + b"".join(map(written, value))
    out, last = b"", 0
    for number in sorted(value):
        step, kind = number - last, kind_of(value[number])
        out += bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + zigzag(number)
        out, last = out + written(value[number]), number
    return out + b"\x00"


def wanted_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {number: wanted_of(one) for number, one in value.items()}
    if isinstance(value, list):
        return Each(wanted_of(value[0]) if value and not isinstance(value[0], dict) else merged(value))
    return TEXT if isinstance(value, bytes) else NUMBER


def merged(structs: list[Any]) -> Any:
    """What any of them has; where they hold other kinds under one number, what the last has."""
    return {number: wanted_of(one) for fields in structs for number, one in fields.items()}


def read(value: Any, wanted: Any) -> Any:
    """What is found of a value: all where it is of the kind that is wanted."""
    if isinstance(value, dict):
        known = wanted if isinstance(wanted, dict) else {}
        return {number: read(one, known[number]) for number, one in value.items() if number in known}
    if isinstance(value, list):
        inner = wanted.wanted if isinstance(wanted, Each) else None
        return [read(one, inner) for one in value] if inner is not None else []
    return value if isinstance(value, int) or wanted == TEXT else None


@given(kinds, st.data(), st.binary(max_size=3))
def test_what_is_wanted_is_found(value: dict[int, Any], data: st.DataObject, behind: bytes) -> None:
    numbers_wanted = data.draw(st.sets(st.sampled_from(sorted(value)))) if value else set()
    wanted = {number: wanted_of(value[number]) for number in numbers_wanted}
    stored = written(value)
    assert thrift.struct(stored + behind, 0, wanted) == (read(value, wanted), len(stored))


@given(st.binary(max_size=60), kinds)
def test_any_bytes_give_a_struct_or_an_error(data: bytes, like: dict[int, Any]) -> None:
    try:
        fields, stop = thrift.struct(data, 0, wanted_of(like))
    except (IndexError, ValueError):
        return
    assert fields.keys() <= like.keys()
    assert stop > 0


def test_long_lists_and_deep_structs_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 1,000,000"):
        thrift.struct(bytes([0x19, 0xF1]) + varint(1_000_001), 0, {})
    with pytest.raises(ValueError, match="too deep"):
        thrift.struct(bytes([0x1C]) * 99, 0, {})
