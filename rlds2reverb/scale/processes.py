"""Workers as processes of this machine, each started anew, with nothing of this process but what it is told.

One that dies is replaced, and its task begun again. They stand apart from the terminal: Ctrl-C reaches this process alone, which tells
them. When this process ends, however it does, they find their pipes closed and end, too.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from rlds2reverb.errors import ConfigError
from rlds2reverb.scale.child import DONE, JOB, STOP, TASK, TOLD
from rlds2reverb.scale.executor import TRIES, Again, Done, Event, Job, Lost, Told
from rlds2reverb.scale.frames import Frames
from rlds2reverb.scale.tasks import Outcome, Task

_END_SECONDS = 5.0
"""For a process to end whose pipe is closed; then it is killed."""


class _Worker:
    """One process. What it answers, and that it has ended, goes to `answers`, from a thread of its own."""

    def __init__(self, job: bytes, answers: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        self.task: Task | None = None
        self._answers = answers
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlds2reverb.scale.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        assert self.process.stdin is not None  # we asked for pipes
        assert self.process.stdout is not None
        self._requests, self._frames = Frames(self.process.stdin), Frames(self.process.stdout)
        self.send(JOB, job)
        threading.Thread(target=self._hear, name="rlds2reverb-worker", daemon=True).start()

    def send(self, kind: str, what: Any) -> None:
        """Tells it something; nothing when it has ended."""
        with suppress(OSError):
            self._requests.write((kind, what))

    def close(self) -> None:
        """Closes its input, at which it ends."""
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]

    def end(self, seconds: float) -> str:
        """Sees it end, by force if need be; what ended it."""
        try:
            code = self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]
        return f"killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

    def _hear(self) -> None:
        with suppress(EOFError, OSError, ValueError):
            while True:
                self._answers.put((self, self._frames.read()))
        self._answers.put((self, None))


class Processes:
    """Runs a job's tasks in processes of this machine; see `executor.Executor`.

    Args:
      job: what they get.
      workers: how many.

    Raises:
      ConfigError: the job cannot be sent to another process; says what of it.
    """

    def __init__(self, job: Job, workers: int) -> None:
        self._job, self.workers = pickled(job), workers
        self._answers: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._all: list[_Worker] = []
        self._tries: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._events: deque[Event] = deque()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + _END_SECONDS
        for worker in self._all:
            worker.close()
        for worker in self._all:
            worker.end(end - time.monotonic())

    def submit(self, task: Task) -> None:
        """Has a task run, in a process that has none, or in a new one."""
        self._tries[task.number] = 1
        self._begin(task)

    def event(self, seconds: float) -> Event | None:
        """What has happened; waits for it, not longer than this."""
        if not self._events:
            with suppress(queue.Empty):
                self._take(*self._answers.get(timeout=seconds))
        return self._events.popleft() if self._events else None

    def stop(self, numbers: Collection[int]) -> None:
        """Tells the workers of these tasks to stop. One that is lost meanwhile is not replaced."""
        self._stopped.update(numbers)
        for worker in self._all:
            if worker.task is not None and worker.task.number in numbers:
                worker.send(STOP, worker.task.number)

    def _begin(self, task: Task) -> None:
        worker = next((one for one in self._all if one.task is None), None)
        if worker is None:
            worker = _Worker(self._job, self._answers)
            self._all.append(worker)
        worker.task = task
        worker.send(TASK, task)

    def _take(self, worker: _Worker, answer: Any) -> None:
        if answer is None:
            self._replace(worker)
            return
        kind, number, what = answer
        if kind == TOLD:
            self._events.append(Told(number, what))
        elif kind == DONE:
            worker.task = None
            self._events.append(Done(number, Outcome(*what)))

    def _replace(self, worker: _Worker) -> None:
        """Begins the task of a worker that has ended anew, in another one."""
        self._all.remove(worker)
        worker.close()
        how, task = worker.end(_END_SECONDS), worker.task
        if task is None:
            return
        why = f"process {worker.process.pid}, at {task}, {how}"
        if task.number in self._stopped:
            self._events.append(Done(task.number, Outcome(None, KeyboardInterrupt())))
            return
        if self._tries[task.number] >= TRIES:
            self._events.append(Lost(task.number, why))
            return
        self._tries[task.number] += 1
        self._begin(task)
        self._events.append(Again(task.number, why))


def pickled(job: Job) -> bytes:
    """The job as bytes.

    Raises:
      ConfigError: something of it cannot be sent to another process.
    """
    try:
        return pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"workers (--workers, --ray) get the source and the view by name, or as objects that can be pickled: {error}; name the source "
            "(docs/datasets.md), or leave the workers out"
        ) from error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
