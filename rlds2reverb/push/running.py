"""A push while it runs, whoever feeds it: a source that is read to its end, or an environment loop that goes on and on.

Episodes are judged and cut (`judge`), and what came of them is sent (`send`). These two may be called by two threads, one each;
everything else here belongs to the thread that sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from rlds2reverb.episodes import Episode
from rlds2reverb.push.account import Account, TakenEpisodes
from rlds2reverb.push.admission import Admission, unheard
from rlds2reverb.push.cutting import Cutter
from rlds2reverb.push.feeding import Feeder, Judged
from rlds2reverb.push.judging import Judge
from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.ledgers import open_ledgers
from rlds2reverb.push.names import ItemNames, bits_of
from rlds2reverb.push.open_output import OpenOutput, by_table
from rlds2reverb.push.part import Noted, Part
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.quota import Quota
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.room import TableRoom
from rlds2reverb.push.sender import Sender
from rlds2reverb.push.writer import can_send_after
from rlds2reverb.sources.base import Source, remarks_of
from rlds2reverb.specs import flatten
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.stream_user import Reason
from rlds2reverb.validation import Policy, Problem, Standard
from rlds2reverb.validation.holdings import Holdings
from rlds2reverb.wire.insert.requests import EncodedEpisode

LINGER_SECONDS = 2.0
"""How long an interrupted push waits for confirmations of what it has sent."""


class RunningPush:
    """One push to the tables of one server. Use as a context manager: it holds the stream and the ledgers.

    Args:
      transport: the way to the server that the plan was made for.
      plan: what is pushed, and how; made just before.
      name: what ledgers call the server; its address by default.
      on_encoded: told of every episode, or part of one, that goes out.
      part: which part of a larger push it is; None for a whole one.

    Attributes:
      holdings: what columns held, as far as the caller lets it know.
      taken: the episodes that are stored, of a part of a push; else None.
    """

    def __init__(
        self,
        transport: Transport,
        plan: PushPlan,
        name: str = "",
        on_encoded: Callable[[EncodedEpisode], object] = unheard,
        part: Part | None = None,
    ) -> None:
        self._name, self._on_encoded = name or transport.address, on_encoded
        self._transport, self._plan, self._options, self._part = transport, plan, plan.options, part
        self._outputs = _open_outputs(plan, part)
        self._policy = _policy_of(plan)
        self._account = Account()
        self.taken = None if part is None else TakenEpisodes(plan.options.tables)
        self.holdings = Holdings.of(flatten(plan.step_spec))
        self._sender: Sender | None = None
        self._admission: Admission | Quota | None = None
        self._stack = ExitStack()

    def __enter__(self) -> RunningPush:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Opens the ledgers, and the stream in the background.

        Raises:
          LedgerError: a ledger cannot be used.
        """
        with ExitStack() as stack:
            for one, ledger in zip(self._outputs, self._opened_ledgers(stack)):
                one.ledger = ledger
            sender = self._sender = stack.enter_context(self._new_sender())
            admission = self._new_admission(sender)
            self._admission = admission
            stack.callback(admission.__exit__)
            judge = Judge(self._policy, _standard_of(self._plan))
            self._feeder = Feeder(
                self._options, self._outputs, self._plan.info, judge, self._account, admission, self.taken
            )
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Closes them. What is not confirmed by now may or may not be stored."""
        self._stack.close()

    @property
    def source(self) -> Source:
        """The plan's: the episodes, as the transform makes them."""
        return self._plan.source

    def report(self) -> PushReport:
        """The account so far; from any thread."""
        sender, admission, account = self._sender, self._admission, self._account
        count = self._plan.episodes
        return replace(
            report_of_nothing(self._plan),
            episodes_read=account.episodes_read,
            steps_read=account.steps_read,
            episodes_pushed=account.episodes_pushed,
            steps_pushed=account.steps_pushed,
            items_confirmed=0 if sender is None else sender.confirmed_items,
            items_new=None if admission is None else admission.new_items(),
            items_taken_out=0 if admission is None else admission.taken_out,
            items_made=by_table(self._outputs, lambda one: one.tally.items_per_table),
            without_items=by_table(self._outputs, lambda one: one.tally.without_items),
            left_over=by_table(self._outputs, lambda one: one.cutter.left_over),
            rejected=dict(self._policy.rejected),
            steps_rejected=account.steps_rejected,
            advice=dict(self._policy.advice),
            repaired=dict(self._policy.repaired),
            ends_mended=account.ends_mended,
            remarks=(*remarks_of(self._plan.source), *self.holdings.remarks),
            episodes_resumed=account.episodes_resumed,
            episodes_duplicate=account.episodes_duplicate,
            episodes_unread=None if count is None else count - account.episodes_read - account.episodes_resumed,
            bytes=0 if sender is None else sender.sent_bytes,
            seconds=account.seconds,
            reconnects=0 if sender is None else sender.reconnects,
        )

    def has(self, episode_id: str) -> bool:
        """Whether a ledger says that the server process has confirmed an episode, for one of the outputs at least."""
        return any(one.ledger is not None and episode_id in one.ledger.confirmed for one in self._outputs)

    def had(self, episode_id: str) -> bool:
        """Whether a ledger says that another process of the server's name has confirmed it."""
        return any(one.ledger is not None and episode_id in one.ledger.here for one in self._outputs)

    def knows(self, episode_id: str) -> bool:
        """See `Feeder.knows`."""
        return self._feeder.knows(episode_id)

    def take_known(self, episode_id: str) -> None:
        """See `Feeder.take_known`."""
        self._feeder.take_known(episode_id)

    def take(self, episode: Episode, found: Sequence[Problem] = ()) -> None:
        """See `Feeder.take`; also looks at what others do to the tables.

        Raises:
          CapacityError: its items would evict others, or others' evict those of this push.
          InvalidEpisode, ViewError, SourceError, TransportError: as `Feeder.take`.
        """
        self._feeder.take(episode, found)
        self._opened_admission.watch()

    def judge(self, episode: Episode, found: Sequence[Problem] = ()) -> Judged | None:
        """See `Feeder.judge`."""
        return self._feeder.judge(episode, found)

    def send(self, judged: Judged) -> None:
        """See `Feeder.send`; also looks at what others do to the tables.

        Raises:
          CapacityError: its items would evict others, or others' evict those of this push.
          TransportError: sending failed.
        """
        self._feeder.send(judged)
        self._opened_admission.watch()

    def flush(self) -> None:
        """Sends what is kept for the next request; raises as `send` does."""
        self._feeder.writer.flush()

    @property
    def awaits_nothing(self) -> bool:
        """Whether everything sent is confirmed."""
        return self._opened_sender.awaits_nothing

    def check(self) -> None:
        """Raises what has ended the sending, if anything has."""
        self._opened_sender.check()

    def drain(self) -> None:
        """Sends what is kept, and waits until everything is confirmed; raises as `send` does."""
        self._feeder.writer.drain()

    def finish(self) -> None:
        """Drains, puts the tables as they should be, and looks at them a last time; raises as `send` does."""
        self.drain()
        self._opened_admission.finish()

    def wind_up(self, error: BaseException, linger_seconds: float | None = None) -> None:
        """Leaves tables and ledger as they should be after an error. What fails now is not raised: the error is.

        Args:
          error: what ended the push.
          linger_seconds: how long to wait for confirmations where it was an interruption; two seconds by default.
        """
        deadlines, admission = self._plan.tuning.deadlines, self._opened_admission
        if not can_send_after(error):
            deadlines = replace(deadlines, reconnect=deadlines.call, stall=min(deadlines.stall, 2 * deadlines.call))
        if not isinstance(error, Exception):
            self._opened_sender.linger(LINGER_SECONDS if linger_seconds is None else linger_seconds)
        with suppress(Exception):
            self._feeder.writer.drain_after(error)
        with suppress(Exception):
            admission.put_back(deadlines)
        with suppress(Exception):
            self.record()
        if can_send_after(error):
            with suppress(Exception):
                admission.look_back()

    def note(self) -> None:
        """Writes down what is confirmed, and tells how far it is."""
        self.record()
        self.tell(Reason())

    def record(self) -> None:
        """Writes down what is confirmed."""
        for ledger, finished in self._account.take_confirmed(self._opened_admission.take_finished()).items():
            ledger.record(finished)

    def tell(self, reason: Reason) -> None:
        """Tells how far it is, and why nothing moves, if so."""
        account, sender = self._account, self._opened_sender
        self._options.on_progress(
            Progress(
                account.episodes_read + account.episodes_resumed,
                account.steps_read,
                self._plan.episodes,
                sender.confirmed_items,
                sender.sent_bytes,
                account.seconds,
                reason.text,
                reason.held_by,
            )
        )

    @property
    def _opened_sender(self) -> Sender:
        assert self._sender is not None  # it is asked for while the push runs
        return self._sender

    @property
    def _opened_admission(self) -> Admission | Quota:
        assert self._admission is not None  # it is asked for while the push runs
        return self._admission

    def _opened_ledgers(self, stack: ExitStack) -> Sequence[Ledger | Noted]:
        if self._part is not None:
            return self._part.notes
        return open_ledgers(self._plan, stack, self._name)

    def _new_sender(self) -> Sender:
        tuning = self._plan.tuning
        return Sender(
            self._transport, self._options.tables, self._plan.info, tuning.window, tuning.deadlines, self.tell
        )

    def _new_admission(self, sender: Sender) -> Admission | Quota:
        is_guarded, tuning = not self._options.allow_eviction, self._plan.tuning
        if self._part is not None and self._part.places is not None:
            return Quota(sender, self._part.places, tuning.limits, self._on_encoded)
        rooms = [TableRoom(self._plan.info.tables[name], is_guarded) for name in self._options.tables]
        return Admission(self._transport, sender, rooms, tuning.limits, tuning.deadlines, self._on_encoded)


def _open_outputs(plan: PushPlan, part: Part | None) -> list[OpenOutput]:
    again = bits_of(plan.options.again) if part is None else part.again
    signatures = {table.name: table.signature for table in plan.tables}
    return [
        OpenOutput(one, Cutter(one, signatures[one.tables[0]]), ItemNames(one, plan.identity, again))
        for one in plan.options.outputs
    ]


def _policy_of(plan: PushPlan) -> Policy:
    options = plan.options
    return Policy(options.on_invalid, options.quarantine, options.allow, options.strict)


def _standard_of(plan: PushPlan) -> Standard:
    return Standard(flatten(plan.step_spec), plan.options.conventions, plan.metadata)
