"""What a push is going to do: everything that can be found out, and refused, before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlds2reverb.conventions import DROP
from rlds2reverb.display import as_html
from rlds2reverb.errors import CapacityError, ConfigError, keep_report, reason_of
from rlds2reverb.push.opening import Opened, identity_of, opened
from rlds2reverb.push.options import ONCE, PushOptions
from rlds2reverb.push.outputs import Output
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.room import TableRoom
from rlds2reverb.push.tables import check_size, check_tables
from rlds2reverb.push.tuning import Tuning
from rlds2reverb.remarks import Remark
from rlds2reverb.sources.base import Source, episode_lengths_of, remarks_of
from rlds2reverb.specs import ArraySpec, Nest, spec_texts, view_in
from rlds2reverb.validation.policy import STOPPING
from rlds2reverb.views.base import item_count_of, not_in_items
from rlds2reverb.wire.limiter import waits_when_full
from rlds2reverb.wire.messages import ServerInfo, TableInfo
from rlds2reverb.wording import counted


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
    """A push of one source to the tables of one server, before anything is sent, with the tables as they are at this moment.

    Attributes:
      source: the episodes, as the transform makes them.
      options: how.
      tuning: how it sends.
      info: the server's tables.
      step_spec: of the steps, absent fields filled in.
      filled: step fields that the dataset lacks and that are filled (`conventions`).
      tables: what is found in each table and put there, in the order of the options.
      metadata: path -> spec of the episodes' metadata that items hold.
      is_part: the episodes go to several servers, and this is the plan of one; nobody knows how many it gets.
    """

    source: Source
    options: PushOptions
    tuning: Tuning
    info: ServerInfo
    step_spec: Nest
    filled: tuple[str, ...]
    tables: tuple[TablePlan, ...]
    metadata: Mapping[str, ArraySpec] = field(default_factory=dict)
    is_part: bool = False

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def episodes(self) -> int | None:
        """Episodes that will be read; None when that is not known."""
        return None if self.is_part else self.source.episode_count

    @property
    def view(self) -> str:
        """What people call the views."""
        return ", ".join(dict.fromkeys(table.view for table in self.tables))

    @property
    def identity(self) -> str:
        """What two pushes by the same views must share for their items to be the same: conventions, transform, and which images stay encoded."""
        return identity_of(self.options, self.step_spec)

    @property
    def not_in_items(self) -> dict[str, tuple[str, ...]]:
        """Table -> paths of the step columns that its items do not hold, where there are any."""
        return {table.name: table.not_in_items for table in self.tables if table.not_in_items}

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What the source tells of its data as a whole before it is read."""
        return remarks_of(self.source)

    def telling(self, on_progress: Callable[[Progress], object]) -> PushPlan:
        """The same plan with another `on_progress`."""
        return replace(self, options=replace(self.options, on_progress=on_progress))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "source": self.source.name,
            "episodes": self.episodes,
            "transform": self.options.chosen_transform.as_dict(),
            "filled": list(self.filled),
            "remarks": [remark.as_dict() for remark in self.remarks],
            "tables": {table.name: table.as_dict() for table in self.tables},
        }


def plan_push(
    source: Any, options: PushOptions, ask: Callable[[], ServerInfo], tuning: Tuning | None = None
) -> PushPlan:
    """Looks at the source and the tables, and refuses what cannot go well.

    Args:
      source: anything that `open_source` takes. No episode is read, unless items hold metadata that only an episode can tell; small files may be, to count steps.
      options: how.
      ask: the server's tables; asked once, when the source is known.
      tuning: how it sends; None for what the options say.

    Raises:
      SourceError: the source cannot be opened, has no spec, lacks is_first or is_last, or cannot keep images encoded; or, strictly, it tells of a fault in itself.
      ViewError: a view cannot cut such steps.
      ConfigError: a transform that the steps do not allow, the server has no such table, or a file cannot be written.
      SpecMismatch: a table's signature is not that of the items.
      CapacityError: the push makes more items than a table has places, as far as that is known (`TablePlan.least_items`); nothing is
        stored, which the error's `report` says.
      LedgerError: the ledger cannot be used.
      ServerUnreachable: no server answers.
    """
    options.check_files()
    if options.move:
        raise ConfigError("move=True (--move) is for several servers: --server HOST:PORT,HOST:PORT")
    plan = plan_of(opened(source, options), ask(), tuning)
    check_room(plan)
    return plan


def plan_of(ready: Opened, info: ServerInfo, tuning: Tuning | None = None, is_part: bool = False) -> PushPlan:
    """The plan of a push to tables that take its items. Their room is not looked at.

    Args:
      ready: the source.
      info: the server's tables.
      tuning, is_part: see `plan_push` and `PushPlan`.

    Raises:
      ConfigError: the server has no such table.
      SpecMismatch: a table's signature is not that of the items.
    """
    options = ready.options
    for output, signature in zip(options.outputs, ready.signatures):
        check_tables(output, signature, info, options.allow_other_views)
    tables = tuple(
        _table_plan(info.tables[name], output, signature, ready, items)
        for output, signature, items in zip(options.outputs, ready.signatures, _items_of(ready, is_part))
        for name in output.tables
    )
    tuning = Tuning.of(options) if tuning is None else tuning
    return PushPlan(ready.source, options, tuning, info, ready.step_spec, ready.filled, tables, ready.metadata, is_part)


def _table_plan(
    table: TableInfo, output: Output, signature: Nest, ready: Opened, items: tuple[int, int | None]
) -> TablePlan:
    least, most = items
    plan = TablePlan(
        name=table.name,
        view=output.view_name,
        signature=signature,
        size=table.current_size,
        max_size=table.max_size,
        waits_when_full=waits_when_full(table),
        not_in_items=not_in_items(output.view, ready.recorded_spec),
        made_for=view_in(table.signature),
        least_items=least,
        most_items=most,
    )
    return replace(plan, fits=_fits(plan, ready.options, plan.free))


def _fits(table: TablePlan, options: PushOptions, free: int) -> bool | None:
    has_room = table.most_items is not None and table.most_items <= free
    return True if has_room or table.waits_when_full or options.allow_eviction else None


def with_least_room(
    tables: Sequence[TablePlan], options: PushOptions, parts: Sequence[PushPlan]
) -> tuple[TablePlan, ...]:
    """The tables of several servers together, as a push that cannot know which server gets how many items finds them.

    Args:
      tables: with the room of all.
      options: of the push.
      parts: plans of the servers.
    """
    free = {
        table.name: min(one.free for part in parts for one in part.tables if one.name == table.name) for table in tables
    }
    return tuple(replace(table, fits=_fits(table, options, free[table.name])) for table in tables)


def _items_of(ready: Opened, is_part: bool) -> list[tuple[int, int | None]]:
    """Per output, the items that the push makes for each of its tables: at least, and at most where that is known."""
    lengths = None if is_part else episode_lengths_of(ready.source)
    counted = None if lengths is None else Counter(lengths)
    return [
        _bounds(ready, output, None if is_part else ready.source.episode_count, counted)
        for output in ready.options.outputs
    ]


def _bounds(
    ready: Opened, output: Output, episodes: int | None, lengths: Counter[int] | None
) -> tuple[int, int | None]:
    """Of a stream nothing is known. Else bad or equal episodes may be left out where the push goes on after them, and each good one gives what its view says."""
    options, view = ready.options, output.view
    if output.is_of_stream:
        return 0, None
    goes_on = options.on_invalid not in STOPPING or options.duplicates == ONCE
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


def check_room(plan: PushPlan) -> None:
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
            check_size(output, plan.info, table.least_items, f"{'' if is_exact else 'at least '}{table.least_items}")
        if plan.options.again:
            _check_free_places(plan)
    except CapacityError as error:
        keep_report(error, replace(report_of_nothing(plan), stopped=reason_of(error)))
        raise


def _check_free_places(plan: PushPlan) -> None:
    """New keys need new places, unless samples make some meanwhile."""
    for table in plan.tables:
        info = plan.info.tables[table.name]
        if info.max_times_sampled <= 0:
            TableRoom(info, guarded=True).refuse_what_cannot_fit(table.least_items, all_are_new=True)


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
