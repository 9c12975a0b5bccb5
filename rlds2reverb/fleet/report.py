"""The report of a distributed push, merged from its tasks; an episode that several of them have sent counts once."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlds2reverb.episode import NO_NAMES, Array, Copies, Names, Notice, repeated_ids
from rlds2reverb.errors import SourceError
from rlds2reverb.fleet.budget import reports_by_server
from rlds2reverb.fleet.tasks import EndedEpisode, TaskDone, TaskProgress
from rlds2reverb.prepare.endings import Endings, InOrder
from rlds2reverb.prepare.policy import append_report
from rlds2reverb.prepare.preparation import ColumnStats, duplicates_notice
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.push.options import ONCE, PushOptions
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import PushReport, ReportSums, sum_if_known
from rlds2reverb.push.server_push import KNOWN, SENT
from rlds2reverb.specs import flatten
from rlds2reverb.text import counted
from rlds2reverb.workers.driver import InTurn, Outcome, Task


class MergedReport:
    """The report of a distributed push, merged from its tasks.

    Attributes:
      workers: number of tasks at a time.
      moved: items deleted from servers where they do not belong any more.
      sent: address -> table -> keys of the items sent, with `move`.
    """

    def __init__(self, plan: PushPlan) -> None:
        self._plan = plan
        self.workers = self.moved = 0
        self.sent: dict[str, dict[str, list[Array]]] = {}
        self._added = ReportSums()
        self._by_server = {address: ReportSums() for address in plan.names}
        self._running: dict[int, TaskProgress] = {}
        self._shown: Progress | None = None
        self._parts_again = 0
        self._contents: dict[int, tuple[Task, Names]] = {}
        self._aside = Copies()
        self._copies = 0
        self._ends = InOrder[EndedEpisode]()
        self._missed: list[str] = []  # titles for the notice `ends_found_late`
        self._in_turn = InTurn[TaskDone]()
        self._columns = ColumnStats.of(flatten(plan.step_spec))
        self._notices: dict[Notice, None] = dict.fromkeys(plan.notices)

    @property
    def endings(self) -> Endings:
        """Endings of the episodes of all tasks before the first that has not ended."""
        return self._ends.endings

    def items_made(self, address: str) -> Mapping[str, int]:
        """Table -> items on one server, of the tasks that have ended."""
        return self._by_server[address].counts["items_made"]

    def on_progress(self, task: Task, progress: TaskProgress) -> None:
        self._running[task.number] = progress

    def on_retry(self, task: Task) -> None:
        """A task begins again because its worker was lost."""
        self._parts_again += 1
        self.forget(task)

    def forget(self, task: Task) -> None:
        """Drops the progress of a task that will begin again."""
        self._running.pop(task.number, None)

    def on_done(self, task: Task, outcome: Outcome, is_of_copies: bool) -> None:
        """A task has ended, completely or not. If its worker was lost at the end, its last progress counts."""
        running = self._running.pop(task.number, None)
        done: TaskDone | None = outcome.value
        if done is None and running is not None:
            done = TaskDone(running.report)
        if done is None:
            return
        self._add(done.report, self._added, self._by_server)
        for address, tables in done.sent.items():
            for table, keys in tables.items():
                self.sent.setdefault(address, {}).setdefault(table, []).extend(keys)
        if is_of_copies:  # the rest is known from the task that set the copies aside
            return
        self._contents[task.number] = task, done.contents
        self._set_copies_aside(task, done)
        if done.columns is not None:
            self._columns = self._columns.with_others(done.columns)
        self._notices.update(dict.fromkeys(done.notices))
        for due in self._in_turn.take(task, done):
            self._take_in_turn(due)

    def finish(self) -> None:
        """No task runs any more: takes in outcomes that waited for tasks that never began."""
        for done in self._in_turn.rest():
            self._take_in_turn(done)
        self._compare_ends()

    def check_names(self) -> None:
        """Counts copies after the last task."""
        every = np.concatenate([NO_NAMES, *(contents for _, contents in self._contents.values())])
        repeated = repeated_ids(every)
        if len(repeated):
            where = [
                task.start + int(place)
                for _, (task, contents) in sorted(self._contents.items())
                for place in np.flatnonzero(contents == repeated[0])
            ]
            first, second = (next(self._plan.source.episodes(place, place + 1)).title for place in where[:2])
            identity = self._plan.options.identity
            kind = "id" if identity is None else f"identity ({identity})"
            raise SourceError(
                f"{self._plan.source.name}: two episodes have one {kind}, and their items the same keys, so that only those of one are stored: "
                f"{first} (number {where[0]:,}) and {second} (number {where[1]:,}). They must differ, or be left out: then episodes are named by "
                "their content"
            )
        self._copies = len(every) - len(np.unique(every))

    def copies(self, first_number: int) -> tuple[list[Task], dict[int, dict[int, int]]]:
        """Tasks for the episodes that were set aside, and task number -> position -> number of the copy that it is stored as."""
        tasks, copies = [], {}
        for number, (pushed, places) in enumerate(sorted(self._aside.numbered().items()), first_number):
            task, _ = self._contents[pushed]
            first, last = min(places), max(places)
            tasks.append(Task(number, task.start + first, task.start + last + 1))
            copies[number] = {place - first: copy for place, copy in places.items()}
        return tasks, copies

    def _set_copies_aside(self, task: Task, done: TaskDone) -> None:
        """Subtracts episodes that another task has sent under the same names, so that they are stored once.

        They are pushed later as copies (`copies`), or count as duplicates (`duplicates="once"`).
        """
        order = np.argsort(done.names, kind="stable")
        taken: list[tuple[int, str, Array]] = []  # (place in the task, server, row of `taken_rows`)
        for address, rows in done.taken.items():
            places = order[np.searchsorted(done.names, rows[:, 0], sorter=order)]
            taken += ((int(place), address, row) for place, row in zip(places, rows))
        taken.sort(key=lambda episode: episode[0])
        is_aside = self._aside.take(task.number, ((place, int(done.contents[place])) for place, _, _ in taken))
        for (_, address, row), is_copy in zip(taken, is_aside):
            if is_copy:
                for added in (self._added, self._by_server[address]):
                    _take_out(added, row, self._plan.options)

    def report(
        self, seconds: float, new: Mapping[str, int | None], missing: Mapping[str, str] | None = None
    ) -> PushReport:
        """The report, including the progress of running tasks.

        Args:
          new: address -> items that the server's tables did not have, None if unknown; empty before the final check.
          missing: address -> reason, of lost servers.
        """
        added, servers = deepcopy((self._added, self._by_server))
        for running in self._running.values():
            self._add(running.report, added, servers)
        missed: list[Notice] = []
        if count := len(self._missed):
            missed = [Notice("ends_found_late", _MISSED.format(counted(count, "episode"), self._missed[0]), count)]
        return replace(
            report_of_nothing(self._plan),
            **added.fields(),
            items_new=sum_if_known(new.values()) if new else None,
            notices=(*self._notices, *self._columns.notices, *missed, *duplicates_notice(self._copies)),
            episodes_unread=added.unread(self._plan.episodes),
            seconds=seconds,
            workers=self.workers,
            parts_again=self._parts_again,
            ends_found_late=len(self._missed),
            items_moved=self.moved,
            servers={
                address: replace(
                    report_of_nothing(self._plan),
                    **sums.fields(),
                    items_new=new.get(address),
                    notices=self._plan.source.notices,
                    episodes_unread=None,
                    seconds=seconds,
                    stopped=(missing or {}).get(address, ""),
                )
                for address, sums in (servers.items() if len(servers) > 1 else ())
            },
        )

    def progress(self, seconds: float) -> Progress:
        """Progress of all tasks, never less than before; it waits when every running task waits."""
        running = [task.progress for task in self._running.values()]
        waits = [progress for progress in running if progress.waiting]
        waiting = waits[0] if waits and len(waits) == len(running) else None
        done = self._added.sums
        now = Progress(
            done["episodes_read"]
            + done["episodes_resumed"]
            + done["episodes_deleted"]
            + sum(progress.episodes for progress in running),
            done["steps_read"] + sum(progress.steps for progress in running),
            self._plan.episodes,
            done["items_confirmed"] + sum(progress.items_confirmed for progress in running),
            done["bytes"] + sum(progress.bytes for progress in running),
            seconds,
            "" if waiting is None else waiting.waiting,
            () if waiting is None else waiting.held_by,
        )
        self._shown = now.no_less_than(self._shown)
        return self._shown

    def _add(self, report: PushReport, whole: ReportSums, servers: Mapping[str, ReportSums]) -> None:
        whole.add(report)
        for address, own in reports_by_server(self._plan, report).items():
            servers[address].add(own)

    def _take_in_turn(self, done: TaskDone) -> None:
        for ended in done.ends:
            if self._ends.add(ended, ended.ending):
                self._compare_ends()
        if done.quarantine:
            append_report(Path(str(self._plan.options.quarantine)), done.quarantine, "the rejected episodes of a part")

    def _compare_ends(self) -> None:
        """Finds episodes that one process, which knows all episodes before, would have rejected."""
        self._missed += (ended.title for ended, problems in self._ends.held() if problems and not ended.was_found)


def _take_out(added: ReportSums, row: Array, options: PushOptions) -> None:
    """Subtracts a stored episode from the sums; `row` is one of `push.server_push.Account.taken_rows`."""
    how, steps, items = int(row[1]), int(row[2]), list(map(int, row[3:]))
    is_left_out = options.duplicates == ONCE
    if how != SENT:
        added.sums["episodes_resumed" if how == KNOWN else "episodes_deleted"] -= not is_left_out
    else:
        added.sums["episodes_read"] -= not is_left_out
        added.sums["steps_read"] -= 0 if is_left_out else steps
        added.sums["episodes_duplicate"] += is_left_out
        added.sums["episodes_pushed"] -= 1
        added.sums["steps_pushed"] -= steps
        added.sums["items_confirmed"] -= sum(items)
    for table, count in zip(options.tables, items):
        added.counts["items_made"][table] -= count


_MISSED = (
    "{}, the first is {}, ended as episodes of other tasks do, which their worker did not know in time: one process would have rejected "
    "them. Find them with validate, and empty the table, or repair the ends with last_observation"
)
