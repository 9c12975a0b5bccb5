"""A server that only confirms, in the process that pushes to it: what is measured is the pusher. It can be opened in any worker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlds2reverb.testing import table_info
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.wire.schema import message_class

TABLE = "replay"


class Sink:
    """A transport that confirms every item at once, and keeps none; see `transport.base.Transport`."""

    address = "sink"

    def server_info(self, at_once: bool = False) -> ServerInfo:
        """One table, always empty."""
        return ServerInfo(1, {TABLE: table_info(TABLE, max_size=1 << 60)})

    def ask_server_info(self) -> _Answered:
        """The same, at once."""
        return _Answered(self.server_info())

    def insert_stream(self, messages: Iterator[bytes]) -> _Confirming:
        """Opens one."""
        return _Confirming(messages)

    def close(self) -> None:
        """Has nothing to close."""


@dataclass(frozen=True)
class SinkWay:
    """The way to a sink."""

    def open(self) -> Any:
        """One of its own."""
        return Sink()


@dataclass(frozen=True)
class _Answered:
    info: ServerInfo
    is_over = True

    def answer(self) -> ServerInfo:
        return self.info

    def drop(self) -> None:
        pass


class _Confirming:
    """A stream; a thread takes the messages, as gRPC does."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._take, args=(messages,), daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        while (answer := self._answers.get()) is not None:
            yield answer

    def cancel(self) -> None:
        self._answers.put(None)

    def end(self) -> None:
        pass

    def leave(self) -> None:
        self.cancel()

    def _take(self, messages: Iterator[bytes]) -> None:
        request = message_class("InsertStreamRequest")()
        for message in messages:
            request.ParseFromString(message)
            if keys := [item.key for item in request.items]:
                self._answers.put(codec.encode_confirmed_keys(keys))
        self._answers.put(None)
