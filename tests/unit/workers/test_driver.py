"""What ends a driver, ends it soon: Ctrl-C while workers start or work, also where a callback of C code loses it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rlds2reverb.interrupts import noted_interrupts
from rlds2reverb.workers import driver
from rlds2reverb.workers.driver import BEGUN, Done, Driver, Event, Outcome, Progressed, Task
from tests.unit.test_interrupts import lose_interrupt

MOST_EVENTS = 50


class Workers:
    """An executor whose events are listed; then it has none, and refuses to be asked for ever."""

    workers = 1

    def __init__(self, *events: Event, after_stop: tuple[Event, ...] = ()) -> None:
        self._events, self._after_stop, self._asked = list(events), list(after_stop), 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, task: Task) -> None: ...

    def event(self, seconds: float) -> Event | None:
        self._asked += 1
        assert self._asked < MOST_EVENTS, "it waits on and on"
        return self._events.pop(0) if self._events else None

    def stop(self, numbers: Collection[int]) -> None:
        self._events = self._after_stop

    def whereabouts(self, number: int) -> str:
        return "a worker"

    def replace(self, number: int, why: str) -> None: ...


class Undertaking:
    """One task; what is done of it is kept."""

    def __init__(self) -> None:
        self._tasks, self.done = [Task(0, 0, 9)], list[Any]()

    def next_task(self, _: Collection[Task]) -> Task | None:
        return self._tasks.pop() if self._tasks else None

    def on_progress(self, task: Task, what: Any) -> None: ...

    def on_done(self, task: Task, outcome: Outcome) -> bool:
        self.done.append(outcome.value)
        return False

    def on_retry(self, task: Task, why: str) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each look at the clock is half a second later than the one before."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: next(seconds) / 2))
    yield


@contextmanager
def pythons_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_workers_that_have_not_begun_are_not_waited_for(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "STOP_SECONDS", 10.0**6)
    undertaking = Undertaking()
    with pytest.raises(KeyboardInterrupt):
        Driver(Workers(), undertaking, interrupt).run()
    assert undertaking.done == []


@pytest.mark.parametrize(
    ("before", "after"),
    [((Progressed(0, BEGUN),), ()), ((), (Progressed(0, BEGUN),))],
)
def test_the_work_of_those_that_have_begun_is_waited_for(
    clock: None, before: tuple[Event, ...], after: tuple[Event, ...]
) -> None:
    late: tuple[Any, ...] = (*after, *(None,) * 20, Done(0, Outcome("work", KeyboardInterrupt())))
    undertaking = Undertaking()
    with pytest.raises(KeyboardInterrupt):
        Driver(Workers(*before, after_stop=late), undertaking, interrupt).run()
    assert undertaking.done == ["work"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals come otherwise there")
def test_a_lost_interrupt_ends_the_wait_for_workers() -> None:
    interrupts = [lose_interrupt]

    def lose_one() -> None:
        if interrupts:
            interrupts.pop()()

    with pythons_handler(), pytest.raises(KeyboardInterrupt), noted_interrupts():
        Driver(Workers(), Undertaking(), lose_one).run()
