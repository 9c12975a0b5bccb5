"""Protobuf: classes of messages that are described in a table, and varints and fields, singly and by the column.

Descriptors built at run time work on every protobuf from 4.25 on, which generated modules do not. Each table has a
package name of our own, so nothing clashes with generated classes of TensorFlow or Reverb in the same process.

Source: https://protobuf.dev/programming-guides/encoding. A fixed-width varint pads with continuation
bits (0x85 0x80 0x00 is 5): every protobuf parser takes it, and it makes a record's size independent of
its values, which is what lets numpy fill a whole column of records at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rlds2reverb.episode import Array

_Field = descriptor_pb2.FieldDescriptorProto


def message_classes(package: str, messages: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The protobuf class of every message of a table.

    Args:
      package: a name of our own, such as "rlds2reverb.wire".
      messages: message -> its fields, each "[repeated] type name = number"; a capitalised type is a message of the table.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for name, declarations in messages.items():
        message = file.message_type.add(name=name)
        for declaration in declarations:
            *label, type_name, field_name, number = declaration.replace("=", " ").split()
            field = message.field.add(name=field_name, number=int(number))
            field.label = _Field.LABEL_REPEATED if label == ["repeated"] else _Field.LABEL_OPTIONAL
            if type_name in messages:
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{package}.{type_name}"
            else:
                field.type = _Field.Type.Value(f"TYPE_{type_name.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


KEY_BYTES = 10
"""Bytes of the varint of a 64-bit key with its top bit set: always ten."""

_AT_ONCE = 1 << 16
"""Integers that are packed at once, to use little memory."""


_OF_ONE_BYTE = [bytes([value]) for value in range(0x80)]


def varint(value: int) -> bytes:
    """The shortest varint of a non-negative integer below 2**64."""
    if value < 0x80:
        return _OF_ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_width(largest: int) -> int:
    """Bytes of the varint of any value from 0 to `largest`."""
    return max(1, -(-largest.bit_length() // 7))


def varint_columns(values: Array, width: int) -> Array:
    """[n] unsigned values -> [n, width] uint8, each row a varint of exactly `width` bytes."""
    if width == 1:
        return values.astype(np.uint8)[..., None]
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    out = ((values.astype(np.uint64)[..., None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    out[..., : width - 1] |= 0x80
    return out


def packed_varints(values: Array) -> bytes:
    """[n] int64 -> the shortest varints, one after another; a negative one has ten bytes."""
    plain = values.astype(np.int64, copy=False).view(np.uint64)
    return b"".join([_shortest(plain[start : start + _AT_ONCE]) for start in range(0, len(plain), _AT_ONCE)])


def _shortest(values: Array) -> bytes:
    width = varint_width(int(values.max()))
    if width == 1:
        return values.astype(np.uint8).tobytes()
    steps = np.uint64(1) << (np.arange(1, width, dtype=np.uint64) * np.uint64(7))
    last = (values[:, None] >= steps).sum(axis=1)  # the place of each one's last byte
    grid = varint_columns(values, width)
    grid[np.arange(len(values)), last] &= 0x7F
    shortest: Array = grid[np.arange(width) <= last[:, None]]
    return shortest.tobytes()


def unpacked_varints(packed: bytes) -> Array | None:
    """Varints one after another -> [n] int64; None where the last is cut, or one has more than ten bytes.

    One round per byte of the longest.
    """
    data = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        return None
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    lengths = ends - starts + 1
    longest = int(lengths.max(initial=1))
    if longest > KEY_BYTES:
        return None
    values = (data[starts] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        bits = (data[starts[longer] + place] & 0x7F).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * place)
    decoded: Array = values.view(np.int64)
    return decoded


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at a place, and the place after it; raises `ValueError` if it does not end within the data, or has more than 64 bits."""
    value = 0
    for number, byte in enumerate(data[at : at + KEY_BYTES]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + number + 1
    raise ValueError(f"no varint at byte {at}")


def bytes_field(number: int, payload: bytes) -> bytes:
    """A length-delimited field: tag, length, payload."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def int_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)
