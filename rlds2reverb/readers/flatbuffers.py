"""What the buffers of a record batch of Arrow unpack to, by the FlatBuffers of its message.

Source: Message.fbs of Arrow's format (`Message`, `RecordBatch`, `Buffer`, `BodyCompression`), and FlatBuffers' own description of its bytes.
"""

from __future__ import annotations

import struct

_HEADER = 2
"""The field of `Message` that is the record batch."""
_BUFFERS, _COMPRESSION = 2, 3
_NOT_PACKED = -1


def unpacked_bytes(message: memoryview, body: memoryview) -> int:
    """Bytes of all buffers once they are unpacked.

    Args:
      message: the metadata of a message with a record batch.
      body: what follows it.

    Raises:
      ValueError: that makes no sense.
    """
    try:
        (root,) = struct.unpack_from("<I", message)
        batch = _there(message, _field(message, root, _HEADER))
        return sum(_sizes(message, body, batch, bool(_field(message, batch, _COMPRESSION))))
    except struct.error as error:
        raise ValueError(f"no record batch of Arrow: {error}") from error


def _sizes(message: memoryview, body: memoryview, batch: int, is_packed: bool) -> list[int]:
    vector = _there(message, _field(message, batch, _BUFFERS))
    (count,) = struct.unpack_from("<I", message, vector)
    if count * 16 > len(message):
        raise ValueError(f"no record batch of Arrow: {count:,} buffers")
    sizes = []
    for number in range(count):
        start, size = struct.unpack_from("<qq", message, vector + 4 + 16 * number)
        if start < 0 or size < 0:
            raise ValueError("no record batch of Arrow: a buffer lies outside of it")
        told = struct.unpack_from("<q", body, start)[0] if is_packed and size >= 8 else _NOT_PACKED
        sizes.append(size if told == _NOT_PACKED else max(size, told))
    return sizes


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 where it is not there."""
    (back,) = struct.unpack_from("<i", data, table)
    fields = table - back
    if fields < 0:
        raise ValueError("no record batch of Arrow: a table without fields")
    (size,) = struct.unpack_from("<H", data, fields)
    at = 4 + 2 * number
    offset = struct.unpack_from("<H", data, fields + at)[0] if at + 2 <= size else 0
    return int(table + offset) if offset else 0


def _there(data: memoryview, field: int) -> int:
    """Where what a field refers to is."""
    if not field:
        raise ValueError("no record batch of Arrow: a field is missing")
    return int(field + struct.unpack_from("<I", data, field)[0])
