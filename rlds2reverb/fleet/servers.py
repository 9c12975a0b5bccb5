"""The servers of a push by workers: their endpoints, connections, budgets and ledgers, and which are lost."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rlds2reverb.episode import Array
from rlds2reverb.errors import CapacityError, ServerRestarted, ServerUnreachable, TransportError, reason_of
from rlds2reverb.fleet.budget import Budgets, Refusal
from rlds2reverb.fleet.driver import Task
from rlds2reverb.push.ledger import MemoryLedger, SqliteLedger
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push, Reading, take_out
from rlds2reverb.push.shard import AWAY, TaskContext, open_ledgers
from rlds2reverb.push.tables import check_size
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.grpc import Endpoint
from rlds2reverb.transport.retry import Deadlines, retry_until
from rlds2reverb.wire.messages import ServerInfo


def same_server(transport: Transport, deadlines: Deadlines, state_id: int) -> ServerInfo:
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


class LostServers:
    """Which servers are lost, and whether a push may continue without them.

    Args:
      plan: of the push.
      allow_missing: whether it continues as long as one is left.

    Attributes:
      missing: address -> why.
    """

    def __init__(self, plan: PushPlan, allow_missing: bool) -> None:
        self._plan, self._allow_missing = plan, allow_missing
        self.missing: dict[str, str] = dict.fromkeys(plan.missing, AWAY)

    def watched(self, address: str, act: Callable[[], Any]) -> Any:
        """What `act` returns; None where the server is lost with it.

        Raises:
          ServerUnreachable, ServerRestarted: it is lost, and may not be, or is the last one.
          Rlds2ReverbError: as `act` does; of several servers, the error names it.
        """
        try:
            return act()
        except (TransportError, CapacityError) as error:
            self._plan.named(error, address)
            is_last = all(one in self.missing for one in self._plan.names if one != address)
            if not isinstance(error, (ServerUnreachable, ServerRestarted)) or not self._allow_missing or is_last:
                raise
            self.missing[address] = reason_of(error)
        return None

    def add(self, missing: Mapping[str, str]) -> list[str]:
        """Takes in the servers that somebody else lost; returns those that are news.

        Raises:
          ServerUnreachable: none is left.
        """
        new = [address for address in missing if address not in self.missing]
        self.missing.update({address: missing[address] for address in new})
        if len(self.missing) == len(self._plan.names):
            raise ServerUnreachable(
                f"no server is left of {', '.join(self._plan.names)}; {'; '.join(f'{one}: {self.missing[one]}' for one in new)}"
            )
        return new


@dataclass(frozen=True)
class Endpoints:
    """The servers of a push, for every worker.

    Attributes:
      names: address -> name, of all servers; names decide which of several gets an episode.
      opens: address -> the way to it, of those that could be reached when the push began.
      infos: address -> its tables then.
      allow_missing: continue without servers that are lost, as long as one is there.
    """

    names: Mapping[str, str]
    opens: Mapping[str, Endpoint]
    infos: Mapping[str, ServerInfo]
    allow_missing: bool

    @contextmanager
    def connected(self, plan: PushPlan) -> Iterator[Connections]:
        """Opens a connection to each, for the push of this plan."""
        with ExitStack() as stack:
            transports = {address: stack.enter_context(closing(way.open())) for address, way in self.opens.items()}
            yield Connections(transports, plan, self.allow_missing)


class Connections:
    """A worker's connections.

    Args:
      transports: address -> connection.
      plan: of the whole push.
      allow_missing: see `Endpoints`.
    """

    def __init__(self, transports: Mapping[str, Transport], plan: PushPlan, allow_missing: bool) -> None:
        self._transports, self._plan, self._allow_missing = transports, plan, allow_missing
        self._lost = LostServers(plan, allow_missing)
        self._infos = dict(plan.infos)

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
                self._lost.watched(address, lambda: self._ask(address, transport))

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
        return Push(there, plan, self._allow_missing, context, reading)

    def _ask(self, address: str, transport: Transport) -> None:
        deadlines, state_id = self._plan.tuning.deadlines, self._plan.infos[address].state_id
        self._infos[address] = same_server(transport, deadlines, state_id)


# The servers of a push by workers, as the driver sees them: the budgets of their tables, their ledgers, and which are lost.
#
# Every episode goes to one of them, and only reading tells to which. So a task gets a budget on all of them.

_log = logging.getLogger(__name__)


class Connected(NamedTuple):
    """A server that can be reached.

    Attributes:
      transport: the way to it that the plan was made by.
      opens: the way to it as workers open it.
    """

    transport: Transport
    opens: Endpoint


class PushServers:
    """The servers of one push.

    Args:
      plan: what is pushed.
      connected: address -> the way to a server, of those that the plan has tables of.
      allow_missing: continue without servers that are lost, as long as one is there.
    """

    def __init__(self, plan: PushPlan, connected: Mapping[str, Connected], allow_missing: bool = False) -> None:
        self._plan, self._allow_missing = plan, allow_missing
        self._connected = {address: connected[address] for address in plan.infos}
        self._lost = LostServers(plan, allow_missing)
        self._ledgers: dict[str, tuple[SqliteLedger, ...]] = {}
        self._budgets: dict[str, Budgets] = {}

    @property
    def missing(self) -> Mapping[str, str]:
        """Address -> why, of the servers that are lost by now."""
        return self._lost.missing

    @property
    def endpoints(self) -> Endpoints:
        """What workers get."""
        opens = {address: one.opens for address, one in self._connected.items()}
        return Endpoints(self._plan.names, opens, self._plan.infos, self._allow_missing)

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
        """Writes down what a task has confirmed.

        Raises:
          LedgerError: the file cannot be written.
        """
        for address, confirmed in rows.items():
            for ledger, finished in zip(self._ledgers[address], confirmed):
                ledger.record(finished)

    def begin(self, workers: int) -> None:
        """So many workers begin."""
        self._budgets = {
            address: Budgets(self._plan.options, self._plan.infos[address], workers, self._asking(address))
            for address in self._connected
        }

    def give(self, task: Task) -> Mapping[str, Mapping[str, int]] | Refusal:
        """The budget of a task, of every server that is there: address -> as `Budgets.give`, which it raises as."""
        given: dict[str, Mapping[str, int]] = {}
        for address, places in self._there().items():
            found = self._watched(address, lambda: places.give(task))
            if isinstance(found, Refusal):
                for other in given:
                    self._budgets[other].take_back(task, None)
                return found
            if found is not None:
                given[address] = found
        return given

    def leave_alone(self) -> None:
        """A task begins that has all tables to itself; raises as `look`."""
        self.look()  # `give` ends at the first server that has too few places
        for places in self._budgets.values():
            places.leave_alone()

    def come_back(self, report: PushReport | None) -> None:
        """That task has ended; `report` says what it did."""
        for address, places in self._budgets.items():
            places.come_back(self._of(address, report))

    def take_back(self, task: Task, report: PushReport | None, needs_more: bool = False) -> None:
        """A task that had a budget has ended; see `Budgets.take_back`."""
        episodes = 0 if report is None else report.episodes_pushed + report.episodes_resumed
        for address, places in self._budgets.items():
            places.take_back(task, self._of(address, report), needs_more, episodes)

    def look(self) -> None:
        """Looks at all tables.

        Raises:
          CapacityError: somebody else's items evicted some.
          ServerRestarted: another server process answers.
          ServerUnreachable: a server does not answer.
        """
        for address, places in self._there().items():
            self._watched(address, places.look)

    def final_check(self) -> None:
        """Looks at all tables when all is done. Of a server that has gone meanwhile it stays unknown what was new; raises as `look`."""
        for address, places in self._there().items():
            try:
                self._watched(address, places.look)
            except ServerRestarted:
                raise
            except TransportError:
                self._budgets.pop(address)

    def lose(self, report: PushReport) -> None:
        """Takes in the servers that a task has lost.

        Raises:
          ServerUnreachable: none is left.
        """
        lost = {address: one.stopped for address, one in report.servers.items() if one.stopped}
        for address in self._lost.add(lost):
            self._tell_lost(address)

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
            info = self._plan.infos[address]
            self._watched(address, lambda: check_size(output, info, items, f"more than {items - 1}"))

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
            for other, (transport, _) in self._connected.items() if address not in self.missing else ():
                if other != address and other not in self.missing:
                    moved += self._watched(other, lambda: take_out(transport, keys)) or 0
        return moved

    def _there(self) -> dict[str, Budgets]:
        return {address: one for address, one in self._budgets.items() if address not in self.missing}

    def _asking(self, address: str) -> Callable[[], Any]:
        deadlines, transport = self._plan.tuning.deadlines, self._connected[address].transport
        return lambda: same_server(transport, deadlines, self._plan.infos[address].state_id)

    def _watched(self, address: str, act: Callable[[], Any]) -> Any:
        """As `LostServers.watched`; a loss is told."""
        found = self._lost.watched(address, act)
        if address in self.missing:
            self._tell_lost(address)
        return found

    def _tell_lost(self, address: str) -> None:
        _log.warning("server %s is missing, and others go on: %s", address, self.missing[address])

    def _of(self, address: str, report: PushReport | None) -> PushReport | None:
        """A server's part of a report."""
        return None if report is None else by_server(self._plan, report).get(address)


def by_server(plan: PushPlan, report: PushReport) -> Mapping[str, PushReport]:
    """Address -> account. That of one server alone is the push's."""
    return report.servers if len(plan.names) > 1 else dict.fromkeys(plan.names, report)
