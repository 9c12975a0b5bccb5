"""What a push is told, each option once: its name, its default and its help, for `Client.push` and the command line alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

from rlds2reverb.conventions import AS_RECORDED, LAST_OBSERVATIONS, LAST_REWARDS, TERMINAL_DISCOUNTS, Conventions
from rlds2reverb.errors import ConfigError
from rlds2reverb.push.ledger import check_ledger_file
from rlds2reverb.push.outputs import Output, outputs_of
from rlds2reverb.push.report import Progress
from rlds2reverb.transforms.reading import TransformLike, transform_of
from rlds2reverb.transforms.transform import Transform
from rlds2reverb.transport.waiting import Deadlines
from rlds2reverb.validation.policy import ACTIONS, RAISE, check_choices, check_report
from rlds2reverb.views.base import StreamView, View
from rlds2reverb.views.registry import ViewLike

_MOST_ROWS = (1 << 31) - 1
"""Of a chunk: `SequenceRange` of Reverb's schema.proto numbers an episode's rows by int32."""

AS_PUSHED = (
    "on_invalid",
    "quarantine",
    "allow",
    "strict",
    "terminal_discount",
    "last_reward",
    "last_observation",
    "encoded",
    "transform",
)
"""Options of a push that say what episodes are before they get anywhere; the others say how they get to a server."""

KEEP, ONCE = DUPLICATES = ("keep", "once")

HELP, CHOICES = "help", "choices"
"""Keys of an option's metadata: one sentence, and the values it may have (if they are few)."""


def _told(text: str, choices: tuple[str, ...] = ()) -> dict[str, Any]:
    return {HELP: text, CHOICES: choices}


def unheard(_: Progress) -> None:
    """Takes progress, and tells nobody."""


@dataclass(frozen=True)
class PushOptions:
    """Everything about a push but the source and the server.

    Each field with a help text in its metadata is a keyword of `Client.push` and an option of `rlds2reverb push`, by the same
    name, with the same default; `option_fields` lists them, docs/cli.md prints them.

    Attributes:
      table: one table or several; or table -> view, to fill every table by a view of its own. Rows are stored once.
      view: how episodes become items: "two_step" (the default), "sequence:length=8,stride=4", a mapping
        {"view": "sequence", "length": 8, "stride": 4}, or a view.
      on_progress: called a few times per second, from the caller's thread.

    `encoded` takes one path, several, or "all".

    Raises:
      ConfigError: no table or one named twice, a transform that makes no sense or cannot be read, a path that is none, a chunk length below 1, no time to stall, an unknown action, code or convention,
        a quarantine file that does not go with the action, or a ledger together with `again` or with a view of streams.
      ViewError: a view that makes no sense.
    """

    table: str | Sequence[str] | Mapping[str, ViewLike]
    view: ViewLike | None = None
    _: KW_ONLY
    on_invalid: str = field(default=RAISE, metadata=_told("What to do with a bad episode.", ACTIONS))
    quarantine: str | Path | None = field(
        default=None,
        metadata=_told('JSON-lines report of bad episodes; "quarantine" needs it, and nothing else takes it.'),
    )
    allow: Sequence[str] = field(default=(), metadata=_told("Problem codes to tolerate."))
    strict: bool = field(
        default=False, metadata=_told("Treat advice (terminal_discount, last_reward, ...) as a problem.")
    )
    terminal_discount: str = field(
        default=AS_RECORDED,
        metadata=_told('"transition": discount 0 on the step that leads into a terminal one.', TERMINAL_DISCOUNTS),
    )
    last_reward: str = field(
        default=AS_RECORDED, metadata=_told('"shift": every reward moves one step back.', LAST_REWARDS)
    )
    last_observation: str = field(
        default=AS_RECORDED,
        metadata=_told(
            'Of a last row that was added (action and reward 0): "repeat" puts the observation before it in its place, "drop" leaves the '
            "row out.",
            LAST_OBSERVATIONS,
        ),
    )
    encoded: str | Sequence[str] = field(
        default=(),
        metadata=_told(
            'Path of an image column, or "all": store the files\' own JPEG or PNG bytes as text, and decode when sampling.'
        ),
    )
    transform: TransformLike = field(
        default=(),
        metadata=_told(
            'Columns to select, drop, rename, resize, and to join to the action: "OPTION=VALUE,...", or a YAML file.'
        ),
    )
    ledger: str | Path | None = field(
        default=None, metadata=_told("SQLite file of confirmed episodes; a killed push goes on from it.")
    )
    resume: bool = field(default=True, metadata=_told("Skip episodes that the ledger has."))
    duplicates: str = field(
        default=KEEP,
        metadata=_told('Of episodes that are equal: "keep" stores each of them, "once" the first.', DUPLICATES),
    )
    again: bool = field(default=False, metadata=_told("New item keys: store everything once more."))
    allow_eviction: bool = field(default=False, metadata=_told("Let items of the push evict others."))
    allow_other_views: bool = field(
        default=False,
        metadata=_told("Fill a table whose signature says that it is for another view, where the items fit it."),
    )
    move: bool = field(
        default=False,
        metadata=_told(
            "Of several servers, others than before: take the items out of those where they do not belong any more, once they are "
            "stored where they do."
        ),
    )
    chunk_length: int | None = field(
        default=None, metadata=_told("Rows per chunk; by default chosen from a row's bytes.")
    )
    stall_seconds: float = field(
        default=Deadlines.stall, metadata=_told("Give up when nothing was confirmed for so many seconds.")
    )
    workers: int | None = field(
        default=None,
        metadata=_told("Processes that do the work, each on a part of the source; with ray, tasks at a time."),
    )
    ray: str | None = field(
        default=None,
        metadata=_told(
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
        check_choices(self.on_invalid, self.quarantine, self.allow)
        if self.duplicates not in DUPLICATES:
            raise ConfigError(f'duplicates (--duplicates) "{self.duplicates}": expected one of {", ".join(DUPLICATES)}')
        if self.is_divided:
            _check_can_be_divided(self, streams)
        self.conventions  # noqa: B018  refuses unknown ones
        _check_encoded(self.encoded_paths)
        object.__setattr__(self, "transform", self.chosen_transform)  # a file is read once

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Views, and the tables that they fill."""
        return outputs_of(self.table, self.view)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of all outputs."""
        return tuple(table for output in self.outputs for table in output.tables)

    @property
    def is_divided(self) -> bool:
        """Whether several processes push parts of the source."""
        return self.workers is not None or self.ray is not None

    @property
    def conventions(self) -> Conventions:
        """terminal_discount, last_reward and last_observation; rewards are shifted, too, when the transform says so."""
        given = Conventions(self.terminal_discount, self.last_reward, self.last_observation)
        return self.chosen_transform.with_conventions(given)

    @property
    def chosen_transform(self) -> Transform:
        """What is done to the columns first."""
        return transform_of(self.transform)

    @property
    def data_label(self) -> str:
        """Transform and conventions; pushes with equal labels store the same of the same episodes. Part of the item keys."""
        label = self.chosen_transform.label
        return f"{self.conventions.label}|transform={label}" if label else self.conventions.label

    @property
    def encoded_paths(self) -> tuple[str, ...]:
        """Paths of image columns to keep encoded, or "all" among them."""
        return (self.encoded,) if isinstance(self.encoded, str) else tuple(self.encoded)

    def check_files(self) -> None:
        """Looks at the files of this push, and makes none: what cannot be used is refused before data or a server are asked.

        Raises:
          ConfigError: lines cannot be appended to the quarantine file.
          LedgerError: the ledger cannot be used.
        """
        if self.quarantine is not None:
            check_report(Path(self.quarantine))
        if self.ledger is not None:
            check_ledger_file(Path(self.ledger))


def option_fields() -> tuple[Field[Any], ...]:
    """The fields of `PushOptions` that users know by name, with default, help and choices."""
    return tuple(one for one in fields(PushOptions) if HELP in one.metadata)


def divided(kind: type[Any], where: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are fields of a class, and those of a push that say what episodes are.

    Args:
      kind: a dataclass.
      where: the function that takes both.
      options: by name.

    Raises:
      ConfigError: one that is neither.
    """
    own = {one.name for one in fields(kind)}
    unknown = sorted(options.keys() - own - set(AS_PUSHED))
    if unknown:
        raise ConfigError(
            f"{where}: {', '.join(unknown)}: no such option; there are {', '.join([*sorted(own), *AS_PUSHED])}"
        )
    return (
        {name: value for name, value in options.items() if name in own},
        {name: value for name, value in options.items() if name not in own},
    )


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


def _check_encoded(paths: Sequence[object]) -> None:
    for path in paths:
        if not isinstance(path, str) or not path:
            raise ConfigError(f'encoded (--encoded) {path!r}: expected a path such as observation/image, or "all"')


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
