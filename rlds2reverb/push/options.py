"""The options of a push: each once, with its name, its default and its help, for `Client.push` and the command line alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, TypedDict

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.identity import Identity, IdentityLike, identity_of
from rlds2reverb.keywords import command_option
from rlds2reverb.prepare.options import RAY, WORKERS, EpisodeKeywords, EpisodeOptions
from rlds2reverb.prepare.preparation import Output, outputs_of
from rlds2reverb.prepare.progress import Progress, ignored
from rlds2reverb.push.ledger import check_ledger_file
from rlds2reverb.text import did_you_mean
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views import ViewLike
from rlds2reverb.views.base import spell_view
from rlds2reverb.workers import check_workers

_MOST_ROWS = (1 << 31) - 1  # of a chunk: `SequenceRange` of Reverb's schema.proto numbers an episode's rows by int32

KEEP, ONCE = DUPLICATES = ("keep", "once")


@dataclass(frozen=True, kw_only=True)
class SendOptions:
    """How items are sent, by every kind of push; `push_rlds_to_reverb` takes these, too. `push.sender` does what they say."""

    chunk_length: int | None = field(
        default=None,
        metadata=command_option("Rows per chunk; by default chosen from a row's bytes.", section="Speed", least=1),
    )
    stall_seconds: float = field(
        default=Deadlines.stall,
        metadata=command_option("Give up when nothing was confirmed for this long.", section="Server", unit="seconds"),
    )

    def __post_init__(self) -> None:
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

    @property
    def deadlines(self) -> Deadlines:
        """How long to wait for the server, and for what."""
        return Deadlines(stall=self.stall_seconds)


@dataclass(frozen=True)
class PushOptions(SendOptions, EpisodeOptions):
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
        default=None,
        metadata=command_option(
            "SQLite file of confirmed episodes, from which a killed push resumes.", section="Exactly once"
        ),
    )
    resume: bool = field(
        default=True, metadata=command_option("Skip episodes that the ledger has.", section="Exactly once")
    )
    duplicates: str = field(
        default=KEEP,
        metadata=command_option(
            'Equal episodes: "keep" stores each of them, "once" only the first.', DUPLICATES, section="Exactly once"
        ),
    )
    identity: IdentityLike = field(
        default=None,
        metadata=command_option(
            'What makes an episode the same one, in place of all its content: "columns=PATH,PATH", "columns=numeric" or "id=PATH".',
            metavar="TEXT",
            section="Exactly once",
        ),
    )
    again: bool = field(
        default=False, metadata=command_option("New item keys: store everything once more.", section="Exactly once")
    )
    allow_eviction: bool = field(
        default=False, metadata=command_option("Let items of the push evict others.", section="Tables and views")
    )
    allow_other_views: bool = field(
        default=False,
        metadata=command_option(
            "Fill a table whose signature names another view, if the items fit the signature.",
            section="Tables and views",
        ),
    )
    move: bool = field(
        default=False,
        metadata=command_option(
            "After servers were added or removed: delete items from servers where they do not belong any more, once they are stored "
            "where they do.",
            section="Exactly once",
        ),
    )
    note: str = field(
        default="",
        metadata=command_option(
            "Say why, for the server's journal (rlds2reverb journal).", section="Server", metavar="TEXT"
        ),
    )
    workers: int | None = field(default=None, metadata=WORKERS)
    ray: str | None = field(default=None, metadata=RAY)
    on_progress: Callable[[Progress], object] = field(default=ignored, compare=False)

    def __post_init__(self) -> None:
        # Not `super()`: the two bases know nothing of each other, and `SendOptions` stands alone for TF-Agents.
        EpisodeOptions.__post_init__(self)
        SendOptions.__post_init__(self)
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
                f"{spell_view(stream)}: items depend on the episodes before, so a ledger of episodes cannot say which are there; "
                "leave it out and run the whole push again: what is there is not stored twice"
            )
        if stream is not None and self.is_distributed:
            raise ConfigError(
                f"{spell_view(stream)}: items depend on the episodes before, which workers (--workers, --ray) do not all read; leave them out"
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

    def with_outputs(self, outputs: Sequence[Output]) -> PushOptions:
        """The options with these outputs, which have the tables of its own."""
        if isinstance(self.table, Mapping):
            options = replace(self, table={output.tables[0]: output.view for output in outputs})
        else:
            options = replace(self, view=outputs[0].view)
        return options.with_rules_of(self)

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

    def for_worker(self) -> PushOptions:
        """The options of each worker: without ledger and progress, which are the driver's."""
        options = replace(self, ledger=None, workers=None, ray=None, on_progress=ignored)
        return options.with_rules_of(self)

    def check_files(self) -> None:
        """Checks the quarantine file and the ledger, and creates neither.

        Raises:
          ConfigError: lines cannot be appended to the quarantine file.
          LedgerError: the ledger cannot be used.
        """
        super().check_files()
        if self.ledger is not None:
            check_ledger_file(Path(self.ledger))


class SendKeywords(TypedDict, total=False):
    """`SendOptions` as keywords."""

    chunk_length: int | None
    stall_seconds: float


class PushKeywords(EpisodeKeywords, SendKeywords, total=False):
    """`PushOptions` as keywords, without `table` and `view`."""

    ledger: str | Path | None
    resume: bool
    duplicates: str
    identity: IdentityLike
    again: bool
    allow_eviction: bool
    allow_other_views: bool
    move: bool
    note: str
    workers: int | None
    ray: str | None
    on_progress: Callable[[Progress], object]
