"""The pusher: joins source, validation, view, encoding and sender. See docs/architecture.md, the road A to G."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rlds2reverb.conventions import Conventions, absent_fields, filled_spec
from rlds2reverb.episodes import IS_FIRST, IS_LAST, Episode
from rlds2reverb.errors import CapacityError, ConfigError, SourceError, TransportError
from rlds2reverb.judging import Cuts, Judge
from rlds2reverb.ledger import Ledger
from rlds2reverb.outputs import OpenOutput, Output, check_distinct
from rlds2reverb.report import Progress, PushReport
from rlds2reverb.sources.base import Source
from rlds2reverb.specs import Nest, flatten
from rlds2reverb.validation import Policy
from rlds2reverb.views.base import Cut, StreamView
from rlds2reverb.views.shared import groups, share
from rlds2reverb.wire.encoder import EpisodeEncoder, Part
from rlds2reverb.wire.keys import seed
from rlds2reverb.wire.requests import RequestBuilder, RequestLimits
from rlds2reverb.wire.sender import Sender
from rlds2reverb.wire.session import SessionWindow
from rlds2reverb.wire.transport import Deadlines, ReverbChannel

_RECORD_SECONDS = 0.25
"""How often the ledger is written and progress is told."""


@dataclass(frozen=True)
class PushOptions:
    """Everything about a push but the source and the server.

    Attributes:
      outputs: views and the tables they fill; the rows are stored once and shared by the items of all.
      on_invalid, quarantine, allow, strict: see `validation.Policy`.
      conventions: terminal_discount and last_reward.
      ledger: SQLite file of confirmed episodes, or None.
      resume: skip the episodes that the ledger has; False sends them again (and their keys keep it harmless).
      again: new item keys, so that the same data is stored once more.
      allow_eviction: go on when the push is larger than a table's max_size.
      rows_per_chunk: chunk length in rows, or None to choose it from the bytes of a row.
      limits, window, deadlines: see `wire.requests`, `wire.session`, `wire.transport`.

    Raises:
      ConfigError: no output or a table named twice, a chunk length below 1, or a ledger together with `again` or with a
        view of streams.
    """

    outputs: tuple[Output, ...]
    on_invalid: str = "raise"
    quarantine: str | Path | None = None
    allow: Sequence[str] = ()
    strict: bool = False
    conventions: Conventions = Conventions()
    ledger: str | Path | None = None
    resume: bool = True
    again: bool = False
    allow_eviction: bool = False
    rows_per_chunk: int | None = None
    limits: RequestLimits = RequestLimits()
    window: SessionWindow = SessionWindow()
    deadlines: Deadlines = Deadlines()

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ConfigError("push: at least one table is needed")
        check_distinct(self.tables)
        rows = self.rows_per_chunk
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise ConfigError(f"chunk length {rows}: expected at least 1 row, a whole number")
        for output in self.outputs:
            if isinstance(output.view, StreamView) and self.ledger is not None:
                raise ConfigError(
                    f"{output.view.label}: items depend on the episodes before, so a ledger of episodes cannot say which are "
                    "there; leave it out and run the whole push again: what is there is not stored twice"
                )
        if self.again and self.ledger is not None:
            raise ConfigError("again=True stores everything once more; it does not go with a ledger, which skips")

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of all outputs."""
        return tuple(table for output in self.outputs for table in output.tables)


class Pusher:
    """One push of one source to the tables of one server.

    Args:
      channel: an open channel.
      source: the episodes.
      options: how.
      on_progress: called a few times a second, from the caller's thread.

    Raises (construction, before anything is sent):
      SourceError: the source has no spec, or lacks is_first or is_last.
      ViewError: the view cannot cut such steps.
      ConfigError, SpecMismatch, CapacityError: the tables do not fit.
      ServerUnreachable: no server answers.
    """

    def __init__(
        self,
        channel: ReverbChannel,
        source: Source,
        options: PushOptions,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._channel, self._source, self._options, self._on_progress = channel, source, options, on_progress
        spec = source.spec()
        self._filled = _fields_to_fill(source, spec)
        self._outputs = [OpenOutput(output, filled_spec(spec), options.conventions.label) for output in options.outputs]
        self._info = channel.server_info()
        for output in self._outputs:
            output.check_tables(self._info)
        self._policy = Policy(options.on_invalid, options.quarantine, options.allow, options.strict)
        self._judge = Judge(self._policy, flatten(filled_spec(spec)), options.conventions)
        self._encoder = EpisodeEncoder(options.rows_per_chunk)
        self._builder = RequestBuilder(options.limits)
        self._again = secrets.randbits(64) if options.again else None
        self._unconfirmed: dict[str, list[tuple[Ledger, int]]] = {}  # episode -> rows to write when it is confirmed
        self._check_known_size()
        self._counts = _Counts()

    def report(self) -> PushReport:
        """The account of a push of which nothing was sent: all that can be checked before has been."""
        return self._report(None)

    def run(self) -> PushReport:
        """Reads, checks, cuts, sends, and waits until every item is confirmed.

        Raises:
          InvalidEpisode: a bad episode and on_invalid="raise"; the episodes before it are stored, nothing of it is.
          CapacityError: the next episode would evict items and that is not allowed; the ones before it are stored.
          SourceError, TransportError: reading or sending failed; what was confirmed stays, and is in the ledger.
        """
        with ExitStack() as stack:
            self._open_ledgers(stack)
            sender = stack.enter_context(
                Sender(
                    self._channel,
                    self._options.tables,
                    self._info,
                    self._options.window,
                    self._options.deadlines,
                    lambda reason: self._tell(sender, reason),
                )
            )
            try:
                self._send_and_wait(sender)
            finally:
                self._note(sender)
        return self._report(sender)

    def _send_and_wait(self, sender: Sender) -> None:
        """Whatever stops the reading, what was sent before it is waited for; unless sending itself failed."""
        try:
            self._send_all(sender)
        except TransportError:
            raise
        except Exception:
            self._drain(sender)
            raise
        self._drain(sender)

    def _send_all(self, sender: Sender) -> None:
        noted_at = time.monotonic()
        for episode in self._source:
            wanted = [output for output in self._outputs if not self._resume(output, episode)]
            if wanted:
                self._send(sender, episode, wanted)
            else:
                self._counts.resumed(episode)
            if time.monotonic() - noted_at > _RECORD_SECONDS:
                noted_at = time.monotonic()
                self._note(sender)

    def _resume(self, output: OpenOutput, episode: Episode) -> bool:
        """Whether the output's ledger has the episode; its items take up the table, too."""
        if output.ledger is None or not self._options.resume or episode.id not in output.ledger:
            return False
        output.items += output.ledger.items(episode.id) // len(output.tables)
        self._check_size(output, 0, "more than")
        return True

    def _send(self, sender: Sender, episode: Episode, outputs: Sequence[OpenOutput]) -> None:
        self._counts.read(episode)
        cuts = self._judge.cut(episode, outputs, is_stored=len(outputs) < len(self._outputs))
        if cuts is None:
            self._counts.steps_rejected += len(episode)
            return
        for output, cut in cuts:
            self._check_size(output, len(cut.anchors), "more than")
        self._send_items(sender, episode.id, [(output, cut) for output, cut in cuts if len(cut.anchors)])
        for output, cut in cuts:
            output.count(cut)
        self._counts.pushed(episode)

    def _send_items(self, sender: Sender, episode: str, made: Cuts) -> None:
        """Sends what the outputs made of one episode, rows shared."""
        if not made:
            return
        self._unconfirmed[episode] = [
            (output.ledger, len(cut.anchors) * len(output.tables)) for output, cut in made if output.ledger is not None
        ]
        for together in groups([cut for _, cut in made]):
            shared = share([made[number][1] for number in together])
            parts = [self._part(made[number][0], cut) for number, cut in zip(together, shared)]
            for request in self._builder.add(self._encoder.encode(episode, parts)):
                sender.send(request)

    def _part(self, output: OpenOutput, cut: Cut) -> Part:
        push_seed = seed(output.identity) if self._again is None else self._again
        return Part(output.tables, push_seed, output.tag, cut)

    def _drain(self, sender: Sender) -> None:
        for request in self._builder.flush():
            sender.send(request)
        sender.drain()

    def _note(self, sender: Sender) -> None:
        """Writes down what is confirmed, and tells how far it is."""
        rows: dict[Ledger, list[tuple[str, int]]] = {}
        for episode, _ in sender.take_finished():
            for ledger, items in self._unconfirmed.pop(episode, ()):
                rows.setdefault(ledger, []).append((episode, items))
        for ledger, finished in rows.items():
            ledger.record(finished)
        self._tell(sender, "")

    def _tell(self, sender: Sender, waiting: str) -> None:
        counts = self._counts
        self._on_progress(
            Progress(
                counts.episodes_read + counts.episodes_resumed,
                counts.steps_read + counts.steps_resumed,
                self._source.episode_count,
                sender.stored_items,
                sender.sent_bytes,
                time.monotonic() - counts.began,
                waiting,
            )
        )

    def _report(self, sender: Sender | None) -> PushReport:
        counts = self._counts
        return PushReport(
            source=self._source.name,
            tables=self._options.tables,
            view=", ".join(dict.fromkeys(output.label for output in self._outputs)),
            episodes_read=counts.episodes_read,
            steps_read=counts.steps_read,
            episodes_pushed=counts.episodes_pushed,
            steps_pushed=counts.steps_pushed,
            items_confirmed=0 if sender is None else sender.stored_items,
            items_made=_by_table(self._outputs, lambda output: output.items),
            without_items=_by_table(self._outputs, lambda output: output.empty_episodes),
            left_over=_by_table(self._outputs, lambda output: output.left_over),
            rejected=dict(self._policy.rejected),
            steps_rejected=counts.steps_rejected,
            advice=dict(self._policy.advice),
            repaired=dict(self._policy.repaired),
            filled=self._filled,
            episodes_resumed=counts.episodes_resumed,
            bytes=0 if sender is None else sender.sent_bytes,
            seconds=time.monotonic() - counts.began,
            reconnects=0 if sender is None else sender.reconnects,
        )

    def _open_ledgers(self, stack: ExitStack) -> None:
        """One an output, all in one file: an output that is added later is filled without sending the others again."""
        if self._options.ledger is None:
            return
        mended = ("repair",) if self._options.on_invalid == "repair" else ()
        for output in self._outputs:
            push = "|".join((output.identity, *mended, *output.tables))
            output.ledger = stack.enter_context(Ledger(self._options.ledger, push, f"{self._info.state_id:032x}"))

    def _check_known_size(self) -> None:
        """Where every episode of a known number must give an item, a table too small for one each is refused at once."""
        episodes, options = self._source.episode_count, self._options
        if episodes is None or not self._policy.stops or options.allow or len(self._outputs) > 1:
            return
        if not self._outputs[0].is_stream:
            self._check_size(self._outputs[0], episodes, "at least")

    def _check_size(self, output: OpenOutput, next_items: int, how: str) -> None:
        if self._options.allow_eviction:
            return
        items = output.items + next_items
        for name in output.tables:
            max_size = self._info.tables[name].max_size
            if items > max_size:
                raise CapacityError(
                    f'table "{name}": max_size {max_size} is smaller than the push ({how} {items - (how != "at least")} '
                    "items), so the oldest would be evicted; make the table larger, push less "
                    "(a split such as train[:10%]), or allow it with allow_eviction=True (--allow-eviction)"
                )


@dataclass
class _Counts:
    """What the pusher has seen; the only mutable account of a push beside the policy's and the sender's."""

    began: float = field(default_factory=time.monotonic)
    episodes_read: int = 0
    steps_read: int = 0
    episodes_pushed: int = 0
    steps_pushed: int = 0
    steps_rejected: int = 0
    episodes_resumed: int = 0
    steps_resumed: int = 0

    def read(self, episode: Episode) -> None:
        self.episodes_read += 1
        self.steps_read += len(episode)

    def pushed(self, episode: Episode) -> None:
        self.episodes_pushed += 1
        self.steps_pushed += len(episode)

    def resumed(self, episode: Episode) -> None:
        self.episodes_resumed += 1
        self.steps_resumed += len(episode)


def _fields_to_fill(source: Source, spec: Nest) -> tuple[str, ...]:
    missing = [name for name in (IS_FIRST, IS_LAST) if name not in spec]
    if missing:
        raise SourceError(f"{source.name}: not RLDS: steps lack {' and '.join(missing)}; found {sorted(spec)}")
    return absent_fields(spec)


def _by_table(outputs: Sequence[OpenOutput], count: Callable[[OpenOutput], int]) -> dict[str, int]:
    """Table -> count, where there is any."""
    return {table: count(output) for output in outputs for table in output.tables if count(output)}
