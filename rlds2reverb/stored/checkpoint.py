"""A checkpoint's folder -> a table's snapshot, without Reverb and TensorFlow.

Sources: tfrecord_checkpointer.cc of Reverb; observed in dm-reverb 0.14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError

from rlds2reverb.episode import Notice
from rlds2reverb.errors import SourceError, WireError
from rlds2reverb.files import check_regular, read_object
from rlds2reverb.formats.tfds.tfrecord import masked_checksum
from rlds2reverb.specs import Nest
from rlds2reverb.stored import records
from rlds2reverb.stored.rows import ChunkBuilder, Chunks, Items, Snapshot, reader_of
from rlds2reverb.versions import FormatVersion
from rlds2reverb.wire.codec import decode_signature
from rlds2reverb.wire.messages import is_own
from rlds2reverb.wire.schema import message_class

_MOST_BYTES = 1 << 30  # of a record; a chunk is a few MB at most
_WAY_OUT = "copy it again, or take an older checkpoint"


def records_of(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The records of an open file, from its beginning; `name` is what messages call it.

    Raises:
      SourceError: it cannot be read, is damaged, ends in the middle, or a record is absurdly long.
    """
    try:
        file.seek(0)  # it may have been read before
        start = file.read(records.HEAD_BYTES)
        file.seek(0)
        if not start:
            raise SourceError(f"{name}: ends in the middle, after 0 bytes; {_WAY_OUT}")
        is_plain = len(start) == records.HEAD_BYTES and masked_checksum(start[:8]) == int.from_bytes(
            start[8:], "little"
        )
        blocks = iter(partial(file.read, records.BLOCK_BYTES), b"")
        yield from records.records_of(blocks if is_plain else records.inflate(blocks), _MOST_BYTES, is_plain)
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}") from error
    except records.RecordError as error:
        raise SourceError(f"{name}: {error}; {_WAY_OUT}") from error


VERSION = FormatVersion("a checkpoint", 1)
"""Of `rlds2reverb serve`, as its manifest says; 1 without a mark. Reverb's own checkpoints have no manifest."""

# | folder | what is read |
# | --- | --- |
# | with `tables.tfrecord`, `items.tfrecord`, `chunks.tfrecord` and `DONE` | it |
# | of which Reverb's checkpoints are entries | the newest with `DONE` |
# | of `rlds2reverb serve`, with `generations/` | the newest generation |

TABLES, ITEMS, CHUNKS, DONE = "tables.tfrecord", "items.tfrecord", "chunks.tfrecord", "DONE"
_GENERATIONS, _MANIFEST = "generations", "MANIFEST.json"


def find_newest(folder: Path) -> Path:
    """The checkpoint that a folder is or holds; see the table above. Raises `SourceError` if there is none, or only unfinished ones."""
    try:
        if (folder / TABLES).exists():
            if not (folder / DONE).exists():
                raise SourceError(f"{folder}: a checkpoint without {DONE}: it was not finished; take another one")
            return _checked(folder)
        inside = folder / _GENERATIONS if (folder / _GENERATIONS).is_dir() else folder
        checkpoints = sorted(path for path in inside.iterdir() if (path / TABLES).exists())
    except OSError as error:
        raise SourceError(f"{folder}: cannot be read: {error.strerror}") from error
    finished = [path for path in checkpoints if (path / DONE).exists()]
    if not finished:
        what = (
            f"{len(checkpoints)} checkpoints, none of them finished ({DONE})"
            if checkpoints
            else f"no {TABLES}, and no folder with one"
        )
        raise SourceError(f"{folder}: {what}; expected a checkpoint of Reverb, or a folder of checkpoints")
    return _checked(finished[-1])


def _checked(folder: Path) -> Path:
    """The folder, if this release reads its checkpoint; raises `SourceError` if only a newer one does."""
    path, manifest = folder / _MANIFEST, dict[str, Any]()
    with suppress(SourceError):  # Reverb's own has none, and Reverb's files are read without it
        manifest = read_object(path, "the manifest of a checkpoint")
    if VERSION.is_newer(version := manifest.get("format", 1)):
        raise SourceError(VERSION.refusal(path, version, manifest.get("program")))
    return folder


class Checkpoint:
    """The open files of a checkpoint: they can be read to their ends, even when it is deleted meanwhile. Close it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}
        with ExitStack() as stack:
            for name in (TABLES, ITEMS, CHUNKS):
                if (file := _open_file(folder / name, may_lack=name == ITEMS)) is not None:
                    self._files[name] = stack.enter_context(file)
            self._stack = stack.pop_all()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tables(self) -> dict[str, Any]:
        """Name -> message, of every table. Raises `SourceError` if they cannot be read."""
        return {table.table_name: table for table in self._read(TABLES, "Table")}

    def snapshot(self, people: str, table: str | None, notices: tuple[Notice, ...] = ()) -> Snapshot:
        """One of its tables, with everything read.

        Raises:
          SourceError: there is no such table, or a file cannot be read.
        """
        tables = self._tables_by_name
        held = {name: count for name, count in self.item_counts.items() if name == table or not is_own(name)}
        name = choose_table(people, table, held)
        message = tables[name]
        return Snapshot(
            people, name, self._signature(message), self._chunks, self._items(message, len(tables) == 1), notices
        )

    @property
    def item_counts(self) -> dict[str, int]:
        """Table -> items, of all tables, those that the server keeps for itself included."""
        limiters = {name: message.rate_limiter for name, message in self._tables_by_name.items()}
        return {name: int(limiter.insert_count - limiter.delete_count) for name, limiter in limiters.items()}

    @cached_property
    def _tables_by_name(self) -> dict[str, Any]:
        return self.tables()

    @cached_property
    def _chunks(self) -> Chunks:
        """Of all tables, laid aside once."""
        chunks = ChunkBuilder()
        for chunk in self._read(CHUNKS, "Chunk"):
            chunks.add(chunk)
        return chunks.build()

    def _items(self, table: Any, is_only: bool) -> Items:
        where = str(self.folder / (ITEMS if ITEMS in self._files else TABLES))
        items, read = Items(where), reader_of("Item", where)
        for data in self._records(ITEMS) if ITEMS in self._files else table.items:
            if is_only or read(data).table == table.table_name:
                items.add(data)
        items.close_writing()
        return items

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


def choose_table(people: str, table: str | None, held: Mapping[str, int]) -> str:
    """The name of the table to read: the given one, or that of the only table; `held` is name -> items.

    Raises:
      SourceError: there is no table of that name, or no name and several tables; the message lists them.
    """
    there = ", ".join(f"{name} ({count:,} items)" for name, count in sorted(held.items())) or "none"
    if table is None:
        if len(held) != 1:
            raise SourceError(f'"{people}": which table? There are: {there}')
        return next(iter(held))
    if table not in held:
        raise SourceError(f'"{people}": no table "{table}"; there are: {there}')
    return table


def _open_file(path: Path, may_lack: bool) -> BinaryIO | None:
    try:
        check_regular(path)
        return path.open("rb")
    except FileNotFoundError as error:
        if may_lack:
            return None
        raise SourceError(f"{path}: is missing; copy the whole checkpoint, or take another one") from error
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
