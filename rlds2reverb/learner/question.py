"""A question that is asked in a thread of its own, so that whoever wants the answer takes what comes meanwhile."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Question(Generic[T]):
    """Asks at once. The thread ends with the answer, or with the deadline of the call that it makes.

    Args:
      changed: told when the answer is there.
      ask: gives the answer, or raises.
    """

    def __init__(self, changed: threading.Condition, ask: Callable[[], T]) -> None:
        self._changed, self._ask = changed, ask
        self._answers: list[T] = []
        self._failure: Exception | None = None
        self._over_at = math.inf
        threading.Thread(target=self._run, name="rlds2reverb-ask", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether the answer is there, or none will come."""
        return self._over_at < math.inf

    @property
    def age_seconds(self) -> float:
        """Seconds since the answer came; negative before it."""
        return time.monotonic() - self._over_at

    def answer(self) -> T:
        """The answer, waited for.

        Raises:
          Exception: what `ask` raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_over)
        if self._failure is not None:
            raise self._failure
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as error:  # not handled here: raised in the thread that wants the answer
            self._failure = error
        with self._changed:
            self._over_at = time.monotonic()
            self._changed.notify_all()
