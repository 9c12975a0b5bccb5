"""Thrift's compact protocol: the fields of a struct that somebody wants; all others are passed over.

Source: thrift-compact-protocol.md of Apache Thrift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

NUMBER: Final = "number"
TEXT: Final = "text"


@dataclass(frozen=True)
class Each:
    """A list, of whose values this is wanted."""

    wanted: Any


Wanted = Mapping[int, Any]
"""Number of a field -> `NUMBER`, `TEXT`, `Each` of something, or what is wanted of a struct."""

Fields = dict[int, Any]
"""Number of a field -> whole number, bytes, list or fields of a struct. A damaged file may hold another kind than is wanted."""

_DEEPEST = 16
_MOST_IN_A_LIST = 1_000_000
"""As pyarrow reads."""

_WHOLE_NUMBERS, _BINARY, _LISTS, _STRUCT = (4, 5, 6), 8, (9, 10), 12
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}
"""Of what is never wanted: truths, which their kind tells, bytes, and doubles."""
_SIZES_IN_LISTS = {1: 1, 2: 1, 3: 1, 7: 8}
_LONG_LIST = 15


def struct(data: bytes, at: int, wanted: Wanted, depth: int = 0) -> tuple[Fields, int]:
    """A struct, and where it ends.

    Args:
      data, at: where it begins.
      wanted: of its fields.

    Raises:
      IndexError: the bytes end before it does.
      ValueError: they are no struct.
    """
    if depth > _DEEPEST:
        raise ValueError("too deep for a struct of Thrift")
    fields: Fields = {}
    number = 0
    while first := data[at]:
        at += 1
        if first > 15:
            number += first >> 4
        else:
            number, at = _zigzag(data, at)
        found, at = _value(data, at, first & 15, wanted.get(number), depth)
        if number in wanted:
            fields[number] = found
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, wanted: Any, depth: int) -> tuple[Any, int]:
    if kind in _WHOLE_NUMBERS:
        return _zigzag(data, at)
    if kind == _BINARY:
        length, at = _varint(data, at)
        return (_text(data, at, length) if wanted == TEXT else None), at + length
    if kind == _STRUCT:
        return struct(data, at, wanted if isinstance(wanted, Mapping) else {}, depth + 1)
    if kind in _LISTS:
        return _list(data, at, wanted.wanted if isinstance(wanted, Each) else None, depth + 1)
    if kind in _SIZES:
        return None, at + _SIZES[kind]
    raise ValueError("no struct of Thrift")


def _list(data: bytes, at: int, wanted: Any, depth: int) -> tuple[list[Any], int]:
    """Its values; none where they are not wanted."""
    kind, size = data[at] & 15, data[at] >> 4
    at += 1
    if size == _LONG_LIST:
        size, at = _varint(data, at)
    if size > _MOST_IN_A_LIST or depth > _DEEPEST:
        raise ValueError(f"a list of {size:,} values; at most {_MOST_IN_A_LIST:,} are read")
    if kind in _SIZES_IN_LISTS:
        return [], at + size * _SIZES_IN_LISTS[kind]
    found = []
    for _ in range(size):
        value, at = _value(data, at, kind, wanted, depth)
        if wanted is not None:
            found.append(value)
    return found, at


def _text(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise IndexError(at + length)
    return data[at : at + length]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    found, at = _varint(data, at)
    return (found >> 1) ^ -(found & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = data[at]
    if found < 128:
        return found, at + 1
    found, shift = found & 127, 7
    while shift < 64:
        at += 1
        byte = data[at]
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at + 1
        shift += 7
    raise ValueError("no whole number of Thrift")
