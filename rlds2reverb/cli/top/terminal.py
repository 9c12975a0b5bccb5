"""A terminal taken over for a view, and given back as it was: at the end, after any error, when stopped and continued.

While it is taken, keys come at once and are not shown, the view stands on the alternate screen, and the cursor is hidden. Signals
only leave a note, which `wait` reads: so none of them comes in the middle of taking it or giving it back.

| signal | what happens |
| --- | --- |
| SIGINT (Ctrl-C) | `wait` or `draw` raises KeyboardInterrupt |
| SIGTERM, SIGHUP | it raises `Ended` |
| SIGTSTP (Ctrl-Z) | the terminal is given back, the process stops; it is taken again when the process goes on |
| SIGCONT | it is taken again: whoever stopped the process may have changed it |
| SIGWINCH | `wait` returns |
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import Any

from rlds2reverb.cli.top.keys import keys_of

try:
    import termios
    import tty
except ImportError:  # Windows
    IS_KNOWN = False
else:
    IS_KNOWN = True  # this system has terminals as they are used here

_TAKE, _GIVE = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"
"""Alternate screen and no cursor; the opposite. Source: xterm's ctlseqs, DEC private modes 1049 and 25."""

_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_PIECE_BYTES = 256
"""Written at a time: a terminal that is said to have room takes as much without waiting."""

_GIVE_SECONDS = 2.0
"""How long to wait for a terminal that takes nothing, when it is given back."""

_ESCAPE_SECONDS = 0.1
"""After an escape that nothing follows for so long, it was the key of that name."""

_OF_UNIX = ("SIGHUP", "SIGTSTP", "SIGCONT", "SIGWINCH")
_HANG_UP, _STOP, _GO_ON, _RESIZE = (int(getattr(signal, name, 0)) for name in _OF_UNIX)  # 0 on Windows
_SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM), _HANG_UP, _STOP, _GO_ON, _RESIZE)
_WOKEN = b"\0"
"""No signal has this number."""


class Ended(BaseException):
    """A signal asks this process to end.

    Attributes:
      number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Terminal:
    """The terminal; taken inside the `with` block, which must run in the main thread.

    Args:
      output: file number of the terminal to draw on.
      keys: file number of the terminal to read keys from; None for no keys.
      encoding: of the texts on it; what it lacks becomes "?".
    """

    def __init__(self, output: int, keys: int | None, encoding: str = "utf-8") -> None:
        self._output, self._keys, self._encoding = output, keys, encoding
        self._before: Any = None
        self._is_taken = False
        self._read = b""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Terminal:
        self._before = None if self._keys is None else termios.tcgetattr(self._keys)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._old_writer = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, a shell's background job
                self._handlers[number] = signal.signal(number, _leave_it_to_the_pipe)
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._give()
        finally:
            for number, before in self._handlers.items():
                signal.signal(number, signal.SIG_DFL if before is None else before)
            signal.set_wakeup_fd(self._old_writer)
            os.close(self._reader)
            writer, self._writer = self._writer, -1
            os.close(writer)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 and 24 where it does not tell.

        Raises:
          Ended: it is gone.
        """
        try:
            found = os.get_terminal_size(self._output)
        except OSError as error:
            raise Ended(_HANG_UP) from error
        return found.columns or 80, found.lines or 24

    def wake(self) -> None:
        """Has `wait` return, from any thread."""
        with suppress(OSError):  # full: it will return in any case; closed: nobody waits
            os.write(self._writer, _WOKEN)

    def draw(self, lines: str) -> None:
        """Shows lines of text, from the first line of the screen on; what stood there before is gone.

        Raises:
          KeyboardInterrupt, Ended: see the module.
        """
        text = lines.replace("\n", f"{_END_OF_LINE}\r\n")
        data = f"{_HOME}{text}{_END_OF_LINE}{_END_OF_SCREEN}".encode(self._encoding, "replace")
        while data:
            ready = select.select([self._reader], [self._output], [])
            if ready[0]:
                self._heed()
            if ready[1]:
                data = data[self._write(data[:_PIECE_BYTES]) :]

    def wait(self, seconds: float) -> list[str]:
        """The keys that were pressed; returns at the first, at a signal, when woken, or when the time is over.

        Raises:
          KeyboardInterrupt, Ended: see the module.
        """
        sources = [self._reader, *([] if self._keys is None else [self._keys])]
        ready = select.select(sources, [], [], min(seconds, _ESCAPE_SECONDS) if self._read else seconds)[0]
        if self._reader in ready:
            self._heed()
        if self._keys in ready:
            return self._pressed()
        if not ready and self._read == b"\x1b":
            self._read = b""
            return ["\x1b"]
        return []

    def _pressed(self) -> list[str]:
        assert self._keys is not None  # it was ready
        try:
            came = os.read(self._keys, 4096)
        except OSError as error:
            raise Ended(_HANG_UP) from error
        if not came:
            raise Ended(_HANG_UP)
        keys, self._read = keys_of(self._read + came)
        return keys

    def _heed(self) -> None:
        """Does what signals ask for."""
        with suppress(BlockingIOError):
            numbers = set(os.read(self._reader, 4096))
            for number in (int(signal.SIGTERM), _HANG_UP):
                if number in numbers:
                    raise Ended(number)
            if signal.SIGINT in numbers:
                raise KeyboardInterrupt
            if _STOP in numbers:
                self._stop()
            elif _GO_ON in numbers:
                self._take()

    def _stop(self) -> None:
        """Stops this process as Ctrl-Z does any other; returns when it goes on."""
        self._give()
        ours = signal.signal(_STOP, signal.SIG_DFL)
        signal.raise_signal(_STOP)
        signal.signal(_STOP, ours)
        self._take()

    def _take(self) -> None:
        if self._keys is not None:
            tty.setcbreak(self._keys, termios.TCSANOW)
        if not self._is_taken:
            self._is_taken = True
            self._write(_TAKE.encode())

    def _give(self) -> None:
        """Gives it back; one that is gone, or takes nothing, gets nothing."""
        with suppress(OSError, Ended):
            if self._is_taken and self._has_room(_GIVE_SECONDS):
                self._write(_GIVE.encode())
        self._is_taken = False
        if self._keys is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, self._before)

    def _has_room(self, seconds: float) -> bool:
        return bool(select.select([], [self._output], [], seconds)[1])

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._output, data)
        except OSError as error:
            raise Ended(_HANG_UP) from error


def _leave_it_to_the_pipe(*_: Any) -> None:
    """Python has written the signal's number into the pipe."""
