"""TFRecords in one zlib stream, as Reverb's checkpoints have them. Bytes only: no files, no checkpoints.

A record is its length (8 bytes, little-endian), a checksum of that (4), the data, and a checksum of it (4). The stream
ends in a checksum of everything, which zlib verifies, so those of the records are not looked at when reading.
Source: record_writer.cc of TensorFlow 2.15; observed in dm-reverb 0.14.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlds2reverb.errors import Rlds2ReverbError

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 12
_TAIL_BYTES = 4
_MOST_BYTES = 256 << 20
"""More than any description of a table and any item has."""


class RecordError(Rlds2ReverbError):
    """A stream is not one of TFRecords: damaged, or it ends in the middle."""


def inflate(compressed: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a compressed stream, in blocks; an empty one is none.

    Raises:
      RecordError: the stream is damaged, or ends in the middle.
    """
    stream, size = zlib.decompressobj(), 0
    try:
        for block in compressed:
            size += len(block)
            while block and not stream.eof:
                yield stream.decompress(block, _BLOCK_BYTES)
                block = stream.unconsumed_tail
    except zlib.error as error:
        raise RecordError(f"not readable as it was written ({error})") from error
    if size and not stream.eof:
        raise RecordError(f"ends in the middle, after {size} bytes")


def records_of(compressed: Iterable[bytes]) -> Iterator[bytes]:
    """The records of a compressed stream.

    Raises:
      RecordError: the stream is damaged or ends in the middle, or a record is absurdly long.
    """
    held = bytearray()
    for block in inflate(compressed):
        held += block
        start = 0
        while len(held) - start >= _HEAD_BYTES:
            end = start + _HEAD_BYTES + _length(held[start : start + 8])
            if len(held) < end + _TAIL_BYTES:
                break
            yield bytes(held[start + _HEAD_BYTES : end])
            start = end + _TAIL_BYTES
        del held[:start]
    if held:
        raise RecordError("its last record ends in the middle")


def _length(head: bytes | bytearray) -> int:
    length = int.from_bytes(head, "little")
    if length > _MOST_BYTES:
        raise RecordError(f"a record says that it has {length:,} bytes; expected at most {_MOST_BYTES:,}")
    return length


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """A new file of these records; its name must be free."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), "ZLIB") as writer:
        for record in records:
            writer.write(record)
