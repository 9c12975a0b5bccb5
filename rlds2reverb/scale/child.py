"""A worker as a process of this machine: `python -m rlds2reverb.scale.child`, started by `processes`.

It is told over its standard input, and answers over what was its standard output; what libraries print goes to standard error.
When nobody is there any more to tell it something, it ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from contextlib import ExitStack
from typing import Any

from rlds2reverb.scale.executor import Work
from rlds2reverb.scale.frames import Frames
from rlds2reverb.scale.outcomes import sendable
from rlds2reverb.scale.tasks import Outcome, Task

JOB, TASK, STOP = "job", "task", "stop"
"""What it is told: the pickled job, first; a task; the number of a task to stop."""

TOLD, DONE = "told", "done"
"""What it answers: a task's number, and how far it is or what came of it."""


class _Child:
    """Runs tasks, one after the other."""

    def __init__(self, requests: Frames, answers: Frames) -> None:
        self._requests, self._answers = requests, answers
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._stopped: set[int] = set()
        self._work: Work | None = None

    def run(self) -> None:
        """Until the pipe ends."""
        _, job = self._requests.read()
        threading.Thread(target=self._listen, name="rlds2reverb-listen", daemon=True).start()
        with ExitStack() as stack:
            while True:
                task = self._tasks.get()
                self._answer(DONE, task.number, sendable(self._outcome(stack, job, task)))

    def _outcome(self, stack: ExitStack, job: bytes, task: Task) -> Outcome:
        try:
            if self._work is None:
                self._work = stack.enter_context(pickle.loads(job).opened())
            return self._work.run(task, lambda what: self._tell(task.number, what))
        except BaseException as error:
            return Outcome(None, error)

    def _tell(self, number: int, what: Any) -> None:
        if number in self._stopped:
            raise KeyboardInterrupt
        self._answer(TOLD, number, what)

    def _answer(self, kind: str, number: int, what: Any) -> None:
        try:
            self._answers.write((kind, number, what))
        except OSError:  # nobody is there any more
            os._exit(1)

    def _listen(self) -> None:
        """In a thread of its own."""
        try:
            while True:
                kind, what = self._requests.read()
                if kind == TASK:
                    self._tasks.put(what)
                else:
                    self._stopped.add(what)
        except (EOFError, OSError):
            os._exit(0)


def main() -> None:
    """Runs until standard input ends."""
    requests = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _Child(Frames(requests), Frames(answers)).run()


if __name__ == "__main__":
    main()
