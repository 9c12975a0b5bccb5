"""The tables that `rlds2reverb serve` keeps for itself: records written to them, and all records read back.

A record is text or bytes. An item holds one or more of them, and its key follows from its name, so that writing it again adds nothing.

Reverb has no call that lists a table. So reading means sampling by chance until as many items have come as the table says that it
has; `tidy` keeps their number small, because that takes about n log n samples.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import Array
from rlds2reverb.errors import TransportError
from rlds2reverb.specs import ArraySpec
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.transport.retry import Deadlines, retry_until
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import EpisodeEncoder, Part, Request, RequestBuilder, RequestLimits, keys, seed
from rlds2reverb.wire.messages import SampleRequest, TableInfo
from rlds2reverb.wire.sample import plain

SIGNATURE = {"record": ArraySpec((None,), np.dtype(object))}
"""Of each such table: [records] text or bytes."""

MOST_ITEMS = 256
"""Items from which `tidy` joins those with few records."""

_JOINED_RECORDS, _JOINED_BYTES = 1024, 1 << 20  # about which an item is large enough to be left alone
_SEED = seed("own table")
_CHUNK_BYTES = 64 << 20  # of decoded chunks, kept while a table is read
_SURE = 20  # an item is missed after n (log n + 20) samples with a probability of 2e-9
_AT_ONCE = 4096
_BACKOFF = Deadlines(backoff_most=1.0)


def write_records(
    transport: Transport, table: str, items: Mapping[str, Sequence[bytes]], seconds: float = Deadlines.call
) -> None:
    """Stores items, name -> records, and returns when the server has confirmed them; an item of a name that is there is left as it is.

    Raises:
      TransportError: not within `seconds`.
    """
    encoder, builder, requests = EpisodeEncoder(), RequestBuilder(RequestLimits()), list[Request]()
    for name, records in items.items():
        rows = np.empty(len(records), object)
        rows[:] = records
        cut = Cut.of_columns({"record": rows}, [Window(0, len(rows))], np.zeros(1, np.int64), np.ones(1))
        requests += builder.add(encoder.encode(name, [Part((table,), _SEED, name, cut)]))
    requests += builder.flush()
    end = time.monotonic() + seconds

    def insert() -> None:
        left_seconds = max(0.0, end - time.monotonic())
        waiting = {key for request in requests for key in request.item_keys.tolist()}
        is_over = threading.Event()

        def messages() -> Iterator[bytes]:
            for request in requests:
                yield from request.messages
            is_over.wait(left_seconds)  # the end of the messages would end the stream

        stream = transport.insert_stream(messages())
        try:
            with _cancelled_after(stream, left_seconds):
                for answer in stream:
                    waiting.difference_update(codec.decode_confirmed_keys(answer).tolist())
                    if not waiting:
                        return
        finally:
            is_over.set()
            stream.end()
        raise TransportError(f'server {transport.address}, table "{table}": the stream ended early', retryable=True)

    if requests:
        retry_until(seconds, _BACKOFF, insert)


def encode_record(record: Any) -> bytes:
    """A struct or plain values as JSON, other objects as text. Text that UTF-8 cannot hold, as a file name of other bytes, gets escapes: "caf\\udce9"."""
    try:
        return msgspec.json.encode(record, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(record, enc_hook=str)))


def escape_text(text: str) -> str:
    r"""As `encode_record` writes text.

    >>> print(escape_text("caf\udce9"), escape_text("café"))
    caf\udce9 café
    """
    return text.encode("utf-8", "backslashreplace").decode()


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, dict):
        return {_writable(name): _writable(member) for name, member in value.items()}
    return list(map(_writable, value)) if isinstance(value, (list, tuple)) else value


def delete_records(transport: Transport, table: str, names: Iterable[str]) -> None:
    """Deletes items by their names; unknown ones are skipped. Raises as `Transport.delete_items`."""
    item_keys = [_key_of(table, name) for name in names]
    if item_keys:
        transport.delete_items(table, np.array(item_keys, np.uint64))


def read_records(
    transport: Transport, table: str, seconds: float = 60.0, read_before: Set[int] = frozenset()
) -> dict[int, tuple[bytes, ...]]:
    """Key -> records of every item that was there throughout; {} without such a table.

    Args:
      read_before: keys of items that the caller has read: they come with (), and are not decoded again.

    Raises:
      TransportError: the server does not answer, or not all items came within `seconds`.
    """
    end = time.monotonic() + seconds
    items, deleted = dict[int, tuple[bytes, ...]](), 0
    info = transport.server_info().own_tables.get(table)
    while info is not None and info.current_size:
        if deleted != (deleted := info.rate_limiter.inserts - info.current_size):
            items = {}  # those that are gone would count in place of others
        _sample_all(transport, info, end, items, read_before)
        info = transport.server_info().own_tables.get(table)
        # Asked after the sampling: without a deletion meanwhile, all that was sampled is there, so nothing else is.
        if info is not None and info.rate_limiter.inserts - deleted == info.current_size == len(items):
            return items
        if time.monotonic() > end:
            raise TransportError(
                f'server {transport.address}, table "{table}": not read within {seconds:g} s', retryable=True
            )
    return {}


def tidy(transport: Transport, table: str, seconds: float = 60.0) -> None:
    """Joins items with few records when there are many; records are kept, each once. Two processes that do this at once do no harm.

    An item is deleted only once another one that has its records is confirmed.

    Raises:
      TransportError: as `read_records`, or this client may not delete; all records are there.
    """
    info = transport.server_info().own_tables.get(table)
    if info is None or info.current_size < MOST_ITEMS:
        return
    # First, because whoever may not delete would add joined items to those that stay, and again each time.
    delete_records(transport, table, [""])
    items = read_records(transport, table, seconds)
    small = {key: records for key, records in sorted(items.items()) if not _is_large(records)}
    # Where a deletion failed, small items have records that a joined one has, too.
    seen = {record for records in items.values() if _is_large(records) for record in records}
    groups, group_bytes = list[list[bytes]](), 0
    for record in dict.fromkeys(record for records in small.values() for record in records if record not in seen):
        if not groups or len(groups[-1]) >= _JOINED_RECORDS or group_bytes >= _JOINED_BYTES:
            groups.append([])
            group_bytes = 0
        groups[-1].append(record)
        group_bytes += len(record)
    # Named by their content: another process may have read other items, and an item whose name is there is left as it is.
    joined = {f"joined {_digest(group)}": group for group in groups}
    write_records(transport, table, joined, seconds)
    outdated = small.keys() - {_key_of(table, name) for name in joined}
    transport.delete_items(table, np.array(sorted(outdated), np.uint64))


def _digest(records: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(b"%d %b" % (len(record), record) for record in records)).hexdigest()


def _is_large(records: Sequence[bytes]) -> bool:
    return len(records) >= _JOINED_RECORDS or sum(map(len, records)) >= _JOINED_BYTES


def _key_of(table: str, name: str) -> int:
    """The key of an item; as `wire.insert` makes it for the only item of an episode."""
    item_keys: Array = keys(seed(f"{_SEED:x}", table, name), np.zeros(1, np.int64))
    return int(item_keys[0])


def _sample_all(
    transport: Transport, table: TableInfo, end: float, items: dict[int, tuple[bytes, ...]], read_before: Set[int]
) -> None:
    """Adds samples to `items` until there are as many as the table has, or until that is improbable."""
    size = table.current_size
    most, chunks = math.ceil(size * (math.log(size) + _SURE)), plain.Chunks(_CHUNK_BYTES)
    while len(items) < size and most > 0:
        count = min(_AT_ONCE, most, 16 + 2 * size)
        most -= count
        left_seconds = max(0.1, end - time.monotonic())
        stream = transport.sample_stream(
            iter([codec.encode_sample_request(SampleRequest(table.name, count, left_seconds))])
        )
        unfinished = b""
        try:
            with _cancelled_after(stream, left_seconds):
                for message in stream:
                    samples, unfinished = plain.read(unfinished + message)
                    for sample in samples:
                        if (key := sample.info[0]) not in items:
                            items[key] = () if key in read_before else tuple(chunks.values(sample)[0].tolist())
                    count -= len(samples)
                    if count <= 0 or len(items) >= size:
                        break
        finally:
            stream.end()


@contextmanager
def _cancelled_after(stream: Stream, seconds: float) -> Iterator[None]:
    """Inside the block the stream is cancelled after so long, so that reading it raises an error."""
    timer = threading.Timer(seconds, stream.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
