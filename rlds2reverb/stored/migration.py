"""A table into another one, with another view, other columns or dtypes: a push of the episodes that the old table holds, under the names that
pushes have given them there.

The old table is read at one moment and left as it is. Because items' keys follow from names, a migration that is run again adds what is missing,
and a later push of the dataset itself, with the same options, finds its episodes in the new table. What was deleted from the old table is
noted as deleted from the new one before the first item is sent. At the end the new table is read back, and compared with what was to be sent.

What would not be stored exactly once is refused before the first byte: all episodes are read once before that.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rlds2reverb.client import Client, connect
from rlds2reverb.episode import REWARD, Array, Episode, Notice, is_copy, name_of_copies, note
from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    Rlds2ReverbError,
    SourceError,
    ViewError,
    WireError,
    keep_report,
)
from rlds2reverb.formats.recordings import parse_source_name
from rlds2reverb.formats.source import Source
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.local.items import EpisodeItems, items_of
from rlds2reverb.plain import members, printed
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Output, Preparation
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
from rlds2reverb.servers.journal import process_text, read_journal
from rlds2reverb.servers.own_tables import escape_text
from rlds2reverb.specs import Nest, view_in
from rlds2reverb.stored.checkpoint import Checkpoint, find_newest
from rlds2reverb.stored.episodes import EPISODES as AS_EPISODES
from rlds2reverb.stored.episodes import ITEMS, SPLIT, TRUNCATED, Missing, StoredEpisodes, StoredItems, recordings_of
from rlds2reverb.stored.layouts import ActionChunks, Stacks, Transitions
from rlds2reverb.stored.names import ItemOrigins, NamedEpisodes, RunNames
from rlds2reverb.stored.rows import Snapshot
from rlds2reverb.stored.running import CHECKPOINT, Place, place_of, read_tables, take_snapshot
from rlds2reverb.stored.source import OPTIONS
from rlds2reverb.text import counted
from rlds2reverb.transport.base import Transport
from rlds2reverb.views import ViewLike, view_of
from rlds2reverb.views.base import not_in_items
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.trajectory import name_of, table_signature
from rlds2reverb.wire.messages import DELETED, EPISODES, JOURNAL, ServerInfo, TableInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

REFUSE, SKIP = "refuse", "skip"
INCOMPLETE = (REFUSE, SKIP)
"""What becomes of episodes that have lost rows in the old table: nothing is sent, or they are left out."""

CONTENT = "content"
UNLISTED = (REFUSE, SKIP, CONTENT)
"""What becomes of episodes that no push has listed, on a server that keeps a list: as `INCOMPLETE`, or their content in the table names them."""

NOT_OF_MIGRATIONS = ("again", "move", "workers", "ray", "identity", "duplicates", "allow_eviction")
"""Options of a push that a migration has not: it gives the episodes their names, reads one table, and proves that all items are there."""

CHECKED_ITEMS = 10_000

_SECONDS = 300.0  # for each reading of a server's own tables


@printed("*")
@dataclass(frozen=True)
class MigrateReport:
    """What a migration has done, or would do.

    Attributes:
      source: the old table.
      old_items: that it holds.
      episodes: of the old table that are read; filters may leave some of them out.
      listed: those of them that have the names of the pushes that stored them; the rest is named by its content.
      incomplete: episodes that have lost rows, which are left out.
      unlisted: episodes that no push has listed, and that are left out.
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
    unlisted: int
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
      problems: the entries that the config needs, as text, for the error in JSON; () where that is not known.
    """

    def __init__(self, message: str, tables: Mapping[str, MissingTable]) -> None:
        super().__init__(message)
        self.tables = tables
        self.problems: Sequence[str] = ()


@takes_options(PushOptions, without=NOT_OF_MIGRATIONS)
def migrate(
    source: str,
    client: Client,
    table: str | Sequence[str] | Mapping[str, ViewLike],
    view: ViewLike | None = None,
    *,
    incomplete: str = REFUSE,
    unlisted: str = REFUSE,
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
      incomplete: of episodes that have lost rows: "refuse" or "skip".
      unlisted: of episodes that no push has listed, where the old server keeps a list: "refuse", "skip", or "content", which names them by what the
        table holds of them; a push that lists them later stores them beside these.
      check_items: items of each new table whose values are compared at the end; their keys are, in any case.
      dry_run: read the old table, make all checks, and send nothing.
      options: the other fields of `PushOptions`, by name.

    Returns:
      The account of it. Run again, it adds what is missing.

    Raises:
      TableMissing: the servers have no such table.
      ConfigError: the new table is the old one, or an option makes no sense.
      SourceError: the old table cannot be read, its items make no episodes, they lack what the new view needs, some have lost rows, are listed by no push,
        or are there twice; or episodes were deleted from the old table meanwhile, and are in the new one.
      CapacityError: as `Client.push`; or items of the migration are not in the new table at the end.
      WireError: an item in the new table is not what was sent.
      Rlds2ReverbError: as `Client.push` otherwise.
    """
    if refused := sorted({*NOT_OF_MIGRATIONS} & options.keys()):
        raise ConfigError(
            f"migrate: {', '.join(refused)}: no option of a migration, which stores each item once, under the names that it has"
        )
    view = "two_step" if view is None and not isinstance(table, Mapping) else view
    chosen = make_options(PushOptions, "migrate", table, view, **options)
    migration = Migration.open(source, client, chosen, incomplete, check_items, unlisted)
    return migration.outlook() if dry_run else migration.run()


@dataclass(frozen=True)
class OldTable:
    """A table as it was read.

    Attributes:
      pages: the episodes that its server lists.
      deleted: names of episodes that were deleted from it.
      keeps_list: its server lists the episodes of pushes.
      info: of a running server, just before.
      address: of a running server.
      filling: pushes and writers that the journal of a running server has as running, in words.
    """

    snapshot: Snapshot
    pages: Sequence[EpisodePage]
    deleted: frozenset[str]
    keeps_list: bool
    info: TableInfo | None = None
    address: str = ""
    filling: str = ""


def read_old_table(source: str, client: Client, tables: Sequence[str]) -> tuple[OldTable, Any]:
    """Reads the table that a text names, and what its server lists; also returns the text, parsed.

    Raises:
      ConfigError: it is one of `tables`, which are on the servers of the client.
      SourceError, TransportError: as `reverb:` does.
    """
    text = source.removeprefix("reverb:")
    if not any(sign in text for sign in ":/?"):
        is_only, is_folder = len(client.addresses) == 1, Path(text).is_dir()
        if not is_only and not is_folder:
            raise ConfigError(f'"{source}": of which server? Write HOST:PORT/{text}')
        # The table, if a folder of the working directory has its name.
        if is_only and (not is_folder or text in client.transport.server_info().tables):
            text = f"{client.addresses[0]}/{text}"
    known = {name: parse for name, parse in OPTIONS.items() if name not in ("as", "gaps")}
    request = parse_source_name("reverb", text, known)
    options = request.options
    place = None if Path(request.text).is_dir() else place_of(request.text)
    if place is None:
        with Checkpoint(find_newest(request.path)) as checkpoint:
            return _of_checkpoint(checkpoint, request.name, options.get("table")), request
    with ExitStack() as stack:
        transport = _transport_to(place.address, client, stack)
        old = _of_server(transport, request.name, place, options, client, tables)
    return old, request


def _transport_to(address: str, client: Client, stack: ExitStack) -> Transport:
    """The connection that is there, for it may have a certificate; or another one, until the end of the stack."""
    if client.addresses == (address,):
        return client.transport
    return stack.enter_context(connect(address)).transport


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
    # Never by sampling unless asked to, which would count in times_sampled.
    through = options.get("through", CHECKPOINT)
    snapshot = take_snapshot(transport, people, name, through, options.get("disturb", False))
    table = snapshot.table
    # Behind the items: what a push lists meanwhile is of items that may be there.
    keeps_list = EPISODES in info.own_tables
    pages = read_pages(transport, _SECONDS)[0] if keeps_list else []
    deletions = read_deletions(transport, _SECONDS) if DELETED in info.own_tables else []
    deleted, filling = _deleted_from(deletions, table), _find_filling(transport, info, table)
    return OldTable(snapshot, pages, deleted, keeps_list, info.tables[table], place.address, filling)


def _find_filling(transport: Transport, info: ServerInfo, table: str) -> str:
    """Pushes and writers that fill a table, as the journal has them, in words; "" if there are none."""
    entries = read_journal(transport, _SECONDS) if JOURNAL in info.own_tables else []
    process = process_text(info.state_id)
    return ", ".join(
        f"{entry.kind} {entry.id} of {entry.source or entry.user}"
        for entry in entries
        if entry.kind in ("push", "write") and table in entry.tables and entry.find_state(process) == "running"
    )


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
    deleted = _deleted_from(decode_deletions(own.get(DELETED, ()), where), snapshot.table)
    return OldTable(snapshot, pages, deleted, EPISODES in checkpoint.item_counts)


def _deleted_from(deletions: Sequence[Deletion], table: str) -> frozenset[str]:
    return frozenset(Deletions(deletions).names_of({table}))


@dataclass(frozen=True, eq=False)
class RunChoice:
    """What a migration reads of an old table.

    Attributes:
      runs: [episodes] int64, numbers of the runs that are whole episodes.
      incomplete, unlisted: episodes that are left out.
      source: the episodes.
    """

    runs: Array
    incomplete: int
    unlisted: int
    source: Source


class Migration:
    """One migration, planned and checked: `run` it, or look at it. Made by `open`.

    Attributes:
      plan: of the push.
    """

    def __init__(
        self,
        old: OldTable,
        stored: StoredEpisodes,
        names: RunNames,
        origins: ItemOrigins,
        choice: RunChoice,
        client: Client,
        plan: PushPlan,
        check_items: int,
    ) -> None:
        self._old, self._stored, self._names, self._origins = old, stored, names, origins
        self._choice, self._chosen = choice, choice.runs
        self._client, self.plan, self._check_items = client, plan, check_items
        self._kept_out = _plan_deletions(client, plan.options.tables, old.deleted)
        self._sent = self._read_all()
        self._old_view = view_in(old.snapshot.signature)
        self._moved = tuple(output for output in plan.options.outputs if self._keeps_priorities(output))
        self._has_new_keys = self._has_other_keys()
        self._pusher: Any = None

    @staticmethod
    def open(
        source: str, client: Client, options: PushOptions, incomplete: str, check_items: int, unlisted: str = REFUSE
    ) -> Migration:
        """Reads the old table, and makes all checks before the first item is sent; raises as `migrate`."""
        for name, value, choices in (("incomplete", incomplete, INCOMPLETE), ("unlisted", unlisted, UNLISTED)):
            if value not in choices:
                raise ConfigError(f'{name} (--{name}) "{value}": expected one of {", ".join(choices)}')
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
        is_end_assumed = "no_end" in request.options
        names = RunNames.of(stored, origins, is_end_assumed)
        is_unlisted = np.array([not name for name in names.names], bool) & old.keeps_list
        if is_unlisted.any() and unlisted == REFUSE:
            raise SourceError(f"{stored.name}: {_unlisted_words(stored, is_unlisted, old.filling)}")
        is_read = ~is_unlisted if unlisted == SKIP else np.ones(len(is_unlisted), bool)
        # Of an episode that was deleted, a server that was missing then may still have items.
        is_read &= [name_of_copies(name) not in old.deleted for name in names.names]
        is_lost = is_read & ~names.are_whole
        if is_lost.any() and incomplete == REFUSE:
            raise SourceError(f"{stored.name}: {_lost_words(stored, names, is_lost, is_end_assumed)}")
        chosen = np.flatnonzero(is_read & names.are_whole)
        if not len(chosen):
            why = f": {_lost_words(stored, names, is_lost, is_end_assumed)}" if is_lost.any() else ""
            raise SourceError(f"{stored.name}: nothing to migrate{why}")
        _check_names(stored, [names.names[run] for run in chosen.tolist()])
        opened = request.make_source(NamedEpisodes(stored, names, chosen))
        if not options.note:
            options = replace(options, note=f"migrated from table {old.snapshot.table}").with_rules_of(options)
        ready = Preparation.open(opened, options, options.outputs)
        _check_columns(old, ready)
        _check_tables(client, ready, old, stored)
        try:
            plan = client.planned(opened, options)
        except CapacityError as error:  # its ways on are those of a push
            why = str(error).partition("; ")[0]
            raise CapacityError(
                f"{why}; make the table larger, or migrate fewer episodes (--where, --exclude)"
            ) from error
        left_out = _count_episodes(stored, np.flatnonzero(is_unlisted & ~is_read))
        choice = RunChoice(chosen, _count_episodes(stored, np.flatnonzero(is_lost)), left_out, opened)
        return Migration(old, stored, names, origins, choice, client, plan, check_items)

    def _read_all(self) -> frozenset[str]:
        """Reads all episodes as the push will, and returns the names of those that have items.

        Raises:
          SourceError: an episode would be stored twice, or there are no items.
          InvalidEpisode, ViewError: as the push would.
        """
        plan, ready = self.plan, self.plan.ready.silent()
        preparer, names, rejected = ready.preparer(), set[str](), 0
        read = EpisodeNames(self._kept_out.is_out, plan).read(plan.source)
        for episode, problems in ready.read(episode for episode in read if isinstance(episode, Episode)):
            prepared = preparer.prepare(episode, problems)
            rejected += not prepared.is_good
            if prepared.is_good and any(cut.items_per_table for cut in prepared.cuts):
                names.add(episode.id)
        listed = {*self._names.names}
        for name in names - listed:
            if is_copy(name) and (name_of_copies(name) in listed or self._stored.are_cut):
                raise SourceError(
                    f'{self._stored.name}: an episode that no push has listed equals "{name_of_copies(name)}", and would be stored beside it: leave such '
                    "episodes out (--unlisted skip), or fill the new table from the dataset (rlds2reverb push)"
                )
        if not names:
            why = (
                f"{rejected:,} of them are bad ones" if rejected else "the new view makes none, or they stay out of it"
            )
            raise SourceError(
                f"{self._stored.name}: no items of {counted(len(self._chosen), 'episode')}: {why}; nothing is stored"
            )
        return frozenset(names)

    # What it is, in numbers.

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What changes on the way."""
        notices, layout = list[Notice](), self._stored.layout
        outputs, deleted = self.plan.options.outputs, self._kept_out
        is_same_view = all(name_of(output.view) == self._old_view for output in outputs)
        if isinstance(layout, (Transitions, Stacks, ActionChunks)) and not is_same_view:
            text = (
                "the old items hold no action, reward and further columns of an episode's last row; they are zeros"
                if not isinstance(layout, ActionChunks)
                else "the old items do not hold the last observation of an episode; it is the one before it"
            )
            text += ", and stay so: a later push of the dataset finds its episodes there, and stores nothing"
            notices.append(note("last_row_made_up", text))
        unlisted = sum(not self._names.names[run] for run in self._chosen.tolist())
        if unlisted:
            text = (
                f"{counted(unlisted, 'episode')} named by the content in the table, because no push is listed that has stored them: a later push of "
                "their dataset stores them beside these"
            )
            notices.append(note("names_unknown", text, unlisted))
        if self._has_new_keys:
            text = (
                "the old table was filled with a transform, a convention, images that stay encoded, or --again: a later push of the dataset with "
                "these options does not find its episodes in the new table, and stores all of them beside these"
            )
            notices.append(note("keys_differ", text))
        if new := [table for output in outputs if output not in self._moved for table in output.tables]:
            text = (
                f"priorities of the old table are not those of items in {', '.join(new)}, which have those of the view"
            )
            notices.append(note("priorities_new", text))
        if deleted.there:
            name, table = min(deleted.there)
            names = {name for name, _ in deleted.there}
            text = (
                f"{counted(len(names), 'episode')} deleted from the old table stay in the new one, which had them before: "
                f"rlds2reverb delete --episode {shlex.quote(escape_text(name))} --table {shlex.quote(table)}"
            )
            notices.append(note("deleted_stays", text, len(names)))
        if not deleted.is_noted:
            text = "the new server keeps no list of what was deleted from the old table, so a later push of the dataset brings it back"
            notices.append(note("deletes_not_noted", text, len(self._old.deleted)))
        notices.append(note("times_sampled_new", "times_sampled begins at 0 in the new table"))
        return tuple(notices)

    def outlook(self) -> MigrateReport:
        """What it would do."""
        names, chosen = self._names, self._chosen.tolist()
        return MigrateReport(
            source=self._stored.name,
            old_items=len(self._stored.index.keys),
            episodes=len(chosen),
            listed=sum(bool(names.names[run]) for run in chosen),
            incomplete=self._choice.incomplete,
            unlisted=self._choice.unlisted,
            deleted=len(self._kept_out.names),
            notices=self.notices,
        )

    def _keeps_priorities(self, output: Output) -> bool:
        """Whether each item of an output is an old one: the same view of the same rows, and no priorities of its own."""
        options = self.plan.options
        has_all_rows = options.chosen_map is None and not any(options.chosen_transform.dropped_rows)
        is_plain = has_all_rows and options.conventions == EpisodeOptions().conventions
        return is_plain and name_of(output.view) == self._old_view and not isinstance(output.view, Prioritized)

    def _has_other_keys(self) -> bool:
        """Whether pushes have filled the old table with options that its keys follow from, and that a migration cannot know."""
        if not self._origins.pages:
            return False
        try:
            output = Output((self._old.snapshot.table,), view_of(self._old_view))
        except (ViewError, ConfigError):
            return True
        plain = Preparation.open(self._choice.source, EpisodeOptions())
        push_seed = ItemNames(output, plain.identity).push_seed
        return any(page.push_seed != push_seed for page, _, _ in self._origins.pages)

    # Running.

    def run(self, on_progress: Callable[[Progress], object] = ignored) -> MigrateReport:
        """Notes what stays out, pushes, sets priorities, and compares; raises as `migrate`."""
        for tables, names in self._kept_out.by_tables.items():
            self._client.delete_episodes(
                episodes=names, table=tables, checkpoint=False, note=f"deleted from {self._stored.name}"
            )
        self._pusher = self._client.pusher(self.plan.with_progress(on_progress))
        report = replace(self.outlook(), push=self._pusher.run())
        assert report.push is not None
        try:
            report = replace(report, priorities=self._set_priorities())
            self._check_deleted()
            return self._prove(report)
        except Rlds2ReverbError as error:
            keep_report(error, report.push)
            raise

    def push_report(self) -> PushReport | None:
        """The account of the push so far; None before it begins."""
        return None if self._pusher is None else self._pusher.report()

    def _check_deleted(self) -> None:
        """Raises SourceError if episodes were deleted from the old table since it was read, and are in the new ones."""
        if not self._old.address:
            return
        tables = self.plan.options.tables
        with ExitStack() as stack:
            transport = _transport_to(self._old.address, self._client, stack)
            if DELETED not in transport.server_info().own_tables:
                return
            deleted = _deleted_from(read_deletions(transport, _SECONDS), self._old.snapshot.table) - self._old.deleted
        own = Deletions(_read_own_deletions(self._client))
        names = sorted(
            name
            for name in deleted & {name_of_copies(name) for name in self._sent}
            if not own.tables_without(name) >= {*tables}
        )
        if names:
            options = [
                f"{option} {shlex.quote(text)}"
                for option, texts in (("--episode", map(escape_text, names)), ("--table", tables))
                for text in texts
            ]
            raise SourceError(
                f"{self._stored.name}: {counted(len(names), 'episode')} deleted from it since it was read, and stored in the new table: "
                f"rlds2reverb delete {' '.join(options)}; then run the migration again"
            )

    def _set_priorities(self) -> int:
        """Gives items of the same view and rows the priorities that they had; returns their number."""
        if not self._moved:
            return 0
        items = self._old.snapshot.items
        priorities = np.fromiter((item.priority for part in items.parts() for item in part), np.float64, len(items))
        whole = {self._names.names[run] for run in self._chosen.tolist()} & self._sent
        count = 0
        for output in self._moved:
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
        try:
            snapshots = self._read_back()
        except SourceError as error:
            snapshots, reason = {}, str(error)
        for number, output in enumerate(self.plan.options.outputs):
            for table in output.tables:
                if table not in snapshots:
                    reason = reason or f'table "{table}" gives its items away'
                    continue
                step = -(-made.get(table, 0) // self._check_items) if self._check_items else 0
                back = _ItemsBack(snapshots[table], table)
                items[table], own = _compare(self._expected(number, table), back, step)
                compared += own
        proof = "all items are in the table, by their keys"
        if reason:
            proof = f"all items were confirmed; the table was not read back: {reason}"
        return replace(report, items=items, items_compared=compared, proof=proof)

    def _read_back(self) -> dict[str, list[Snapshot]]:
        """The tables on each server, without those that give items away; raises SourceError where a server's checkpoint cannot be read."""
        snapshots: dict[str, list[Snapshot]] = {}
        for server in self._client.group.there:
            infos = [server.transport.server_info().tables[table] for table in self.plan.options.tables]
            kept = [info for info in infos if info.max_times_sampled <= 0]
            for info in kept:
                snapshots.setdefault(info.name, [])
            if kept and not Place(server.address, None).is_here:
                raise SourceError(f"{server.address} is on another machine")
            if filled := [info.name for info in kept if info.current_size]:
                for table, snapshot in read_tables(server.transport, server.address, filled).items():
                    snapshots[table].append(snapshot)
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


# What was deleted from the old table.


@dataclass(frozen=True)
class KeptOut:
    """What becomes of names that were deleted from the old table.

    Attributes:
      by_tables: new tables -> names to note as deleted from them, which have no items of these.
      names: that stay out of a new table.
      there: names and new tables that have them by a push of their own.
      is_noted: a list of the new servers takes them, or there are none.
    """

    by_tables: Mapping[tuple[str, ...], Sequence[str]]
    names: frozenset[str]
    there: frozenset[tuple[str, str]]
    is_noted: bool
    out: Mapping[str, frozenset[str]]
    """Table -> names that stay out of it, deleted there or in the old table."""

    def is_out(self, name: str) -> bool:
        """Whether an episode stays out of all new tables."""
        return all(name_of_copies(name) in names for names in self.out.values())


def _read_own_deletions(client: Client) -> list[Deletion]:
    """All deletions that the client's servers list."""
    return [
        deletion
        for server in client.group.there
        if DELETED in server.transport.server_info().own_tables
        for deletion in read_deletions(server.transport, _SECONDS)
    ]


def _plan_deletions(client: Client, tables: Sequence[str], deleted: Collection[str]) -> KeptOut:
    """Decides by table: what was deleted or let in again there stays so, and what it has by a push of its own stays there."""
    servers = [(server.transport, server.transport.server_info().own_tables) for server in client.group.there]
    own = _read_own_deletions(client)
    pages = [
        page
        for transport, lists in servers
        if deleted and EPISODES in lists
        for page in read_pages(transport, _SECONDS)[0]
    ]
    is_noted = not deleted or any(DELETED in lists for _, lists in servers)
    out, by_name, there = dict[str, frozenset[str]](), dict[str, list[str]](), set[tuple[str, str]]()
    for table in tables:
        decided = {name for deletion in own if table in deletion.tables for name in deletion.names}
        stored = {name_of_copies(name) for page in pages if table in page.tables for name in page.names}
        there |= {(name, table) for name in (stored & {*deleted}) - decided}
        noted = ({*deleted} - decided - stored) if is_noted else set[str]()
        for name in noted:
            by_name.setdefault(name, []).append(table)
        out[table] = frozenset(Deletions(own).names_of({table}) | noted)
    by_tables: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(by_name):
        by_tables.setdefault(tuple(by_name[name]), []).append(name)
    names = frozenset(deleted).intersection(frozenset[str]().union(*out.values()))
    return KeptOut(by_tables, names, frozenset(there), is_noted, out)


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


def _check_names(stored: StoredEpisodes, names: Sequence[str]) -> None:
    """Raises SourceError if two episodes have one name, which a table has by two pushes with different options."""
    twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
    if twice:
        raise SourceError(
            f"{stored.name}: {counted(len(twice), 'episode')} stored there more than once, by pushes with different options or --again "
            f"({_first_of(twice)}): take out one of the pushes (rlds2reverb journal, rlds2reverb delete --push ID), or fill the new table from the "
            "dataset (rlds2reverb push)"
        )


def _unlisted_words(stored: StoredEpisodes, is_unlisted: Array, filling: str) -> str:
    """How many episodes no push has listed, why that may be, and how to go on, in words."""
    runs = np.flatnonzero(is_unlisted)
    names = [stored.name_of(run) for run in runs[: _SHOWN + 1].tolist()]
    text = f"{counted(_count_episodes(stored, runs), 'episode')} listed by no push ({_first_of(names)}), so their names are unknown: "
    if filling:
        text += f"the table is being filled ({filling}), and a push lists its episodes at its end. Wait for it, or leave them out"
    else:
        text += "a push that was killed lists them when it is run again. Otherwise leave them out"
    return (
        f"{text} (--unlisted skip); or name them by their content (--unlisted content), if no push will ever list them: it would store them "
        "beside these"
    )


def _lost_words(stored: StoredEpisodes, names: RunNames, is_lost: Array, is_end_assumed: bool) -> str:
    """How many episodes have lost rows, which, and how to go on, in words."""
    runs = np.flatnonzero(is_lost)
    lost = _count_episodes(stored, runs)
    shown = _first_of([*dict.fromkeys(names.names[run] or stored.name_of(run) for run in runs.tolist())])
    whole = _count_episodes(stored, np.arange(len(stored.runs)))
    text = (
        f"{lost:,} of {counted(whole, 'episode')} lack items or rows, which were removed, not stored yet, or in no window ({shown}); "
        "leave these episodes out (--incomplete skip)"
    )
    if not is_end_assumed and not stored.layout.tells_ends and not all(names.names[run] for run in runs.tolist()):
        text += (
            ". Items of this view do not tell where an episode ends; if nobody writes into the table, say so with no_end=truncated behind its name "
            "(HOST:PORT/TABLE?no_end=truncated)"
        )
    return text


_SHOWN = 3


def _first_of(names: Sequence[str]) -> str:
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])


def _count_episodes(stored: StoredEpisodes, runs: Array) -> int:
    # Of a sequence that was cut where episodes begin, each run is an episode.
    sequences = stored.runs.sequences[runs]
    return int(np.unique(sequences).size) if not (stored.runs.is_first & stored.runs.is_last)[runs].all() else len(runs)
