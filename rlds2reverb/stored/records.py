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
_HEAD = struct.Struct("<QI")
_SUM = struct.Struct("<I")
_MOST_BYTES = 1 << 30
"""Of a record. A chunk is a few MB at most; protobuf reads no message of 2 GiB."""
_MOST_EXPANSION = 1032
"""Bytes out of one byte of a zlib stream, at most."""


def records_of(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The records of an open file, from its beginning.

    Args:
      file: read from where it stands.
      name: what messages call it.

    Raises:
      SourceError: it cannot be read, is damaged, ends in the middle, or a record is absurdly long.
    """
    try:
        start = file.read(_HEAD.size)
        file.seek(0)
        is_plain = len(start) == _HEAD.size and masked_checksum(start[:8]) == _HEAD.unpack(start)[1]
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
    held, taken, number = bytearray(), 0, 0
    for block in blocks:
        held += block
        taken += len(block)
        start = 0
        while len(held) - start >= _HEAD.size:
            length, _ = _HEAD.unpack_from(held, start)
            if length > _MOST_BYTES:
                raise SourceError(
                    f"{name}: record {number:,} says that it has {length:,} bytes, expected at most {_MOST_BYTES:,}"
                )
            end = start + _HEAD.size + length
            if len(held) < end + _SUM.size:
                break
            data = bytes(memoryview(held)[start + _HEAD.size : end])
            if has_sums and _SUM.unpack_from(held, end)[0] != masked_checksum(data):
                raise SourceError(f"{name}: record {number:,} is damaged: the checksum of its data is wrong")
            yield data
            number += 1
            start = end + _SUM.size
        del held[:start]
    if held:
        raise SourceError(f"{name}: its last record ends in the middle")
