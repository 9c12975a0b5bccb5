"""stdout and stderr outlive their readers (`| head -1`): a reader that leaves changes neither a command nor its exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rlds2reverb.files import write_error

_LEFT = (errno.EPIPE, errno.EINVAL) if os.name == "nt" else (errno.EPIPE,)
"""What writing to a pipe fails with when its reader has left. Source: EINVAL is what Windows' C library makes of it."""


class _Unheard(io.FileIO):
    """Bytes for a reader; once it has left, for nobody.

    A stream that cannot be written for another reason, such as a full disk, says so once, and is left as well: nothing is
    held back that would fail again when the program ends.
    """

    def __init__(self, number: int, is_talk: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._is_talk = is_talk
        self.is_left = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self._leave()
            if not (self._is_talk or error.errno in _LEFT):
                raise write_error(
                    "stdout", error, "what was printed is cut short; make room, or write it elsewhere"
                ) from error
        return memoryview(data).nbytes

    def _leave(self) -> None:
        self.is_left = True
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nobody, self.fileno())
        os.close(nobody)


@contextmanager
def whoever_listens() -> Iterator[None]:
    """Makes stdout and stderr outlive their readers; a full disk is an error of stdout only. Others' streams stay as they are."""
    before = sys.stdout, sys.stderr
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outliving(sys.stdout, is_talk=False)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outliving(sys.stderr, is_talk=True)
    try:
        yield
    finally:
        for stream, old in zip((sys.stdout, sys.stderr), before):
            if stream is not old:
                stream.flush()
        sys.stdout, sys.stderr = before


def is_heard() -> bool:
    """Whether stdout has a reader still, as far as the last flush tells."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, _Unheard) and raw.is_left)


def _outliving(stream: TextIO | Any, is_talk: bool) -> Any:
    if stream is None:  # closed before the program began
        return None
    if os.name == "nt" and stream.isatty():  # a console there takes text, not bytes, and lives as long as the program
        return stream
    raw = _Unheard(stream.fileno(), is_talk)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=is_talk or stream.isatty()
    )
