"""Deletes episodes from the tables of servers, by what pushes have listed there, and lets them in again.

On each server: an entry in the journal, then the names into the list of deleted episodes, then the items. So a delete that is killed has
either done nothing, or has named all episodes that no push brings back any more; run again, it deletes the rest.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from rlds2reverb.episode import CONTENT
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, reason_of
from rlds2reverb.plain import members, printed
from rlds2reverb.push.keys import EpisodeNames
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.servers.episodes import (
    MOST_KEYS,
    Deletion,
    EpisodePage,
    page_name,
    read_deletions,
    read_pages,
    write_deletion,
)
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.servers.journal import new_entry, process_text, tidy_journal, write_entry
from rlds2reverb.servers.tables import table_of
from rlds2reverb.text import counted
from rlds2reverb.wire.messages import DELETED, EPISODES, ServerInfo

_SECONDS = 300.0
"""For each reading and writing of a server's own tables, which wait while it writes a checkpoint."""

_MOST_WORDS = 20  # names in an entry of the journal


@printed("*")
@dataclass(frozen=True)
class DeleteReport:
    """What a delete has done, or would do.

    Attributes:
      episodes: chosen ones, each once.
      items: table -> items deleted, by the sizes of the tables; in a dry run those that pushes have stored, some of which may be gone. Of a
        restore 0: the same push brings them back.
      names: of the episodes, in alphabetical order.
      unknown: names that were asked for, and that no push has listed.
      dry_run: nothing was changed.
      restored: the episodes were let in again.
    """

    episodes: int
    items: Mapping[str, int]
    names: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
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
      pushes: ids of entries of the journal: of pushes, for a restore of deletes as well.
      dataset: the source of their pushes, as the journal has it; "" for any.
      tables: those that they leave; () for all.
      words: what was asked for, for the journal; "dataset" is what it was about.
    """

    names: Collection[str] | None = None
    pushes: Sequence[str] = ()
    dataset: str = ""
    tables: Sequence[str] = ()
    words: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.names is None and not self.pushes and not self.dataset:
            raise ConfigError(
                "delete: which episodes? Give a source, names of episodes (--episode), pushes (--push), or the dataset of pushes (--dataset); "
                "client.reset(table) empties a table"
            )


@dataclass(frozen=True)
class _ChosenEpisodes:
    """What a choice means on one server: its tables, names, and the pages of these episodes alone."""

    info: ServerInfo
    tables: tuple[str, ...]
    names: set[str]
    pages: Sequence[EpisodePage]

    def items_in(self, table: str) -> int:
        by_name = {
            name: items for page in self.pages if table in page.tables for name, items in zip(page.names, page.items)
        }
        return sum(by_name.values())


def names_of(plan: PushPlan) -> set[str]:
    """The names of all episodes that a push would read; reads them."""
    return {episode.id for episode in EpisodeNames(lambda _: False, plan).read(plan.source)}


def delete_episodes(
    servers: Servers, choice: EpisodeChoice, dry_run: bool = False, restore: bool = False, note: str = ""
) -> DeleteReport:
    """Deletes episodes from all servers, or lets them in again.

    Raises:
      ConfigError: a server keeps no list of episodes, a table or push is not there, or nothing was chosen.
      TransportError: a server does not answer; on the others it is done.
      WireError: a list was written by a newer version.
    """
    chosen = servers.each(lambda server: _choose(server, choice, restore))
    names = {name for own in chosen.values() for name in own.names}
    asked_for = set() if choice.names is None else {*choice.names}
    unknown = tuple(sorted(name for name in asked_for if names.isdisjoint({name, f"{CONTENT}{name}"})))
    if not names:
        raise ConfigError(
            "delete: no episode was chosen: "
            + ("none of these was deleted" if restore else "no push has listed such episodes on the server")
            + "; rlds2reverb journal shows the pushes, --dry-run what would go. Episodes that an older version has pushed are listed when the same "
            "push runs again"
        )
    _refuse_streams(chosen)
    kind: Literal["delete", "restore"] = "restore" if restore else "delete"
    if dry_run:
        items = [{table: own.items_in(table) for table in own.tables} for own in chosen.values()]
        if restore:
            items = []
    else:
        # On every server, for episodes move when servers are added.
        items = [
            *servers.each(lambda server: _apply(server, chosen[server], kind, names, choice, note), chosen).values()
        ]
    total = {
        table: sum(own.get(table, 0) for own in items) for own_chosen in chosen.values() for table in own_chosen.tables
    }
    return DeleteReport(len(names), total, tuple(sorted(names)), unknown, dry_run, restore)


def _choose(server: Server, choice: EpisodeChoice, restore: bool) -> _ChosenEpisodes:
    info = server.transport.server_info()
    if not {EPISODES, DELETED} <= info.own_tables.keys():
        raise ConfigError(
            f"server {server.address} keeps no list of episodes, which `rlds2reverb serve` of this version does: delete items by their keys "
            "(client.delete), or empty the table (client.reset)"
        )
    tables = tuple(choice.tables) or tuple(sorted(info.tables))
    for table in tables:
        table_of(info, table)
    pages, of_push = read_pages(server.transport, _SECONDS)
    deletions = read_deletions(server.transport, _SECONDS)
    named = (
        None if choice.names is None else {spelled for name in choice.names for spelled in (name, f"{CONTENT}{name}")}
    )
    listed = {name for push in choice.pushes for name in of_push.get(push, ())}
    out = deletions.names_of(tables)
    kept: list[EpisodePage] = []
    for page in pages:
        is_of_push = not choice.pushes or page.push in choice.pushes or (bool(listed) and page_name(page) in listed)
        if is_of_push and choice.dataset in ("", page.source) and not set(tables).isdisjoint(page.tables):
            places = [place for place, name in enumerate(page.names) if named is None or name in named]
            if places:
                kept.append(page.select(places))
    names = {name for page in kept for name in page.names}
    if restore:
        names &= out
        if not choice.dataset:  # what a delete has named may have been listed on another server alone
            by_delete = {name for push in choice.pushes for name in deletions.names_by(push)}
            names |= out & (by_delete if named is None else named if not choice.pushes else named & by_delete)
    elif named is not None and not choice.pushes and not choice.dataset:
        names |= (
            named & out
        )  # out already: a push may have left it out of this table ever since, and never listed it there
    return _ChosenEpisodes(info, tables, names, kept)


def _refuse_streams(chosen: Mapping[Server, _ChosenEpisodes]) -> None:
    for own in chosen.values():
        for page in own.pages:
            if page.is_of_stream and (shared := set(page.tables) & set(own.tables)):
                raise ConfigError(
                    f'table "{sorted(shared)[0]}": its items hold several episodes one after the other, so that one cannot be taken out; name other '
                    "tables (--table), or empty this one (client.reset) and push without the episode"
                )


def _apply(
    server: Server,
    chosen: _ChosenEpisodes,
    kind: Literal["delete", "restore"],
    names: Collection[str],
    choice: EpisodeChoice,
    note: str,
) -> dict[str, int]:
    """Deletes, or restores, on one server; table -> items deleted."""
    transport = server.transport
    entry = new_entry(
        kind,
        source=choice.words.get("dataset", ""),
        tables=chosen.tables,
        options=dict(choice.words),
        note=note,
        server_process=process_text(chosen.info.state_id),
    )
    write_entry(transport, entry, _SECONDS)
    items: dict[str, int] = {}
    try:
        newest = read_deletions(transport, _SECONDS).newest
        deletion = Deletion(
            entry=entry.id,
            kind=kind,
            at=max(time.time(), newest + 1e-3),  # whatever another machine's clock says
            tables=chosen.tables,
            names=tuple(sorted(names)),
        )
        write_deletion(transport, deletion, _SECONDS)
        for table in chosen.tables if kind == "delete" else ():
            items[table] = _delete_items(server, table, chosen.pages)
    except BaseException as error:
        _end(
            server,
            msgspec.structs.replace(entry, stopped=reason_of(error), items=sum(items.values())),
            suppress_errors=True,
        )
        raise
    _end(
        server,
        msgspec.structs.replace(entry, episodes=len(chosen.names), items=sum(items.values())),
        suppress_errors=False,
    )
    tidy_journal(transport, chosen.info)
    return items


def _end(server: Server, entry: Any, suppress_errors: bool) -> None:
    try:
        write_entry(
            server.transport, msgspec.structs.replace(entry, ended=time.time()), 2.0 if suppress_errors else _SECONDS
        )
    except Rlds2ReverbError:
        if not suppress_errors:
            raise


def _delete_items(server: Server, table: str, pages: Sequence[EpisodePage]) -> int:
    """Deletes the items of all episodes of the pages from a table; returns by how many it shrank, fewer if another client fills it meanwhile."""
    own = [page.keys_in(table) for page in pages if table in page.tables]
    if not own:
        return 0
    before = server.transport.server_info().tables[table].current_size
    item_keys = np.unique(np.concatenate(own))
    for start in range(0, len(item_keys), MOST_KEYS):
        server.transport.delete_items(table, item_keys[start : start + MOST_KEYS])
    return max(0, before - server.transport.server_info().tables[table].current_size)


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
