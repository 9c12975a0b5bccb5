"""One account of the parts of a push: what the workers report, put together as one push would report it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.identity import NO_NAMES, Copies, Names, repeated_ids
from rlds2reverb.push.options import ONCE, PushOptions
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import Progress, PushReport, ReportSums
from rlds2reverb.remarks import Remark
from rlds2reverb.scale.in_order import InTurn
from rlds2reverb.scale.push_job import Ended, TaskDone, TaskProgress
from rlds2reverb.scale.servers import by_server
from rlds2reverb.scale.tasks import Outcome, Task
from rlds2reverb.sources.base import remarks_of
from rlds2reverb.specs import flatten
from rlds2reverb.validation.endings import Endings, InOrder
from rlds2reverb.validation.holdings import Holdings, duplicates_remark
from rlds2reverb.validation.policy import append_report
from rlds2reverb.wording import counted


class Merged:
    """The account of a push by several workers.

    Args:
      plan: of the whole push.

    Attributes:
      workers: how many push at a time.
      moved: items taken out of servers where they do not belong any more.
      sent: address -> table -> keys of the items that were sent, where items are to be moved.
    """

    def __init__(self, plan: PushPlan) -> None:
        self._plan = plan
        self.workers = self.moved = 0
        self.sent: dict[str, dict[str, list[Array]]] = {}
        self._added = ReportSums()
        self._by_server = {address: ReportSums() for address in plan.names}
        self._told: dict[int, TaskProgress] = {}
        self._shown: Progress | None = None
        self._parts_again = 0
        self._contents: dict[int, tuple[Task, Names]] = {}
        self._aside = Copies()
        self._copies = 0
        self._ends = InOrder[Ended]()
        self._missed: list[str] = []  # titles of episodes whose ends are not their own, which their part could not know
        self._in_turn = InTurn[TaskDone]()
        self._holdings = Holdings.of(flatten(plan.step_spec))
        self._remarks: dict[Remark, None] = dict.fromkeys(remarks_of(plan.source))

    @property
    def endings(self) -> Endings:
        """How the episodes ended of all parts from the first to one that has not ended."""
        return self._ends.endings

    def items_made(self, address: str) -> Mapping[str, int]:
        """Table -> items of the parts that have ended, on one server."""
        return self._by_server[address].counts["items_made"]

    def told(self, task: Task, what: TaskProgress) -> None:
        """A worker said how far it is with a part."""
        self._told[task.number] = what

    def again(self, task: Task) -> None:
        """A part was begun anew because its worker was lost."""
        self._parts_again += 1
        self.forget(task)

    def forget(self, task: Task) -> None:
        """A part will be begun anew: what was told of it counts no more."""
        self._told.pop(task.number, None)

    def took(self, task: Task, outcome: Outcome) -> None:
        """A part has ended, whole or not. Of one whose worker was lost at the end, what was told last counts."""
        told = self._told.pop(task.number, None)
        done: TaskDone | None = outcome.value
        if done is None and told is not None:
            done = TaskDone(told.report)
        if done is None:
            return
        self._add(done.report, self._added, self._by_server)
        self._take_sent(done)
        self._contents[task.number] = task, done.contents
        self._set_copies_aside(task, done)
        if done.holdings is not None:
            self._holdings = self._holdings.with_others(done.holdings)
        self._remarks.update(dict.fromkeys(done.remarks))
        for one in self._in_turn.take(task, done):
            self._take_in_turn(one)

    def took_copies(self, task: Task, outcome: Outcome) -> None:
        """A part with copies that were set aside has ended; what has been said of their episodes by then holds."""
        told = self._told.pop(task.number, None)
        done: TaskDone | None = outcome.value
        if done is None and told is not None:
            done = TaskDone(told.report)
        if done is not None:
            self._add(done.report, self._added, self._by_server)
            self._take_sent(done)

    def _take_sent(self, done: TaskDone) -> None:
        for address, tables in done.sent.items():
            for table, keys in tables.items():
                self.sent.setdefault(address, {}).setdefault(table, []).extend(keys)

    def finish(self) -> None:
        """No part runs any more: what waited for parts that were never begun waits no longer."""
        for done in self._in_turn.rest():
            self._take_in_turn(done)
        self._compare_ends()

    def check_names(self) -> None:
        """Takes stock of the copies, once all parts have ended.

        Raises:
          SourceError: two episodes of different parts have one id that is no content's, so that their items have the same keys.
        """
        every = np.concatenate([NO_NAMES, *(contents for _, contents in self._contents.values())])
        repeated = repeated_ids(every)
        if len(repeated):
            where = [str(task) for _, (task, found) in sorted(self._contents.items()) if np.isin(found, repeated).any()]
            raise SourceError(
                f"{self._plan.source.name}: two episodes have one id, and their items the same keys, so that only those of one are stored: "
                f"one is among {' and one among '.join(where[:2])}. Ids must differ, or be left out: then episodes are named by their content"
            )
        self._copies = len(every) - len(np.unique(every))

    def copies(self) -> list[tuple[Task, dict[int, int]]]:
        """Parts with episodes that were set aside, by their places, and the numbers of the copies that they are."""
        return [(self._contents[number][0], places) for number, places in self._aside.numbered().items()]

    def _set_copies_aside(self, task: Task, done: TaskDone) -> None:
        """Takes out of the account what another part has as well: it was sent under the same names, and is stored once.

        Later it comes as copies (`took_copies`), or counts as left out (`duplicates="once"`).
        """
        order = np.argsort(done.names, kind="stable")
        found: list[tuple[int, str, Array]] = []
        for address, rows in done.taken.items():
            places = order[np.searchsorted(done.names, rows[:, 0], sorter=order)]
            found += ((int(place), address, row) for place, row in zip(places, rows))
        found.sort(key=lambda one: one[0])
        is_aside = self._aside.take(task.number, ((place, int(done.contents[place])) for place, _, _ in found))
        for (_, address, row), is_copy in zip(found, is_aside):
            if is_copy:
                for added in (self._added, self._by_server[address]):
                    _take_out(added, row, self._plan.options)

    def report(
        self, seconds: float, new: Mapping[str, int | None], missing: Mapping[str, str] | None = None
    ) -> PushReport:
        """The account, parts that still run included as far as they told.

        Args:
          seconds: since the push began.
          new: address -> items that the server's tables did not have, None where that is not known; empty while nobody looked.
          missing: address -> why, of several servers.
        """
        added, servers = self._added.copy(), {address: one.copy() for address, one in self._by_server.items()}
        for told in self._told.values():
            self._add(told.report, added, servers)
        known = [count for count in new.values() if count is not None]
        return replace(
            report_of_nothing(self._plan),
            **added.fields(),
            items_new=sum(known) if new and len(known) == len(new) else None,
            remarks=(*self._remarks, *self._holdings.remarks, *self._missed_ends(), *duplicates_remark(self._copies)),
            episodes_unread=added.unread(self._plan.episodes),
            seconds=seconds,
            workers=self.workers,
            parts_again=self._parts_again,
            ends_found_late=len(self._missed),
            items_moved=self.moved,
            servers={
                address: replace(
                    report_of_nothing(self._plan),
                    **one.fields(),
                    items_new=new.get(address),
                    remarks=remarks_of(self._plan.source),
                    episodes_unread=None,
                    seconds=seconds,
                    stopped=(missing or {}).get(address, ""),
                )
                for address, one in (servers.items() if len(servers) > 1 else ())
            },
        )

    def progress(self, seconds: float) -> Progress:
        """How far all parts are together, never less than before; a wait is told when every one waits."""
        running = [told.progress for told in self._told.values()]
        waits = [one for one in running if one.waiting]
        waiting = waits[0] if waits and len(waits) == len(running) else None
        done = self._added.sums
        now = Progress(
            done["episodes_read"] + done["episodes_resumed"] + sum(one.episodes for one in running),
            done["steps_read"] + sum(one.steps for one in running),
            self._plan.episodes,
            done["items_confirmed"] + sum(one.items_confirmed for one in running),
            done["bytes"] + sum(one.bytes for one in running),
            seconds,
            "" if waiting is None else waiting.waiting,
            () if waiting is None else waiting.held_by,
        )
        self._shown = now.no_less_than(self._shown)
        return self._shown

    def _add(self, report: PushReport, whole: ReportSums, servers: Mapping[str, ReportSums]) -> None:
        """Adds a task's account to the sums, and to those of its servers."""
        whole.add(report)
        for address, one in by_server(self._plan, report).items():
            servers[address].add(one)

    def _take_in_turn(self, done: TaskDone) -> None:
        for one in done.ends:
            if self._ends.add(one, one.ending):
                self._compare_ends()
        if done.quarantine:
            append_report(Path(str(self._plan.options.quarantine)), done.quarantine, "the rejected episodes of a part")

    def _compare_ends(self) -> None:
        """Looks whether what a part found is what one process would have found, which hears of every episode."""
        self._missed += (one.title for one, problems in self._ends.held() if problems and not one.was_found)

    def _missed_ends(self) -> tuple[Remark, ...]:
        if not self._missed:
            return ()
        count = len(self._missed)
        return (Remark("ends_found_late", _MISSED.format(counted(count, "episode"), self._missed[0]), count),)


def _take_out(added: ReportSums, row: Array, options: PushOptions) -> None:
    """Takes an episode out of the sums of what is stored; the row is one of `push.shard.Shard.taken_rows`."""
    is_resumed, steps, items = bool(row[1]), int(row[2]), list(map(int, row[3:]))
    is_left_out = options.duplicates == ONCE
    if is_resumed:
        added.sums["episodes_resumed"] -= not is_left_out
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
    "{}, the first is {}, ended as episodes of other parts do, which was known too late: one process would not have stored them. Find "
    "them by validate, and take them out with the table, or mend the ends with last_observation"
)
