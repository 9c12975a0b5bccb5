"""The servers of a push by workers, as the driver sees them: the budgets of their tables, their ledgers, and which are lost.

Every episode goes to one of them, and only reading tells to which. So a task gets a budget on all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ServerRestarted, TransportError
from rlds2reverb.push.ledger import MemoryLedger, SqliteLedger
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import take_out
from rlds2reverb.push.shard import open_ledgers
from rlds2reverb.push.tables import check_size
from rlds2reverb.scale.places import Budgets, Refusal
from rlds2reverb.scale.tasks import Task
from rlds2reverb.scale.ways import Endpoints, LostServers, same_server
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.way import Opens

_log = logging.getLogger(__name__)


class Connected(NamedTuple):
    """A server that can be reached.

    Attributes:
      transport: the way to it that the plan was made by.
      opens: the way to it as workers open it.
    """

    transport: Transport
    opens: Opens


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
            found = self._watched(address, lambda: places.give(task))  # noqa: B023  called at once
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
            self._watched(address, lambda: check_size(output, info, items, f"more than {items - 1}"))  # noqa: B023  called at once

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
                    moved += self._watched(other, lambda: take_out(transport, keys)) or 0  # noqa: B023  called at once
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
