"""Calls shared by all who ask at the same time: never an old result, never two at once, at most one more than needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_server.checkpoints import Shared

from tests.support.processes import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]

PATIENCE = 30


class Call:
    """Numbered calls that end when they are let."""

    def __init__(self, *, held: bool = True) -> None:
        self.begun = 0
        self.is_running = False
        self.began, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self._held = held

    def __call__(self) -> int:
        assert not self.is_running
        self.is_running = True
        self.begun += 1
        number = self.begun
        self.began.release()
        if self._held:
            assert self.may_end.acquire(timeout=PATIENCE)
        self.is_running = False
        return number


class Counted:
    """A lock that counts how often it was let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.count += 1
        self._lock.release()


def counted(call: Callable[[], int], turn: threading.RLock) -> tuple[Shared[int], Counted]:
    """A shared call, and a count of questions and beginnings."""
    shared = Shared(call, turn)
    counts = Counted()
    shared._lock = cast(Any, counts)
    return shared, counts


def test_all_who_ask_while_one_runs_share_the_next() -> None:
    call = Call()
    shared, counts = counted(call, threading.RLock())
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(shared)
        assert call.began.acquire(timeout=PATIENCE)
        others = [pool.submit(shared) for _ in range(19)]
        wait_until(lambda: counts.count == 21)  # 20 questions, 1 beginning
        assert not first.done()
        call.may_end.release(2)
        assert first.result(PATIENCE) == 1
        assert [other.result(PATIENCE) for other in others] == [2] * 19


def test_an_error_is_everybodys_and_the_next_call_is_made() -> None:
    answers: Iterator[Any] = iter([ValueError("full"), 5])

    def call() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    turn = threading.RLock()
    shared, counts = counted(call, turn)
    with ThreadPoolExecutor(4) as pool:
        with turn:  # another runs it for itself
            asked = [pool.submit(shared) for _ in range(4)]
            wait_until(lambda: counts.count == 4)
            assert not any(future.done() for future in asked)
        assert [str(future.exception(PATIENCE)) for future in asked] == ["full"] * 4
    assert shared() == 5


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(1, 20))
def test_nobody_gets_a_result_of_a_call_that_had_begun_before(threads: int, questions: int) -> None:
    call = Call(held=False)
    shared = Shared(call, threading.RLock())

    def ask() -> None:
        for _ in range(questions):
            before = call.begun
            assert shared() > before

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(ask) for _ in range(threads)]:
            done.result(PATIENCE)
    assert call.begun <= threads * questions
