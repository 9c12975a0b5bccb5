"""What a push is told: each option once, with its name, its default and its help, for `Client.push` and the command line alike."""

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
from rlds2reverb.prepare.options import HELP, EpisodeOptions, option_help
from rlds2reverb.push.ledger import check_ledger_file
from rlds2reverb.push.report import Progress
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views.base import StreamView, View
from rlds2reverb.views.registry import ViewLike
from rlds2reverb.wire.insert import RequestLimits
from rlds2reverb.wire.session import SessionWindow

_MOST_ROWS = (1 << 31) - 1
"""Of a chunk: `SequenceRange` of Reverb's schema.proto numbers an episode's rows by int32."""

KEEP, ONCE = DUPLICATES = ("keep", "once")


def unheard(_: Progress) -> None:
    """Takes progress, and tells nobody."""


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
    on_progress: Callable[[Progress], object] = field(default=unheard, compare=False)

    def __post_init__(self) -> None:
        streams = [output.view for output in self.outputs if isinstance(output.view, StreamView)]
        _check_chunk_length(self.chunk_length)
        _check_stall_seconds(self.stall_seconds)
        if self.ledger is not None:
            _check_goes_with_ledger(streams, self.again)
        _check_move(self.move, self.again, self.ledger)
        super().__post_init__()
        if self.duplicates not in DUPLICATES:
            raise ConfigError(f'duplicates (--duplicates) "{self.duplicates}": expected one of {", ".join(DUPLICATES)}')
        if self.is_distributed:
            _check_can_be_divided(self, streams)

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


def _check_chunk_length(rows: object) -> None:
    if rows is None:
        return
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ConfigError(f"chunk_length (--chunk-length) {rows}: expected at least 1 row, a whole number")
    if rows > _MOST_ROWS:
        raise ConfigError(
            f"chunk_length (--chunk-length) {rows:,}: expected at most {_MOST_ROWS:,}, the rows that Reverb can count in an episode"
        )


def _check_stall_seconds(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) > 0:
        raise ConfigError(f"stall_seconds (--stall-seconds) {seconds}: expected a positive number")


def check_workers(workers: object, ray: object) -> None:
    """Refuses what no workers are.

    Raises:
      ConfigError: fewer than one, or an address that is none.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers (--workers) {workers}: expected at least 1, a whole number")
    if ray is not None and (not isinstance(ray, str) or not ray):
        raise ConfigError(f'ray (--ray) {ray!r}: expected HOST:PORT, ray://HOST:PORT or "auto"')


def _check_can_be_divided(options: PushOptions, streams: Sequence[View]) -> None:
    check_workers(options.workers, options.ray)
    if streams:
        raise ConfigError(
            f"{streams[0].label}: items depend on the episodes before, which workers (--workers, --ray) do not all read; leave them out"
        )


def _check_move(move: bool, again: bool, ledger: object) -> None:
    if move and again:
        raise ConfigError(
            "move=True (--move) is for items that are stored already; again=True (--again) makes new ones"
        )
    if move and ledger is not None:
        raise ConfigError("move=True (--move) does not go with a ledger, by which episodes stay where they are")


def _check_goes_with_ledger(streams: Sequence[View], again: bool) -> None:
    if streams:
        raise ConfigError(
            f"{streams[0].label}: items depend on the episodes before, so a ledger of episodes cannot say which are there; "
            "leave it out and run the whole push again: what is there is not stored twice"
        )
    if again:
        raise ConfigError("again=True (--again) stores everything once more; it does not go with a ledger, which skips")


@dataclass(frozen=True)
class Tuning:
    """How a push sends; users tell of it only how long it may stall.

    Attributes:
      limits, window, deadlines: see `wire.insert.requests`, `wire.insert.session`, `transport.waiting`.
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


def takes(
    options: Callable[_Given, PushOptions],
) -> Callable[[Callable[[_Self, Any, PushOptions], _Result]], Callable[Concatenate[_Self, Any, _Given], _Result]]:
    """A method of (source, options) that is called with the options' fields as arguments; type checkers and `help` see them."""

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
        called.__doc__ = f"{inspect.getdoc(method)}\n\n{_options_in_words()}"
        return cast("Callable[Concatenate[_Self, Any, _Given], _Result]", called)

    return decorate


def _options_in_words() -> str:
    lines = (f"  {one.name}: {one.metadata[HELP]} Default {one.default!r}." for one in option_fields())
    return "\n".join(("Options:", *lines))
