"""Which episodes were pushed into a server's tables, under which keys; and which were deleted and stay out.

Both are tables that `rlds2reverb serve` keeps for itself, beside the journal:

| table | written by | read by |
| --- | --- | --- |
| `EPISODES` | pushes: pages of episodes, with what their items' keys follow from | deletes |
| `DELETED` | deletes and restores: names of episodes, and tables | every push, from all of its servers |

A name stays out by the lists of all servers together, for episodes move when a server is added, and a server may have been lost, or started
from an older checkpoint. Whoever reads the lists gives each server what it lacks.

Reverb cannot be asked which keys a table has. Keys follow from names, so a page makes them again, for more steps than there may be
items: the server passes over those that it does not have.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from cramjam import DecompressionError, snappy
from msgspec import Struct

from rlds2reverb.episode import Array, Notice, name_of_copies
from rlds2reverb.errors import TransportError, WireError
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.servers.own_tables import escape_text, read_records, tidy, write_records
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Transport
from rlds2reverb.versions import FormatVersion
from rlds2reverb.wire.insert import keys, seed
from rlds2reverb.wire.messages import DELETED, EPISODES, ServerInfo

T = TypeVar("T")

LOG = logging.getLogger("rlds2reverb.push")

VERSION = FormatVersion("a list of episodes", 1)
"""Of pages and deletions, which name no program."""

_NO_TABLES = frozenset[str]()

MOST_KEYS = 1 << 16
"""Of one call that deletes items: 0.6 MB, and a table stands still for a few milliseconds."""


class EpisodePage(Struct, frozen=True, kw_only=True, tag_field="record", tag="page"):
    """Episodes that a push has sent to the same tables, by one view and the same options.

    Attributes:
      push: id of the journal's entry.
      source: name of the push's source.
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
    format: int = VERSION.version

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
      source: its name.
      pages: their names.
    """

    push: str
    pages: tuple[str, ...]
    source: str = ""
    format: int = VERSION.version


class Deletion(Struct, frozen=True, kw_only=True):
    """Episodes that were deleted from tables, or are let in again.

    Attributes:
      entry: id of the journal's entry; the deletion has it on all servers.
      at: orders deletions; a Unix time, or a little later than the newest one before.
      names: of the episodes, each for all of its copies; see `episode.name_of_copies`.
      leaves_items: the server got it from another one's list, and may have items of the episodes until the next delete.
    """

    entry: str
    kind: Literal["delete", "restore"]
    at: float
    tables: tuple[str, ...]
    names: tuple[str, ...]
    leaves_items: bool = False
    format: int = VERSION.version


class Deletions:
    """What is deleted, after all deletions and restores.

    Args:
      deletions: in any order; those with the same entry are the same.
      notices: for the report of a push.

    Attributes:
      newest: `Deletion.at` of the newest; 0 for none.
      restores: id of a restore's entry -> names that it let in again: a ledger that had them as confirmed before is out of date.
    """

    def __init__(self, deletions: Iterable[Deletion] = (), notices: tuple[Notice, ...] = ()) -> None:
        self.notices = notices
        self.newest = 0.0
        self.restores: dict[str, tuple[str, ...]] = {}
        self._tables: dict[str, set[str]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._tables_by: dict[str, tuple[str, ...]] = {}
        for deletion in sorted(deletions, key=lambda deletion: (deletion.at, deletion.entry)):
            self.newest = deletion.at
            self._names[deletion.entry], self._tables_by[deletion.entry] = deletion.names, deletion.tables
            if deletion.kind == "restore":
                self.restores[deletion.entry] = deletion.names
            for name in deletion.names:
                if deletion.kind == "delete":
                    self._tables.setdefault(name, set()).update(deletion.tables)
                elif name in self._tables:
                    self._tables[name].difference_update(deletion.tables)
        self._count = sum(map(bool, self._tables.values()))

    def __len__(self) -> int:
        """Names that stay out of a table."""
        return self._count

    def tables_without(self, name: str) -> Set[str]:
        """The tables that an episode was deleted from, it or another copy of its content."""
        return self._tables.get(name_of_copies(name), _NO_TABLES) if self._tables else _NO_TABLES

    def names_by(self, entry: str) -> Collection[str]:
        """The episodes that a delete or restore has named, by the id of its entry in the journal."""
        return self._names.get(entry, ())

    def tables_by(self, entry: str) -> Collection[str]:
        """The tables that it has named."""
        return self._tables_by.get(entry, ())

    def names_of(self, tables: Collection[str]) -> set[str]:
        """The episodes that were deleted from one of these tables."""
        return {name for name, without in self._tables.items() if not without.isdisjoint(tables)}


def page_name(page: EpisodePage) -> str:
    """Names a page by its content, whatever push has written it."""
    content = _to_json(msgspec.structs.replace(page, push="", source=""))
    return f"page {seed(content.decode('utf-8', 'surrogatepass')):016x}"


def write_pages(
    transport: Transport,
    pages: Iterable[EpisodePage],
    seconds: float,
    whole: PushPages | None = None,
) -> list[str]:
    """Writes pages; one that is there stays as it is. Returns their names; raises as `own_tables.write_records`.

    Args:
      whole: the push, or the task of one, that ends with these pages, with the pages that it has written before; None if more are to come.
    """
    items = {page_name(page): [_encode(page)] for page in pages}
    names = [*items]
    if whole is not None and (all_names := (*whole.pages, *names)):
        record = msgspec.structs.replace(whole, pages=all_names)
        items[f"push {whole.push} {seed(*all_names):016x}"] = [_encode(record)]
    write_records(transport, EPISODES, items, seconds)
    return names


def tidy_pages(transport: Transport, seconds: float) -> None:
    """Joins pages when there are many small ones; raises as `own_tables.tidy`."""
    tidy(transport, EPISODES, seconds)


def read_pages(transport: Transport, seconds: float) -> tuple[list[EpisodePage], list[PushPages]]:
    """All pages of a server, and which of them each push consists of.

    Raises:
      TransportError: the server does not answer, or not all pages came in time.
      WireError: one is of a newer format, or none.
    """
    return decode_pages(_records(transport, EPISODES, seconds), f"server {transport.address}: its list of episodes")


def decode_pages(records: Iterable[bytes], where: str) -> tuple[list[EpisodePage], list[PushPages]]:
    """The pages, and which of them each push consists of; raises `WireError`, which begins with `where`, as `read_pages`."""
    pages, pushes = list[EpisodePage](), list[PushPages]()
    for record in records:
        read: EpisodePage | PushPages = _decode(record, EpisodePage | PushPages, where)
        if isinstance(read, PushPages):
            pushes.append(read)
        else:
            pages.append(read)
    return pages, pushes


def write_deletions(transport: Transport, deletions: Iterable[Deletion], seconds: float) -> None:
    """Writes deletions and restores; raises as `own_tables.write_records`."""
    items = {
        f"{deletion.entry} copied" if deletion.leaves_items else deletion.entry: [_encode(deletion)]
        for deletion in deletions
    }
    write_records(transport, DELETED, items, seconds)


def tidy_deletions(transport: Transport, seconds: float) -> None:
    """Joins deletions when there are many; raises as `own_tables.tidy`."""
    tidy(transport, DELETED, seconds)


def read_deletions(transport: Transport, seconds: float) -> list[Deletion]:
    """The deletions and restores that a server has, in no order; raises as `read_pages`."""
    return decode_deletions(
        _records(transport, DELETED, seconds), f"server {transport.address}: its list of deleted episodes"
    )


def decode_deletions(records: Iterable[bytes], where: str) -> list[Deletion]:
    """The deletions and restores, in their order; raises `WireError`, which begins with `where`, as `read_pages`."""
    return [_decode(record, Deletion, where) for record in records]


def find_lacking(lists: Mapping[T, Iterable[Deletion]]) -> dict[T, list[Deletion]]:
    """Server -> deletions that it has not done itself: its list lacks them and another one has them, or got them from another one."""
    entries = {
        server: {deletion.entry for deletion in deletions if not deletion.leaves_items}
        for server, deletions in lists.items()
    }
    joined = {
        deletion.entry: msgspec.structs.replace(deletion, leaves_items=False)
        for deletions in lists.values()
        for deletion in deletions
    }
    return {server: [joined[entry] for entry in joined.keys() - own] for server, own in entries.items()}


def find_missed(info: ServerInfo, lacking: Iterable[Deletion], deletions: Deletions) -> dict[str, set[str]]:
    """Table with items -> episodes that a server may still have there, although they are deleted.

    Args:
      lacking: of the server; see `find_lacking`.
      deletions: those of all servers.
    """
    missed: dict[str, set[str]] = {}
    for deletion in lacking:
        if deletion.kind == "delete":
            for table in filter(partial(_has_items, info), deletion.tables):
                names = {name for name in deletion.names if table in deletions.tables_without(name)}
                missed.setdefault(table, set()).update(names)
    return {table: names for table, names in missed.items() if names}


def _has_items(info: ServerInfo, table: str) -> bool:
    return table in info.tables and info.tables[table].current_size > 0


def gather_deletions(servers: Servers, infos: Mapping[str, ServerInfo], seconds: float) -> Deletions:
    """What stays out of the servers of a push, by all of their lists; a server gets what its list lacks.

    Args:
      infos: address -> answer, just before.

    Raises:
      TransportError: a list cannot be read, and the push cannot continue without the server.
      WireError: as `read_pages`.
    """
    lists: dict[Server, list[Deletion]] = {}
    listing = [
        server for server in servers.there if server.address in infos and DELETED in infos[server.address].own_tables
    ]
    # Asked anew, since a list may have been empty when the push was planned.
    answers: list[Callable[[], list[Deletion]]]
    answers = [partial(read_deletions, server.transport, seconds) for server in listing]
    with ExitStack() as stack:
        if len(listing) > 1:
            threads = stack.enter_context(ThreadPoolExecutor(len(listing), "rlds2reverb-ask"))
            answers = [threads.submit(answer).result for answer in answers]
        for server, answer in zip(listing, answers):
            with servers.about(server):
                lists[server] = answer()
    notices = list[Notice]()
    gathered = Deletions(deletion for deletions in lists.values() for deletion in deletions)
    for server, lacking in find_lacking(lists).items():
        info, entries = infos[server.address], {deletion.entry for deletion in lists[server]}
        notices += _notices_of_missed(info, server, lacking, gathered)
        copies = [
            msgspec.structs.replace(
                deletion,
                leaves_items=deletion.kind == "delete" and any(map(partial(_has_items, info), deletion.tables)),
            )
            for deletion in lacking
            if deletion.entry not in entries
        ]
        if not copies:
            continue
        try:
            write_deletions(server.transport, copies, seconds)
        except TransportError as error:  # this push knows them all the same, and the next one tries again
            LOG.warning(
                "server %s: its list of deleted episodes lacks some of another server: %s", server.address, error
            )
    gathered.notices = tuple(notices)
    return gathered


def _notices_of_missed(
    info: ServerInfo, server: Server, lacking: Sequence[Deletion], deletions: Deletions
) -> Iterator[Notice]:
    """That a server may have items of episodes that were deleted from another one."""
    missed = find_missed(info, lacking, deletions)
    if missed:
        names = set[str]().union(*missed.values())
        # It must change nothing else: a delete of which episodes were let in again would delete those once more.
        undone = (
            deletion.entry
            for deletion in sorted(lacking, key=lambda deletion: deletion.at)
            if deletion.kind == "delete"
            and not names.isdisjoint(deletion.names)
            and all(deletions.tables_without(name) >= set(deletion.tables) for name in deletion.names)
        )
        if entry := next(undone, ""):
            again = f"--push {entry}"
        else:
            table = min(missed)
            again = f"--episode {shlex.quote(escape_text(min(missed[table])))} --table {shlex.quote(table)}"
        text = (
            f"server {server.address} lacked deletes of {counted(len(names), 'episode')}, which other servers have: it was missing then, or "
            "started from an older checkpoint. The episodes stay out; what it has of them goes with the next delete, of whatever episodes. This one "
            f"deletes nothing else: rlds2reverb delete {again}"
        )
        yield Notice("deletes_missed", text, len(names))


def _records(transport: Transport, table: str, seconds: float) -> Iterator[bytes]:
    for records in read_records(transport, table, seconds).values():
        yield from records


def _encode(record: Struct) -> bytes:
    # Snappy: zlib would take half as much room, and five times as long as all else that a page costs.
    return bytes(snappy.compress_raw(_to_json(record)))


def _to_json(record: Struct) -> bytes:
    """JSON of the very names: text that UTF-8 cannot hold is in it all the same, as Python writes it, for keys follow from names."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(record), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _from_json(text: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except UnicodeDecodeError:
        return msgspec.convert(json.loads(text.decode("utf-8", "surrogatepass")), kind)


class _Head(Struct):
    """What the records of all versions have."""

    format: Any


def _decode(record: bytes, kind: Any, where: str) -> Any:
    try:
        text = bytes(snappy.decompress_raw(record))
        if refusal := VERSION.refusal(where, msgspec.json.decode(text, type=_Head).format):
            raise WireError(refusal)
        return _from_json(text, kind)
    except (
        DecompressionError,
        msgspec.DecodeError,
        ValueError,
        RecursionError,
    ) as error:  # no value, JSON or UTF-8, or too deep
        raise WireError(f"{where}: {len(record)} bytes that are no record ({error})") from error
