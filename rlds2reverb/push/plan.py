"""What a push is going to do, and every error that can be found before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypedDict

from rlds2reverb.episode import Notice
from rlds2reverb.errors import CapacityError, ConfigError, Rlds2ReverbError, keep_report, reason_of
from rlds2reverb.formats.filters import Function, Idle, KeepRanges, WhereStep
from rlds2reverb.formats.source import LeftOut, Source
from rlds2reverb.formats.transform import Transform
from rlds2reverb.plain import Count, members, plain, printed
from rlds2reverb.prepare.conventions import REPEAT
from rlds2reverb.prepare.preparation import Output, Preparation, item_bounds
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.push.capacity import TableCapacity
from rlds2reverb.push.options import ONCE, PushOptions
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.tables import check_size, check_tables
from rlds2reverb.servers.group import Server, Servers, name_server
from rlds2reverb.servers.tables import merge_infos
from rlds2reverb.specs import ArraySpec, Nest, spec_texts, view_in
from rlds2reverb.text import as_html, counted
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views.base import NeedsRows, item_count_of, not_in_items
from rlds2reverb.views.trajectory import name_of
from rlds2reverb.wire.insert import RequestLimits
from rlds2reverb.wire.messages import DELETED, ServerInfo, TableInfo, waits_when_full
from rlds2reverb.wire.session import SessionWindow


@printed(
    "view",
    "made_for",
    "signature=columns",
    "size",
    "max_size",
    "free",
    "waits_when_full",
    "not_in_items",
    "least_items",
    "most_items",
    "fits",
)
@dataclass(frozen=True)
class TablePlan:
    """One table of a push, and the items that the push makes for it.

    Attributes:
      name: of the table.
      view: name of the view that fills it, as its signature has it.
      signature: of the items.
      size, max_size: items in the table now, and at most.
      waits_when_full: inserts wait for samples, so nothing is evicted.
      not_in_items: paths of the dataset's step columns that no item holds in any form.
      made_for: the view that the table's signature names; None without one.
      least_items, most_items: bounds of the items that the push makes for the table, those that it has already included; most_items is
        None when they can only be counted by reading the episodes.
      fits: True when the table has places for all items; None when only the push can tell, because it does not know how many items there
        are, or how many of them the table has already.
    """

    name: str
    view: str
    signature: Nest
    size: Count
    max_size: Count
    waits_when_full: bool
    not_in_items: tuple[str, ...] = ()
    made_for: str | None = None
    least_items: Count = 0
    most_items: Count | None = None
    fits: bool | None = None

    _repr_html_ = as_html

    @property
    def columns(self) -> dict[str, str]:
        """Signature of the items: path -> dtype and shape, such as "float32[2, 4]"."""
        return spec_texts(self.signature)

    @property
    def free(self) -> Count:
        """Free places; items of this push that the table has already need none."""
        return max(0, self.max_size - self.size)

    @property
    def items_in_words(self) -> str:
        """`least_items` and `most_items` as text.

        >>> TablePlan("t", "v", None, 0, 9, False, least_items=2).items_in_words
        'at least 2 items'
        """
        least, most = self.least_items, self.most_items
        if most is None:
            return f"at least {counted(least, 'item')}" if least else "an unknown number of items"
        if least == most:
            return counted(most, "item")
        return (
            f"at least {least:,} and at most {counted(most, 'item')}" if least else f"at most {counted(most, 'item')}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return members(self)


class _OfServers(TypedDict, total=False):
    servers: dict[str, dict[str, TablePlan]]
    missing: list[str]


class Plan(_OfServers):
    """With --dry-run: what a push would do.

    Attributes:
      source: name of the dataset.
      episodes: that will be read; null where that is not known.
      transform: what is done to the columns first.
      filtered: rule -> what it takes out of the dataset.
      filled: step fields that the dataset lacks and that are filled.
      notices: about the dataset as a whole.
      tables: table -> what is found there; sizes add up over the servers.
      servers: with more than one server, address -> tables of that server.
      missing: with more than one server, those that cannot be reached.
    """

    source: str
    episodes: Count | None
    transform: Transform
    filtered: dict[str, LeftOut]
    filled: list[str]
    notices: list[Notice]
    tables: dict[str, TablePlan]


@dataclass(frozen=True)
class Tuning:
    """How a push sends; of it, users choose only `stall_seconds`."""

    limits: RequestLimits = RequestLimits()
    window: SessionWindow = SessionWindow()
    deadlines: Deadlines = Deadlines()

    @classmethod
    def of(cls, options: PushOptions) -> Tuning:
        return cls(deadlines=options.deadlines)


@dataclass(frozen=True)
class PushPlan:
    """A push before anything is sent, with the tables as they are now.

    Attributes:
      ready: the source, ready to be read.
      options: of the push.
      tuning: how it sends.
      names: address -> name, of all servers; names decide which server gets an episode.
      allow_missing: the push continues without lost servers, while one is there.
      infos: address -> tables of the server, of those that can be reached.
      tables: in the order of the options; sizes add up over the servers.
      server_tables: address -> the tables of that server alone, of those that can be reached.
      asked_for: the source as the caller gave it, or a `NamedSource`; workers open it by that.
      found_before: what the ledger tells of this dataset before anything is read or sent.
    """

    ready: Preparation
    options: PushOptions
    tuning: Tuning
    names: Mapping[str, str]
    allow_missing: bool
    infos: Mapping[str, ServerInfo]
    tables: tuple[TablePlan, ...]
    server_tables: Mapping[str, tuple[TablePlan, ...]] = field(default_factory=dict)
    asked_for: Any = None
    found_before: tuple[Notice, ...] = ()

    _repr_html_ = as_html

    @property
    def source(self) -> Source:
        """The episodes, transformed."""
        return self.ready.source

    @property
    def step_spec(self) -> Nest:
        """Spec of the steps, absent fields filled in."""
        return self.ready.step_spec

    @property
    def filled(self) -> tuple[str, ...]:
        """Step fields that the dataset lacks and that are filled (`conventions`)."""
        return self.ready.filled

    @property
    def metadata(self) -> Mapping[str, ArraySpec]:
        """Path -> spec of the episode metadata that items hold."""
        return self.ready.metadata

    @property
    def episodes(self) -> int | None:
        """Number of episodes that will be read; None when it is not known."""
        return self.source.episode_count

    @property
    def view(self) -> str:
        """Names of the views."""
        return ", ".join(dict.fromkeys(table.view for table in self.tables))

    @property
    def not_in_items(self) -> dict[str, tuple[str, ...]]:
        """Table -> paths of the step columns that its items do not hold, if any."""
        return {table.name: table.not_in_items for table in self.tables if table.not_in_items}

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices about the dataset as a whole, known before it is read."""
        return (*self.ready.notices, *self.found_before)

    @property
    def missing(self) -> tuple[str, ...]:
        """Addresses of servers that cannot be reached; their episodes are left out."""
        return tuple(address for address in self.names if address not in self.infos)

    def with_progress(self, on_progress: Callable[[Progress], object]) -> PushPlan:
        """A copy of the plan with another `on_progress`."""
        options = replace(self.options, on_progress=on_progress).with_rules_of(self.options)
        return replace(self, options=options)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plan: Plan = {
            "source": self.source.name,
            "episodes": self.episodes,
            "transform": self.options.chosen_transform,
            "filtered": dict(self.source.filtered),
            "filled": list(self.filled),
            "notices": list(self.notices),
            "tables": {table.name: table for table in self.tables},
        }
        if len(self.names) > 1:
            plan["servers"] = {
                address: {table.name: table for table in tables} for address, tables in self.server_tables.items()
            }
            plan["missing"] = list(self.missing)
        return dict(plain(plan))


def plan_push(
    source: Any,
    options: PushOptions,
    ask: Callable[[], Mapping[str, ServerInfo]],
    names: Mapping[str, str] | None = None,
    allow_missing: bool = False,
    tuning: Tuning | None = None,
    asked_for: Any = None,
) -> PushPlan:
    """Opens the source, asks for the tables, and checks both.

    Args:
      source: anything that `open_source` takes. No episode is read, unless items hold metadata whose spec only an episode shows; small
        files may be read to count steps.
      options: of the push.
      ask: returns address -> tables, of the servers that can be reached; called once, after the source was opened.
      names: address -> name, of all servers; by default those of `ask`, named by their addresses.
      tuning: how it sends; by default as the options say.

    Raises:
      SourceError: the source cannot be opened, has no spec, lacks is_first or is_last, cannot keep images encoded, has a fault (strict),
        or does not know its number of episodes, which workers need.
      ViewError: a view cannot cut such steps.
      ConfigError: a transform does not apply to the steps, a server has no such table, a file cannot be written, or a view of streams is
        for more than one server.
      SpecMismatch: a table's signature differs from that of the items.
      CapacityError: `TablePlan.least_items` exceeds the places of a table. With many servers their places add up, and are not checked while
        one is missing.
      LedgerError: the ledger cannot be used.
      ServerUnreachable: no server answers.
    """
    options.check_files()
    if names is not None and len(names) > 1:
        for output in options.outputs:
            if output.is_of_stream:
                raise ConfigError(
                    f"{output.view_name}: items depend on the episodes before, which are on other servers; push to one server, "
                    "or choose a view that cuts every episode by itself"
                )
    elif options.move:
        raise ConfigError("move=True (--move) is for several servers: --server HOST:PORT,HOST:PORT")
    ready = Preparation.open(source, options, options.outputs, options.chosen_identity)
    if ready.outputs != options.outputs:  # seconds have become steps
        options = options.with_outputs(ready.outputs)
    if options.is_distributed:
        ready.source.known_count()
    infos = dict(ask())
    names = dict(zip(infos, infos)) if names is None else names
    plan = PushPlan(ready, options, Tuning.of(options) if tuning is None else tuning, names, allow_missing, infos, ())
    lengths = ready.source.episode_lengths()
    counts = None if lengths is None else Counter(lengths)
    if counts is not None and options.stops:
        _check_lengths(options, counts)
    items = [_bound_items(options, output, ready.source.episode_count, counts) for output in options.outputs]
    if any((deleted := info.own_tables.get(DELETED)) is not None and deleted.current_size for info in infos.values()):
        items = [(0, most) for _, most in items]  # some may stay out; which, only the push finds out
    unknown = items if len(names) == 1 else [(0, None)] * len(items)
    server_tables: dict[str, tuple[TablePlan, ...]] = {}
    for address, info in infos.items():
        try:
            for output, signature in zip(options.outputs, ready.signatures):
                check_tables(output, signature, info, options.allow_other_views)
        except Rlds2ReverbError as error:
            if len(names) > 1:
                name_server(error, address)
            raise
        server_tables[address] = _table_plans(plan, info, unknown)
    # Only the tables of the push: others may differ from server to server.
    pushed = {
        address: replace(info, tables={name: info.tables[name] for name in options.tables})
        for address, info in infos.items()
    }
    whole = merge_infos(pushed)
    tables = _table_plans(plan, whole, items)
    plan = replace(
        plan, tables=tables, server_tables=server_tables, asked_for=source if asked_for is None else asked_for
    )
    if not plan.missing:
        _check_room(plan, whole)
    if len(names) > 1:  # which server gets how many items is not known
        free = {
            name: min(
                table.free for tables_there in server_tables.values() for table in tables_there if table.name == name
            )
            for name in options.tables
        }
        fitted = (replace(table, fits=_fits(table, options, free[table.name])) for table in tables)
        plan = replace(plan, tables=tuple(fitted))
    return plan


_AWAY = "ServerUnreachable: it was missing when the push began"


def push_servers(
    plan: PushPlan,
    transports: Mapping[str, Transport],
    lost: Mapping[str, str] = MappingProxyType({}),
    on_lost: Callable[[Server, Rlds2ReverbError], object] = lambda *_: None,
) -> Servers:
    """The servers of a push; one that is lost stays lost until the end of the push.

    Args:
      transports: address -> transport; a server that is not here is missing, as one is that did not answer when the plan was made.
      lost: address -> reason, of servers that other tasks of the push have lost.
      on_lost: called for each server that is lost from now on.
    """
    servers = []
    for number, (address, name) in enumerate(plan.names.items()):
        transport = None if address in lost or address not in plan.infos else transports.get(address)
        missing = "" if transport is not None else lost.get(address, _AWAY)
        servers.append(Server(number, address, transport, name, plan.infos.get(address), missing))
    return Servers(servers, plan.allow_missing, on_lost=on_lost)


def report_of_nothing(plan: PushPlan) -> PushReport:
    """The report of a push that has not begun."""
    return PushReport(
        source=plan.source.name,
        tables=plan.options.tables,
        view=plan.view,
        filled=plan.filled,
        not_in_items=plan.not_in_items,
        episodes_unread=plan.episodes,
        transform=plan.options.chosen_transform.as_dict(),
        filtered=plan.source.filtered,
    )


def _table_plans(plan: PushPlan, info: ServerInfo, items: Sequence[tuple[int, int | None]]) -> tuple[TablePlan, ...]:
    return tuple(
        _table_plan(info.tables[name], output, signature, plan, bounds)
        for output, signature, bounds in zip(plan.options.outputs, plan.ready.signatures, items)
        for name in output.tables
    )


def _table_plan(
    table: TableInfo, output: Output, signature: Nest, plan: PushPlan, items: tuple[int, int | None]
) -> TablePlan:
    least, most = items
    table_plan = TablePlan(
        name=table.name,
        view=name_of(output.view),
        signature=signature,
        size=table.current_size,
        max_size=table.max_size,
        waits_when_full=waits_when_full(table),
        not_in_items=not_in_items(output.view, plan.ready.recorded_spec),
        made_for=view_in(table.signature) or None,
        least_items=least,
        most_items=most,
    )
    return replace(table_plan, fits=_fits(table_plan, plan.options, table_plan.free))


def _fits(table: TablePlan, options: PushOptions, free: int) -> bool | None:
    # Never False: items that the table has already need no place, and which those are only the push finds out.
    has_room = table.most_items is not None and table.most_items <= free
    return True if has_room or table.waits_when_full or options.allow_eviction else None


def _bound_items(
    options: PushOptions, output: Output, episodes: int | None, lengths: Counter[int] | None
) -> tuple[int, int | None]:
    """(least, most) items that the push makes for each table of an output.

    Args:
      episodes: in the source; None if not known.
      lengths: rows of an episode -> number of episodes; None if not known.
    """
    view = output.view
    if output.is_of_stream:
        return 0, None
    may_leave_out = not options.stops or options.duplicates == ONCE
    if lengths is not None and item_count_of(view, 0) is not None:
        bounds = [(n, item_bounds(view, options.conventions, rows)) for rows, n in lengths.items()]
        least = 0 if may_leave_out else sum(n * fewest for n, (fewest, _) in bounds)
        return least, sum(n * most for n, (_, most) in bounds)
    if episodes is None:
        return 0, None
    each = item_count_of(view, None)
    # With one view, an episode without items is bad; with more, another view may make some of it.
    gives_some = not may_leave_out and not options.allow and len(options.outputs) == 1 and not options.rules
    return episodes if gives_some else 0, None if each is None else episodes * each


def _check_lengths(options: PushOptions, lengths: Counter[int]) -> None:
    """Raises `ViewError` for a view that refuses an episode because of its rows, before any is sent."""
    if any(isinstance(rule, (Function, KeepRanges, WhereStep, Idle)) for rule in options.rules):
        return  # what these leave of an episode may be short
    repeats = options.conventions.last_step == REPEAT
    for output in options.outputs:
        if isinstance(output.view, NeedsRows):
            for rows in sorted(lengths):
                output.view.check_rows(rows + (repeats and rows > 0))


def _check_room(plan: PushPlan, info: ServerInfo) -> None:
    """Raises CapacityError if a table has fewer places than `least_items`; its `report` says that nothing is stored."""
    if plan.options.allow_eviction:
        return
    tables = {table.name: table for table in plan.tables}
    try:
        for output in plan.options.outputs:
            table = tables[output.tables[0]]
            is_exact = table.least_items == table.most_items
            check_size(output, info, table.least_items, f"{'' if is_exact else 'at least '}{table.least_items}")
        for table in plan.tables if plan.options.again else ():
            # New keys need new places, unless items leave with their last sample.
            if info.tables[table.name].max_times_sampled <= 0:
                capacity = TableCapacity(info.tables[table.name], guarded=True)
                capacity.refuse_what_cannot_fit(table.least_items, all_are_new=True)
    except CapacityError as error:
        keep_report(error, replace(report_of_nothing(plan), stopped=reason_of(error)))
        raise
