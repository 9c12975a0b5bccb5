"""Which episodes were pushed into a server's tables, under which keys; and which were deleted and stay out.

Both are tables that `rlds2reverb serve` keeps for itself, beside the journal:

| table | written by | read by |
| --- | --- | --- |
| `EPISODES` | pushes: pages of episodes, with what their items' keys follow from | deletes |
| `DELETED` | deletes and restores: names of episodes, and tables | every push into a server where it is not empty |

Reverb cannot be asked which keys a table has. Keys follow from names, so a page makes them again, for more steps than there may be
items: the server passes over those that it does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from cramjam import DecompressionError, snappy
from msgspec import Struct

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.servers.own_tables import read_records, tidy, write_records
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.insert import keys, seed
from rlds2reverb.wire.messages import DELETED, EPISODES

FORMAT = 1
"""Of pages and deletions. A newer one is refused."""

MOST_KEYS = 1 << 16
"""Of one call that deletes items: 0.6 MB, and a table stands still for a few milliseconds."""


class EpisodePage(Struct, frozen=True, kw_only=True, tag_field="record", tag="page"):
    """Episodes that a push has sent to the same tables, by one view and the same options.

    Attributes:
      push: id of the journal's entry.
      source: the dataset, without what chose episodes of it.
      tables: that got items of each.
      push_seed: number that the keys of their items follow from.
      is_of_stream: their items depend on the episodes before.
      names: of the episodes.
      key_names: what names them in keys; () where that is their names.
      starts, stops: steps of their items are in [start, stop).
      items: of each, per table.
    """

    push: str
    source: str
    tables: tuple[str, ...]
    push_seed: int
    is_of_stream: bool
    names: tuple[str, ...]
    key_names: tuple[str, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    items: tuple[int, ...]
    format: int = FORMAT

    def select(self, places: Sequence[int]) -> EpisodePage:
        """The page of the episodes at these places."""
        chosen = {name: tuple(getattr(self, name)[place] for place in places) for name in _COLUMNS}
        key_names = tuple(self.key_names[place] for place in places) if self.key_names else ()
        return msgspec.structs.replace(self, **chosen, key_names=key_names)

    def keys_in(self, table: str) -> Array:
        """[n] uint64 keys that items of the episodes in a table may have."""
        starts, counts = (
            np.array(self.starts, np.int64),
            np.array(self.stops, np.int64) - np.array(self.starts, np.int64),
        )
        seeds = [seed(f"{self.push_seed:x}", table, name) for name in self.key_names or self.names]
        steps = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        item_keys: Array = keys(np.repeat(np.array(seeds, np.uint64), counts), steps)
        return item_keys


_COLUMNS = ("names", "starts", "stops", "items")


class PushPages(Struct, frozen=True, kw_only=True, tag_field="record", tag="push"):
    """The pages of a push, those included that an earlier push had written.

    Attributes:
      push: id of the journal's entry.
      pages: their names.
    """

    push: str
    pages: tuple[str, ...]
    format: int = FORMAT


class Deletion(Struct, frozen=True, kw_only=True):
    """Episodes that were deleted from tables, or are let in again.

    Attributes:
      entry: id of the journal's entry.
      at: orders deletions of a server; a Unix time, or a little later than the newest one before.
      names: of the episodes.
    """

    entry: str
    kind: Literal["delete", "restore"]
    at: float
    tables: tuple[str, ...]
    names: tuple[str, ...]
    format: int = FORMAT


class Deletions:
    """What is deleted from a server, after all its deletions and restores.

    Attributes:
      restored: names of episodes that were let in again: a ledger that has them as confirmed is out of date.
    """

    def __init__(self, deletions: Iterable[Deletion] = ()) -> None:
        self.restored: set[str] = set()
        self.newest = 0.0
        self._tables: dict[str, set[str]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for deletion in sorted(deletions, key=lambda deletion: (deletion.at, deletion.entry)):
            self.newest = deletion.at
            self._names[deletion.entry] = deletion.names
            for name in deletion.names:
                if deletion.kind == "delete":
                    self._tables.setdefault(name, set()).update(deletion.tables)
                elif name in self._tables:
                    self._tables[name].difference_update(deletion.tables)
                    self.restored.add(name)

    def __len__(self) -> int:
        return sum(map(bool, self._tables.values()))

    def tables_without(self, name: str) -> Collection[str]:
        """The tables that an episode was deleted from."""
        return self._tables.get(name, ())

    def names_by(self, entry: str) -> Collection[str]:
        """The episodes that a delete or restore has named, by the id of its entry in the journal."""
        return self._names.get(entry, ())

    def names_of(self, tables: Collection[str]) -> set[str]:
        """The episodes that were deleted from one of these tables."""
        return {name for name, without in self._tables.items() if not without.isdisjoint(tables)}


def page_name(page: EpisodePage) -> str:
    """Names a page by its content, whatever push has written it."""
    content = msgspec.json.encode(msgspec.structs.replace(page, push="", source=""))
    return f"page {seed(content.decode()):016x}"


def write_pages(
    transport: Transport, pages: Iterable[EpisodePage], seconds: float, push: str = "", earlier: Collection[str] = ()
) -> list[str]:
    """Writes pages; one that is there stays as it is. Returns their names; raises as `own_tables.write_records`.

    Args:
      push: the push, or the task of one, that ends with these pages; "" if more are to come.
      earlier: names of those that it has written before.
    """
    items = {page_name(page): [_encode(page)] for page in pages}
    names = [*items]
    if push and (all_names := (*earlier, *names)):
        items[f"push {push} {seed(*all_names):016x}"] = [_encode(PushPages(push=push, pages=all_names))]
    write_records(transport, EPISODES, items, seconds)
    return names


def tidy_pages(transport: Transport, seconds: float) -> None:
    """Joins pages when there are many small ones; raises as `own_tables.tidy`."""
    tidy(transport, EPISODES, seconds)


def read_pages(transport: Transport, seconds: float) -> tuple[list[EpisodePage], dict[str, set[str]]]:
    """All pages of a server, and push -> names of its pages.

    Raises:
      TransportError: the server does not answer, or not all pages came in time.
      WireError: one is of a newer format, or none.
    """
    pages, of_push = list[EpisodePage](), dict[str, set[str]]()
    for record in _records(transport, EPISODES, seconds):
        read: EpisodePage | PushPages = _decode(
            record, EpisodePage | PushPages, f"server {transport.address}: its list of episodes"
        )
        if isinstance(read, PushPages):
            of_push.setdefault(read.push, set()).update(read.pages)
        else:
            pages.append(read)
    return pages, of_push


def write_deletion(transport: Transport, deletion: Deletion, seconds: float) -> None:
    """Writes a deletion, or a restore; raises as `own_tables.write_records`."""
    write_records(transport, DELETED, {deletion.entry: [_encode(deletion)]}, seconds)
    tidy(transport, DELETED, seconds)


def read_deletions(transport: Transport, seconds: float) -> Deletions:
    """What is deleted from a server; raises as `read_pages`."""
    where = f"server {transport.address}: its list of deleted episodes"
    return Deletions(_decode(record, Deletion, where) for record in _records(transport, DELETED, seconds))


def _records(transport: Transport, table: str, seconds: float) -> Iterator[bytes]:
    for records in read_records(transport, table, seconds).values():
        yield from records


def _encode(record: Struct) -> bytes:
    # Snappy: zlib would take half as much room, and five times as long as all else that a page costs.
    return bytes(snappy.compress_raw(msgspec.json.encode(record)))


class _Format(Struct):
    format: int


def _decode(record: bytes, kind: Any, where: str) -> Any:
    try:
        text = bytes(snappy.decompress_raw(record))
        written = msgspec.json.decode(text, type=_Format).format
        if written > FORMAT:
            raise WireError(
                f"{where} has records of format {written}, of a newer rlds2reverb; this one reads format {FORMAT}: use the newer one"
            )
        return msgspec.json.decode(text, type=kind)
    except (DecompressionError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"{where}: {len(record)} bytes that are no record ({error})") from error
