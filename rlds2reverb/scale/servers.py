"""The servers of a push by workers, as the driver sees them: their free places, their ledgers, and which are lost.

Every episode goes to one of them, and only reading tells to which. So a part gets places on all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ServerRestarted, TransportError
from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.ledgers import open_ledgers
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.several.moving import take_out
from rlds2reverb.push.several.part import AWAY
from rlds2reverb.push.several.plan import SeveralPlan
from rlds2reverb.push.tables import check_size
from rlds2reverb.scale.places import Places, Refusal
from rlds2reverb.scale.push_job import Known
from rlds2reverb.scale.tasks import Task
from rlds2reverb.scale.ways import Losses, Ways, asked
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.way import Opens

_log = logging.getLogger(__name__)


class Reached(NamedTuple):
    """A server that can be reached.

    Attributes:
      transport: the way to it that the plan was made by.
      opens: the way to it as workers open it.
    """

    transport: Transport
    opens: Opens


class ServerSet:
    """The servers of one push.

    Args:
      plan: what is pushed; of several servers, a `SeveralPlan`.
      reached: address -> the way to a server; those that the plan of several names and that are not here are missing.
      allow_missing: go on without servers that are lost, as long as one is there.

    Attributes:
      names: address -> name, of all.
      plans: address -> the plan of that server.
      is_several: whether the plan is of several servers.
    """

    def __init__(self, plan: PushPlan, reached: Mapping[str, Reached], allow_missing: bool = False) -> None:
        self._plan, self._allow_missing = plan, allow_missing
        self.is_several = isinstance(plan, SeveralPlan)
        self.names = plan.names if isinstance(plan, SeveralPlan) else {address: address for address in reached}
        self.plans = plan.parts if isinstance(plan, SeveralPlan) else dict.fromkeys(reached, plan)
        self._reached = {address: reached[address] for address in self.plans}
        self._losses = Losses(self.names, allow_missing, self.is_several)
        self._losses.missing.update(dict.fromkeys((one for one in self.names if one not in self.plans), AWAY))
        self._ledgers: dict[str, tuple[Ledger, ...]] = {}
        self._places: dict[str, Places] = {}

    @property
    def missing(self) -> Mapping[str, str]:
        """Address -> why, of the servers that are lost by now."""
        return self._losses.missing

    @property
    def ways(self) -> Ways:
        """What workers get."""
        opens = {address: one.opens for address, one in self._reached.items()}
        infos = {address: plan.info for address, plan in self.plans.items()}
        return Ways(self.names, opens, infos, self.is_several, self._allow_missing)

    def open_ledgers(self, stack: ExitStack) -> None:
        """Opens them, to be closed by the stack.

        Raises:
          LedgerError: the file cannot be used.
        """
        for address, name in self.names.items():
            is_away = address not in self.plans
            self._ledgers[address] = open_ledgers(self.plans.get(address, self._plan), stack, name, is_away)

    @property
    def known(self) -> dict[str, list[Known]]:
        """Address -> per output, what its ledger has; where the push is to go on by it, or episodes are placed by it."""
        if not (self._plan.options.resume or self.is_several):
            return {address: [Known()] * len(ledgers) for address, ledgers in self._ledgers.items()}
        return {
            address: [Known(one.confirmed, one.here) for one in ledgers] for address, ledgers in self._ledgers.items()
        }

    def record(self, rows: Mapping[str, Sequence[list[tuple[str, int]]]]) -> None:
        """Writes down what a part has confirmed.

        Raises:
          LedgerError: the file cannot be written.
        """
        for address, confirmed in rows.items():
            for ledger, finished in zip(self._ledgers[address], confirmed):
                ledger.record(finished)

    def begin(self, workers: int) -> None:
        """So many workers begin."""
        self._places = {
            address: Places(self.plans[address], workers, self._asking(address)) for address in self._reached
        }

    def give(self, task: Task) -> Mapping[str, Mapping[str, int]] | Refusal:
        """Places for a task, of every server that is there: address -> as `Places.give`, which it raises as."""
        given: dict[str, Mapping[str, int]] = {}
        for address, places in self._there().items():
            found = self._watched(address, lambda: places.give(task))  # noqa: B023  called at once
            if isinstance(found, Refusal):
                for other in given:
                    self._places[other].take_back(task, None)
                return found
            if found is not None:
                given[address] = found
        return given

    def leave_alone(self) -> None:
        """A task begins that has all tables to itself; raises as `look`."""
        self.look()  # `give` ends at the first server that has too few places
        for places in self._places.values():
            places.leave_alone()

    def come_back(self, report: PushReport | None) -> None:
        """That task has ended; `report` says what it did."""
        for address, places in self._places.items():
            places.come_back(self._of(address, report))

    def take_back(self, task: Task, report: PushReport | None, needs_more: bool = False) -> None:
        """A task that was given places has ended; see `Places.take_back`."""
        episodes = 0 if report is None else report.episodes_pushed + report.episodes_resumed
        for address, places in self._places.items():
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

    def look_back(self) -> None:
        """Looks at all tables when all is done. Of a server that has gone meanwhile it stays unknown what was new; raises as `look`."""
        for address, places in self._there().items():
            try:
                self._watched(address, places.look)
            except ServerRestarted:
                raise
            except TransportError:
                self._places.pop(address)

    def heard(self, report: PushReport) -> None:
        """Takes note of the servers that a part has lost.

        Raises:
          ServerUnreachable: none is left.
        """
        lost = {address: one.stopped for address, one in report.servers.items() if one.stopped}
        for address in self._losses.heard(lost):
            self._tell_lost(address)

    def check_sizes(self, address: str, made: Mapping[str, int]) -> None:
        """Refuses a push that turns out to be larger than a table.

        Args:
          address: of a server.
          made: table -> items that belong there.

        Raises:
          CapacityError: it is larger; of several servers, the error names it.
        """
        plan = self.plans[address]
        for output in plan.options.outputs:
            items = max(made.get(table, 0) for table in output.tables)
            self._watched(address, lambda: check_size(output, plan.info, items, f"more than {items - 1}"))  # noqa: B023  called at once

    def new_items(self, address: str) -> int | None:
        """How many of the items of all tasks a server did not have, as last seen; None when that is not known."""
        if address not in self.plans:
            return 0
        return None if address in self.missing or address not in self._places else self._places[address].new_items()

    def move(self, sent: Mapping[str, Mapping[str, Sequence[Array]]]) -> int:
        """Takes items out of the servers where they do not belong; how many there were.

        Args:
          sent: address -> table -> keys of the items that belong there, and are stored there.

        Raises:
          TransportError: a server does not answer.
        """
        moved = 0
        for address, keys in sent.items():
            for other, (transport, _) in self._reached.items() if address not in self.missing else ():
                if other != address and other not in self.missing:
                    moved += self._watched(other, lambda: take_out(transport, keys)) or 0  # noqa: B023  called at once
        return moved

    def _there(self) -> dict[str, Places]:
        return {address: one for address, one in self._places.items() if address not in self.missing}

    def _asking(self, address: str) -> Callable[[], Any]:
        deadlines, transport = self._plan.tuning.deadlines, self._reached[address].transport
        return lambda: asked(transport, deadlines, self.plans[address].info.state_id)

    def _watched(self, address: str, act: Callable[[], Any]) -> Any:
        """As `Losses.watched`; a loss is told."""
        found = self._losses.watched(address, act)
        if address in self.missing:
            self._tell_lost(address)
        return found

    def _tell_lost(self, address: str) -> None:
        _log.warning("server %s is missing, and others go on: %s", address, self.missing[address])

    def _of(self, address: str, report: PushReport | None) -> PushReport | None:
        """A server's part of a report."""
        return report if report is None or not self.is_several else report.servers.get(address)
