"""What a push is going to do: everything that can be found out, and refused, before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlds2reverb.display import as_html
from rlds2reverb.episode import Notice
from rlds2reverb.errors import CapacityError, ConfigError, Rlds2ReverbError, keep_report, reason_of
from rlds2reverb.formats.source import Source
from rlds2reverb.prepare.conventions import DROP
from rlds2reverb.prepare.cutting import Output
from rlds2reverb.prepare.options import Progress
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.options import ONCE, PushOptions, Tuning
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.room import TableCapacity
from rlds2reverb.push.tables import check_size, check_tables, merged
from rlds2reverb.specs import ArraySpec, Nest, spec_texts, view_in
from rlds2reverb.text import counted
from rlds2reverb.views.base import item_count_of, not_in_items
from rlds2reverb.wire.limiter import waits_when_full
from rlds2reverb.wire.messages import ServerInfo, TableInfo


@dataclass(frozen=True)
class TablePlan:
    """What a push finds in one of its tables, and puts there.

    Attributes:
      name: the table's.
      view: what people call the view that fills it.
      signature: of the items.
      size, max_size: items in it now, and at most.
      waits_when_full: it evicts nothing: inserts wait for samples.
      not_in_items: paths of the dataset's step columns that no item holds in any form.
      made_for: the view that the table's signature says it is for; "" where it does not say.
      least_items, most_items: that the push makes for it, those included that it holds already; most_items None where only reading tells.
      fits: True when no item of the push is refused for lack of room, as the tables are now; None where only the push finds out:
        how many items there are, or how many of them the table holds already.
    """

    name: str
    view: str
    signature: Nest
    size: int
    max_size: int
    waits_when_full: bool
    not_in_items: tuple[str, ...] = ()
    made_for: str = ""
    least_items: int = 0
    most_items: int | None = None
    fits: bool | None = None

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def free(self) -> int:
        """Items that it has room for; those of this push that it holds already need none."""
        return max(0, self.max_size - self.size)

    @property
    def items_in_words(self) -> str:
        """How many items the push makes for it, as far as that is known before an episode is read.

        >>> TablePlan("t", "v", None, 0, 9, False, least_items=2).items_in_words
        'at least 2 items'
        """
        least, most = self.least_items, self.most_items
        if most is None:
            return f"at least {counted(least, 'item')}" if least else "items that only reading counts"
        if least == most:
            return counted(most, "item")
        return (
            f"at least {least:,} and at most {counted(most, 'item')}" if least else f"at most {counted(most, 'item')}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "view": self.view,
            "made_for": self.made_for or None,
            "signature": spec_texts(self.signature),
            "size": self.size,
            "max_size": self.max_size,
            "free": self.free,
            "waits_when_full": self.waits_when_full,
            "not_in_items": list(self.not_in_items),
            "least_items": self.least_items,
            "most_items": self.most_items,
            "fits": self.fits,
        }


@dataclass(frozen=True)
class PushPlan:
    """A push of one source to the tables of one server or of several, before anything is sent, with the tables as they are at this moment.

    Attributes:
      ready: the source, ready to be read.
      options: how.
      tuning: how it sends.
      names: address -> name, of all servers; names decide which of several gets an episode.
      allow_missing: the push continues without servers that are lost, as long as one is there.
      infos: address -> the server's tables, of those that can be reached.
      tables: what is found in each table and put there, in the order of the options; of several servers, sizes and room are those of all together.
      server_tables: address -> the same of that server alone, of those that can be reached.
      asked_for: the source as the caller named it, or `workers.driver.Named`: workers open it by that.
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

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def source(self) -> Source:
        """The episodes, as the transform makes them."""
        return self.ready.source

    @property
    def step_spec(self) -> Nest:
        """Of the steps, absent fields filled in."""
        return self.ready.step_spec

    @property
    def filled(self) -> tuple[str, ...]:
        """Step fields that the dataset lacks and that are filled (`conventions`)."""
        return self.ready.filled

    @property
    def metadata(self) -> Mapping[str, ArraySpec]:
        """Path -> spec of the episodes' metadata that items hold."""
        return self.ready.metadata

    @property
    def episodes(self) -> int | None:
        """Episodes that will be read; None when that is not known."""
        return self.source.episode_count

    @property
    def view(self) -> str:
        """What people call the views."""
        return ", ".join(dict.fromkeys(table.view for table in self.tables))

    @property
    def not_in_items(self) -> dict[str, tuple[str, ...]]:
        """Table -> paths of the step columns that its items do not hold, where there are any."""
        return {table.name: table.not_in_items for table in self.tables if table.not_in_items}

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What the source tells of its data as a whole before it is read."""
        return self.ready.notices

    @property
    def missing(self) -> tuple[str, ...]:
        """Addresses of the servers that cannot be reached; their episodes are left out."""
        return tuple(address for address in self.names if address not in self.infos)

    def telling(self, on_progress: Callable[[Progress], object]) -> PushPlan:
        """The same plan with another `on_progress`."""
        return replace(self, options=replace(self.options, on_progress=on_progress))

    def named(self, error: Rlds2ReverbError, address: str) -> Rlds2ReverbError:
        """An error of one server; of several, the address is in its message."""
        if len(self.names) > 1 and address not in str(error):
            error.args = (f"{address}: {error}", *error.args[1:])
        return error

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {
            "source": self.source.name,
            "episodes": self.episodes,
            "transform": self.options.chosen_transform.as_dict(),
            "filled": list(self.filled),
            "notices": [remark.as_dict() for remark in self.notices],
            "tables": {table.name: table.as_dict() for table in self.tables},
        }
        if len(self.names) == 1:
            return plain
        servers = {
            address: {table.name: table.as_dict() for table in tables} for address, tables in self.server_tables.items()
        }
        return {**plain, "servers": servers, "missing": list(self.missing)}


def plan_push(
    source: Any,
    options: PushOptions,
    ask: Callable[[], Mapping[str, ServerInfo]],
    names: Mapping[str, str] | None = None,
    allow_missing: bool = False,
    tuning: Tuning | None = None,
    asked_for: Any = None,
) -> PushPlan:
    """Looks at the source and the tables, and refuses what cannot go well.

    Args:
      source: anything that `open_source` takes. No episode is read, unless items hold metadata that only an episode can tell; small files may be, to count steps.
      options: how.
      ask: address -> the tables of a server, of those that can be reached; asked once, when the source is known.
      names: address -> name, of all servers; None for those of `ask`, by their addresses.
      allow_missing: see `PushPlan`.
      tuning: how it sends; None for what the options say.
      asked_for: see `PushPlan`; None for the source.

    Raises:
      SourceError: the source cannot be opened, has no spec, lacks is_first or is_last, or cannot keep images encoded; strictly, it tells of a fault in itself;
        or workers are to share it, and it does not know how many episodes it has.
      ViewError: a view cannot cut such steps.
      ConfigError: a transform that the steps do not allow, a server has no such table, a file cannot be written, or a view of streams for several servers.
      SpecMismatch: a table's signature is not that of the items.
      CapacityError: the push makes more items than a table has places, as far as that is known (`TablePlan.least_items`); nothing is
        stored, which the error's `report` says. Of several servers, their places count together, and not while one is missing.
      LedgerError: the ledger cannot be used.
      ServerUnreachable: no server answers.
    """
    options.check_files()
    if names is not None and len(names) > 1:
        _check_views(options)
    elif options.move:
        raise ConfigError("move=True (--move) is for several servers: --server HOST:PORT,HOST:PORT")
    ready = Preparation.open(source, options, options.outputs)
    if options.is_distributed:
        ready.source.known_count()
    infos = dict(ask())
    names = dict(zip(infos, infos)) if names is None else names
    plan = PushPlan(ready, options, Tuning.of(options) if tuning is None else tuning, names, allow_missing, infos, ())
    items = _items_of(ready, options)
    unknown = items if len(names) == 1 else [(0, None)] * len(items)
    server_tables: dict[str, tuple[TablePlan, ...]] = {}
    for address, info in infos.items():
        try:
            for output, signature in zip(options.outputs, ready.signatures):
                check_tables(output, signature, info, options.allow_other_views)
        except Rlds2ReverbError as error:
            raise plan.named(error, address) from error
        server_tables[address] = _table_plans(plan, info, unknown)
    whole = merged({address: _only(info, options.tables) for address, info in infos.items()})
    tables = _table_plans(plan, whole, items)
    plan = replace(
        plan, tables=tables, server_tables=server_tables, asked_for=source if asked_for is None else asked_for
    )
    if not plan.missing:
        _check_room(plan, whole)
    if len(names) > 1:  # nobody knows which server gets how many items
        free = {
            name: min(one.free for found in server_tables.values() for one in found if one.name == name)
            for name in options.tables
        }
        plan = replace(plan, tables=tuple(replace(one, fits=_fits(one, options, free[one.name])) for one in tables))
    return plan


def report_of_nothing(plan: PushPlan) -> PushReport:
    """The account of a push of which nothing has been read."""
    return PushReport(
        source=plan.source.name,
        tables=plan.options.tables,
        view=plan.view,
        filled=plan.filled,
        not_in_items=plan.not_in_items,
        episodes_unread=plan.episodes,
        transform=plan.options.chosen_transform.as_dict(),
    )


def _check_views(options: PushOptions) -> None:
    for output in options.outputs:
        if output.is_of_stream:
            raise ConfigError(
                f"{output.view.label}: items depend on the episodes before, which are on other servers; push to one server, "
                "or choose a view that cuts every episode by itself"
            )


def _only(info: ServerInfo, names: tuple[str, ...]) -> ServerInfo:
    """A server as if it had only these tables: the others of several servers need not agree."""
    return replace(info, tables={name: table for name, table in info.tables.items() if name in names})


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
    found = TablePlan(
        name=table.name,
        view=output.view_name,
        signature=signature,
        size=table.current_size,
        max_size=table.max_size,
        waits_when_full=waits_when_full(table),
        not_in_items=not_in_items(output.view, plan.ready.recorded_spec),
        made_for=view_in(table.signature),
        least_items=least,
        most_items=most,
    )
    return replace(found, fits=_fits(found, plan.options, found.free))


def _fits(table: TablePlan, options: PushOptions, free: int) -> bool | None:
    has_room = table.most_items is not None and table.most_items <= free
    return True if has_room or table.waits_when_full or options.allow_eviction else None


def _items_of(ready: Preparation, options: PushOptions) -> Sequence[tuple[int, int | None]]:
    """Per output, the items that the push makes for each of its tables: at least, and at most where that is known."""
    lengths = ready.source.episode_lengths()
    counts = None if lengths is None else Counter(lengths)
    return [_bounds(options, output, ready.source.episode_count, counts) for output in options.outputs]


def _bounds(
    options: PushOptions, output: Output, episodes: int | None, lengths: Counter[int] | None
) -> tuple[int, int | None]:
    """Of a stream nothing is known. Else bad or equal episodes may be left out where the push goes on after them, and each good one gives what its view says."""
    view = output.view
    if output.is_of_stream:
        return 0, None
    goes_on = not options.stops or options.duplicates == ONCE
    if lengths is not None and item_count_of(view, 0) is not None:
        dropped = (0, 1) if options.conventions.last_observation == DROP else (0,)
        made = [(n, [item_count_of(view, max(0, rows - one)) or 0 for one in dropped]) for rows, n in lengths.items()]
        return 0 if goes_on else sum(n * min(one) for n, one in made), sum(n * max(one) for n, one in made)
    if episodes is None:
        return 0, None
    each = item_count_of(view, None)
    # With one view, an episode without items is a bad one; with several, another one may give some.
    gives_some = not goes_on and not options.allow and len(options.outputs) == 1
    return episodes if gives_some else 0, None if each is None else episodes * each


def _check_room(plan: PushPlan, info: ServerInfo) -> None:
    """Refuses a table with fewer places than the items that the push certainly makes for it.

    Raises:
      CapacityError: there is one; the error's `report` says that nothing is stored.
    """
    if plan.options.allow_eviction:
        return
    tables = {table.name: table for table in plan.tables}
    try:
        for output in plan.options.outputs:
            table = tables[output.tables[0]]
            is_exact = table.least_items == table.most_items
            check_size(output, info, table.least_items, f"{'' if is_exact else 'at least '}{table.least_items}")
        for table in (
            plan.tables if plan.options.again else ()
        ):  # new keys need new places, unless samples make some meanwhile
            if info.tables[table.name].max_times_sampled <= 0:
                capacity = TableCapacity(info.tables[table.name], guarded=True)
                capacity.refuse_what_cannot_fit(table.least_items, all_are_new=True)
    except CapacityError as error:
        keep_report(error, replace(report_of_nothing(plan), stopped=reason_of(error)))
        raise
