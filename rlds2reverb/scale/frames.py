"""Python objects over a pipe, one after the other: eight bytes of length, then the pickled object. Both ends are ours."""

from __future__ import annotations

import pickle
import threading
from typing import IO, Any

_LENGTH_BYTES = 8


class Frames:
    """One end of a pipe. Any thread may write.

    Args:
      pipe: a file of it.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def write(self, thing: Any) -> None:
        """Sends an object.

        Raises:
          OSError: the other end is closed.
          Exception: it cannot be pickled; nothing was sent.
        """
        data = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._pipe.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
            self._pipe.flush()

    def read(self) -> Any:
        """The next object.

        Raises:
          EOFError: the other end is closed.
        """
        length = int.from_bytes(self._bytes(_LENGTH_BYTES), "little")
        return pickle.loads(self._bytes(length))

    def _bytes(self, count: int) -> bytes:
        data = self._pipe.read(count)
        if len(data) < count:
            raise EOFError
        return data
