"""The servers of a push by workers: for the driver, their budgets and ledgers, and which are lost; for a worker, the connections to them.

Every episode goes to one of them, and only reading tells to which. So a task gets a budget on all of them. A task begins with a look at every
server: between two tasks no stream is open that would break, so a server that was restarted would not be noticed otherwise, nor that
items are gone which were confirmed.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

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
from rlds2reverb.transport.grpc import Endpoint
from rlds2reverb.transport.retry import Deadlines, retry_until
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.workers.driver import Task

_log = logging.getLogger(__name__)


class PushServers:
    """The servers of one push, as the driver sees them.

    Args:
      plan: what is pushed.
      transports: address -> the way to a server that the plan was made by, of those that could be reached.
    """

    def __init__(self, plan: PushPlan, transports: Mapping[str, Transport]) -> None:
        self._plan = plan
        self._transports = {address: transports[address] for address in plan.infos}
        self._lost = LostServers(plan, on_lost=_warn)
        self._ledgers: dict[str, tuple[SqliteLedger, ...]] = {}
        self._budgets: dict[str, Budgets] = {}

    @property
    def missing(self) -> Mapping[str, str]:
        """Address -> why, of the servers that are lost by now."""
        return self._lost.missing

    # Ledgers.

    def open_ledgers(self, stack: ExitStack) -> None:
        """Opens them, to be closed by the stack.

        Raises:
          LedgerError: the file cannot be used.
        """
        self._ledgers = {address: open_ledgers(self._plan, address, stack) for address in self._plan.names}

    @property
    def known(self) -> dict[str, list[MemoryLedger]]:
        """Address -> per output, what its ledger has, for workers."""
        return {
            address: [MemoryLedger(one.confirmed, one.here) for one in ledgers]
            for address, ledgers in self._ledgers.items()
        }

    def record(self, rows: Mapping[str, Sequence[list[tuple[str, int]]]]) -> None:
        """Writes down what a task has confirmed: address -> per output, (episode, items).

        Raises:
          LedgerError: the file cannot be written.
        """
        for address, confirmed in rows.items():
            for ledger, finished in zip(self._ledgers[address], confirmed):
                ledger.record(finished)

    # Budgets.

    def begin(self, workers: int) -> None:
        """So many workers begin."""
        self._budgets = {
            address: Budgets(self._plan.options, self._plan.infos[address], workers, self._asking(address))
            for address in self._transports
        }

    def give(self, task: Task) -> Mapping[str, Mapping[str, int]] | Refusal:
        """The budget of a task, of every server that is there: address -> as `Budgets.give`, which it raises as."""
        given: dict[str, Mapping[str, int]] = {}
        for address, budgets in self._there().items():
            with self._lost.about(address):
                found = budgets.give(task)
                if isinstance(found, Refusal):
                    for other in given:
                        self._budgets[other].take_back(task, None)
                    return found
                given[address] = found
        return given

    def leave_alone(self) -> None:
        """A task begins that has all tables to itself; raises as `look`."""
        self.look()  # `give` ends at the first server that has too few places
        for budgets in self._budgets.values():
            budgets.leave_alone()

    def come_back(self, report: PushReport | None) -> None:
        """That task has ended; `report` says what it did."""
        for address, budgets in self._budgets.items():
            budgets.come_back(self._of(address, report))

    def take_back(self, task: Task, report: PushReport | None, needs_more: bool = False) -> None:
        """A task that had a budget has ended; see `Budgets.take_back`."""
        episodes = 0 if report is None else report.episodes_pushed + report.episodes_resumed
        for address, budgets in self._budgets.items():
            budgets.take_back(task, self._of(address, report), needs_more, episodes)

    def look(self) -> None:
        """Looks at all tables.

        Raises:
          CapacityError: somebody else's items evicted some.
          ServerRestarted: another server process answers.
          ServerUnreachable: a server does not answer.
        """
        for address, budgets in self._there().items():
            with self._lost.about(address):
                budgets.look()

    def check_sizes(self, address: str, made: Mapping[str, int]) -> None:
        """Refuses a push that turns out to be larger than a table.

        Args:
          address: of a server.
          made: table -> items that belong there.

        Raises:
          CapacityError: it is larger; of several servers, the error names it.
        """
        for output in self._plan.options.outputs:
            items = max(made.get(table, 0) for table in output.tables)
            with self._lost.about(address):
                check_size(output, self._plan.infos[address], items, f"more than {items - 1}")

    # The end.

    def lose(self, report: PushReport) -> None:
        """Takes in the servers that a task has lost.

        Raises:
          ServerUnreachable: none is left.
        """
        lost = {address: one.stopped for address, one in report.servers.items() if one.stopped}
        for address in self._lost.add(lost):
            _warn(address, lost[address])

    def final_check(self) -> None:
        """Looks at all tables when all is done. Of a server that has gone meanwhile it stays unknown what was new; raises as `look`."""
        for address, budgets in self._there().items():
            try:
                with self._lost.about(address):
                    budgets.look()
            except ServerRestarted:
                raise
            except TransportError:
                self._budgets.pop(address)

    def new_items(self, address: str) -> int | None:
        """How many of the items of all tasks a server did not have, as last seen; None when that is not known."""
        if address not in self._plan.infos:
            return 0
        return None if address in self.missing or address not in self._budgets else self._budgets[address].new_items()

    def move(self, sent: Mapping[str, Mapping[str, Sequence[Array]]]) -> int:
        """Takes items out of the servers where they do not belong; how many there were.

        Args:
          sent: address -> table -> keys of the items that belong there, and are stored there.

        Raises:
          TransportError: a server does not answer.
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
        """A server's part of a report."""
        return None if report is None else by_server(self._plan, report).get(address)


def by_server(plan: PushPlan, report: PushReport) -> Mapping[str, PushReport]:
    """Address -> account. That of one server alone is the push's."""
    return report.servers if len(plan.names) > 1 else dict.fromkeys(plan.names, report)


def _warn(address: str, why: Rlds2ReverbError | str) -> None:
    _log.warning("server %s is missing, and others go on: %s", address, why)


@dataclass(frozen=True)
class Endpoints:
    """The servers of a push, as a worker gets them.

    Attributes:
      names: address -> name, of all servers; names decide which of several gets an episode.
      allow_missing: see `PushPlan`.
      opens: address -> the way to it, of those that could be reached when the push began.
      infos: address -> its tables then.
    """

    names: Mapping[str, str]
    allow_missing: bool
    opens: Mapping[str, Endpoint]
    infos: Mapping[str, ServerInfo]

    @contextmanager
    def connected(self, plan: PushPlan) -> Iterator[Connections]:
        """Opens a connection to each, for the push of this plan."""
        with ExitStack() as stack:
            transports = {address: stack.enter_context(closing(one.open())) for address, one in self.opens.items()}
            yield Connections(transports, plan)


class Connections:
    """A worker's connections, opened once for many tasks.

    Args:
      transports: address -> connection.
      plan: of the whole push.
    """

    def __init__(self, transports: Mapping[str, Transport], plan: PushPlan) -> None:
        self._transports, self._plan, self._infos = transports, plan, dict(plan.infos)
        self._lost = LostServers(plan)

    @property
    def missing(self) -> Mapping[str, str]:
        """Address -> why, of the servers that are lost by now."""
        return self._lost.missing

    def look(self, missing: Mapping[str, str]) -> None:
        """Looks at all servers before a task.

        Args:
          missing: address -> why, of those that are lost as far as others know.

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
        """Takes in the servers that were lost with a task."""
        self._lost.missing.update({address: one.stopped for address, one in report.servers.items() if one.stopped})

    def push(self, plan: PushPlan, context: TaskContext, reading: Reading) -> Push:
        """What pushes a task.

        Args:
          plan: of the push, with the task's source.
          context: of the task. One that has the tables to itself begins with the tables as they are now.
          reading: finds the problems that other episodes show.
        """
        if context.budgets is None:
            plan = replace(plan, infos={address: self._infos[address] for address in plan.infos})
        there = {address: one for address, one in self._transports.items() if address not in self.missing}
        return Push(there, plan, context, reading)


def _same_server(transport: Transport, deadlines: Deadlines, state_id: int) -> ServerInfo:
    """The tables of a server, which must be the process that it was.

    Raises:
      ServerRestarted: it is another one.
      TransportError: it does not answer within the deadline.
    """
    info = retry_until(deadlines.reconnect, deadlines, transport.server_info)
    if info.state_id != state_id:
        raise ServerRestarted(
            f"server {transport.address}: another server process answers at {socket.gethostname()} than at the start of the push: it was restarted, or "
            "the address means another one there (localhost does); run the same push again, by an address that means the same everywhere"
        )
    return info
