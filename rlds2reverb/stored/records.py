"""The files of a checkpoint -> their records: TFRecords in one zlib stream, or, from old versions of Reverb, as they are.

A zlib stream ends in a checksum of all of it, which is verified: whoever has read the last record knows that all were whole. In files
without zlib the records' own checksums are. What a length says is compared with the file before memory is asked for.
Sources: record_reader.cc of TensorFlow 2.15, tfrecord_checkpointer.cc of Reverb; observed in dm-reverb 0.14.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from rlds2reverb.errors import SourceError
from rlds2reverb.tfds_files.tfrecord import masked_checksum

_BLOCK_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_HEAD_BYTES, _SUM_BYTES = 12, 4
_MOST_BYTES = 1 << 30
"""Of a record. A chunk is a few MB at most; protobuf reads no message of 2 GiB."""


def records_of(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The records of an open file, from its beginning.

    Args:
      file: read from where it stands.
      name: what messages call it.

    Raises:
      SourceError: it cannot be read, is damaged, ends in the middle, or a record is absurdly long.
    """
    try:
        start = file.read(_HEAD_BYTES)
        file.seek(0)
        is_plain = len(start) == _HEAD_BYTES and masked_checksum(start[:8]) == int.from_bytes(start[8:], "little")
        yield from _records(name, _blocks(file) if is_plain else _inflated(name, file), is_plain)
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}") from error


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(_BLOCK_BYTES):
        yield block


def _inflated(name: str, file: BinaryIO) -> Iterator[bytes]:
    stream, size = zlib.decompressobj(), 0
    try:
        for block in _blocks(file):
            size += len(block)
            while block and not stream.eof:
                yield stream.decompress(block, _BLOCK_BYTES)
                block = stream.unconsumed_tail
            if stream.eof and (block or stream.unused_data):
                raise SourceError(f"{name}: damaged: something follows its end")
        while size and not stream.eof and (rest := stream.decompress(stream.unconsumed_tail, _BLOCK_BYTES)):
            yield rest
    except zlib.error as error:
        raise SourceError(f"{name}: damaged ({error}); copy it again, or take an older checkpoint") from error
    if not stream.eof:
        raise SourceError(
            f"{name}: ends in the middle, after {size:,} bytes; copy it again, or take an older checkpoint"
        )


def _records(name: str, blocks: Iterator[bytes], has_sums: bool) -> Iterator[bytes]:
    waiting: list[bytes] = []
    have, needed, number = 0, 1, 0
    for block in blocks:
        waiting.append(block)
        have += len(block)
        if have < needed:
            continue
        held, start, needed = b"".join(waiting), 0, _HEAD_BYTES
        while have - start >= _HEAD_BYTES:
            (length,) = _LENGTH.unpack_from(held, start)
            if length > _MOST_BYTES:
                raise SourceError(
                    f"{name}: record {number:,} says that it has {length:,} bytes, expected at most {_MOST_BYTES:,}"
                )
            first = start + _HEAD_BYTES
            end = first + length
            if have < end + _SUM_BYTES:
                needed = end + _SUM_BYTES - start
                break
            data = held[first:end]
            start = end + _SUM_BYTES
            if has_sums and int.from_bytes(held[end:start], "little") != masked_checksum(data):
                raise SourceError(f"{name}: record {number:,} is damaged: the checksum of its data is wrong")
            yield data
            number += 1
        waiting = [held[start:]]
        have -= start
    if have:
        raise SourceError(f"{name}: its last record ends in the middle")
