"""Ctrl-C: once to stop a push, which then says what is stored; twice to end the program at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rlds2reverb.cli import EXIT_INTERRUPTED

_STDERR = 2
_STOPPING = b"rlds2reverb: stopping: waiting for what is on its way to the server; Ctrl-C again ends at once\n"


@contextmanager
def ends_when_interrupted_twice() -> Iterator[None]:
    """The first SIGINT raises KeyboardInterrupt, as ever, and says what it brings about; the second ends the process."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # somebody else's business, or switched off (nohup, a shell's background job)
        return

    def end(*_: Any) -> None:
        os._exit(EXIT_INTERRUPTED)

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGINT, end)
        with suppress(OSError):  # past sys.stderr, in the middle of whose writing the signal may have come
            os.write(_STDERR, _STOPPING)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
