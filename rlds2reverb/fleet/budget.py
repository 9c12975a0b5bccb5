"""Budgets of tasks: each is granted some of the free places of a table, so that together they evict nothing.

Reverb evicts silently, and a worker's view of a table is outdated when another worker fills it. So only the driver asks the server, and
divides the free places. Items that the table has already take no place, so unused places are free again when the task has ended. A task
that needs more places than are left runs alone, and watches the tables as a single push does (`push.room`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.room import TableCapacity
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.workers.driver import Task

_MARGIN = 1.25  # places granted, over those that the task's episodes should need


class Refusal(enum.Enum):
    """Why a task is granted no places."""

    LATER = "other tasks have them, and may not need them"
    ALONE = "there are too few"


class Budgets:
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
            spare = capacity.free - sum(one[capacity.name] for one in self._granted.values())
            wanted = self._wanted(capacity.name, task, spare)
            if spare < max(1, wanted):
                return Refusal.LATER if self._granted else Refusal.ALONE
            granted[capacity.name] = wanted
        self._granted[task.number] = granted
        return granted

    def begin_exclusive(self) -> None:
        """A task begins that has the tables to itself, and watches them: the driver does not ask until `end_exclusive`."""
        self._new, self._is_exclusive = self.new_items(), True

    def end_exclusive(self, report: PushReport | None) -> None:
        self._is_exclusive, self._is_outdated = False, True
        self._new = _sum(self._new, None if report is None else report.items_new)

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
            made = 0 if report is None else report.items_made.get(name, 0)
            capacity.sent += granted.get(name, made) if needs_more else made
        if needs_more:
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
        return _sum(self._new, *(capacity.new_items for capacity in self._capacities.values()))

    def _new_capacities(self, info: ServerInfo) -> dict[str, TableCapacity]:
        return {name: TableCapacity(info.tables[name], self._is_guarded) for name in self._tables}

    def _wanted(self, table: str, task: Task, spare: int) -> int:
        fair = spare // (2 * self._workers)
        if task.number in self._needs:
            return max(self._needs[task.number].get(table, 0), fair)
        if table in self._per_episode:
            return max(int(self._per_episode[table] * task.episodes * _MARGIN) + 1, fair)
        return spare // max(1, self._workers - len(self._granted))


def _sum(*counts: int | None) -> int | None:
    """The sum of the counts; None if one of them is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
