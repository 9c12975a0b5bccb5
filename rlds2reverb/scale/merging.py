"""One account of the parts of a push: what the workers report, put together as one push would report it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.push.adding import Added
from rlds2reverb.push.plan import PushPlan, report_of_nothing
from rlds2reverb.push.report import Progress, PushReport
from rlds2reverb.push.several.plan import SeveralPlan
from rlds2reverb.remarks import Remark
from rlds2reverb.scale.in_order import InTurn
from rlds2reverb.scale.push_job import Ended, PartDone, PartTold
from rlds2reverb.scale.tasks import Outcome, Task
from rlds2reverb.sources.base import remarks_of
from rlds2reverb.specs import flatten
from rlds2reverb.validation.endings import Endings, InOrder
from rlds2reverb.validation.holdings import Holdings
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
        self._added = Added()
        self._by_server = {address: Added() for address in plan.addresses} if isinstance(plan, SeveralPlan) else {}
        self._told: dict[int, PartTold] = {}
        self._parts_again = 0
        self._ids: list[tuple[Task, Array]] = []
        self._ends = InOrder[Ended]()
        self._missed: list[str] = []  # titles of episodes whose ends are not their own, which their part could not know
        self._in_turn = InTurn[PartDone]()
        self._holdings = Holdings.of(flatten(plan.step_spec))
        self._remarks: dict[Remark, None] = dict.fromkeys(remarks_of(plan.source))

    @property
    def endings(self) -> Endings:
        """How the episodes ended of all parts from the first to one that has not ended."""
        return self._ends.endings

    def items_made(self, address: str) -> Mapping[str, int]:
        """Table -> items of the parts that have ended, on one server."""
        return self._by_server.get(address, self._added).counts["items_made"]

    def told(self, task: Task, what: PartTold) -> None:
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
        done: PartDone | None = outcome.value
        if done is None and told is not None:
            done = PartDone(told.report)
        if done is None:
            return
        _add(done.report, self._added, self._by_server)
        for address, tables in done.sent.items():
            for table, keys in tables.items():
                self.sent.setdefault(address, {}).setdefault(table, []).extend(keys)
        if done.holdings is not None:
            self._holdings = self._holdings.with_others(done.holdings)
        self._remarks.update(dict.fromkeys(done.remarks))
        self._ids.append((task, done.ids))
        for one in self._in_turn.take(task, done):
            self._take_in_turn(one)

    def finish(self) -> None:
        """No part runs any more: what waited for parts that were never begun waits no longer."""
        for done in self._in_turn.rest():
            self._take_in_turn(done)
        self._compare_ends()

    def check_ids(self) -> None:
        """Refuses two episodes of one id, in different parts: their items have the same keys.

        Raises:
          SourceError: there are two.
        """
        if not self._ids:
            return
        every = np.concatenate([ids for _, ids in self._ids])
        found, counts = np.unique(every, return_counts=True)
        if len(found) == len(every):
            return
        where = [str(task) for task, ids in self._ids if np.isin(ids, found[counts > 1]).any()]
        raise SourceError(
            f"{self._plan.source.name}: two episodes have one id, and their items the same keys, so that only those of one are stored: "
            f"one is among {' and one among '.join(where[:2])}. Ids must differ: does the split name records twice?"
        )

    def report(
        self, seconds: float, new: Mapping[str, int | None], missing: Mapping[str, str] | None = None
    ) -> PushReport:
        """The account, parts that still run included as far as they told.

        Args:
          seconds: since the push began.
          new: address -> items that the server's tables did not have, None where that is not known; empty while nobody looked.
          missing: address -> why, of several servers.
        """
        added, by_server = self._added.copy(), {address: one.copy() for address, one in self._by_server.items()}
        for told in self._told.values():
            _add(told.report, added, by_server)
        known = [count for count in new.values() if count is not None]
        whole = self._plan.episodes
        unread = None if whole is None else whole - added.sums["episodes_read"] - added.sums["episodes_resumed"]
        return replace(
            report_of_nothing(self._plan),
            **added.fields(),
            items_new=sum(known) if new and len(known) == len(new) else None,
            remarks=(*self._remarks, *self._holdings.remarks, *self._missed_ends()),
            episodes_unread=unread,
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
                for address, one in by_server.items()
            },
        )

    def progress(self, seconds: float) -> Progress:
        """How far all parts are together; a wait is told when every one waits."""
        running = [told.progress for told in self._told.values()]
        waits = [one for one in running if one.waiting]
        waiting = waits[0] if waits and len(waits) == len(running) else None
        done = self._added.sums
        return Progress(
            done["episodes_read"] + done["episodes_resumed"] + sum(one.episodes for one in running),
            done["steps_read"] + sum(one.steps for one in running),
            self._plan.episodes,
            done["items_confirmed"] + sum(one.items_confirmed for one in running),
            done["bytes"] + sum(one.bytes for one in running),
            seconds,
            "" if waiting is None else waiting.waiting,
            () if waiting is None else waiting.held_by,
        )

    def _take_in_turn(self, done: PartDone) -> None:
        for one in done.ends:
            if self._ends.add(one, one.ending):
                self._compare_ends()
        if done.quarantine:
            with Path(str(self._plan.options.quarantine)).open("a", encoding="utf-8") as report:
                report.write(done.quarantine)

    def _compare_ends(self) -> None:
        """Looks whether what a part found is what one process would have found, which hears of every episode."""
        self._missed += (one.title for one, problems in self._ends.held() if problems and not one.was_found)

    def _missed_ends(self) -> tuple[Remark, ...]:
        if not self._missed:
            return ()
        count = len(self._missed)
        return (Remark("ends_found_late", _MISSED.format(counted(count, "episode"), self._missed[0]), count),)


def _add(report: PushReport, whole: Added, by_server: Mapping[str, Added]) -> None:
    """Adds a part's account to the sums, and to those of its servers."""
    whole.add(report)
    for address, one in report.servers.items():
        by_server[address].add(one)


_MISSED = (
    "{}, the first is {}, ended as episodes of other parts do, which was known too late: one process would not have stored them. Find "
    "them by validate, and take them out with the table, or mend the ends with last_observation"
)
