"""Python objects between a driver and a worker, over a connection of their own, apart from what libraries print.

Each has a head: a mark of ours, and the length. Foreign bytes in the connection have neither, and raise at once, instead
of being waited for as the rest of a long object.
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

# Of a pickled object. A conversion's task has some 50 MB, a job more only with a list of episodes as source.
MOST_BYTES = 16 << 30

_HEAD = struct.Struct("<8sQ")
_MARK = b"r2rwork1"


class Frames:
    """One end of a connection, which it owns. Any thread may write, one reads."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._writing = connection, threading.Lock()

    def send(self, data: bytes) -> None:
        """Sends a packed object; raises OSError when the other end is closed."""
        with self._writing:
            self._connection.send_bytes(_HEAD.pack(_MARK, len(data)))
            self._connection.send_bytes(data)

    def read(self) -> Any:
        """Waits for the next object.

        Raises:
          EOFError: the other end is closed.
          OSError: the other end is closed within an object, or foreign bytes came.
          WireError: foreign bytes came.
          Exception: the object cannot be unpickled here.
        """
        head = self._connection.recv_bytes(_HEAD.size)
        mark, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (head, 0)
        if mark != _MARK or length > MOST_BYTES:
            raise WireError(f"expected the mark {_MARK!r} and at most {MOST_BYTES:,} bytes, found {head!r}")
        return pickle.loads(self._connection.recv_bytes(length))

    def is_ready(self, seconds: float) -> bool:
        """Waits until there is something to read, or the other end is closed; False after `seconds`."""
        return self._connection.poll(seconds)

    def close(self) -> None:
        """Ends both directions, also for a thread that writes."""
        hang_up(self._connection)
        with self._writing:
            self._connection.close()


def pack(thing: Any) -> bytes:
    """A pickled object; raises ConfigError if it is too large, and whatever pickling raises."""
    return check_size(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))


def check_size(data: bytes) -> bytes:
    """Returns the bytes; raises ConfigError if they are too many to be sent."""
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"workers (--workers): {len(data):,} bytes are to be sent between this process and a worker at once, more than {MOST_BYTES:,}; "
            "name the source instead of handing over its episodes, or leave the workers out"
        )
    return data


def hang_up(connection: Connection) -> None:
    """Ends a connection for all holders of this end, in any process. Data on its way still arrives.

    Closing it is not enough: a forked process may hold it, too, and one thread must not close a connection that another one reads.
    """
    if sys.platform != "win32":  # which has no forks, and whose pipes cannot be shut
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
