"""Ctrl-C that is never lost: SIGINT is noted before it becomes a `KeyboardInterrupt`.

Python raises `KeyboardInterrupt` wherever the main thread is. Inside a callback of C code, such as one of a weak reference, `__del__`, or a file
object that HDF5 writes to, nobody can take it: Python prints "Exception ignored" and goes on, or the C code makes another error of it. So long
work happens inside of `noted_interrupts`, and asks at its safe points, such as after each episode, whether an interrupt was lost
(`raise_lost_interrupt`). Handlers of others, and threads other than the main one, are left alone.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Interrupts:
    """The handler of SIGINT inside of `noted_interrupts`."""

    def __init__(self) -> None:
        self.are_noted = False  # whether a handler is installed
        self.has_come = self._are_held = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self.has_come = not self.has_come, True
        if not (self._are_held and is_first):
            signal.default_int_handler(number, frame)

    @contextmanager
    def noted(self) -> Iterator[None]:
        show = sys.unraisablehook

        def show_others(lost: Any) -> None:
            if not issubclass(lost.exc_type, KeyboardInterrupt):
                show(lost)

        self.are_noted, self.has_come = True, False
        signal.signal(signal.SIGINT, self.on_signal)
        sys.unraisablehook = show_others
        try:
            yield
        finally:
            self.are_noted, sys.unraisablehook = False, show
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        before, self._are_held = self._are_held, True
        try:
            yield
        finally:
            self._are_held = before

    def is_lost(self) -> bool:
        return self.are_noted and self.has_come and threading.current_thread() is threading.main_thread()


_interrupts = _Interrupts()


@contextmanager
def noted_interrupts() -> Iterator[None]:
    """Notes SIGINT inside. A block that lost it, because it went on to its end or failed of it, ends with `KeyboardInterrupt`."""
    is_ours = (
        not _interrupts.are_noted
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if is_ours:
        with _interrupts.noted(), noted_interrupts():
            yield
        return
    try:
        yield
    except Exception as error:
        if _interrupts.is_lost():
            raise KeyboardInterrupt from error
        raise
    raise_lost_interrupt()


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Inside, the first SIGINT is noted only, for the next safe point; the second raises. For code that has to come to its end."""
    with _interrupts.held():
        yield


def raise_lost_interrupt() -> None:
    """A safe point: raises `KeyboardInterrupt` if SIGINT has come inside of `noted_interrupts`, and this is the main thread."""
    if _interrupts.is_lost():
        raise KeyboardInterrupt


def has_been_interrupted() -> bool:
    """Whether SIGINT has come inside of the present or, after it, the last `noted_interrupts`."""
    return _interrupts.has_come


def is_default(handler: Any) -> bool:
    """Whether a handler of SIGINT is Python's own, or that of `noted_interrupts`."""
    return handler in (signal.default_int_handler, _interrupts.on_signal)
