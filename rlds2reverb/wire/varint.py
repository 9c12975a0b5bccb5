"""Varints and length-delimited fields, singly and by the column.

Source: https://protobuf.dev/programming-guides/encoding. A fixed-width varint pads with continuation
bits (0x85 0x80 0x00 is 5): every protobuf parser takes it, and it makes a record's size independent of
its values, which is what lets numpy fill a whole column of records at once.
"""

from __future__ import annotations

import numpy as np

from rlds2reverb.episodes import Array

KEY_BYTES = 10
"""Bytes of the varint of a 64-bit key with its top bit set: always ten."""


def varint(value: int) -> bytes:
    """The shortest varint of a non-negative integer below 2**64."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_width(largest: int) -> int:
    """Bytes that the varint of any value from 0 to `largest` fits in."""
    return len(varint(largest))


def varint_columns(values: Array, width: int) -> Array:
    """[n] unsigned values -> [n, width] uint8, each row a varint of exactly `width` bytes."""
    if width == 1:
        return values.astype(np.uint8)[..., None]
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    out = ((values.astype(np.uint64)[..., None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    out[..., : width - 1] |= 0x80
    return out


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at a place, and the place after it.

    Raises:
      ValueError: it does not end within the data, or has more than 64 bits.
    """
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
    """A varint field."""
    return varint(number << 3) + varint(value)
