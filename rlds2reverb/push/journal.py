"""What a push or a writer session writes into the journals of its servers (`servers.journal`): an entry at its begin, and again at its end.

A push never fails because of a journal: what cannot be written is logged, and a notice of the report says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from rlds2reverb.episode import Notice
from rlds2reverb.errors import Rlds2ReverbError, TransportError, reason_of
from rlds2reverb.keywords import command_options
from rlds2reverb.plain import plain
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.servers.journal import JOURNAL, JournalEntry, new_entry, process_text, tidy_journal, write_entry

LOG = logging.getLogger("rlds2reverb.push")

_INTERRUPTED_SECONDS = 2.0
"""For the end of work that was interrupted, or whose server has failed."""

_IN_THE_ENTRY = ("note", "quarantine", "workers", "ray", "ledger")  # with fields of their own, or of no effect on items


class PushJournal:
    """The entries of one push, or of one writer session: one on each server that has a journal.

    Args:
      servers: of the push.
      report: what was done so far.
    """

    def __init__(
        self, kind: Literal["push", "write"], plan: PushPlan, servers: Servers, report: Callable[[], PushReport]
    ) -> None:
        self._kind, self._plan, self._servers, self._report = kind, plan, servers, report
        self._entries: dict[Server, JournalEntry] = {}
        self._unwritten: dict[str, str] = {}  # address -> why

    @property
    def notices(self) -> tuple[Notice, ...]:
        """That an entry could not be written."""
        return tuple(
            Notice("journal_not_written", f"the journal of {address} lacks this {self._kind}, or its end: {reason}", 1)
            for address, reason in self._unwritten.items()
        )

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The work inside the block: an entry before it, and its end after it, with the error that ended it."""
        self.begin()
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise
        self.end(None)

    def begin(self) -> None:
        """Writes that the work begins. Raises nothing of a journal."""
        plan, seconds = self._plan, self._plan.tuning.deadlines.stall
        for server in self._servers.there:
            info = plan.infos.get(server.address)
            if info is None or JOURNAL not in info.own_tables:
                continue
            self._entries[server] = new_entry(
                self._kind,
                source=plan.source.name,
                view=plan.view,
                tables=plan.options.tables,
                options=_changed_options(plan.options),
                note=plan.options.note,
                server_process=process_text(info.state_id),
            )
            self._write(server, self._entries[server], seconds)

    def end(self, error: BaseException | None) -> None:
        """Writes what has come of it. Raises nothing of a journal."""
        if not self._entries:
            return
        report = self._report()
        has_failed = isinstance(error, TransportError) or (error is not None and not isinstance(error, Exception))
        seconds = _INTERRUPTED_SECONDS if has_failed else self._plan.tuning.deadlines.stall
        for server, entry in self._entries.items():
            own = report.servers.get(server.address, report)
            stopped = own.stopped or ("" if error is None else reason_of(error))
            self._write(server, _ended(entry, own, stopped), seconds)
            if error is None and not server.missing:
                try:
                    tidy_journal(server.transport)
                except Rlds2ReverbError as failure:  # all entries are there; the next push joins them
                    LOG.warning("server %s: its journal could not be tidied: %s", server.address, failure)

    def _write(self, server: Server, entry: JournalEntry, seconds: float) -> None:
        try:
            write_entry(server.transport, entry, seconds)
        except Rlds2ReverbError as error:
            self._unwritten[server.address] = reason_of(error)
            LOG.warning("server %s: its journal could not be written: %s", server.address, error)
        else:
            if entry.ended is not None:  # it says all that the first one would have said
                self._unwritten.pop(server.address, None)


def _ended(entry: JournalEntry, report: PushReport, stopped: str) -> JournalEntry:
    return msgspec.structs.replace(
        entry,
        ended=time.time(),
        stopped=stopped,
        episodes=report.episodes_pushed,
        steps=report.steps_pushed,
        episodes_known=report.episodes_resumed,
        refused=dict(report.rejected),
        items=report.items_confirmed,
        items_new=report.items_new,
        bytes=report.bytes,
    )


def _changed_options(options: PushOptions) -> dict[str, str]:
    """Name -> value as text, of the options that differ from their defaults."""
    changed = {
        name: getattr(options, name)
        for name, (option, _) in command_options(PushOptions).items()
        if name not in ("table", "view", *_IN_THE_ENTRY) and getattr(options, name) != option.default
    }
    values = {name: plain(value) for name, value in changed.items()}
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
        for name, value in values.items()
        if value not in ({}, [], ())
    }
