"""A table into another one, with another view, other columns or dtypes: a push of the episodes that the old table holds, under the names that
pushes have given them there.

The old table is read at one moment and left as it is. Because items' keys follow from names, a migration that is run again adds what is missing,
and a later push of the dataset itself, with the same options, finds its episodes in the new table. What was deleted from the old table is
noted as deleted from the new one before the first item is sent. At the end the new table is read back, and compared with what was to be sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rlds2reverb.client import Client, connect
from rlds2reverb.episode import REWARD, Array, Episode, Notice, note
from rlds2reverb.errors import CapacityError, ConfigError, Rlds2ReverbError, SourceError, WireError, keep_report
from rlds2reverb.formats.recordings import parse_source_name
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.local.items import EpisodeItems, items_of
from rlds2reverb.plain import members, printed
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.prepare.progress import Progress, ignored
from rlds2reverb.push.keys import EpisodeNames, ItemNames
from rlds2reverb.push.options import PushKeywords, PushOptions
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.servers.episodes import (
    Deletion,
    Deletions,
    EpisodePage,
    decode_deletions,
    decode_pages,
    gather_deletions,
    read_deletions,
    read_pages,
)
from rlds2reverb.specs import Nest, view_in
from rlds2reverb.stored.checkpoint import Checkpoint, find_newest
from rlds2reverb.stored.episodes import EPISODES as AS_EPISODES
from rlds2reverb.stored.episodes import ITEMS, SPLIT, TRUNCATED, Missing, StoredEpisodes, StoredItems, recordings_of
from rlds2reverb.stored.layouts import ActionChunks, Stacks, Transitions
from rlds2reverb.stored.names import ItemOrigins, NamedEpisodes, RunNames
from rlds2reverb.stored.rows import Snapshot
from rlds2reverb.stored.running import CHECKPOINT, Place, place_of, take_snapshot
from rlds2reverb.stored.source import OPTIONS
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Transport
from rlds2reverb.views import ViewLike
from rlds2reverb.views.base import not_in_items
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.trajectory import name_of, table_signature
from rlds2reverb.wire.messages import DELETED, EPISODES, TableInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

REFUSE, SKIP = "refuse", "skip"
INCOMPLETE = (REFUSE, SKIP, SPLIT)
"""What becomes of episodes that have lost rows in the old table: nothing is sent, they are left out, or each run of rows becomes an episode."""

NOT_OF_MIGRATIONS = ("again", "move", "workers", "ray", "identity", "duplicates")
"""Options of a push that a migration has not: it gives the episodes their names, and reads one table."""

CHECKED_ITEMS = 10_000

_ATTEMPTS = 3
_SECONDS = 300.0  # for each reading of a server's own tables


@printed("*")
@dataclass(frozen=True)
class MigrateReport:
    """What a migration has done, or would do.

    Attributes:
      source: the old table.
      old_items: that it holds.
      episodes: of the old table that the push is made of.
      listed: those of them that have the names of the pushes that stored them; the rest is named by its content.
      incomplete: episodes that have lost rows.
      left_out: of these the ones that the new table gets nothing of.
      deleted: names that were deleted from the old table, and stay out of the new one.
      push: the account of the push; null in a dry run.
      priorities: items that got the priority that they had in the old table.
      items: table -> items that it holds of the migration, found when it was read back; {} where it was not.
      items_compared: those of them whose values were compared with what was to be sent.
      proof: what was proven at the end, in words; "" in a dry run.
      notices: about what changes on the way.
    """

    source: str
    old_items: int
    episodes: int
    listed: int
    incomplete: int
    left_out: int
    deleted: int
    push: PushReport | None = None
    priorities: int = 0
    items: Mapping[str, int] = field(default_factory=dict)
    items_compared: int = 0
    proof: str = ""
    notices: tuple[Notice, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return members(self)


@dataclass(frozen=True)
class MissingTable:
    """A table that the config lacks, as it needs to be there.

    Attributes:
      view: label of the view that fills it.
      signature: of its items.
      items: about how many it must hold.
      by_priority: its items are sampled by priority.
      old_size: max_size of the old table; 0 where it is not known.
    """

    view: str
    signature: Nest
    items: int
    by_priority: bool
    old_size: int


class TableMissing(ConfigError):
    """The servers have no such table.

    Attributes:
      tables: name -> what the config needs.
    """

    def __init__(self, message: str, tables: Mapping[str, MissingTable]) -> None:
        super().__init__(message)
        self.tables = tables


@takes_options(PushOptions, without=NOT_OF_MIGRATIONS)
def migrate(
    source: str,
    client: Client,
    table: str | Sequence[str] | Mapping[str, ViewLike],
    view: ViewLike | None = None,
    *,
    incomplete: str = REFUSE,
    check_items: int = CHECKED_ITEMS,
    dry_run: bool = False,
    **options: Unpack[PushKeywords],
) -> MigrateReport:
    """Moves what a table holds into another table, by another view or transform; the old table stays as it is.

    Args:
      source: the old table: "HOST:PORT/TABLE" of a running server, "FOLDER?table=TABLE" of a checkpoint, with options as `reverb:` has them; or the
        name of a table of the client's only server.
      client: of the new table's servers.
      table, view: as for `Client.push`: the new tables.
      incomplete: of episodes that have lost rows: "refuse", "skip" or "split", which makes an episode of each run of rows.
      check_items: items of each new table whose values are compared at the end; their keys are, in any case.
      dry_run: read the old table, make all checks, and send nothing.
      options: the other fields of `PushOptions`, by name.

    Returns:
      The account of it. Run again, it adds what is missing.

    Raises:
      TableMissing: the servers have no such table.
      ConfigError: the new table is the old one, or an option makes no sense.
      SourceError: the old table cannot be read, its items make no episodes, they lack what the new view needs, or some have lost rows.
      CapacityError: as `Client.push`; or items of the migration are not in the new table at the end.
      WireError: an item in the new table is not what was sent.
      Rlds2ReverbError: as `Client.push` otherwise.
    """
    chosen = make_options(PushOptions, "migrate", table, "two_step" if view is None else view, **options)
    migration = Migration.open(source, client, chosen, incomplete, check_items)
    return migration.outlook() if dry_run else migration.run()


@dataclass(frozen=True)
class OldTable:
    """A table as it was read.

    Attributes:
      pages: the episodes that its server lists.
      deleted: names of episodes that were deleted from it.
      info: of a running server, just before.
      state_id: of its server's process; None for a checkpoint.
    """

    snapshot: Snapshot
    pages: Sequence[EpisodePage]
    deleted: frozenset[str]
    info: TableInfo | None = None
    state_id: int | None = None


def read_old_table(source: str, client: Client, tables: Sequence[str]) -> tuple[OldTable, Any]:
    """Reads the table that a text names, and what its server lists; also returns the text, parsed.

    Raises:
      ConfigError: it is one of `tables`, which are on the servers of the client.
      SourceError, TransportError: as `reverb:` does.
    """
    text = source.removeprefix("reverb:")
    if not any(sign in text for sign in ":/?") and not Path(text).is_dir():
        if len(client.addresses) != 1:
            raise ConfigError(f'"{source}": of which server? Write HOST:PORT/{text}')
        text = f"{client.addresses[0]}/{text}"
    known = {name: parse for name, parse in OPTIONS.items() if name not in ("as", "gaps")}
    request = parse_source_name("reverb", text, known)
    options = request.options
    place = None if Path(request.text).is_dir() else place_of(request.text)
    if place is None:
        with Checkpoint(find_newest(request.path)) as checkpoint:
            return _of_checkpoint(checkpoint, request.name, options.get("table")), request
    with ExitStack() as stack:
        # The connection that is there, for it may have a certificate.
        transport = client.transport if client.addresses == (place.address,) else None
        if transport is None:
            transport = stack.enter_context(connect(place.address)).transport
        old = _of_server(transport, request.name, place, options, client, tables)
    return old, request


def _of_server(
    transport: Transport, people: str, place: Place, options: Mapping[str, Any], client: Client, tables: Sequence[str]
) -> OldTable:
    info = transport.server_info()
    name = place.table or options.get("table")
    if name is None and len(others := info.tables.keys() - {*tables}) == 1:
        (name,) = others
    if name in tables and info.state_id in {there.state_id for there in client.servers().values()}:
        raise ConfigError(
            f'table "{name}" is the old table and the new one: give the new one a name of its own, or read the old one from a checkpoint and '
            "start the server without it"
        )
    if (through := options.get("through", CHECKPOINT)) == CHECKPOINT:
        snapshot = _by_checkpoint(transport, people, name)
    else:
        snapshot = take_snapshot(transport, people, name, through, options.get("disturb", False))
    table = snapshot.table
    # Behind the items: what a push lists meanwhile is of items that may be there.
    pages = read_pages(transport, _SECONDS)[0] if EPISODES in info.own_tables else []
    deletions = read_deletions(transport, _SECONDS) if DELETED in info.own_tables else []
    return OldTable(snapshot, pages, _deleted_from(deletions, table), info.tables[table], info.state_id)


def _by_checkpoint(transport: Transport, people: str, table: str | None) -> Snapshot:
    """A table by a checkpoint that its server writes, and never by sampling, which would count in times_sampled; raises SourceError."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(SourceError):  # another checkpoint may have taken the place of this one before it was read
            return take_snapshot(transport, people, table, CHECKPOINT)
    return take_snapshot(transport, people, table, CHECKPOINT)


def _of_checkpoint(checkpoint: Checkpoint, people: str, table: str | None) -> OldTable:
    snapshot = checkpoint.snapshot(people, table)
    own: dict[str, list[bytes]] = {}
    for name in {EPISODES, DELETED} & checkpoint.item_counts.keys():
        if checkpoint.item_counts[name]:
            lists = recordings_of(checkpoint.snapshot(people, name), ITEMS)
            numbers = range(lists.count or 0)
            own[name] = [
                record for items in lists.read(numbers) for record in items.decode()["record"].ravel().tolist()
            ]
    where = f"{people}: its list of episodes"
    pages, _ = decode_pages(own.get(EPISODES, ()), where)
    return OldTable(snapshot, pages, _deleted_from(decode_deletions(own.get(DELETED, ()), where), snapshot.table))


def _deleted_from(deletions: Sequence[Deletion], table: str) -> frozenset[str]:
    return frozenset(Deletions(deletions).names_of({table}))


class Migration:
    """One migration, planned and checked: `run` it, or look at it. Made by `open`.

    Attributes:
      plan: of the push.
    """

    def __init__(
        self, old: OldTable, stored: StoredEpisodes, names: RunNames, client: Client, plan: PushPlan, check_items: int
    ) -> None:
        self._old, self._stored, self._names, self._client, self.plan = old, stored, names, client, plan
        self._check_items = check_items
        self._chosen = np.zeros(0, np.int64)
        self._origins = ItemOrigins(np.zeros(0, np.int64), (), (), ())
        self._pusher: Any = None

    @staticmethod
    def open(source: str, client: Client, options: PushOptions, incomplete: str, check_items: int) -> Migration:
        """Reads the old table, and makes all checks before the first item is sent; raises as `migrate`."""
        if incomplete not in INCOMPLETE:
            raise ConfigError(f'incomplete (--incomplete) "{incomplete}": expected one of {", ".join(INCOMPLETE)}')
        options.check_files()
        old, request = read_old_table(source, client, options.tables)
        stored = recordings_of(
            old.snapshot,
            AS_EPISODES,
            Missing(SPLIT, request.options.get("no_end", TRUNCATED)),
            request.options.get("streams", "refuse"),
            request.options.get("columns"),
        )
        assert isinstance(stored, StoredEpisodes)
        origins = ItemOrigins.of(stored.index.keys, old.pages, old.snapshot.table)
        names = RunNames.of(stored.runs, stored.index, origins, stored.least)
        lost = int((~names.are_whole).sum())
        if lost and incomplete == REFUSE:
            raise SourceError(
                f"{stored.name}: {_lost_words(stored, names)}; leave these episodes out (--incomplete skip), or make an episode of each run of rows "
                "that is there (--incomplete split)"
            )
        chosen = np.flatnonzero(names.are_whole) if incomplete == SKIP else np.arange(len(names.names))
        if lost and incomplete == SPLIT:
            chosen = np.setdiff1d(chosen, _find_stored_already(client, options.tables, stored, names))
        if not len(chosen):
            raise SourceError(f"{stored.name}: nothing to migrate: {_lost_words(stored, names)}")
        recordings = NamedEpisodes(stored, names, chosen, incomplete == SPLIT)
        opened = request.make_source(recordings)
        if not options.note:
            options = replace(options, note=f"migrated from table {old.snapshot.table}").with_rules_of(options)
        ready = Preparation.open(opened, options, options.outputs)
        _check_columns(old, ready)
        _check_tables(client, ready, old, stored)
        plan = client.planned(opened, options)
        migration = Migration(old, stored, names, client, plan, check_items)
        migration._chosen, migration._origins = chosen, origins
        return migration

    # What it is, in numbers.

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What changes on the way."""
        notices, layout = list[Notice](), self._stored.layout
        is_same_view = self._has_same_view(view_in(self._old.snapshot.signature))
        if isinstance(layout, (Transitions, Stacks, ActionChunks)) and not is_same_view:
            text = (
                "the old items hold no action, reward and further columns of an episode's last row; they are zeros"
                if not isinstance(layout, ActionChunks)
                else "the old items do not hold the last observation of an episode; it is the one before it"
            )
            notices.append(note("last_row_made_up", text))
        unlisted = sum(not self._names.names[run] for run in self._chosen.tolist())
        if unlisted:
            text = (
                f"{counted(unlisted, 'episode')} named by the content in the table, because no push is listed that has stored them: a later push of "
                "their dataset stores them beside these"
            )
            notices.append(note("names_unknown", text, unlisted))
        if not is_same_view:
            notices.append(note("priorities_new", "items are other ones, so their priorities are those of the view"))
        notices.append(note("times_sampled_new", "times_sampled begins at 0 in the new table"))
        return tuple(notices)

    def outlook(self) -> MigrateReport:
        """What it would do."""
        names, chosen = self._names, self._chosen.tolist()
        lost = ~names.are_whole
        return MigrateReport(
            source=self._stored.name,
            old_items=len(self._stored.index.keys),
            episodes=len(chosen),
            listed=sum(bool(names.names[run]) for run in chosen),
            incomplete=_count_episodes(self._stored, np.flatnonzero(lost)),
            left_out=_count_episodes(self._stored, np.setdiff1d(np.flatnonzero(lost), self._chosen)),
            deleted=len(self._old.deleted),
            notices=self.notices,
        )

    def _has_same_view(self, old_view: str) -> bool:
        """Whether all new tables are filled by the view of the old one."""
        return bool(old_view) and all(name_of(output.view) == old_view for output in self.plan.options.outputs)

    # Running.

    def run(self, on_progress: Callable[[Progress], object] = ignored) -> MigrateReport:
        """Notes what stays out, pushes, sets priorities, and compares; raises as `migrate`."""
        self._keep_out()
        self._pusher = self._client.pusher(self.plan.with_progress(on_progress))
        report = replace(self.outlook(), push=self._pusher.run())
        assert report.push is not None
        try:
            report = replace(report, priorities=self._set_priorities())
            return self._prove(report)
        except Rlds2ReverbError as error:
            keep_report(error, report.push)
            raise

    def push_report(self) -> PushReport | None:
        """The account of the push so far; None before it begins."""
        return None if self._pusher is None else self._pusher.report()

    def _keep_out(self) -> None:
        """Notes in the new tables' servers what was deleted from the old one; what was let in again there since is left as it is."""
        tables = self.plan.options.tables
        lists = [
            read_deletions(server.transport, _SECONDS)
            for server in self._client.group.there
            if DELETED in server.transport.server_info().own_tables
        ]
        if not self._old.deleted or not lists:
            return
        decided = {
            name for own in lists for deletion in own if {*tables} <= {*deletion.tables} for name in deletion.names
        }
        if names := sorted(self._old.deleted - decided):
            self._client.delete_episodes(
                episodes=names, table=tables, checkpoint=False, note=f"deleted from {self._stored.name}"
            )

    def _set_priorities(self) -> int:
        """Gives items of the same view and steps the priorities that they had; returns their number."""
        if not self._has_same_view(view_in(self._old.snapshot.signature)):
            return 0
        parts = self._old.snapshot.items.parts()
        priorities = np.array([item.priority for part in parts for item in part], np.float64)
        whole = {self._names.names[run] for run in self._chosen.tolist() if self._names.are_whole[run]}
        count = 0
        for output in self.plan.options.outputs:
            if isinstance(output.view, Prioritized):
                continue  # it was asked for other ones
            push_seed = ItemNames(output, self.plan.ready.identity).push_seed
            for page, places, item_places in self._origins.pages:
                spans = np.array(page.stops, np.int64) - np.array(page.starts, np.int64)
                is_moved = np.repeat([name in whole for name in page.names], spans)[places]
                values = priorities[item_places]
                is_moved &= values != 1.0  # as the push stores them
                if is_moved.any():
                    moved = msgspec.structs.replace(page, push_seed=push_seed, tables=output.tables, key_names=())
                    for table in output.tables:
                        keys = moved.keys_in(table)[places][is_moved]
                        self._client.update_priorities(table, keys, values[is_moved])
                    count += int(is_moved.sum())
        return count

    # The proof.

    def _prove(self, report: MigrateReport) -> MigrateReport:
        """Reads the new tables back; raises CapacityError or WireError where they are not what was to be sent."""
        made = {} if report.push is None else report.push.items_made
        items, compared, reason = dict[str, int](), 0, ""
        for number, output in enumerate(self.plan.options.outputs):
            for table in output.tables:
                try:
                    back = _ItemsBack(self._read_back(table), table)
                except SourceError as error:
                    reason = reason or str(error)
                    continue
                step = -(-made.get(table, 0) // self._check_items) if self._check_items else 0
                items[table], own = _compare(self._expected(number, table), back, step)
                compared += own
        proof = "all items are in the table, by their keys"
        if reason:
            proof = f"all items were confirmed; the table was not read back: {reason}"
        return replace(report, items=items, items_compared=compared, proof=proof)

    def _read_back(self, table: str) -> list[Snapshot]:
        """The table on each server. Raises SourceError where it cannot be read without disturbing anybody."""
        snapshots = []
        for server in self._client.group.there:
            info = server.transport.server_info().tables[table]
            if info.max_times_sampled > 0:
                raise SourceError(f'table "{table}" gives its items away')
            if not Place(server.address, table).is_here:
                raise SourceError(f"{server.address} is on another machine")
            if info.current_size:
                snapshots.append(_by_checkpoint(server.transport, f"{server.address}/{table}", table))
        return snapshots

    def _expected(self, number: int, table: str) -> Iterator[EpisodeItems]:
        """The items that a table of an output was to get; reads the old table again."""
        plan, ready = self.plan, self.plan.ready.silent()
        deletions = gather_deletions(self._client.group, self._client.servers(), _SECONDS)
        names = ItemNames(replace(plan.options.outputs[number], tables=(table,)), ready.identity)
        preparer = ready.preparer()
        read = EpisodeNames(lambda name: table in deletions.tables_without(name), plan).read(plan.source)
        episodes = (episode for episode in read if isinstance(episode, Episode))
        for place, (episode, problems) in enumerate(ready.read(episodes)):
            prepared = preparer.prepare(episode, problems)
            if prepared.is_good:
                items = items_of(place, prepared._replace(cuts=[prepared.cuts[number]]), names)
                if items is not None:
                    yield items


class _ItemsBack:
    """The items of a table as they were read from its servers."""

    def __init__(self, snapshots: Sequence[Snapshot], table: str) -> None:
        self.table = table
        stored = [recordings_of(snapshot, ITEMS) for snapshot in snapshots]
        self._stored = [own for own in stored if isinstance(own, StoredItems)]
        keys = [own.keys for own in self._stored]
        all_keys = np.concatenate([np.zeros(0, np.uint64), *keys])
        self._servers = np.repeat(np.arange(len(keys)), [len(own) for own in keys])
        self._places = np.concatenate([np.zeros(0, np.int64), *(np.arange(len(own)) for own in keys)])
        self._order = np.argsort(all_keys, kind="stable")
        self._sorted = all_keys[self._order]

    def find(self, keys: Array) -> Array:
        """[n] int64: places of items with these keys; -1 for one that is not there."""
        if not len(self._sorted):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return np.where(self._sorted[at] == keys, self._order[at], -1)

    def values(self, place: int) -> tuple[Array, ...]:
        """The columns of the item at a place that `find` has given."""
        return self._stored[int(self._servers[place])].values_of(int(self._places[place]))


def _compare(expected: Iterator[EpisodeItems], back: _ItemsBack, step: int) -> tuple[int, int]:
    """Compares keys, and the values of each `step`-th item, none for 0; returns how many items there are, and how many were compared.

    Raises:
      CapacityError: items are not there.
      WireError: an item has other values.
    """
    seen = compared = lacking = 0
    for items in expected:
        places = back.find(items.keys)
        lacking += int((places < 0).sum())
        for number in range(-seen % step, len(places), step) if step else ():
            if places[number] >= 0:
                values = back.values(int(places[number]))
                for column, value in zip(items.columns, values, strict=True):
                    if not _are_equal(column.take(np.array([number]))[0], value):
                        raise WireError(
                            f'table "{back.table}": item {int(items.keys[number])} of episode {items.episode_id} has other values than were sent; '
                            "take the table out of use, and migrate into a new one"
                        )
                compared += 1
        seen += len(places)
    if lacking:
        raise CapacityError(
            f'table "{back.table}": {lacking:,} of {counted(seen, "item")} are not there at the end: they were removed meanwhile, by another push '
            "or by hand; give the table a larger max_size, and run the migration again"
        )
    return seen, compared


def _are_equal(sent: Any, stored: Array) -> bool:
    sent = np.asarray(sent)
    if sent.dtype != stored.dtype or sent.shape != stored.shape:
        return False
    return bool((sent == stored).all() if sent.dtype == object else sent.tobytes() == stored.tobytes())


# What cannot be migrated.


def _check_columns(old: OldTable, ready: Preparation) -> None:
    """Raises SourceError if a view needs rewards, and the old items hold none."""
    for output in ready.outputs:
        if REWARD in ready.filled and REWARD not in not_in_items(output.view, ready.step_spec):
            view = view_in(old.snapshot.signature)
            raise SourceError(
                f'{ready.source.name}: the items of table "{old.snapshot.table}"{f" (view {view})" if view else ""} hold no rewards, and view '
                f"{name_of(output.view)} needs them: fill the new table from the dataset (rlds2reverb push), or choose a view without rewards"
            )


def _check_tables(client: Client, ready: Preparation, old: OldTable, stored: StoredEpisodes) -> None:
    """Raises `TableMissing` if a server lacks a new table."""
    infos = client.servers()
    rows = int((stored.runs.stops - stored.runs.firsts).sum())
    lacking: dict[str, MissingTable] = {}
    for output, signature in zip(ready.outputs, ready.signatures):
        for table in output.tables:
            if any(table not in info.tables for info in infos.values()):
                lacking[table] = MissingTable(
                    name_of(output.view),
                    table_signature(signature, name_of(output.view)),
                    max(rows, len(stored.index.keys)),
                    isinstance(output.view, Prioritized)
                    or (old.info is not None and "prioritized" in old.info.sampler),
                    0 if old.info is None else old.info.max_size,
                )
    if lacking:
        names = ", ".join(f'"{name}"' for name in lacking)
        there = ", ".join(sorted({name for info in infos.values() for name in info.tables})) or "none"
        raise TableMissing(
            f"no table {names} on the server, there are: {there}. A running server takes no new table: put it into the config, and start the server "
            "again; its checkpoint brings the other tables back",
            lacking,
        )


def _find_stored_already(client: Client, tables: Sequence[str], stored: StoredEpisodes, names: RunNames) -> Array:
    """Runs of incomplete episodes whose rows the new tables have: in the whole episode, or in a longer run of it, of a migration before."""
    ranges: dict[str, list[tuple[int, float]]] = {}
    for server in client.group.there:
        if EPISODES in server.transport.server_info().own_tables:
            for page in read_pages(server.transport, _SECONDS)[0]:
                for name in page.names if {*tables} <= {*page.tables} else ():
                    match = _ROWS.search(name)
                    whole, rows = (name, (0, math.inf)) if match is None else (name[: match.start()], _range(match))
                    ranges.setdefault(whole, []).append(rows)
    runs = stored.runs
    return np.array(
        [
            run
            for run in np.flatnonzero(~names.are_whole).tolist()
            if any(
                start <= stored.first_row(run) and runs.stops[run] - stored.least <= stop
                for start, stop in ranges.get(names.names[run], ())
            )
        ],
        np.int64,
    )


_ROWS = re.compile(r"\[(?P<start>\d*):(?P<stop>\d*)\]$", re.ASCII)


def _range(match: re.Match[str]) -> tuple[int, float]:
    return int(match["start"] or 0), int(match["stop"]) if match["stop"] else math.inf


def _lost_words(stored: StoredEpisodes, names: RunNames) -> str:
    """How many episodes have lost rows, and which, in words."""
    runs = np.flatnonzero(~names.are_whole)
    lost = _count_episodes(stored, runs)
    shown = ", ".join(dict.fromkeys(names.names[run] or stored.name_of(run) for run in runs.tolist()[:_SHOWN]))
    more = ", ..." if len(runs) > _SHOWN else ""
    whole = _count_episodes(stored, np.arange(len(stored.runs)))
    return f"{lost:,} of {counted(whole, 'episode')} lack items or rows, which were removed or not stored yet ({shown}{more})"


_SHOWN = 3


def _count_episodes(stored: StoredEpisodes, runs: Array) -> int:
    # Of a sequence that was cut where episodes begin, each run is an episode.
    sequences = stored.runs.sequences[runs]
    return int(np.unique(sequences).size) if not (stored.runs.is_first & stored.runs.is_last)[runs].all() else len(runs)
