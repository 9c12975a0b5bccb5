"""The options of a push: each once, with its name, its default and its help, for `Client.push` and the command line alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from functools import cached_property, wraps
from numbers import Real
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.identity import Identity, IdentityLike, identity_of
from rlds2reverb.prepare.options import HELP, EpisodeOptions, option_help
from rlds2reverb.prepare.preparation import Output, outputs_of
from rlds2reverb.prepare.progress import Progress, ignored
from rlds2reverb.push.ledger import check_ledger_file
from rlds2reverb.text import did_you_mean, with_suggestion
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views import ViewLike
from rlds2reverb.workers import check_workers

_MOST_ROWS = (1 << 31) - 1  # of a chunk: `SequenceRange` of Reverb's schema.proto numbers an episode's rows by int32

KEEP, ONCE = DUPLICATES = ("keep", "once")


@dataclass(frozen=True)
class PushOptions(EpisodeOptions):
    """All options of a push.

    Each field with a help text in its metadata is a keyword of `Client.push` and an option of `rlds2reverb push`, with the same
    name and default; docs/cli.md prints them.

    Attributes:
      table: a table, a list of tables, or table -> view to fill each table by a view of its own. Rows are stored once.
      view: how episodes become items: "two_step" (the default), "sequence:length=8,stride=4", a mapping
        {"view": "sequence", "length": 8, "stride": 4}, or a view.
      on_progress: called a few times per second, in the caller's thread.

    Raises:
      ConfigError: as `EpisodeOptions`; no table or one named twice, a number out of range, or options that exclude each other.
      ViewError: a view makes no sense.
    """

    table: str | Sequence[str] | Mapping[str, ViewLike]
    view: ViewLike | None = None
    _: KW_ONLY
    ledger: str | Path | None = field(
        default=None, metadata=option_help("SQLite file of confirmed episodes, from which a killed push resumes.")
    )
    resume: bool = field(default=True, metadata=option_help("Skip episodes that the ledger has."))
    duplicates: str = field(
        default=KEEP,
        metadata=option_help('Equal episodes: "keep" stores each of them, "once" only the first.', DUPLICATES),
    )
    identity: IdentityLike = field(
        default=None,
        metadata=option_help(
            'What makes an episode the same one, in place of all its content: "columns=PATH,PATH", "columns=numeric" or "id=PATH".'
        ),
    )
    again: bool = field(default=False, metadata=option_help("New item keys: store everything once more."))
    allow_eviction: bool = field(default=False, metadata=option_help("Let items of the push evict others."))
    allow_other_views: bool = field(
        default=False,
        metadata=option_help("Fill a table whose signature names another view, if the items fit the signature."),
    )
    move: bool = field(
        default=False,
        metadata=option_help(
            "After servers were added or removed: delete items from servers where they do not belong any more, once they are stored "
            "where they do."
        ),
    )
    chunk_length: int | None = field(
        default=None, metadata=option_help("Rows per chunk; by default chosen from a row's bytes.")
    )
    stall_seconds: float = field(
        default=Deadlines.stall, metadata=option_help("Give up when nothing was confirmed for this long.")
    )
    workers: int | None = field(
        default=None,
        metadata=option_help("Number of worker processes, each for a part of the source; with ray, tasks at a time."),
    )
    ray: str | None = field(
        default=None,
        metadata=option_help(
            'Address of a Ray cluster that runs the workers, or "auto" for the cluster of this machine.'
        ),
    )
    on_progress: Callable[[Progress], object] = field(default=ignored, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        rows: Any = self.chunk_length
        seconds: Any = self.stall_seconds
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise ConfigError(f"chunk_length (--chunk-length) {rows}: expected at least 1 row, a whole number")
        if rows is not None and rows > _MOST_ROWS:
            raise ConfigError(
                f"chunk_length (--chunk-length) {rows:,}: expected at most {_MOST_ROWS:,}, the rows that Reverb can count in an episode"
            )
        if isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) > 0:
            raise ConfigError(f"stall_seconds (--stall-seconds) {seconds}: expected a positive number")
        if self.duplicates not in DUPLICATES:
            raise ConfigError(
                f'duplicates (--duplicates) "{self.duplicates}": expected one of {", ".join(DUPLICATES)}{did_you_mean(self.duplicates, DUPLICATES)}'
            )
        _ = self.chosen_identity  # refuses what makes no sense
        self._check_combinations()

    def _check_combinations(self) -> None:
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
        return outputs_of(self.table, self.view)

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(table for output in self.outputs for table in output.tables)

    @property
    def chosen_identity(self) -> Identity | None:
        """What names episodes; None for their content."""
        return identity_of(self.identity)

    @property
    def is_distributed(self) -> bool:
        return self.workers is not None or self.ray is not None

    def check_files(self) -> None:
        """Checks the quarantine file and the ledger, and creates neither.

        Raises:
          ConfigError: lines cannot be appended to the quarantine file.
          LedgerError: the ledger cannot be used.
        """
        super().check_files()
        if self.ledger is not None:
            check_ledger_file(Path(self.ledger))


def option_fields() -> tuple[Field[Any], ...]:
    """The fields of `PushOptions` that are keywords and options, with default, help and choices."""
    return tuple(one for one in fields(PushOptions) if HELP in one.metadata)


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self")


def with_options(
    options: Callable[_Given, PushOptions],
) -> Callable[[Callable[[_Self, Any, PushOptions], _Result]], Callable[Concatenate[_Self, Any, _Given], _Result]]:
    """Makes a method (source, options) take the fields of the options as arguments; type checkers and `help` see them."""

    def decorate(
        method: Callable[[_Self, Any, PushOptions], _Result],
    ) -> Callable[Concatenate[_Self, Any, _Given], _Result]:
        taken = inspect.signature(options)

        @wraps(method)
        def called(self: _Self, source: Any, *given: _Given.args, **named: _Given.kwargs) -> _Result:
            try:
                taken.bind(*given, **named)
            except TypeError as error:  # without this it would name a class that the caller has not called
                raise TypeError(f"{method.__qualname__}: {with_suggestion(error, taken.parameters)}") from None
            return method(self, source, options(*given, **named))

        own = inspect.signature(method)
        first = [one for name, one in own.parameters.items() if name != "options"]
        parameters = [*first, *taken.parameters.values()]
        vars(called)["__signature__"] = own.replace(parameters=parameters)
        lines = (f"  {one.name}: {one.metadata[HELP]} Default {one.default!r}." for one in option_fields())
        called.__doc__ = "\n".join((f"{inspect.getdoc(method)}\n", "Options:", *lines))
        return cast("Callable[Concatenate[_Self, Any, _Given], _Result]", called)

    return decorate
