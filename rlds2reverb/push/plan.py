"""What a push is going to do: everything that can be found out, and refused, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlds2reverb.display import as_html
from rlds2reverb.errors import CapacityError, ConfigError, keep_report, reason_of
from rlds2reverb.push.opening import Opened, identity_of, opened
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.outputs import Output
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.room import TableRoom
from rlds2reverb.push.tables import check_size, check_tables
from rlds2reverb.push.tuning import Tuning
from rlds2reverb.remarks import Remark
from rlds2reverb.sources.base import Source, remarks_of
from rlds2reverb.specs import ArraySpec, Nest, spec_texts
from rlds2reverb.validation.policy import STOPPING
from rlds2reverb.views.base import not_in_items
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
    """

    name: str
    view: str
    signature: Nest
    size: int
    max_size: int
    waits_when_full: bool
    not_in_items: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def free(self) -> int:
        """Items that it has room for; those of this push that it holds already need none."""
        return max(0, self.max_size - self.size)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "view": self.view,
            "signature": spec_texts(self.signature),
            "size": self.size,
            "max_size": self.max_size,
            "free": self.free,
            "waits_when_full": self.waits_when_full,
            "not_in_items": list(self.not_in_items),
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
      source: anything that `open_source` takes. No episode is read, unless items hold metadata that only an episode can tell.
      options: how.
      ask: the server's tables; asked once, when the source is known.
      tuning: how it sends; None for what the options say.

    Raises:
      SourceError: the source cannot be opened, has no spec, lacks is_first or is_last, or cannot keep images encoded; or, strictly, it tells of a fault in itself.
      ViewError: a view cannot cut such steps.
      ConfigError: a transform that the steps do not allow, the server has no such table, or a file cannot be written.
      SpecMismatch: a table's signature is not that of the items.
      CapacityError: the source has more episodes than a table has places, as far as that is known; nothing is stored, which
        the error's `report` says.
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
        check_tables(output, signature, info)
    tables = tuple(
        _table_plan(info.tables[name], output, signature, not_in_items(output.view, ready.recorded_spec))
        for output, signature in zip(options.outputs, ready.signatures)
        for name in output.tables
    )
    tuning = Tuning.of(options) if tuning is None else tuning
    return PushPlan(ready.source, options, tuning, info, ready.step_spec, ready.filled, tables, ready.metadata, is_part)


def _table_plan(table: TableInfo, output: Output, signature: Nest, not_in_items: tuple[str, ...]) -> TablePlan:
    return TablePlan(
        name=table.name,
        view=output.view_name,
        signature=signature,
        size=table.current_size,
        max_size=table.max_size,
        waits_when_full=waits_when_full(table),
        not_in_items=not_in_items,
    )


def check_room(plan: PushPlan) -> None:
    """Refuses a table with fewer places than episodes, when their number is known and each must give an item.

    Raises:
      CapacityError: there is one; the error's `report` says that nothing is stored.
    """
    episodes, options = plan.episodes, plan.options
    if episodes is None or options.allow_eviction or not _every_episode_gives_items(options):
        return
    try:
        for output in options.outputs:
            check_size(output, plan.info, episodes, f"at least {episodes}")
        if options.again:
            _check_free_places(plan, episodes)
    except CapacityError as error:
        keep_report(error, replace(report_of_nothing(plan), stopped=reason_of(error)))
        raise


def _every_episode_gives_items(options: PushOptions) -> bool:
    """Whether every episode must give an item. With several views another one may give it, and with a stream a later episode."""
    stops = options.on_invalid in STOPPING
    return stops and not options.allow and len(options.outputs) == 1 and not options.outputs[0].is_of_stream


def _check_free_places(plan: PushPlan, items: int) -> None:
    """New keys need new places, unless samples make some meanwhile."""
    for table in plan.tables:
        info = plan.info.tables[table.name]
        if info.max_times_sampled <= 0:
            TableRoom(info, guarded=True).refuse_what_cannot_fit(items, all_are_new=True)


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
