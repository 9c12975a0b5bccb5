"""The pusher: joins source, validation, view, encoding and sender. See docs/architecture.md, the road A to G."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlds2reverb.conventions import Conventions, absent_fields, fill_absent, filled_spec
from rlds2reverb.episodes import IS_FIRST, IS_LAST, REWARD, Episode, columns_under
from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    SourceError,
    SpecMismatch,
    TransportError,
    ViewError,
)
from rlds2reverb.ledger import Ledger
from rlds2reverb.report import Progress, PushReport
from rlds2reverb.sources.base import Source
from rlds2reverb.specs import ArraySpec, Nest, differences, flatten
from rlds2reverb.validation import Policy, Problem, Verdict
from rlds2reverb.views.base import Cut, StreamView, View, cutter_of
from rlds2reverb.views.sequence import two_step
from rlds2reverb.wire.encoder import EpisodeEncoder
from rlds2reverb.wire.keys import seed
from rlds2reverb.wire.messages import ServerInfo
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
      tables: one or more tables; the rows are stored once and shared by the items of all.
      view: how episodes are cut into items.
      on_invalid, quarantine, allow, strict: see `validation.Policy`.
      conventions: terminal_discount and last_reward.
      ledger: SQLite file of confirmed episodes, or None.
      resume: skip the episodes that the ledger has; False sends them again (and their keys keep it harmless).
      again: new item keys, so that the same data is stored once more.
      allow_eviction: go on when the push is larger than a table's max_size.
      rows_per_chunk: chunk length in rows, or None to choose it from the bytes of a row.
      limits, window, deadlines: see `wire.requests`, `wire.session`, `wire.transport`.

    Raises:
      ConfigError: no table or one named twice, a chunk length below 1, or a ledger together with `again` or with a
        view of streams.
    """

    tables: tuple[str, ...]
    view: View = field(default_factory=two_step)
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
        if not self.tables:
            raise ConfigError("push: at least one table is needed")
        if len(set(self.tables)) < len(self.tables):
            raise ConfigError(f"push: a table is named twice in {', '.join(self.tables)}; its items would have one key")
        if not isinstance(self.view, View):
            raise ConfigError(f"push: view {self.view!r}: expected a view, or its name")
        rows = self.rows_per_chunk
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise ConfigError(f"chunk length {rows}: expected at least 1 row, a whole number")
        if isinstance(self.view, StreamView) and self.ledger is not None:
            raise ConfigError(
                f"{self.view.label}: items depend on the episodes before, so a ledger of episodes cannot say which are there; "
                "leave it out and run the whole push again: what is there is not stored twice"
            )
        if self.again and self.ledger is not None:
            raise ConfigError("again=True stores everything once more; it does not go with a ledger, which skips")

    @property
    def identity(self) -> str:
        """What two pushes must share for their items to be the same, without table and episode."""
        return f"{self.view.label}|{self.conventions.terminal_discount}|{self.conventions.last_reward}"


def check_tables(info: ServerInfo, tables: Sequence[str], signature: Nest) -> None:
    """Compares every table's signature with that of the items, leaf by leaf; before the first byte is sent.

    Raises:
      ConfigError: the server has no such table.
      SpecMismatch: the signatures differ.
    """
    for name in tables:
        if name not in info.tables:
            raise ConfigError(f'the server has no table "{name}"; it has {", ".join(sorted(info.tables)) or "none"}')
        found = info.tables[name].signature
        if found is not None and (lines := differences(signature, found)):
            raise SpecMismatch(f'table "{name}"', lines)


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
        self._columns: dict[str, ArraySpec] = flatten(filled_spec(spec))
        signature = options.view.signature(filled_spec(spec))
        self._item_columns: dict[str, ArraySpec] = flatten(signature)
        self._info = channel.server_info()
        check_tables(self._info, options.tables, signature)
        self._policy = Policy(options.on_invalid, options.quarantine, options.allow, options.strict)
        self._encoder = EpisodeEncoder(options.tables, self._push_seed(), options.rows_per_chunk)
        self._builder = RequestBuilder(options.limits)
        self._cutter = _Cutter(options.view)
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
            ledger = self._open_ledger(stack)
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
                self._send_and_wait(sender, ledger)
            finally:
                self._note(sender, ledger)
        return self._report(sender)

    def _send_and_wait(self, sender: Sender, ledger: Ledger | None) -> None:
        """Whatever stops the reading, what was sent before it is waited for; unless sending itself failed."""
        try:
            self._send_all(sender, ledger)
        except TransportError:
            raise
        except Exception:
            self._drain(sender)
            raise
        self._drain(sender)

    def _send_all(self, sender: Sender, ledger: Ledger | None) -> None:
        noted_at = time.monotonic()
        for episode in self._source:
            if ledger is not None and self._options.resume and episode.id in ledger:
                self._counts.resumed(episode, ledger.items(episode.id) // len(self._options.tables))
            else:
                self._send(sender, episode)
            if time.monotonic() - noted_at > _RECORD_SECONDS:
                noted_at = time.monotonic()
                self._note(sender, ledger)

    def _send(self, sender: Sender, episode: Episode) -> None:
        self._counts.read(episode)
        verdict, cut = self._judge_and_cut(episode)
        if verdict.episode is None or cut is None:
            self._counts.steps_rejected += len(episode)
            return
        self._check_size_so_far(len(cut.anchors))
        if len(cut.anchors):
            encoded = self._encoder.encode(_tag(self._cutter.tag, verdict), cut)
            for request in self._builder.add(encoded):
                sender.send(request)
        self._counts.pushed(episode, len(cut.anchors))

    def _judge_and_cut(self, episode: Episode) -> tuple[Verdict, Cut | None]:
        """The verdict, and the cut of a good episode."""
        options = self._options
        filled = fill_absent(episode) if IS_FIRST in episode.steps and IS_LAST in episode.steps else episode
        verdict = self._policy.judge(filled, self._columns)
        if verdict.episode is None:
            return verdict, None
        spoilt = _reward_spoilt_by_shift(verdict.episode, options.conventions)
        if lost := [problem for problem in spoilt if problem.code not in options.allow]:
            return self._policy.reject(episode, lost), None
        try:
            cut = self._cutter.cut(options.conventions.apply(verdict.episode)).in_order(list(self._item_columns))
        except ViewError as error:
            if options.on_invalid in ("raise", "repair"):
                raise ViewError(f"episode {episode.id}: {error}") from error
            return self._policy.reject(episode, [Problem("no_items", "", str(error))]), None
        _check_rows(episode, cut, self._item_columns)
        if len(cut.anchors) or self._cutter.is_stream:
            return verdict, cut
        detail = f"{options.view.label} makes no item of {len(episode)} steps"
        return self._policy.reject(episode, [Problem("no_items", "", detail)]), None

    def _drain(self, sender: Sender) -> None:
        for request in self._builder.flush():
            sender.send(request)
        sender.drain()

    def _note(self, sender: Sender, ledger: Ledger | None) -> None:
        finished = sender.take_finished()
        if ledger is not None:
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
            view=self._options.view.label,
            episodes_read=counts.episodes_read,
            steps_read=counts.steps_read,
            episodes_pushed=counts.episodes_pushed,
            steps_pushed=counts.steps_pushed,
            items_confirmed=0 if sender is None else sender.stored_items,
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

    def _push_seed(self) -> int:
        return secrets.randbits(64) if self._options.again else seed(self._options.identity)

    def _open_ledger(self, stack: ExitStack) -> Ledger | None:
        if self._options.ledger is None:
            return None
        mended = ("repair",) if self._options.on_invalid == "repair" else ()
        push = "|".join((self._options.identity, *mended, *self._options.tables))
        return stack.enter_context(Ledger(self._options.ledger, push, f"{self._info.state_id:032x}"))

    def _check_known_size(self) -> None:
        """Where every episode of a known number must give an item, a table too small for one each is refused at once."""
        episodes = self._source.episode_count
        if (
            episodes is not None
            and not self._cutter.is_stream
            and self._options.on_invalid in ("raise", "repair")
            and not self._options.allow
        ):
            self._check_size(episodes, "at least")

    def _check_size_so_far(self, next_items: int) -> None:
        self._check_size(self._counts.anchors + next_items, "more than")

    def _check_size(self, items: int, how: str) -> None:
        if self._options.allow_eviction:
            return
        for name in self._options.tables:
            max_size = self._info.tables[name].max_size
            if items > max_size:
                raise CapacityError(
                    f'table "{name}": max_size {max_size} is smaller than the push ({how} {items - (how != "at least")} '
                    "items), so the oldest would be evicted; make the table larger, push less "
                    "(a split such as train[:10%]), or allow it with allow_eviction=True (--allow-eviction)"
                )


class _Cutter:
    """Cuts episodes by a view; for a stream, `tag` names the items by all the episodes that they may depend on."""

    def __init__(self, view: View) -> None:
        self.is_stream = isinstance(view, StreamView)
        self._cut = cutter_of(view)
        self.tag = ""

    def cut(self, episode: Episode) -> Cut:
        self.tag = f"{seed(self.tag, episode.id):016x}" if self.is_stream else episode.id
        return self._cut(episode)


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
    anchors: int = 0

    def read(self, episode: Episode) -> None:
        self.episodes_read += 1
        self.steps_read += len(episode)

    def pushed(self, episode: Episode, anchors: int) -> None:
        self.episodes_pushed += 1
        self.steps_pushed += len(episode)
        self.anchors += anchors

    def resumed(self, episode: Episode, anchors: int) -> None:
        self.episodes_resumed += 1
        self.steps_resumed += len(episode)
        self.anchors += anchors  # they take up the table, too


def _fields_to_fill(source: Source, spec: Nest) -> tuple[str, ...]:
    missing = [name for name in (IS_FIRST, IS_LAST) if name not in spec]
    if missing:
        raise SourceError(f"{source.name}: not RLDS: steps lack {' and '.join(missing)}; found {sorted(spec)}")
    return absent_fields(spec)


def _check_rows(episode: Episode, cut: Cut, columns: dict[str, ArraySpec]) -> None:
    """Refuses rows that are not those of the signature, which only tolerated problems let through to here."""
    for path in cut.fields:
        rows = cut.field_rows(path)
        dtype = np.dtype(object) if rows.dtype.kind in "SU" else rows.dtype
        found = ArraySpec((None, *rows.shape[1:]), dtype)
        leaf = columns[path]
        wanted = ArraySpec((None, *(leaf.shape if cut.fields[path].squeeze else leaf.shape[1:])), leaf.dtype)
        if differences(found, wanted):
            raise ViewError(
                f'episode {episode.id}: column "{path}" has {found}, the items need {wanted}; '
                "do not tolerate dtype or shape for it"
            )


def _tag(tag: str, verdict: Verdict) -> str:
    """A mended episode has item keys of its own: the server keeps what it has under a key that it knows."""
    mended = sorted({problem.code for problem in verdict.repaired})
    return f"{tag}|repaired={','.join(mended)}" if mended else tag


def _reward_spoilt_by_shift(episode: Episode, conventions: Conventions) -> list[Problem]:
    """What a shift would lose at the start, or bring from the last step, where validation does not look."""
    found: list[Problem] = []
    if conventions.last_reward != "shift":
        return found
    for path, reward in columns_under(episode.steps, REWARD).items():
        if np.any(reward[0]):
            detail = (
                f"step 0 has reward {reward[0]}; the data seems to record rewards with the action that earned them, "
                "so it needs no shift"
            )
            found.append(Problem("first_reward_lost", path, detail))
        if reward.dtype.kind == "f" and not np.all(np.isfinite(reward[-1])):
            code = "nan" if np.any(np.isnan(reward[-1])) else "infinite"
            detail = f"step {len(reward) - 1} (the last) has reward {reward[-1]}, which a shift would use"
            found.append(Problem(code, path, detail))
    return found
