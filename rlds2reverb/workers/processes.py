"""Workers as processes of this machine, each started anew, with nothing of this process but the messages that it is sent.

A worker that dies is replaced, and its task begun again; the processes that it has started die with it. Workers have sessions of their
own: Ctrl-C reaches this process alone, which stops them. When this process ends, in any way, they end, too.

Only the process itself shows that a worker has ended, for a process that it has forked may hold its end of the connection. Each worker
has three threads: one waits for its process, kills the rest of its session and hangs up; one reads its answers to the last byte, and
then reports its end; one sends to it, so that a worker that does not read, such as a stopped one, blocks nothing else.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ConfigError, reason_of
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.workers.driver import (
    TRIES,
    Done,
    Event,
    Executor,
    Job,
    Lost,
    Outcome,
    Progressed,
    Retried,
    Task,
    pickle_job,
    receive_outcome,
)
from rlds2reverb.workers.frames import Frames, hang_up, pack
from rlds2reverb.workers.worker import DONE, JOB, PROGRESS, STOP, TASK

_END_SECONDS = 5.0  # for a killed process to end; one that waits for a lost disk does not, and is not waited for longer
_PERHAPS = "Out of memory, perhaps: take fewer workers, or look into the system's log"
_HANGS = "The source hangs there, perhaps: read these episodes by inspect, or look at the disk or the bucket that they are on"

_killpg, _KILL = getattr(os, "killpg", None), getattr(signal, "SIGKILL", None)  # Windows has neither
_waitid: Any = getattr(os, "waitid", None)  # nor this, nor has macOS before Python 3.13


class _Worker:
    """One process. Its answers go to `answers`, which all workers share; the last one is None, whatever has ended it."""

    def __init__(self, job: bytes, answers: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        self.task: Task | None = None
        self._answers, self._unreadable, self._unsendable, self._silent = answers, "", "", ""
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        ours, self._theirs = Pipe()
        self._frames = Frames(ours)
        self._process = _start_process(self._theirs)
        self._killing = threading.Lock()
        self._ending = threading.Thread(target=self._await_end, name="rlds2reverb-worker-end", daemon=True)
        self._reading = threading.Thread(target=self._read, name="rlds2reverb-worker", daemon=True)
        self._writing = threading.Thread(target=self._write, name="rlds2reverb-worker-tell", daemon=True)
        self._unsent.put(job)
        try:
            self._ending.start()
            self._reading.start()
            self._writing.start()
        except BaseException:
            self.kill()
            raise

    def send(self, kind: str, what: Any) -> None:
        """Queues a message for the worker, and does not wait; a worker that has ended does not receive it."""
        self._unsent.put(pack((kind, what)))

    def end_silent(self, why: str) -> None:
        """Kills a worker that hangs or is stopped."""
        self._silent = why
        self.kill()

    def kill(self) -> None:
        """Kills the worker and the processes that it has started."""
        with self._killing:
            if self._process.returncode is None:  # else its number may be that of another process
                _kill_session(self._process)

    def join(self, seconds: float) -> None:
        """Waits at most `seconds` until a killed worker has ended."""
        self._reading.join(max(0.0, seconds))

    def __str__(self) -> str:
        return f"process {self._process.pid}"

    @property
    def is_stopped(self) -> bool:
        """Whether the system says that a signal (SIGSTOP) has stopped it; only Linux is asked."""
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8", "replace")
            return state.rpartition(")")[2].split()[0] in ("T", "t")
        except (OSError, IndexError):
            return False

    @property
    def was_silent(self) -> bool:
        return bool(self._silent)

    @property
    def end(self) -> str:
        code = self._process.returncode
        if self._silent:
            return f"{self._silent}, and was ended"
        if self._unreadable:
            return f"was ended, for its answer cannot be read here: {self._unreadable}"
        if self._unsendable:
            return f"was ended, for nothing can be sent to it: {self._unsendable}"
        if code is None:
            return "was killed, and does not end"
        if code >= 0:
            return f"ended with exit code {code}"
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')}"

    def _await_end(self) -> None:
        """Waits for the process, then kills its session; with `waitid`, before its id can be reused."""
        try:
            if _waitid is None:
                self._process.wait()
            else:
                with suppress(ChildProcessError):  # this process was started with SIGCHLD ignored
                    _waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            with self._killing:
                _kill_session(self._process)
                self._process.wait()
        finally:
            hang_up(self._theirs)
            self._theirs.close()

    def _read(self) -> None:
        """Reads answers until an error or the end of the connection; then kills the worker, and answers None."""
        try:
            while True:
                self._answers.put((self, self._frames.read()))
        except BaseException as error:
            if self._process.returncode is None and not isinstance(error, EOFError):
                self._unreadable = reason_of(error)
        finally:
            self.kill()
            self._ending.join(_END_SECONDS)
            self._answers.put((self, None))
            self._unsent.put(None)
            self._frames.close()

    def _write(self) -> None:
        """Sends queued messages. An error kills the worker: it may have received a part of a message."""
        try:
            while (data := self._unsent.get()) is not None:
                self._frames.send(data)
        except OSError:  # it has ended, or hung up
            self.kill()
        except BaseException as error:
            self._unsendable = reason_of(error)
            self.kill()


def _start_process(connection: Connection) -> subprocess.Popen[bytes]:
    """A worker's process, which inherits its end of the connection."""
    handle = connection.fileno()
    command = [sys.executable, "-m", "rlds2reverb.workers.worker", str(handle), str(os.getpid())]
    # A worker imports from the places that this process does, a script's folder and changes of `sys.path` included.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    output = 2  # our standard error, unless it is closed
    try:
        os.fstat(output)
    except OSError:
        output = subprocess.DEVNULL
    inherits: dict[str, Any] = {}
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        inherits = {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    else:
        inherits = {"pass_fds": (handle,), "start_new_session": True}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, **inherits
    )


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kills a worker, which may have ended but was not waited for, and the processes that it has started."""
    if _killpg is None:
        process.kill()
        return
    with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for processes that have ended
        _killpg(process.pid, _KILL)


class Processes:
    """An `Executor` with processes of this machine; raises ConfigError for a job that cannot be sent to another process."""

    def __init__(self, job: Job, workers: int) -> None:
        self._job, self.workers = pack((JOB, pickle_job(job))), workers
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
            worker.kill()
        for worker in self._all:
            worker.join(end - time.monotonic())

    def submit(self, task: Task) -> None:
        """Starts a task in an idle process, or in a new one."""
        self._tries[task.number] = 1
        self._begin(task)

    def event(self, seconds: float) -> Event | None:
        if not self._events:
            with suppress(queue.Empty):
                self._take(*self._answers.get(timeout=seconds))
        return self._events.popleft() if self._events else None

    def stop(self, numbers: Collection[int]) -> None:
        """A worker that is lost meanwhile is not replaced."""
        self._stopped.update(numbers)
        for worker in self._all:
            if worker.task is not None and worker.task.number in numbers:
                worker.send(STOP, worker.task.number)

    def whereabouts(self, number: int) -> str:
        worker = self._worker_of(number)
        if worker is None:
            return "a worker"
        return f"{worker} (stopped by a signal)" if worker.is_stopped else str(worker)

    def replace(self, number: int, why: str) -> None:
        worker = self._worker_of(number)
        if worker is not None:
            worker.end_silent(why)

    def _worker_of(self, number: int) -> _Worker | None:
        return next((worker for worker in self._all if worker.task is not None and worker.task.number == number), None)

    def _begin(self, task: Task) -> None:
        worker = next((worker for worker in self._all if worker.task is None), None)
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
        if kind == PROGRESS:
            self._events.append(Progressed(number, what))
        elif kind == DONE:
            worker.task = None
            self._events.append(Done(number, receive_outcome(what)))

    def _replace(self, worker: _Worker) -> None:
        """Begins the task of a lost worker again, in another one."""
        self._all.remove(worker)
        task = worker.task
        if task is None:
            return
        why = worker.end if worker.was_silent else f"{worker}, at {task}, {worker.end}"
        if task.number in self._stopped:
            self._events.append(Done(task.number, Outcome(None, KeyboardInterrupt())))
            return
        if self._tries[task.number] >= TRIES:
            perhaps = _HANGS if worker.was_silent else _PERHAPS
            self._events.append(Lost(task.number, f"{why}; it was begun {TRIES} times. {perhaps}"))
            return
        self._tries[task.number] += 1
        self._begin(task)
        self._events.append(Retried(task.number, why))


_on_ray: Callable[[Job, int | None, str], Executor] = Lazily("rlds2reverb.workers.ray:OnRay")


def choose_executor(workers: int | None, ray: str | None) -> Callable[[Job], Executor]:
    """A function that makes the executor of a job.

    Args:
      workers: tasks at a time; None for one per processor of the cluster.
      ray: address of a Ray cluster; None for processes of this machine.

    Raises (when it is called):
      ConfigError: the job cannot be pickled, or the library Ray is missing.
    """

    def make(job: Job) -> Executor:
        if ray is None:
            return Processes(job, workers or 1)
        with needing("work on Ray", "ray", ConfigError):
            return _on_ray(job, workers, ray)

    return make
