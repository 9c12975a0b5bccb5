"""Budgets of tasks: each is granted some of the free places of a table, so that together they evict nothing.

Reverb evicts silently, and a worker's view of a table is outdated when another worker fills it. So only the driver asks the server, and
divides the free places. Items that the table has already take no place, so unused places are free again when the task has ended. A task
that needs more places than are left runs alone, and watches the tables as a single push does (`push.capacity`).

    FleetBudgets    on all servers of a push: which server an episode goes to is known only when it is read, so a task gets places on each
      ServerBudgets   on one server
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import partial

from rlds2reverb.errors import ServerRestarted, TransportError
from rlds2reverb.push.capacity import TableCapacity
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.push.report import PushReport, sum_if_known
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.workers.driver import Task

_MARGIN = 1.25  # places granted, over those that the task's episodes should need


class Refusal(enum.Enum):
    """Why a task is granted no places."""

    LATER = "other tasks have them, and may not need them"
    ALONE = "there are too few"


class ServerBudgets:
    """The budgets of tasks for the tables of one server.

    Args:
      info: the tables before the push.
      workers: number of tasks at a time.
      ask: returns the tables as they are now.
    """

    def __init__(self, options: PushOptions, info: ServerInfo, workers: int, ask: Callable[[], ServerInfo]) -> None:
        self._workers, self._ask = workers, ask
        self._tables, self._is_guarded = options.tables, not options.allow_eviction
        self._capacities = self._new_capacities(info)
        self._new: int | None = 0  # new items before `_capacities` were made
        self._is_exclusive = False  # a task has the tables to itself
        self._is_outdated = False  # a task had the tables to itself, and the server was not asked since
        self._granted: dict[int, dict[str, int]] = {}
        self._needs: dict[int, dict[str, int]] = {}
        self._per_episode: dict[str, float] = {}

    def grant(self, task: Task) -> Mapping[str, int] | Refusal:
        """Places for a task: table -> items, for tables that could evict.

        Raises:
          CapacityError: another client's items evicted some of this push.
          TransportError: the server does not answer.
        """
        guarded = [capacity for capacity in self._capacities.values() if capacity.guarded]
        if not guarded:
            return {}
        if self._is_exclusive:
            return Refusal.LATER
        self.look()
        granted: dict[str, int] = {}
        for capacity in guarded:
            spare = capacity.free - sum(places[capacity.name] for places in self._granted.values())
            places = self._places_for(capacity.name, task, spare)
            if spare < max(1, places):
                return Refusal.LATER if self._granted else Refusal.ALONE
            granted[capacity.name] = places
        self._granted[task.number] = granted
        return granted

    def begin_exclusive(self) -> None:
        """A task begins that has the tables to itself, and watches them: the driver does not ask until `end_exclusive`."""
        self._new, self._is_exclusive = self.new_items(), True

    def end_exclusive(self, report: PushReport | None) -> None:
        self._is_exclusive, self._is_outdated = False, True
        self._new = sum_if_known((self._new, None if report is None else report.items_new))

    def release(
        self, task: Task, report: PushReport | None, needs_more: bool = False, episodes: int | None = None
    ) -> None:
        """A task that was granted places has ended.

        Args:
          report: of the task on this server.
          needs_more: it had too few places.
          episodes: that the task pushed to all servers; by default those of the report.
        """
        granted = self._granted.pop(task.number, {})
        for name, capacity in self._capacities.items():
            items = 0 if report is None else report.items_made.get(name, 0)
            capacity.sent += granted.get(name, items) if needs_more else items
        if needs_more:
            # Doubled each time: a task is repeated a few times at most, whatever it needs.
            self._needs[task.number] = {table: 2 * max(1, places) for table, places in granted.items()}
            return
        if report is not None and episodes is None:
            episodes = report.episodes_pushed + report.episodes_resumed
        if report is not None and episodes:
            for table, items in report.items_made.items():
                self._per_episode[table] = max(self._per_episode.get(table, 0.0), items / episodes)

    def look(self) -> None:
        """Asks for the tables; raises as `grant`."""
        if self._is_exclusive:
            return
        info = self._ask()
        if self._is_outdated:  # items that left meanwhile concern the task that had the tables
            self._capacities, self._is_outdated = self._new_capacities(info), False
        for name, capacity in self._capacities.items():
            if name in info.tables:
                capacity.see(info.tables[name])

    def new_items(self) -> int | None:
        """Items of all tasks that the tables did not have, as last seen; None when that is not known."""
        if self._is_exclusive or self._is_outdated:
            return self._new
        return sum_if_known((self._new, *(capacity.new_items for capacity in self._capacities.values())))

    def _new_capacities(self, info: ServerInfo) -> dict[str, TableCapacity]:
        return {name: TableCapacity(info.tables[name], self._is_guarded) for name in self._tables}

    def _places_for(self, table: str, task: Task, spare: int) -> int:
        fair = spare // (2 * self._workers)
        if task.number in self._needs:
            return max(self._needs[task.number].get(table, 0), fair)
        if table in self._per_episode:
            return max(int(self._per_episode[table] * task.episodes * _MARGIN) + 1, fair)
        return spare // max(1, self._workers - len(self._granted))


class FleetBudgets:
    """The budgets of tasks on all servers of a push.

    A missing server grants nothing and is not asked; its budgets stay, to take in the tasks that still end.

    Args:
      workers: number of tasks at a time.
    """

    def __init__(self, plan: PushPlan, servers: Servers, workers: int) -> None:
        self._plan, self._servers = plan, servers
        self._budgets = {
            server: ServerBudgets(
                plan.options, plan.infos[server.address], workers, partial(server.check_process, plan.tuning.deadlines)
            )
            for server in servers
            if server.is_connected
        }

    def grant(self, task: Task) -> Mapping[str, Mapping[str, int]] | Refusal:
        """Grants a task places on every server that is there: address -> table -> items. Raises as `ServerBudgets.grant`."""
        granted: dict[Server, Mapping[str, int]] = {}
        for server, budgets in self._there().items():
            with self._servers.about(server):
                places = budgets.grant(task)
                # All servers or none: what a task sends to each is known only when it has read its episodes.
                if isinstance(places, Refusal):
                    for other in granted:
                        self._budgets[other].release(task, None)
                    return places
                granted[server] = places
        return {server.address: places for server, places in granted.items()}

    def begin_exclusive(self) -> None:
        """A task begins that has all tables to itself; raises as `look`."""
        self.look()  # `grant` ends at the first server that has too few places
        for budgets in self._budgets.values():
            budgets.begin_exclusive()

    def end_exclusive(self, report: PushReport | None) -> None:
        for server, budgets in self._budgets.items():
            budgets.end_exclusive(self._report_of(server, report))

    def release(self, task: Task, report: PushReport | None, needs_more: bool = False) -> None:
        """A task that was granted places has ended; see `ServerBudgets.release`."""
        episodes = 0 if report is None else report.episodes_pushed + report.episodes_resumed
        for server, budgets in self._budgets.items():
            budgets.release(task, self._report_of(server, report), needs_more, episodes)

    def look(self) -> None:
        """Asks for all tables.

        Raises:
          CapacityError: another client's items evicted some of this push.
          ServerRestarted: another server process answers.
          ServerUnreachable: a server does not answer.
        """
        for server, budgets in self._there().items():
            with self._servers.about(server):
                budgets.look()

    def final_check(self) -> None:
        """Looks after the last task. For a server that has gone meanwhile, `new_items` stays unknown; raises as `look`."""
        for server, budgets in self._there().items():
            try:
                with self._servers.about(server):
                    budgets.look()
            except ServerRestarted:
                raise
            except TransportError:
                self._budgets.pop(server)

    def new_items(self, server: Server) -> int | None:
        """Items of all tasks that a server did not have, as last seen; None when that is not known."""
        if not server.is_connected:
            return 0
        return None if server.missing or server not in self._budgets else self._budgets[server].new_items()

    def _there(self) -> dict[Server, ServerBudgets]:
        return {server: budgets for server, budgets in self._budgets.items() if not server.missing}

    def _report_of(self, server: Server, report: PushReport | None) -> PushReport | None:
        return None if report is None else reports_by_server(self._plan, report).get(server.address)


def reports_by_server(plan: PushPlan, report: PushReport) -> Mapping[str, PushReport]:
    """Address -> report of the server; the report of the only server is that of the push."""
    return report.servers if len(plan.names) > 1 else dict.fromkeys(plan.names, report)
