"""Deletes episodes from the tables of servers, by what pushes have listed there, and lets them in again.

On each server: an entry in the journal, then the names into the list of deleted episodes, then the items; at the end a checkpoint. So a
delete that is killed has either done nothing, or has named all episodes that no push brings back any more; run again, it deletes the rest.

A name is that of all copies of a content, and of whatever push or dataset brings it: which episodes are chosen is found by names, pushes or
datasets, and what goes then is everything under these names.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
import numpy as np

from rlds2reverb.episode import CONTENT, Array, name_of_copies
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, ServerUnreachable, reason_of
from rlds2reverb.plain import members, printed
from rlds2reverb.push.keys import EpisodeNames, dataset_name
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.servers.episodes import (
    MOST_KEYS,
    Deletion,
    Deletions,
    EpisodePage,
    PushPages,
    find_lacking,
    find_missed,
    page_name,
    read_deletions,
    read_pages,
    tidy_deletions,
    write_deletions,
)
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.servers.journal import JournalEntry, new_entry, process_text, read_journal, tidy_journal, write_entry
from rlds2reverb.servers.own_tables import escape_text
from rlds2reverb.servers.tables import table_of
from rlds2reverb.text import counted
from rlds2reverb.wire.messages import DELETED, EPISODES, ServerInfo

LOG = logging.getLogger("rlds2reverb.push")

_SECONDS = 300.0
"""For each reading and writing of a server's own tables, which wait while it writes a checkpoint."""

_CHECKPOINT_SECONDS = 600.0

_DIGEST = re.compile(r"[\da-f]{32}(?![^\[|#])", re.ASCII)
"""Begins the name of a content where its prefix was left out."""

_MOST_WORDS = 20  # names in an entry of the journal


@printed("*")
@dataclass(frozen=True)
class DeleteReport:
    """What a delete has done, or would do.

    Attributes:
      episodes: names that were chosen, each once, whatever number of copies it has.
      items: table -> items deleted, by the sizes of the tables; in a dry run those that pushes have stored, some of which may be gone. With those
        of other episodes whose delete a server had missed. Of a restore 0, but for the latter: the same push brings its items back.
      names: of the episodes, in alphabetical order.
      unknown: those of them that were asked for by name or by a source, and that no push has listed as stored. They stay out all the same. () while
        a server is missing, which may have them.
      missing: address -> why a server is missing. It is left as it is: it keeps the items until the delete is run again, and what only it lists of
        a push or dataset is not deleted. Pushes to it together with another one of these servers leave the episodes out, and tell it.
      unsaved: address -> why a server has written no checkpoint at the end: after a crash the episodes are as before the delete, unless a later
        checkpoint was written.
      entry: id of the journal's entry, by which the delete is run again or let in again; "" in a dry run.
      dry_run: nothing was changed.
      restored: the episodes were let in again.
    """

    episodes: int
    items: Mapping[str, int]
    names: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    unsaved: Mapping[str, str] = field(default_factory=dict)
    entry: str = ""
    dry_run: bool = False
    restored: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return members(self)


@dataclass(frozen=True)
class EpisodeChoice:
    """Which episodes a delete is about: those of which all that is given holds.

    Attributes:
      names: their names; None for any.
      pushes: ids of entries of the journal: of pushes, and of deletes and restores.
      dataset: the source of their pushes, as the journal has it, or the dataset that it is a part of; None for any.
      tables: those that they leave; () for all, or for those of the deletes where `pushes` has deletes and restores alone.
      words: what was asked for, for the journal; "dataset" is what it was about.
      names_in_source: of all episodes of a source; None without one.
    """

    names: Collection[str] | None = None
    pushes: Sequence[str] = ()
    dataset: str | None = None
    tables: Sequence[str] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    names_in_source: Collection[str] | None = None

    def __post_init__(self) -> None:
        for option, texts in (
            ("--episode", self.names or ()),
            ("--push", self.pushes),
            ("--dataset", () if self.dataset is None else (self.dataset,)),
        ):
            if "" in texts:
                raise ConfigError(
                    f'delete: {option} "": expected a name; a variable of the shell that is not set gives none'
                )
        if self.names is None and self.names_in_source is None and not self.pushes and not self.dataset:
            raise ConfigError(
                "delete: which episodes? Give a source, names of episodes (--episode), pushes (--push), or the dataset of pushes (--dataset); "
                "client.reset(table) empties a table"
            )


@dataclass(frozen=True)
class _ServerList:
    """What one server lists.

    Attributes:
      tables: those that the choice is about.
      pages: with episodes in these tables.
    """

    info: ServerInfo
    tables: tuple[str, ...]
    pages: Sequence[EpisodePage]
    pushes: Sequence[PushPages]
    deletions: Sequence[Deletion]

    def within(self, tables: Collection[str]) -> _ServerList:
        """About no other tables than these."""
        pages = [page for page in self.pages if not set(tables).isdisjoint(page.tables)]
        return replace(self, tables=tuple(table for table in self.tables if table in tables), pages=pages)

    def named(self, names: Collection[str]) -> _ServerList:
        """The pages of these episodes alone, all copies included, whatever push has stored them."""
        selected = []
        for page in self.pages:
            places = [place for place, name in enumerate(page.names) if name_of_copies(name) in names]
            if places:
                selected.append(page.select(places))
        return replace(self, pages=selected)

    def names(self) -> set[str]:
        return {name_of_copies(name) for page in self.pages for name in page.names}

    def pages_of(self, choice: EpisodeChoice) -> Iterable[EpisodePage]:
        """The pages of the pushes, and of the dataset, that a choice names."""
        dataset = choice.dataset or ""
        # A page that an earlier push has written is of that one, and stands in the list of each later one.
        by_push = {name for push in self.pushes if push.push in choice.pushes for name in push.pages}
        by_dataset = {name for push in self.pushes if _is_part(push.source, dataset) for name in push.pages}
        for page in self.pages:
            name = page_name(page) if by_push or by_dataset else ""
            is_of_push = not choice.pushes or page.push in choice.pushes or name in by_push
            if is_of_push and (not dataset or _is_part(page.source, dataset) or name in by_dataset):
                yield page


def _is_part(source: str, dataset: str) -> bool:
    """Whether a source is this dataset, or some of its episodes.

    >>> [_is_part("tfds:arm@train[:9], first 5", name) for name in ("tfds:arm", "tfds:arm@train[:9]", "tfds:arm@train[:9], first 5", "tfds:a")]
    [True, True, True, False]
    """
    split = dataset_name(source)
    whole, _, chosen = split.rpartition("@")
    names = (source, split, split if "/" in chosen else whole)
    return dataset in names or dataset in map(escape_text, names)  # the latter as the journal has it


def names_of(plan: PushPlan) -> set[str]:
    """The names of all episodes that a push would read; reads them."""
    return {episode.id for episode in EpisodeNames(lambda _: False, plan).read(plan.source)}


def delete_episodes(
    servers: Servers,
    choice: EpisodeChoice,
    dry_run: bool = False,
    restore: bool = False,
    note: str = "",
    checkpoint: bool = True,
) -> DeleteReport:
    """Deletes episodes from all servers, or lets them in again.

    Args:
      checkpoint: have the servers write one at the end, so that a crash brings nothing back. That it fails is no error: the report says so.

    Raises:
      ConfigError: a server keeps no list of episodes, a table or push is not there, or nothing was chosen.
      TransportError: a server does not answer. Nothing was done if that is so at the beginning; later, it is done on the others, and running
        it again does the rest.
      WireError: a list was written by a newer version.
    """
    servers.infos()  # a server that was missing may be back
    wholes = servers.each(lambda server: _read_list(server, choice.tables))
    lists = {server: whole.within(choice.tables or whole.tables) for server, whole in wholes.items()}
    deletions = Deletions(deletion for own in lists.values() for deletion in own.deletions)
    if (of_deletes := [deletions.tables_by(push) for push in choice.pushes]) and all(of_deletes) and not choice.tables:
        their_tables = {table for tables in of_deletes for table in tables}
        lists = {server: own.within(their_tables) for server, own in lists.items()}
    names = _choose(lists, deletions, choice, restore)
    if not names:
        raise ConfigError(f"delete: no episode was chosen: {_explain_nothing(servers, lists, choice, restore)}")
    chosen = {server: own.named(names) for server, own in lists.items()}
    stored = {name for own in chosen.values() for name in own.names()}
    kind: Literal["delete", "restore"] = "restore" if restore else "delete"
    if not restore:
        _refuse_streams(chosen)
    unsaved: dict[str, str] = {}
    entry_id = ""
    # One for all servers: they have the entry and the deletion under the same id.
    tables = tuple(sorted({table for own in chosen.values() for table in own.tables}))
    entry = new_entry(
        kind, source=choice.words.get("dataset", ""), tables=tables, options=dict(choice.words), note=note
    )
    deletion = Deletion(
        entry=entry.id,
        kind=kind,
        at=max(time.time(), deletions.newest + 1e-3),  # whatever another machine's clock says
        tables=tables,
        names=tuple(sorted(names)),
    )
    lacking = find_lacking({server: own.deletions for server, own in lists.items()})
    after = Deletions([deletion, *(deletion for own in lists.values() for deletion in own.deletions)])
    pages = {
        server: _pages_to_delete(whole, chosen[server], find_missed(whole.info, lacking[server], after), kind)
        for server, whole in wholes.items()
    }
    if dry_run:
        items = [{table: _count_items(own[table], table) for table in own} for own in pages.values()]
    else:
        entry_id = entry.id

        def apply(server: Server) -> dict[str, int]:
            return _apply(server, chosen[server], pages[server], entry, deletion, lacking[server])

        items = [*servers.each(apply, chosen).values()]
        if not items:
            reasons = "; ".join(f"{server.address}: {server.missing}" for server in chosen)
            raise ServerUnreachable(f"delete: every server was lost; run it again: {reasons}")
        outcomes = servers.each(_save, chosen) if checkpoint else {}
        unsaved = {server.address: reason for server, reason in outcomes.items() if reason}
    total = {table: sum(own.get(table, 0) for own in items) for by_table in pages.values() for table in by_table}
    missing = {server.address: server.missing for server in servers if server.missing}
    return DeleteReport(
        episodes=len(names),
        items=total,
        names=tuple(sorted(names)),
        unknown=() if restore or missing else tuple(sorted(names - stored)),
        missing=missing,
        unsaved=unsaved,
        entry=entry_id,
        dry_run=dry_run,
        restored=restore,
    )


def _read_list(server: Server, tables: Sequence[str]) -> _ServerList:
    """All that a server lists; raises ConfigError if it lacks one of the tables."""
    info = server.transport.server_info()
    if not {EPISODES, DELETED} <= info.own_tables.keys():
        raise ConfigError(
            f"server {server.address} keeps no list of episodes, which `rlds2reverb serve` of this version does: delete items by their keys "
            "(client.delete), or empty the table (client.reset)"
        )
    for table in tables:
        table_of(info, table)
    pages, pushes = read_pages(server.transport, _SECONDS)
    return _ServerList(info, tuple(sorted(info.tables)), pages, pushes, read_deletions(server.transport, _SECONDS))


def _choose(
    lists: Mapping[Server, _ServerList], deletions: Deletions, choice: EpisodeChoice, restore: bool
) -> set[str]:
    """The names that a choice means on all servers together."""
    tables = {table for own in lists.values() for table in own.tables}
    out = deletions.names_of(tables)
    listed = {name for own in lists.values() for name in own.names()}
    in_source = None if choice.names_in_source is None else set(map(name_of_copies, choice.names_in_source))
    all_names = listed | out | (in_source or set())
    there = {escape_text(name): name for name in all_names} | {name: name for name in all_names}
    named = None if choice.names is None else {_spell(name, there) for name in choice.names}
    if in_source is not None:
        named = in_source if named is None else named & in_source
    if choice.pushes or choice.dataset:
        names = {name_of_copies(name) for own in lists.values() for page in own.pages_of(choice) for name in page.names}
        if not choice.dataset:
            names |= {name for push in choice.pushes for name in deletions.names_by(push)}
        names &= names if named is None else named
    else:
        # Names that nobody lists stay out, too: a writer or a push that still runs may have stored them.
        names = named or set()
    return names & out if restore else names


def _explain_nothing(
    servers: Servers, lists: Mapping[Server, _ServerList], choice: EpisodeChoice, restore: bool
) -> str:
    """Why a choice means no episode."""
    journals = servers.each(lambda server: read_journal(server.transport, _SECONDS), lists)
    entries = [entry for journal in journals.values() for entry in journal]
    kinds = {entry.id: entry.kind for entry in entries}
    ids = [push for push in choice.pushes if push not in kinds]
    look = "rlds2reverb journal shows the pushes"
    if ids:
        return f"no push, delete or writer has the ID {', '.join(ids)}; {look}"
    if ids := [push for push in choice.pushes if kinds[push] == "write"]:
        return f"{', '.join(ids)}: episodes of writers are not listed; name them by --episode"
    if restore:
        return f"none of these was deleted; {look}"
    if choice.names_in_source is not None and not choice.pushes and not choice.dataset:
        return "the source has none of these names" if choice.names_in_source else "the source has no episodes"
    dataset = choice.dataset
    is_pushed = dataset is None or any(entry.kind == "push" and _is_part(entry.source, dataset) for entry in entries)
    sources = sorted({push.source for own in lists.values() for push in own.pushes})
    return (
        "no push has listed such episodes on the server"
        + (f"; pushes of {', '.join(sources[:_MOST_WORDS])} are listed" if dataset and sources else "")
        + f"; {look}, --dry-run what would go"
        + (
            ". Episodes that an older version has pushed are listed when the same push runs again without a ledger"
            if is_pushed
            else ""
        )
    )


def _spell(name: str, there: Mapping[str, str]) -> str:
    """The name of an episode, of all of its copies; "content:" may be left out.

    Args:
      there: name as it is, or as it is printed -> name.
    """
    plain, content = name_of_copies(name), name_of_copies(f"{CONTENT}{name}")
    for spelled in (plain, escape_text(plain), content):
        if spelled in there:
            return there[spelled]
    return content if _DIGEST.match(name) else plain


def _refuse_streams(chosen: Mapping[Server, _ServerList]) -> None:
    for own in chosen.values():
        for page in own.pages:
            if page.is_of_stream and (shared := set(page.tables) & set(own.tables)):
                raise ConfigError(
                    f'table "{sorted(shared)[0]}": its items hold several episodes one after the other, so that one cannot be taken out; name other '
                    "tables (--table), or empty this one (client.reset) and push without the episode"
                )


def _pages_to_delete(
    whole: _ServerList, chosen: _ServerList, missed: Mapping[str, Collection[str]], kind: Literal["delete", "restore"]
) -> dict[str, Sequence[EpisodePage]]:
    """Table -> episodes whose items go: the chosen ones, and those whose delete the server has missed.

    Of the latter not those of a stream, whose items cannot be taken out: their delete would have been refused.
    """
    pages = dict.fromkeys(chosen.tables, chosen.pages if kind == "delete" else ())
    for table, names in missed.items():
        own = whole.within([table]).named(names)
        pages[table] = [*pages.get(table, ()), *(page for page in own.pages if not page.is_of_stream)]
    return pages


def _count_items(pages: Iterable[EpisodePage], table: str) -> int:
    """Items that pushes have stored in a table, by the pages."""
    items: dict[tuple[int, str], int] = {}
    for page in pages:
        if table in page.tables:
            items |= dict(zip(((page.push_seed, name) for name in page.key_names or page.names), page.items))
    return sum(items.values())


def _apply(
    server: Server,
    chosen: _ServerList,
    pages: Mapping[str, Sequence[EpisodePage]],
    common: JournalEntry,
    deletion: Deletion,
    lacking: Sequence[Deletion],
) -> dict[str, int]:
    """Deletes, or restores, on one server; table -> items deleted.

    Args:
      lacking: deletions that only other servers have done. They are listed last: until then the server counts as one that missed them.
    """
    transport = server.transport
    entry = msgspec.structs.replace(common, tables=chosen.tables, server_process=process_text(chosen.info.state_id))
    write_entry(transport, entry, _SECONDS)
    items: dict[str, int] = {}
    try:
        write_deletions(transport, [deletion], _SECONDS)
        for table, own in pages.items():
            items[table] = _delete_items(server, table, own)
        write_deletions(transport, lacking, _SECONDS)
    except BaseException as error:
        _end(
            server,
            msgspec.structs.replace(entry, stopped=reason_of(error), items=sum(items.values())),
            suppress_errors=True,
        )
        raise
    names = chosen.names() if entry.kind == "delete" else deletion.names
    _end(
        server,
        msgspec.structs.replace(entry, episodes=len(names), items=sum(items.values())),
        suppress_errors=False,
    )
    try:
        tidy_deletions(transport, _SECONDS)
        tidy_journal(transport, chosen.info)
    except Rlds2ReverbError as error:  # all is done and listed; the next delete tidies
        LOG.warning("server %s: its own tables could not be tidied: %s", server.address, error)
    return items


def _save(server: Server) -> str:
    """Has a server write a checkpoint; why it did not, on one line."""
    try:
        server.transport.checkpoint(_CHECKPOINT_SECONDS)
    except Rlds2ReverbError as error:
        return reason_of(error)
    return ""


def _end(server: Server, entry: JournalEntry, suppress_errors: bool) -> None:
    try:
        write_entry(
            server.transport, msgspec.structs.replace(entry, ended=time.time()), 2.0 if suppress_errors else _SECONDS
        )
    except Rlds2ReverbError as error:
        if not suppress_errors:
            error.args = (
                f"{error}; the {entry.kind} is done on server {server.address} ({counted(entry.items, 'item')} deleted), but the end of its entry in the "
                "journal is not written, nor a checkpoint: run it again",
                *error.args[1:],
            )
            raise


def _delete_items(server: Server, table: str, pages: Sequence[EpisodePage]) -> int:
    """Deletes the items of all episodes of the pages from a table; returns by how many it shrank, fewer if another client fills it meanwhile."""
    own = [page for page in pages if table in page.tables]
    if not own:
        return 0
    before = server.transport.server_info().tables[table].current_size
    for item_keys in _batch_keys(own, table):
        for start in range(0, len(item_keys), MOST_KEYS):
            server.transport.delete_items(table, item_keys[start : start + MOST_KEYS])
    return max(0, before - server.transport.server_info().tables[table].current_size)


def _batch_keys(pages: Iterable[EpisodePage], table: str) -> Iterator[Array]:
    """Keys that items of the pages may have, about as many at once as a call takes: all steps of a large dataset would take gigabytes."""
    batch, count = list[Array](), 0
    for page in pages:
        call = np.cumsum(np.subtract(page.stops, page.starts)) // MOST_KEYS
        for places in np.split(np.arange(len(call)), np.flatnonzero(np.diff(call)) + 1):
            batch.append(page.select(places.tolist()).keys_in(table))
            count += len(batch[-1])
            if count >= MOST_KEYS:
                yield np.unique(np.concatenate(batch))
                batch, count = [], 0
    if batch:
        yield np.unique(np.concatenate(batch))


def words_of(**given: object) -> dict[str, str]:
    """What a delete was asked for, as text for the journal; long lists are counted."""
    words: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, (list, tuple, set)):
            texts = sorted(map(str, value))
            value = (
                ", ".join(texts)
                if len(texts) <= _MOST_WORDS
                else f"{', '.join(texts[:_MOST_WORDS])}, ... ({counted(len(texts), 'name')})"
            )
        if value:
            words[name] = str(value)
    return words
