"""Varints and length-delimited fields, singly and by the column.

Source: https://protobuf.dev/programming-guides/encoding. A fixed-width varint pads with continuation
bits (0x85 0x80 0x00 is 5): every protobuf parser takes it, and it makes a record's size independent of
its values, which is what lets numpy fill a whole column of records at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import Array

KEY_BYTES = 10
"""Bytes of the varint of a 64-bit key with its top bit set: always ten."""

_AT_ONCE = 1 << 16
"""Integers that are packed at once, so that little memory is used."""


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

    One round per byte of the longest: sooner done than `varints_of` for one list of small numbers.
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


# Messages that are nothing but varints -> their values, all messages at once.

WORD_BYTES = 8
PADDING = bytes(WORD_BYTES)
"""Follows the messages where `long_values` reads them."""

# Eight groups of 7 bits, one a byte -> 56 bits: neighbours are joined, then pairs, then fours.
_JOINS = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)


class Varints(NamedTuple):
    """Varints of several messages, one message after the other.

    Attributes:
      values: [varints] uint64.
      starts: [varints] int64, where each begins in the joined messages.
      counts: [messages] int64, varints of each.
      size: bytes of all messages.
    """

    values: Array
    starts: Array
    counts: Array
    size: int


def varints_of(messages: Sequence[bytes]) -> Varints | None:
    """None when a message ends inside a varint, or one has more than 64 bits."""
    joined = b"".join(messages)
    data = np.frombuffer(joined + PADDING, np.uint8)
    size = len(joined)
    ends = np.flatnonzero(data[:size] < 0x80)
    message_ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
    counts_up_to = np.searchsorted(ends, message_ends)
    if size and (not len(ends) or ends[-1] != size - 1):
        return None
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    before_first = np.append(0, message_ends[:-1])
    if np.any(data[before_first[before_first > 0] - 1] >= 0x80):
        return None
    values = data[starts].astype(np.uint64)
    is_long = starts != ends
    long = long_values(data, starts[is_long], ends[is_long])
    if long is None:
        return None
    values[is_long] = long
    return Varints(values, starts, np.diff(counts_up_to, prepend=0), size)


def long_values(data: Array, starts: Array, ends: Array) -> Array | None:
    """[n] uint64: the varints with these first and last bytes; None when there is one of more than 64 bits."""
    widths = ends - starts + 1
    if np.any(widths > KEY_BYTES):
        return None
    every_word: Array = np.ndarray((len(data) - WORD_BYTES + 1,), "<u8", data, 0, (1,))
    words = every_word[starts].astype(np.uint64)
    unused_bits = (8 * np.maximum(WORD_BYTES - widths, 0)).astype(np.uint64)
    values = joined_bits(words << unused_bits >> unused_bits)  # without the bytes of the next varint
    is_ninth, is_tenth = widths > WORD_BYTES, widths == KEY_BYTES
    tenth = data[starts[is_tenth] + KEY_BYTES - 1]
    if np.any(tenth > 1):
        return None
    ninth = (data[starts[is_ninth] + WORD_BYTES] & 0x7F).astype(np.uint64)
    values[is_ninth] |= ninth << np.uint64(56)
    values[is_tenth] |= tenth.astype(np.uint64) << np.uint64(63)
    return values


def joined_bits(words: Array) -> Array:
    """[...] uint64: of eight bytes 7 bits each, one after the other."""
    for low, high, shift in _JOINS:
        words = (words & low) | ((words & high) >> shift)
    return words
