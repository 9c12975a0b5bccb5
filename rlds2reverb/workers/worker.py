"""A worker as a process of this machine: `python -m rlds2reverb.workers.worker DESCRIPTOR DRIVER`, started by `processes`.

It talks with its driver over an inherited connection; output of libraries goes to the driver's standard error. When the driver
has ended, it ends, together with the processes that it has started. One that is stopped then is continued, by the kernel of Linux;
elsewhere it ends as soon as it is continued. Only code that holds Python's lock for ever keeps it from ending.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection
from typing import Any

from rlds2reverb.workers.driver import BEGUN, Outcome, Task, Work, make_sendable, unpickle_job
from rlds2reverb.workers.frames import Frames, pack

# Messages to a worker: the pickled job, first; a task; the number of a task to stop.
JOB, TASK, STOP = "job", "task", "stop"
PROGRESS, DONE = "progress", "done"  # its answers: a task's number, and its progress or outcome

# Interval of checks that the driver still runs: a process that the driver has forked keeps the connection open.
_LOOK_SECONDS = 1.0

_killpg, _KILL = getattr(os, "killpg", None), getattr(signal, "SIGKILL", None)  # Windows has neither
_CONTINUE = getattr(signal, "SIGCONT", 0)  # nor this


class _Child:
    def __init__(self, frames: Frames, driver: int) -> None:
        self._frames, self._driver, self._pid = frames, driver, os.getpid()
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._stopped: set[int] = set()
        self._work: Work | None = None

    def run(self) -> None:
        _, job = self._frames.read()
        threading.Thread(target=self._listen, name="rlds2reverb-listen", daemon=True).start()
        with ExitStack() as stack:
            while True:
                self._send(self._done(stack, job, self._tasks.get()))

    def _done(self, stack: ExitStack, job: bytes, task: Task) -> bytes:
        """The packed outcome of a task; an outcome that cannot be packed becomes the error that says so."""
        try:
            if self._work is None:
                self._work = stack.enter_context(unpickle_job(job).open())
            self._tell(task.number, BEGUN)
            outcome = self._work.run(task, lambda what: self._tell(task.number, what))
            return pack((DONE, task.number, make_sendable(outcome)))
        except BaseException as error:
            return pack((DONE, task.number, make_sendable(Outcome(None, error))))

    def _tell(self, number: int, what: Any) -> None:
        if number in self._stopped:
            raise KeyboardInterrupt
        self._send(pack((PROGRESS, number, what)))

    def _send(self, data: bytes) -> None:
        if os.getpid() != self._pid:  # a fork has returned or raised up to here: the task is not its own
            os._exit(1)
        try:
            self._frames.send(data)
        except OSError:
            _end()

    def _listen(self) -> None:
        """In a thread of its own; when it ends, for whatever reason, the process ends: the driver could not stop it any more."""
        with _ending_with_driver(_end):
            while True:
                while not self._frames.is_ready(_LOOK_SECONDS):
                    if os.getppid() != self._driver:
                        return
                kind, what = self._frames.read()
                if kind == TASK:
                    self._tasks.put(what)
                else:
                    self._stopped.add(what)


@contextmanager
def _ending_with_driver(end: Callable[[], object]) -> Iterator[None]:
    """Ends the process at the end of the block; prints an error, unless the driver's end caused it."""
    try:
        yield
    except (EOFError, OSError):
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        end()


def _end() -> None:
    """Ends this process, which leads a session, and the processes that it has started."""
    if _killpg is not None:
        _killpg(0, _KILL)
    os._exit(1)


_PR_SET_PDEATHSIG = 1  # of prctl(2)


def _continue_when_driver_ends(driver: int) -> None:
    """Has Linux send this process SIGCONT when the driver ends, so that one that is stopped then can notice it, and end.

    SIGKILL would leave behind what the worker has started. The signal also comes when the driver's thread ends that started the worker,
    which does no harm.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # a system without prctl: the interval of looks remains
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(_CONTINUE), 0, 0, 0)
        if os.getppid() != driver:  # it has ended before
            _end()


def main() -> None:
    handle, driver = map(int, sys.argv[1:])
    _continue_when_driver_ends(driver)
    if sys.platform == "win32":
        inherited = connection.PipeConnection(handle)
    else:
        os.set_inheritable(handle, False)  # by programs that it starts
        inherited = connection.Connection(handle)
    with _ending_with_driver(lambda: os._exit(1)):  # an ordinary exit would wait for threads of libraries
        _Child(Frames(inherited), driver).run()


if __name__ == "__main__":
    main()
