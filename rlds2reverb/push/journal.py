"""What a push or a writer session writes into the journals of its servers (`servers.journal`): an entry at its begin, and again at its end.

A push never fails because of a journal: whatever goes wrong with an entry is logged, and a notice of the report says so. That holds for
any error, not for errors of the server alone, because an entry is made of whatever the user has given.
"""

from __future__ import annotations

import logging
import threading
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
from rlds2reverb.servers.journal import JournalEntry, new_entry, process_text, tidy_journal, write_entry
from rlds2reverb.servers.own_tables import encode_record
from rlds2reverb.wire.messages import EPISODES, JOURNAL

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
        self._beginning: list[threading.Thread] = []

    @property
    def push_ids(self) -> dict[str, str]:
        """Address -> id of the entry, of servers that list the episodes of pushes."""
        listing = (server for server in self._entries if EPISODES in self._plan.infos[server.address].own_tables)
        return {server.address: self._entries[server].id for server in listing}

    @property
    def notices(self) -> tuple[Notice, ...]:
        """That an entry could not be written."""
        return tuple(
            Notice("journal_not_written", f"the journal of {address} lacks this {self._kind}, or its end: {reason}", 1)
            for address, reason in dict(self._unwritten).items()  # a thread may add one meanwhile
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
        """Begins to write that the work begins, beside whatever comes first; see `wait_begun`. Raises nothing of a journal."""
        common: JournalEntry | None = None  # made once, so that the entries on all servers have one id
        for server in self._servers.there:
            info = self._plan.infos.get(server.address)
            if info is None or JOURNAL not in info.own_tables:
                continue
            with self._noted(server):
                common = common or self._new_entry()
                entry = msgspec.structs.replace(common, server_process=process_text(info.state_id))
                self._entries[server] = entry
                seconds = self._plan.tuning.deadlines.stall
                thread = threading.Thread(
                    target=self._write, args=(server, entry, seconds), daemon=True, name="rlds2reverb-journal"
                )
                thread.start()
                self._beginning.append(thread)

    def wait_begun(self, seconds: float | None = None) -> None:
        """Waits until the servers have what `begin` writes, or have refused it, or for so long in all: before the first item is sent."""
        until = None if seconds is None else time.monotonic() + seconds
        while self._beginning:
            self._beginning[-1].join(None if until is None else max(0.0, until - time.monotonic()))
            self._beginning.pop()

    def _write(self, server: Server, entry: JournalEntry, seconds: float) -> None:
        with self._noted(server):
            write_entry(server.transport, entry, seconds)

    def _new_entry(self) -> JournalEntry:
        plan = self._plan
        return new_entry(
            self._kind,
            source=plan.source.name,
            view=plan.view,
            tables=plan.options.tables,
            options=_changed_options(plan.options),
            note=plan.options.note,
        )

    def end(self, error: BaseException | None) -> None:
        """Writes what has come of it. Raises nothing of a journal."""
        if not self._entries:
            return
        report = self._report()
        has_failed = isinstance(error, TransportError) or (error is not None and not isinstance(error, Exception))
        seconds = _INTERRUPTED_SECONDS if has_failed else self._plan.tuning.deadlines.stall
        self.wait_begun(_INTERRUPTED_SECONDS if has_failed else None)
        for server, entry in self._entries.items():
            own = report.servers.get(server.address, report)
            stopped = own.stopped or ("" if error is None else reason_of(error))
            with self._noted(server):
                write_entry(server.transport, _ended(entry, own, stopped), seconds)
                self._unwritten.pop(server.address, None)  # it says all that the first one would have said
            if error is None and not server.missing:
                try:
                    tidy_journal(server.transport, self._plan.infos[server.address])
                except Exception as failure:  # all entries are there; the next push joins them
                    LOG.warning("server %s: its journal could not be tidied: %s", server.address, failure)
        if error is not None:
            # A server that refuses the push, as a gateway does, refuses its entry as well: the error says it.
            self._unwritten = {
                address: reason for address, reason in dict(self._unwritten).items() if reason != reason_of(error)
            }
        for address, reason in dict(self._unwritten).items():
            LOG.warning("server %s: its journal could not be written: %s", address, reason)

    @contextmanager
    def _noted(self, server: Server) -> Iterator[None]:
        """Makes a notice of whatever goes wrong inside the block."""
        try:
            yield
        except Exception as error:
            self._unwritten[server.address] = reason_of(error)


def note_reset(servers: Servers, table: str) -> None:
    """Writes into the journals that a table was emptied. Raises nothing of a journal."""

    def note(server: Server) -> None:
        info = server.transport.server_info()
        if JOURNAL in info.own_tables:
            entry = new_entry("reset", tables=(table,), server_process=process_text(info.state_id))
            write_entry(server.transport, msgspec.structs.replace(entry, ended=time.time()))

    try:
        servers.each(note)
    except Rlds2ReverbError as error:
        LOG.warning("the table %s was emptied, and the journal lacks it: %s", table, error)


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
        name: value if isinstance(value, str) else encode_record(value).decode()
        for name, value in values.items()
        if value not in ({}, [], ())
    }
