"""TFRecords in one zlib stream, as Reverb's checkpoints have them.

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


class CheckpointError(Rlds2ReverbError):
    """A checkpoint cannot be written, verified or restored."""


def blocks(path: Path) -> Iterator[bytes]:
    """A file's bytes, in blocks.

    Raises:
      CheckpointError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def inflate(path: Path, compressed: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a compressed stream, in blocks; an empty one is none.

    Raises:
      CheckpointError: the stream is damaged, or ends in the middle.
    """
    stream, size = zlib.decompressobj(), 0
    try:
        for block in compressed:
            size += len(block)
            while block and not stream.eof:
                yield stream.decompress(block, _BLOCK_BYTES)
                block = stream.unconsumed_tail
    except zlib.error as error:
        raise CheckpointError(f"{path}: not readable as it was written ({error})") from error
    if size and not stream.eof:
        raise CheckpointError(f"{path}: ends in the middle, after {size} bytes")


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a file.

    Raises:
      CheckpointError: it cannot be read, is damaged, or ends in the middle.
    """
    held = bytearray()
    for block in inflate(path, blocks(path)):
        held += block
        start = 0
        while len(held) - start >= _HEAD_BYTES:
            end = start + _HEAD_BYTES + int.from_bytes(held[start : start + 8], "little")
            if len(held) < end + _TAIL_BYTES:
                break
            yield bytes(held[start + _HEAD_BYTES : end])
            start = end + _TAIL_BYTES
        del held[:start]
    if held:
        raise CheckpointError(f"{path}: its last record ends in the middle")


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """A new file of these records; its name must be free."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), "ZLIB") as writer:
        for record in records:
            writer.write(record)
