"""Work that a server repeats in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Repeating(ABC):
    """Calls `repeat` every so many seconds, counted from the end of one call to the start of the next, until `stop`."""

    def __init__(self, name: str, seconds: float) -> None:
        self._seconds, self._stopped = seconds, threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def repeat(self) -> None: ...

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begins no further call; one that runs continues."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self.repeat()
