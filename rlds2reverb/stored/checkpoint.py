"""A checkpoint's folder -> a table's snapshot, without Reverb and TensorFlow. Its files are TFRecords in one zlib stream, or, from old versions of Reverb, as they are.

A zlib stream ends in a checksum of all of it, which is verified: whoever has read the last record knows that all were whole. In files
without zlib the records' own checksums are. What a length says is compared with the file before memory is asked for.
Sources: record_reader.cc of TensorFlow 2.15, tfrecord_checkpointer.cc of Reverb; observed in dm-reverb 0.14.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError

from rlds2reverb.episode import Notice
from rlds2reverb.errors import SourceError, WireError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.tfds.records import masked_checksum
from rlds2reverb.specs import Nest
from rlds2reverb.stored.rows import ChunkBuilder, Items, Snapshot, reader_of
from rlds2reverb.wire.schema import message_class
from rlds2reverb.wire.signature import decode_signature

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


# A checkpoint's folder -> a table's snapshot. Needs neither Reverb nor TensorFlow.
#
# | folder | what is read |
# | --- | --- |
# | with `tables.tfrecord`, `items.tfrecord`, `chunks.tfrecord` and `DONE` | it |
# | of which Reverb's checkpoints are entries | the newest with `DONE` |
# | of `rlds2reverb serve`, with `generations/` | the newest generation |

TABLES, ITEMS, CHUNKS, DONE = "tables.tfrecord", "items.tfrecord", "chunks.tfrecord", "DONE"
_GENERATIONS = "generations"


def newest_in(folder: Path) -> Path:
    """The checkpoint that a folder is or holds; see the module's table.

    Raises:
      SourceError: there is none, or only unfinished ones.
    """
    try:
        if (folder / TABLES).exists():
            if not (folder / DONE).exists():
                raise SourceError(f"{folder}: a checkpoint without {DONE}: it was not finished; take another one")
            return folder
        inside = folder / _GENERATIONS if (folder / _GENERATIONS).is_dir() else folder
        found = sorted(path for path in inside.iterdir() if (path / TABLES).exists())
    except OSError as error:
        raise SourceError(f"{folder}: cannot be read: {error.strerror}") from error
    finished = [path for path in found if (path / DONE).exists()]
    if not finished:
        what = (
            f"{len(found)} checkpoints, none of them finished ({DONE})"
            if found
            else f"no {TABLES}, and no folder with one"
        )
        raise SourceError(f"{folder}: {what}; expected a checkpoint of Reverb, or a folder of checkpoints")
    return finished[-1]


class Checkpoint:
    """The open files of a checkpoint: they can be read to their ends, even when it is deleted meanwhile. Close it.

    Args:
      folder: which.

    Raises:
      SourceError: a file is missing or cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}
        with ExitStack() as stack:
            for name in (TABLES, ITEMS, CHUNKS):
                if (file := _opened(folder / name, may_lack=name == ITEMS)) is not None:
                    self._files[name] = stack.enter_context(file)
            self._stack = stack.pop_all()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tables(self) -> dict[str, Any]:
        """Name -> message, of every table.

        Raises:
          SourceError: they cannot be read.
        """
        return {table.table_name: table for table in self._read(TABLES, "Table")}

    def snapshot(self, people: str, table: str | None, notices: tuple[Notice, ...] = ()) -> Snapshot:
        """One of its tables, with everything read.

        Args:
          people: what messages call the source.
          table: its name; may be None where there is only one.
          notices: how the checkpoint came about.

        Raises:
          SourceError: there is no such table, or a file cannot be read.
        """
        tables = self.tables()
        name = table_named(people, table, {one: _held(found) for one, found in tables.items()})
        found = tables[name]
        chunks = ChunkBuilder()
        for chunk in self._read(CHUNKS, "Chunk"):
            chunks.add(chunk)
        return Snapshot(
            people, name, self._signature(found), chunks.built(), self._items(found, len(tables) == 1), notices
        )

    def _items(self, table: Any, is_only: bool) -> Items:
        where = str(self.folder / (ITEMS if ITEMS in self._files else TABLES))
        kept, read = Items(where), reader_of("Item", where)
        for data in self._records(ITEMS) if ITEMS in self._files else table.items:
            if is_only or read(data).table == table.table_name:
                kept.add(data)
        kept.close_writing()
        return kept

    def _read(self, name: str, kind: str) -> Iterator[Any]:
        return map(reader_of(kind, str(self.folder / name)), self._records(name))

    def _records(self, name: str) -> Iterator[bytes]:
        return records_of(self._files[name], str(self.folder / name))

    def _signature(self, table: Any) -> Nest | None:
        if not table.signature:
            return None
        try:
            return decode_signature(message_class("StructuredValue").FromString(table.signature))
        except (DecodeError, UnicodeDecodeError, WireError) as error:
            raise SourceError(f'{self.folder / TABLES}: signature of table "{table.table_name}": {error}') from error


def table_named(people: str, table: str | None, held: Mapping[str, int]) -> str:
    """The table that is meant.

    Args:
      people: what messages call the source.
      table: its name; None for the only one.
      held: name -> items, of all tables.

    Raises:
      SourceError: there is none of that name, or several; says which there are.
    """
    there = ", ".join(f"{name} ({count:,} items)" for name, count in sorted(held.items())) or "none"
    if table is None:
        if len(held) != 1:
            raise SourceError(f'"{people}": which table? There are: {there}')
        return next(iter(held))
    if table not in held:
        raise SourceError(f'"{people}": no table "{table}"; there are: {there}')
    return table


def _held(table: Any) -> int:
    return int(table.rate_limiter.insert_count - table.rate_limiter.delete_count)


def _opened(path: Path, may_lack: bool) -> BinaryIO | None:
    try:
        check_regular(path)
        return path.open("rb")
    except FileNotFoundError as error:
        if may_lack:
            return None
        raise SourceError(f"{path}: is missing; copy the whole checkpoint, or take another one") from error
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
