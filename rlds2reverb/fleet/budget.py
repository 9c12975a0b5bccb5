"""The budgets of workers: the free places of the tables that they fill. Each task is granted some, so that together they evict nothing.

Reverb evicts silently, and what one worker sees of a table is old when another one fills it. So this process alone asks the server, and
divides what is free. Items may be known to the table already and take no place: what a task did not use is free again when it has
ended. A task that needs more than is left runs alone, and watches the tables as a single push does (`push.room`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.room import TableCapacity
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.workers.driver import Task

_MORE = 1.25
"""How many more places than its episodes should need a task is given."""


class Refusal(enum.Enum):
    """Why a task gets no places."""

    LATER = "others have them, and may not need them"
    ALONE = "there are too few"


class Budgets:
    """The budgets that tasks are granted from the tables of one server.

    Args:
      options: of the push.
      info: the tables before it.
      workers: that have budgets at a time.
      ask: asks for the tables.
    """

    def __init__(self, options: PushOptions, info: ServerInfo, workers: int, ask: Callable[[], ServerInfo]) -> None:
        self._workers, self._ask = workers, ask
        self._tables, self._is_guarded = options.tables, not options.allow_eviction
        self._rooms = self._new_rooms(info)
        self._new: int | None = 0  # items that were new before the rooms were
        self._is_alone = False  # a task has the tables to itself
        self._is_back = False  # it had them, and they were not looked at since
        self._given: dict[int, dict[str, int]] = {}
        self._needs: dict[int, dict[str, int]] = {}
        self._per_episode: dict[str, float] = {}

    def give(self, task: Task) -> Mapping[str, int] | Refusal:
        """Places for a task: table -> items; tables that evict nothing anyway are not named.

        Raises:
          CapacityError: somebody else's items evicted some.
          TransportError: the server does not answer.
        """
        guarded = [room for room in self._rooms.values() if room.guarded]
        if not guarded:
            return {}
        if self._is_alone:
            return Refusal.LATER
        self.look()
        given: dict[str, int] = {}
        for room in guarded:
            spare = room.free - sum(one[room.name] for one in self._given.values())
            wanted = self._wanted(room.name, task, spare)
            if spare < max(1, wanted):
                return Refusal.LATER if self._given else Refusal.ALONE
            given[room.name] = wanted
        self._given[task.number] = given
        return given

    def leave_alone(self) -> None:
        """A task begins that has the tables to itself, and watches them: nothing is looked at here until `come_back`."""
        self._new, self._is_alone = self.new_items(), True

    def come_back(self, report: PushReport | None) -> None:
        """That task has ended; `report` says what it did."""
        self._is_alone, self._is_back = False, True
        self._new = _sum(self._new, None if report is None else report.items_new)

    def take_back(
        self, task: Task, report: PushReport | None, needs_more: bool = False, episodes: int | None = None
    ) -> None:
        """A task that was given places has ended.

        Args:
          task: which.
          report: what it did here.
          needs_more: it had too few places.
          episodes: that it pushed, of which others may have gone to other servers; by default those of the report.
        """
        given = self._given.pop(task.number, {})
        for name, room in self._rooms.items():
            made = 0 if report is None else report.items_made.get(name, 0)
            room.sent += given.get(name, made) if needs_more else made
        if needs_more:
            self._needs[task.number] = {table: 2 * max(1, places) for table, places in given.items()}
            return
        if report is not None and episodes is None:
            episodes = report.episodes_pushed + report.episodes_resumed
        if report is not None and episodes:
            for table, items in report.items_made.items():
                self._per_episode[table] = max(self._per_episode.get(table, 0.0), items / episodes)

    def look(self) -> None:
        """Looks at the tables.

        Raises:
          CapacityError: somebody else's items evicted some.
          TransportError: the server does not answer.
        """
        if self._is_alone:
            return
        info = self._ask()
        if self._is_back:  # what left the tables meanwhile is the business of the task that had them
            self._rooms, self._is_back = self._new_rooms(info), False
        for name, room in self._rooms.items():
            if name in info.tables:
                room.see(info.tables[name])

    def new_items(self) -> int | None:
        """How many of the items of all tasks the tables did not have, as last seen; None when that is not known."""
        return _sum(self._new, self._new_items())

    def _new_items(self) -> int | None:
        """Items that the tables got since `_rooms` were made; None where that is not known."""
        if self._is_alone or self._is_back:
            return 0
        return _sum(*(room.new_items for room in self._rooms.values()))

    def _new_rooms(self, info: ServerInfo) -> dict[str, TableCapacity]:
        return {name: TableCapacity(info.tables[name], self._is_guarded) for name in self._tables}

    def _wanted(self, table: str, task: Task, spare: int) -> int:
        """How many places a task should have."""
        fair = spare // (2 * self._workers)
        if task.number in self._needs:
            return max(self._needs[task.number].get(table, 0), fair)
        if table in self._per_episode:
            return max(int(self._per_episode[table] * task.episodes * _MORE) + 1, fair)
        return spare // max(1, self._workers - len(self._given))


def _sum(*counts: int | None) -> int | None:
    """The sum of the counts; None if one of them is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
