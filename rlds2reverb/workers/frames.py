"""Python objects between a driver and a worker, over a connection that nothing else uses: what libraries print cannot get into it.

Before each goes a head: a mark of ours, and the length. Whatever else gets into the connection is neither, and raises at once, instead
of being waited for as the rest of something long.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from rlds2reverb.errors import ConfigError, WireError

MOST_BYTES = 16 << 30
"""Of one pickled object. A part of a conversion has some 50 MB, a job more only with a source that is a list of episodes."""

_HEAD = struct.Struct("<8sQ")
_MARK = b"r2rwork1"


class Frames:
    """One end of a connection. Any thread may write, one reads.

    Args:
      connection: owned by this.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._writing = connection, threading.Lock()

    def send(self, data: bytes) -> None:
        """Sends what `packed` has made.

        Raises:
          OSError: the other end is closed.
        """
        with self._writing:
            self._connection.send_bytes(_HEAD.pack(_MARK, len(data)))
            self._connection.send_bytes(data)

    def read(self) -> Any:
        """The next object.

        Raises:
          EOFError: the other end is closed.
          OSError: the other end is closed within an object, or something else came.
          WireError: something else came.
          Exception: the object cannot be made here.
        """
        head = self._connection.recv_bytes(_HEAD.size)
        mark, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (head, 0)
        if mark != _MARK or length > MOST_BYTES:
            raise WireError(f"expected the mark {_MARK!r} and at most {MOST_BYTES:,} bytes, found {head!r}")
        return pickle.loads(self._connection.recv_bytes(length))

    def is_ready(self, seconds: float) -> bool:
        """Whether there is something to read, or the other end is closed; waits for it, not longer than this."""
        return self._connection.poll(seconds)

    def close(self) -> None:
        """Ends both directions, and what another thread writes with them."""
        hang_up(self._connection)
        with self._writing:
            self._connection.close()


def packed(thing: Any) -> bytes:
    """An object as bytes to be sent.

    Raises:
      ConfigError: it is too large.
      Exception: it cannot be pickled.
    """
    return checked(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))


def checked(data: bytes) -> bytes:
    """These bytes, unless there are more than can be sent.

    Raises:
      ConfigError: there are.
    """
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"workers (--workers): {len(data):,} bytes are to be sent between this process and a worker at once, more than {MOST_BYTES:,}; "
            "name the source instead of handing over its episodes, or leave the workers out"
        )
    return data


def hang_up(connection: Connection) -> None:
    """Ends a connection for whoever holds this end of it, in any process. What is on its way still arrives.

    To close it would not do: a process that was forked may hold it, too, and one thread must not close what another one reads.
    """
    if sys.platform != "win32":  # where nothing is forked, and a pipe cannot be shut
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
