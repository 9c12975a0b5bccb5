"""The options of a push: each once, with its name, its default and its help, for `Client.push` and the command line alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from functools import cached_property, wraps
from numbers import Real
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rlds2reverb.errors import ConfigError
from rlds2reverb.prepare.cutting import Output, outputs_of
from rlds2reverb.prepare.options import HELP, EpisodeOptions, Progress, ignored, option_help
from rlds2reverb.push.ledger import check_ledger_file
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views.registry import ViewLike
from rlds2reverb.wire.insert import RequestLimits
from rlds2reverb.wire.session import SessionWindow
from rlds2reverb.workers.driver import check_workers

_MOST_ROWS = (1 << 31) - 1
"""Of a chunk: `SequenceRange` of Reverb's schema.proto numbers an episode's rows by int32."""

KEEP, ONCE = DUPLICATES = ("keep", "once")


@dataclass(frozen=True)
class PushOptions(EpisodeOptions):
    """Everything about a push but the source and the server.

    Each field with a help text in its metadata is a keyword of `Client.push` and an option of `rlds2reverb push`, by the same
    name, with the same default; `option_fields` lists them, docs/cli.md prints them.

    Attributes:
      table: one table or several; or table -> view, to fill every table by a view of its own. Rows are stored once.
      view: how episodes become items: "two_step" (the default), "sequence:length=8,stride=4", a mapping
        {"view": "sequence", "length": 8, "stride": 4}, or a view.
      on_progress: called a few times per second, from the caller's thread.

    Raises:
      ConfigError: as `EpisodeOptions`; no table or one named twice, a chunk length below 1, no time to stall, or a ledger together with
        `again` or with a view of streams.
      ViewError: a view that makes no sense.
    """

    table: str | Sequence[str] | Mapping[str, ViewLike]
    view: ViewLike | None = None
    _: KW_ONLY
    ledger: str | Path | None = field(
        default=None, metadata=option_help("SQLite file of confirmed episodes; a killed push goes on from it.")
    )
    resume: bool = field(default=True, metadata=option_help("Skip episodes that the ledger has."))
    duplicates: str = field(
        default=KEEP,
        metadata=option_help('Of episodes that are equal: "keep" stores each of them, "once" the first.', DUPLICATES),
    )
    again: bool = field(default=False, metadata=option_help("New item keys: store everything once more."))
    allow_eviction: bool = field(default=False, metadata=option_help("Let items of the push evict others."))
    allow_other_views: bool = field(
        default=False,
        metadata=option_help("Fill a table whose signature says that it is for another view, where the items fit it."),
    )
    move: bool = field(
        default=False,
        metadata=option_help(
            "Of several servers, others than before: take the items out of those where they do not belong any more, once they are "
            "stored where they do."
        ),
    )
    chunk_length: int | None = field(
        default=None, metadata=option_help("Rows per chunk; by default chosen from a row's bytes.")
    )
    stall_seconds: float = field(
        default=Deadlines.stall, metadata=option_help("Give up when nothing was confirmed for so many seconds.")
    )
    workers: int | None = field(
        default=None,
        metadata=option_help("Processes that do the work, each on a part of the source; with ray, tasks at a time."),
    )
    ray: str | None = field(
        default=None,
        metadata=option_help(
            'Address of a Ray cluster that does the work, or "auto" for the one that this machine is part of.'
        ),
    )
    on_progress: Callable[[Progress], object] = field(default=ignored, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_numbers(self.chunk_length, self.stall_seconds)
        if self.duplicates not in DUPLICATES:
            raise ConfigError(f'duplicates (--duplicates) "{self.duplicates}": expected one of {", ".join(DUPLICATES)}')
        self._check_what_goes_together()

    def _check_numbers(self, rows: object, seconds: object) -> None:
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise ConfigError(f"chunk_length (--chunk-length) {rows}: expected at least 1 row, a whole number")
        if rows is not None and rows > _MOST_ROWS:
            raise ConfigError(
                f"chunk_length (--chunk-length) {rows:,}: expected at most {_MOST_ROWS:,}, the rows that Reverb can count in an episode"
            )
        if isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) > 0:
            raise ConfigError(f"stall_seconds (--stall-seconds) {seconds}: expected a positive number")

    def _check_what_goes_together(self) -> None:
        check_workers(self.workers, self.ray)
        stream = next((output.view for output in self.outputs if output.is_of_stream), None)
        if stream is not None and self.ledger is not None:
            raise ConfigError(
                f"{stream.label}: items depend on the episodes before, so a ledger of episodes cannot say which are there; "
                "leave it out and run the whole push again: what is there is not stored twice"
            )
        if stream is not None and self.is_distributed:
            raise ConfigError(
                f"{stream.label}: items depend on the episodes before, which workers (--workers, --ray) do not all read; leave them out"
            )
        if self.again and self.ledger is not None:
            raise ConfigError(
                "again=True (--again) stores everything once more; it does not go with a ledger, which skips"
            )
        if self.move and self.again:
            raise ConfigError(
                "move=True (--move) is for items that are stored already; again=True (--again) makes new ones"
            )
        if self.move and self.ledger is not None:
            raise ConfigError("move=True (--move) does not go with a ledger, by which episodes stay where they are")

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Views, and the tables that they fill."""
        return outputs_of(self.table, self.view)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of all outputs."""
        return tuple(table for output in self.outputs for table in output.tables)

    @property
    def is_distributed(self) -> bool:
        """Whether several processes push parts of the source."""
        return self.workers is not None or self.ray is not None

    def check_files(self) -> None:
        """Looks at the files of this push, and makes none: what cannot be used is refused before data or a server are asked.

        Raises:
          ConfigError: lines cannot be appended to the quarantine file.
          LedgerError: the ledger cannot be used.
        """
        super().check_files()
        if self.ledger is not None:
            check_ledger_file(Path(self.ledger))


def option_fields() -> tuple[Field[Any], ...]:
    """The fields of `PushOptions` that users know by name, with default, help and choices."""
    return tuple(one for one in fields(PushOptions) if HELP in one.metadata)


@dataclass(frozen=True)
class Tuning:
    """How a push sends. Of it, users choose only how long a push may stall.

    Attributes:
      limits: when a request is full.
      window: what is in flight at most.
      deadlines: how long each wait may last.
    """

    limits: RequestLimits = RequestLimits()
    window: SessionWindow = SessionWindow()
    deadlines: Deadlines = Deadlines()

    @classmethod
    def of(cls, options: PushOptions) -> Tuning:
        """As the options say."""
        return cls(deadlines=replace(Deadlines(), stall=options.stall_seconds))


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self")


def with_options(
    options: Callable[_Given, PushOptions],
) -> Callable[[Callable[[_Self, Any, PushOptions], _Result]], Callable[Concatenate[_Self, Any, _Given], _Result]]:
    """Makes of a method (source, options) one that takes the fields of the options as arguments; type checkers and `help` see them."""

    def decorate(
        method: Callable[[_Self, Any, PushOptions], _Result],
    ) -> Callable[Concatenate[_Self, Any, _Given], _Result]:
        taken = inspect.signature(options)

        @wraps(method)
        def called(self: _Self, source: Any, *given: _Given.args, **named: _Given.kwargs) -> _Result:
            try:
                taken.bind(*given, **named)
            except TypeError as error:  # without this it would name a class that the caller has not called
                raise TypeError(f"{method.__qualname__}: {error}") from None
            return method(self, source, options(*given, **named))

        own = inspect.signature(method)
        first = [one for name, one in own.parameters.items() if name != "options"]
        parameters = [*first, *taken.parameters.values()]
        vars(called)["__signature__"] = own.replace(parameters=parameters)
        lines = (f"  {one.name}: {one.metadata[HELP]} Default {one.default!r}." for one in option_fields())
        called.__doc__ = "\n".join((f"{inspect.getdoc(method)}\n", "Options:", *lines))
        return cast("Callable[Concatenate[_Self, Any, _Given], _Result]", called)

    return decorate
