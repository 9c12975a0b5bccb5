"""One checkpoint for all who ask at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Shared(Generic[Result]):
    """Runs one call at a time, from any thread; everyone who asks while one runs gets the result of the next.

    Nobody gets the result of a call that had begun before the question: what a checkpoint holds is what was confirmed before it
    was asked for. So of any number of questions at most one is answered by a call now, and all others by the one after it.

    Args:
      call: what is run; may raise.
      turn: held while it runs. Others that run the same thing for themselves hold it, too.
    """

    def __init__(self, call: Callable[[], Result], turn: AbstractContextManager[object]) -> None:
        self._call, self._turn = call, turn
        self._lock = threading.Lock()
        self._next: Future[Result] | None = None  # of a call that has not begun; who finds none leads it

    def __call__(self) -> Result:
        """The result of a call that begins from now on; raises what that raises."""
        with self._lock:
            leads = self._next is None
            answer = self._next = self._next or Future()
        if leads:
            self._lead(answer)
        return answer.result()

    def _lead(self, answer: Future[Result]) -> None:
        with self._turn:
            with self._lock:
                self._next = None
            try:
                answer.set_result(self._call())
            except BaseException as error:
                answer.set_exception(error)  # for those who follow
                raise
