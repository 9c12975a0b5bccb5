"""The files of Reverb's checkpoints: TFRecords in one zlib stream, or, from old versions, as they are.

A record is its length (8 bytes, little-endian), a checksum of that (4), the data, and a checksum of it (4). A zlib stream ends in a
checksum of all of it, which is verified when the last record is read, so the records' own checksums need no check.
Sources: record_reader.cc and record_writer.cc of TensorFlow 2.15; observed in dm-reverb 0.14.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.formats.tfds.tfrecord import frame, masked_checksum

BLOCK_BYTES = 1 << 20
HEAD_BYTES, _SUM_BYTES = 12, 4


class RecordError(Rlds2ReverbError):
    """A stream is not one of TFRecords: damaged, or it ends in the middle."""


def inflate(compressed: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a compressed stream, in blocks; none for an empty stream.

    Raises:
      RecordError: the stream is damaged, or ends in the middle.
    """
    stream, size = zlib.decompressobj(), 0
    try:
        for block in compressed:
            size += len(block)
            while block and not stream.eof:
                yield stream.decompress(block, BLOCK_BYTES)
                block = stream.unconsumed_tail
            if stream.eof and (block or stream.unused_data):
                raise RecordError("damaged: something follows its end")
        while size and not stream.eof and (rest := stream.decompress(stream.unconsumed_tail, BLOCK_BYTES)):
            yield rest
    except zlib.error as error:
        raise RecordError(f"damaged ({error})") from error
    if size and not stream.eof:
        raise RecordError(f"ends in the middle, after {size:,} bytes")


def deflate(records: Iterable[bytes]) -> Iterator[bytes]:
    """The compressed stream of some records, in blocks: what `inflate` and `records_of` read."""
    stream = zlib.compressobj()
    for record in records:
        before, after = frame(record)
        yield stream.compress(before + record + after)
    yield stream.flush()


def records_of(blocks: Iterable[bytes], most_bytes: int, has_sums: bool = False) -> Iterator[bytes]:
    """The records in the bytes of a stream.

    Args:
      most_bytes: of a record; a longer one counts as damage, before memory is allocated for it.
      has_sums: verify the checksum of each record's data.

    Raises:
      RecordError: a record is damaged or absurdly long, or the stream ends in the middle of one.
    """
    waiting: list[bytes] = []
    have, needed, number = 0, 1, 0
    for block in blocks:
        waiting.append(block)
        have += len(block)
        if have < needed:
            continue
        held, start, needed = b"".join(waiting), 0, HEAD_BYTES
        while have - start >= HEAD_BYTES:
            length = int.from_bytes(held[start : start + 8], "little")
            if length > most_bytes:
                raise RecordError(
                    f"record {number:,} says that it has {length:,} bytes, expected at most {most_bytes:,}"
                )
            first = start + HEAD_BYTES
            end = first + length
            if have < end + _SUM_BYTES:
                needed = end + _SUM_BYTES - start
                break
            data = held[first:end]
            start = end + _SUM_BYTES
            if has_sums and int.from_bytes(held[end:start], "little") != masked_checksum(data):
                raise RecordError(f"record {number:,} is damaged: the checksum of its data is wrong")
            yield data
            number += 1
        waiting = [held[start:]]
        have -= start
    if have:
        raise RecordError("its last record ends in the middle")
