"""The servers of a distributed push: for the driver their budgets and ledgers, for a worker the connections to them.

Which server an episode goes to is known only when it is read, so a task gets a budget on every server. A task begins with a call to every
server: between two tasks no stream is open that would break, so a restart, after which confirmed items may be gone, would go unnoticed.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from rlds2reverb.episode import Array
from rlds2reverb.errors import Rlds2ReverbError, ServerRestarted, TransportError
from rlds2reverb.fleet.budget import Budgets, Refusal
from rlds2reverb.push.ledger import MemoryLedger, SqliteLedger
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push, Reading, take_out
from rlds2reverb.push.shard import LostServers, TaskContext, open_ledgers
from rlds2reverb.push.tables import check_size
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.retry import Deadlines, retry_until
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.workers.driver import Task

_log = logging.getLogger(__name__)


class PushServers:
    """The servers of one push, for the driver. `transports` maps the address of each reachable server."""

    def __init__(self, plan: PushPlan, transports: Mapping[str, Transport]) -> None:
        self._plan = plan
        self._transports = {address: transports[address] for address in plan.infos}
        self._lost = LostServers(plan, on_lost=_warn)
        self._ledgers: dict[str, tuple[SqliteLedger, ...]] = {}
        self._budgets: dict[str, Budgets] = {}

    @property
    def missing(self) -> Mapping[str, str]:
        """Address -> reason, of lost servers."""
        return self._lost.missing

    def open_ledgers(self, stack: ExitStack) -> None:
        """Opens the ledgers; the stack closes them. Raises LedgerError if the file cannot be used."""
        self._ledgers = {address: open_ledgers(self._plan, address, stack) for address in self._plan.names}

    @property
    def known(self) -> dict[str, list[MemoryLedger]]:
        """Address -> a ledger per output, to be sent to workers."""
        return {
            address: [MemoryLedger(one.confirmed, one.here) for one in ledgers]
            for address, ledgers in self._ledgers.items()
        }

    def record(self, rows: Mapping[str, Sequence[list[tuple[str, int]]]]) -> None:
        """Records what a task has confirmed, address -> per output, (episode, items). Raises LedgerError if the file cannot be written."""
        for address, confirmed in rows.items():
            for ledger, finished in zip(self._ledgers[address], confirmed):
                ledger.record(finished)

    def begin(self, workers: int) -> None:
        self._budgets = {
            address: Budgets(self._plan.options, self._plan.infos[address], workers, self._asking(address))
            for address in self._transports
        }

    def grant(self, task: Task) -> Mapping[str, Mapping[str, int]] | Refusal:
        """Grants a task places on every server that is there: address -> table -> items. Raises as `Budgets.grant`."""
        granted: dict[str, Mapping[str, int]] = {}
        for address, budgets in self._there().items():
            with self._lost.about(address):
                found = budgets.grant(task)
                if isinstance(found, Refusal):
                    for other in granted:
                        self._budgets[other].release(task, None)
                    return found
                granted[address] = found
        return granted

    def begin_exclusive(self) -> None:
        """A task begins that has all tables to itself; raises as `look`."""
        self.look()  # `grant` ends at the first server that has too few places
        for budgets in self._budgets.values():
            budgets.begin_exclusive()

    def end_exclusive(self, report: PushReport | None) -> None:
        for address, budgets in self._budgets.items():
            budgets.end_exclusive(self._of(address, report))

    def release(self, task: Task, report: PushReport | None, needs_more: bool = False) -> None:
        """A task that was granted places has ended; see `Budgets.release`."""
        episodes = 0 if report is None else report.episodes_pushed + report.episodes_resumed
        for address, budgets in self._budgets.items():
            budgets.release(task, self._of(address, report), needs_more, episodes)

    def look(self) -> None:
        """Asks for all tables.

        Raises:
          CapacityError: another client's items evicted some of this push.
          ServerRestarted: another server process answers.
          ServerUnreachable: a server does not answer.
        """
        for address, budgets in self._there().items():
            with self._lost.about(address):
                budgets.look()

    def check_sizes(self, address: str, made: Mapping[str, int]) -> None:
        """Raises CapacityError if the push made more items (by table) for a server than a table holds."""
        for output in self._plan.options.outputs:
            items = max(made.get(table, 0) for table in output.tables)
            with self._lost.about(address):
                check_size(output, self._plan.infos[address], items, f"more than {items - 1}")

    def lose(self, report: PushReport) -> None:
        """Adds the servers that a task has lost. Raises ServerUnreachable if no server is left."""
        lost = {address: one.stopped for address, one in report.servers.items() if one.stopped}
        for address in self._lost.add(lost):
            _warn(address, lost[address])

    def final_check(self) -> None:
        """Looks after the last task. For a server that has gone meanwhile, `new_items` stays unknown; raises as `look`."""
        for address, budgets in self._there().items():
            try:
                with self._lost.about(address):
                    budgets.look()
            except ServerRestarted:
                raise
            except TransportError:
                self._budgets.pop(address)

    def new_items(self, address: str) -> int | None:
        """Items of all tasks that a server did not have, as last seen; None when that is not known."""
        if address not in self._plan.infos:
            return 0
        return None if address in self.missing or address not in self._budgets else self._budgets[address].new_items()

    def move(self, sent: Mapping[str, Mapping[str, Sequence[Array]]]) -> int:
        """Deletes items from servers where they do not belong; returns their number.

        Args:
          sent: address -> table -> keys of the items that are stored where they belong.
        """
        moved = 0
        for address, keys in sent.items():
            for other, transport in self._transports.items():
                if other != address and not {address, other} & self.missing.keys():
                    with self._lost.about(other):
                        moved += take_out(transport, keys)
        return moved

    def _there(self) -> dict[str, Budgets]:
        return {address: one for address, one in self._budgets.items() if address not in self.missing}

    def _asking(self, address: str) -> Callable[[], ServerInfo]:
        deadlines, transport = self._plan.tuning.deadlines, self._transports[address]
        return lambda: _same_server(transport, deadlines, self._plan.infos[address].state_id)

    def _of(self, address: str, report: PushReport | None) -> PushReport | None:
        return None if report is None else by_server(self._plan, report).get(address)


def by_server(plan: PushPlan, report: PushReport) -> Mapping[str, PushReport]:
    """Address -> report of the server; that of the only server is the push's."""
    return report.servers if len(plan.names) > 1 else dict.fromkeys(plan.names, report)


def _warn(address: str, why: Rlds2ReverbError | str) -> None:
    _log.warning("server %s is missing; the push continues without it: %s", address, why)


class Connections:
    """A worker's connections, opened once for many tasks."""

    def __init__(self, transports: Mapping[str, Transport], plan: PushPlan) -> None:
        self._transports, self._plan, self._infos = transports, plan, dict(plan.infos)
        self._lost = LostServers(plan)

    @property
    def missing(self) -> Mapping[str, str]:
        """Address -> reason, of lost servers."""
        return self._lost.missing

    def look(self, missing: Mapping[str, str]) -> None:
        """Asks all servers for their tables before a task, except those that the driver knows to be missing.

        Raises:
          ServerRestarted: another server process answers than at the start of the push.
          ServerUnreachable: a server does not answer.
        """
        self._lost.add(missing)
        for address, transport in self._transports.items():
            if address not in self.missing:
                with self._lost.about(address):
                    state_id = self._plan.infos[address].state_id
                    self._infos[address] = _same_server(transport, self._plan.tuning.deadlines, state_id)

    def lose(self, report: PushReport) -> None:
        """Adds the servers that were lost with a task."""
        self._lost.missing.update({address: one.stopped for address, one in report.servers.items() if one.stopped})

    def push(self, plan: PushPlan, context: TaskContext, reading: Reading) -> Push:
        """The push of a task; `plan` has the task's source."""
        if context.budgets is None:  # the task has the tables to itself, and begins with them as they are now
            plan = replace(plan, infos={address: self._infos[address] for address in plan.infos})
        there = {address: one for address, one in self._transports.items() if address not in self.missing}
        return Push(there, plan, context, reading)


def _same_server(transport: Transport, deadlines: Deadlines, state_id: int) -> ServerInfo:
    """The tables of a server. Raises ServerRestarted if another process answers."""
    info = retry_until(deadlines.reconnect, deadlines, transport.server_info)
    if info.state_id != state_id:
        raise ServerRestarted(
            f"server {transport.address}: another server process answers at {socket.gethostname()} than at the start of the push: it was restarted, or "
            "the address means another one there (localhost does); run the same push again, by an address that means the same everywhere"
        )
    return info
