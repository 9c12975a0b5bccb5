"""Checkpoints without a server: what a push sends, written as Reverb writes it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlds2reverb.formats.tfds.tfrecord import masked_checksum
from rlds2reverb.protobuf import message_classes
from rlds2reverb.push.run import Push
from rlds2reverb.specs import Nest
from rlds2reverb.testing import MemoryServer, MemoryTransport
from rlds2reverb.wire.codec import encode_signature
from tests.support.push import in_memory

MESSAGES = message_classes(
    "tests.stored",
    {
        "Request": ("repeated bytes chunks = 1", "repeated bytes items = 2"),
        "Key": ("uint64 key = 1",),
        "Timestamp": ("int64 seconds = 1", "int32 nanos = 2"),
        "Item": ("Timestamp inserted_at = 7",),
        "Limiter": ("int64 insert_count = 7", "int64 delete_count = 8"),
        "Table": (
            "string table_name = 1",
            "repeated bytes items = 2",
            "Limiter rate_limiter = 3",
            "bytes signature = 9",
        ),
    },
)


@dataclass
class Sent:
    """Chunks and items by key, as bytes."""

    chunks: dict[int, bytes] = field(default_factory=dict)
    items: dict[int, bytes] = field(default_factory=dict)


class Listening(MemoryTransport):
    """A way to a server in memory that notes what is inserted.

    Attributes:
      sent: what came; items with the number of their coming as the time.
    """

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.sent = Sent()

    def insert_stream(self, messages: Iterator[bytes]) -> Any:
        return super().insert_stream(self._noted(messages))

    def _noted(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        for message in messages:
            request = MESSAGES["Request"].FromString(message)
            for chunk in request.chunks:
                self.sent.chunks.setdefault(MESSAGES["Key"].FromString(chunk).key, chunk)
            for item in request.items:
                at = MESSAGES["Item"](inserted_at={"seconds": 1, "nanos": len(self.sent.items)}).SerializeToString()
                self.sent.items[MESSAGES["Key"].FromString(item).key] = item + at
            yield message


def pushed(source: Any, view: Any, table: str = "replay", signature: Nest | None = None, **options: Any) -> Sent:
    """What a push of episodes sends."""
    server = in_memory.Server({table: in_memory.table_info(table, signature=signature)})
    transport = Listening(server)
    plan = in_memory.planned(server, source, (table,), view, **options)
    Push({transport.address: transport}, plan).run()
    return transport.sent


def write_stored(
    folder: Path,
    found: Sent,
    signatures: Mapping[str, Nest | None],
    without: Collection[int] = (),
    change: Callable[[list[bytes]], Iterable[bytes]] = list,
) -> Path:
    """A checkpoint of what was pushed; items with the keys of `without` are left out."""
    items = [item for key, item in found.items.items() if key not in without]
    tables = [
        MESSAGES["Table"](
            table_name=name,
            rate_limiter={"insert_count": len(items)},
            signature=b"" if signature is None else encode_signature(signature).SerializeToString(),
        ).SerializeToString()
        for name, signature in signatures.items()
    ]
    return write_checkpoint(folder, tables, change(items), found.chunks.values())


def write_checkpoint(
    folder: Path, tables: Iterable[bytes], items: Iterable[bytes], chunks: Iterable[bytes], is_plain: bool = False
) -> Path:
    """A finished checkpoint of these messages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("tables", tables), ("items", items), ("chunks", chunks)):
        data = b"".join(map(framed, records))
        (folder / f"{name}.tfrecord").write_bytes(data if is_plain else zlib.compress(data))
    (folder / "DONE").touch()
    return folder


def framed(record: bytes) -> bytes:
    head = struct.pack("<Q", len(record))
    sums = (struct.pack("<I", masked_checksum(data)) for data in (head, record))
    return head + next(sums) + record + next(sums)
