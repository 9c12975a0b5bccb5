"""The pusher: joins source, validation, view and writer. See docs/architecture.md, the road A to G."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack, suppress
from dataclasses import replace

from rlds2reverb.errors import keep_report, reason_of
from rlds2reverb.push.account import Account
from rlds2reverb.push.admission import Admission
from rlds2reverb.push.cutting import Cutter
from rlds2reverb.push.feeding import Feeder
from rlds2reverb.push.judging import Judge
from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.names import ItemNames
from rlds2reverb.push.open_output import OpenOutput, by_table
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.room import TableRoom
from rlds2reverb.push.sender import Sender
from rlds2reverb.push.writer import Writer, can_send_after
from rlds2reverb.sources.base import remarks_of
from rlds2reverb.specs import flatten
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.stream_user import Reason
from rlds2reverb.validation import Policy, Standard
from rlds2reverb.validation.endings import with_problems_of_ends
from rlds2reverb.validation.holdings import Holdings
from rlds2reverb.validation.policy import REPAIR

_RECORD_SECONDS = 0.25
"""How often the ledger is written and progress is told."""

_LINGER_SECONDS = 2.0
"""How long an interrupted push waits for confirmations of what it has sent."""


class Pusher:
    """One push of one source to the tables of one server.

    Args:
      transport: the way to the server that the plan was made for.
      plan: what is pushed, and how; made just before.
    """

    def __init__(self, transport: Transport, plan: PushPlan) -> None:
        options, self._info = plan.options, plan.info
        self._transport, self._plan, self._options = transport, plan, options
        self._source, self._on_progress = plan.source, options.on_progress
        again = secrets.randbits(64) if options.again else None
        signatures = {table.name: table.signature for table in plan.tables}
        self._outputs = [
            OpenOutput(one, Cutter(one, signatures[one.tables[0]]), ItemNames(one, plan.identity, again))
            for one in options.outputs
        ]
        self._holdings = Holdings.of(flatten(plan.step_spec))
        self._policy = Policy(options.on_invalid, options.quarantine, options.allow, options.strict)
        self._judge = Judge(self._policy, Standard(flatten(plan.step_spec), options.conventions, plan.metadata))
        self._account = Account()
        self._sender: Sender | None = None
        self._admission: Admission | None = None

    def report(self) -> PushReport:
        """The account so far."""
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
            remarks=(*remarks_of(self._source), *self._holdings.remarks),
            episodes_resumed=account.episodes_resumed,
            episodes_unread=None if count is None else count - account.episodes_read - account.episodes_resumed,
            bytes=0 if sender is None else sender.sent_bytes,
            seconds=account.seconds,
            reconnects=0 if sender is None else sender.reconnects,
        )

    def run(self) -> PushReport:
        """Reads, checks, cuts, sends, and waits until every item is confirmed.

        Whatever stops it, an interruption included, has the account up to there as its attribute `report`.

        Raises:
          InvalidEpisode: a bad episode and on_invalid="raise". The episodes before it are stored; nothing of the bad one is.
          CapacityError: the next episode would evict items, which is not allowed; those before it are stored. Or somebody else
            fills a table as well, and items were evicted.
          SourceError, TransportError: reading or sending failed; what was confirmed stays, and is in the ledger.
        """
        try:
            with ExitStack() as stack:
                self._open_ledgers(stack)
                sender = self._sender = stack.enter_context(self._new_sender())
                admission = self._admission = stack.enter_context(self._new_admission(sender))
                self._send_and_wait(sender, admission)
        except BaseException as error:
            keep_report(error, replace(self.report(), stopped=reason_of(error)))
            raise
        return self.report()

    @property
    def _is_guarded(self) -> bool:
        return not self._options.allow_eviction

    def _new_sender(self) -> Sender:
        tuning = self._plan.tuning
        return Sender(self._transport, self._options.tables, self._info, tuning.window, tuning.deadlines, self._tell)

    def _new_admission(self, sender: Sender) -> Admission:
        rooms = [TableRoom(self._info.tables[name], self._is_guarded) for name in self._options.tables]
        return Admission(self._transport, sender, rooms, self._plan.tuning.limits, self._plan.tuning.deadlines)

    def _send_and_wait(self, sender: Sender, admission: Admission) -> None:
        feeder = Feeder(self._options, self._outputs, self._info, self._judge, self._account, admission)
        try:
            self._feed(feeder, admission)
            feeder.writer.drain()
            admission.finish()
        except BaseException as error:
            self._wind_up(error, sender, admission, feeder.writer)
            raise
        self._note(admission)

    def _feed(self, feeder: Feeder, admission: Admission) -> None:
        """Reads the source to its end."""
        noted_at = time.monotonic()
        for episode, found in with_problems_of_ends(self._source, self._options.conventions):
            self._holdings = self._holdings.after(episode)
            feeder.take(episode, found)
            admission.watch()
            if time.monotonic() - noted_at > _RECORD_SECONDS:
                noted_at = time.monotonic()
                self._note(admission)

    def _wind_up(self, error: BaseException, sender: Sender, admission: Admission, writer: Writer) -> None:
        """Leaves tables and ledger as they should be after an error. What fails now is not raised: the error is."""
        deadlines = self._plan.tuning.deadlines
        if not can_send_after(error):
            deadlines = replace(deadlines, reconnect=deadlines.call, stall=min(deadlines.stall, 2 * deadlines.call))
        if not isinstance(error, Exception):
            sender.linger(_LINGER_SECONDS)
        with suppress(Exception):
            writer.drain_after(error)
        with suppress(Exception):
            admission.put_back(deadlines)
        with suppress(Exception):
            self._record(admission)
        if can_send_after(error):
            with suppress(Exception):
                admission.look_back()

    def _note(self, admission: Admission) -> None:
        """Writes down what is confirmed, and tells how far it is."""
        self._record(admission)
        self._tell(Reason())

    def _record(self, admission: Admission) -> None:
        for ledger, finished in self._account.take_confirmed(admission.take_finished()).items():
            ledger.record(finished)

    def _tell(self, reason: Reason) -> None:
        account = self._account
        assert self._sender is not None  # told while it runs
        self._on_progress(
            Progress(
                account.episodes_read + account.episodes_resumed,
                account.steps_read + account.steps_resumed,
                self._source.episode_count,
                self._sender.confirmed_items,
                self._sender.sent_bytes,
                account.seconds,
                reason.text,
                reason.held_by,
            )
        )

    def _open_ledgers(self, stack: ExitStack) -> None:
        """One ledger per output, all in one file, so that an output added later is filled without sending the others again."""
        if self._options.ledger is None:
            return
        mended = (REPAIR,) if self._options.on_invalid == REPAIR else ()
        for one in self._outputs:
            push = "|".join((one.names.identity, *mended, *one.output.tables))
            one.ledger = stack.enter_context(Ledger(self._options.ledger, push, f"{self._info.state_id:032x}"))
