"""The messages of a checkpoint of Reverb, and of samples as far as they tell the same.

Sources: checkpoint.proto, schema.proto and reverb_service.proto of dm-reverb 0.14. What is read later, or by numpy, stays bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from rlds2reverb.errors import SourceError
from rlds2reverb.protobuf import message_classes

_MESSAGES: dict[str, tuple[str, ...]] = {
    "RateLimiter": ("int64 insert_count = 7", "int64 delete_count = 8"),
    "Table": (
        "string table_name = 1",
        "repeated bytes items = 2",  # before items had a file of their own
        "RateLimiter rate_limiter = 3",
        "bytes signature = 9",
    ),
    "Timestamp": ("int64 seconds = 1", "int32 nanos = 2"),
    "Item": (
        "uint64 key = 1",
        "string table = 2",
        "double priority = 5",
        "int32 times_sampled = 6",
        "Timestamp inserted_at = 7",
        "bytes flat_trajectory = 8",
    ),
    "SequenceRange": ("uint64 episode_id = 1", "int32 start = 2", "int32 end = 3", "bool sparse = 4"),
    "Chunk": (
        "uint64 chunk_key = 1",
        "SequenceRange sequence_range = 2",
        "bool delta_encoded = 4",
        "bytes data = 5",
    ),
    "SampleInfo": ("Item item = 1",),
    "Entry": ("SampleInfo info = 1", "repeated Chunk data = 2", "bool end_of_sequence = 3"),
    "Samples": ("repeated Entry entries = 1",),
}

_CLASSES = message_classes("rlds2reverb.stored", _MESSAGES)


def reader_of(name: str, where: str) -> Callable[[bytes], Any]:
    """What reads messages of a kind.

    Args:
      name: "Table", "Item", "Chunk" or "Samples".
      where: they are from; begins what the reader raises, a `SourceError`.
    """
    parse = _CLASSES[name].FromString

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf without its C library
            raise SourceError(f"{where}: {len(data):,} bytes that are no {name} of Reverb's ({error})") from error

    return read
