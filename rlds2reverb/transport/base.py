"""What a transport is: calls to one Reverb server, and streams. It raises errors of this package only.

`GrpcTransport` reaches a real server, `MemoryTransport` one in memory. One suite of tests runs over both, so that a test over
the one tells of the other. Whatever stands on a transport knows neither gRPC nor sockets. What a status of gRPC means as one of
our errors stands here, too, for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rlds2reverb.episode import Array
from rlds2reverb.errors import ServerUnreachable, TransportError
from rlds2reverb.wire.messages import ServerInfo


class Stream(Protocol):
    """An open stream: iterate it for the server's messages, then `end` it."""

    def __iter__(self) -> Iterator[bytes]:
        """The server's messages, until it ends the stream.

        Raises:
          TransportError: the stream broke, was refused, cancelled or abandoned; `retryable` says if another one may go well.
        """
        ...

    def cancel(self) -> None:
        """Ends it on this side, at once: nothing is waited for. Whoever reads it gets an error."""
        ...

    def end(self) -> None:
        """Says that it was read to its end, or is not wanted any more. Call it once."""
        ...

    def abandon(self) -> None:
        """Cancels it because its connection may be dead; new calls and streams go over another one."""
        ...


class PendingInfo(Protocol):
    """ServerInfo on its way. End it with `answer` or `drop`."""

    @property
    def is_over(self) -> bool:
        """Whether the answer is there, or none will come."""
        ...

    def answer(self) -> ServerInfo | None:
        """What the server said; None when it gave no answer. Call it only when `is_over`.

        Raises:
          WireError: an answer that is not Reverb's.
        """
        ...

    def drop(self) -> None:
        """Says that the answer is not wanted any more."""
        ...


class Transport(Protocol):
    """A way to one server. Thread-safe.

    Attributes:
      address: what messages call the server, such as "host:port".
    """

    address: str

    def server_info(self, at_once: bool = False) -> ServerInfo:
        """Asks for all tables. When the way in use may be dead, it asks over another one, too, which is then used from there on.

        Args:
          at_once: do not wait where looking tells why no server can be there.

        Raises:
          ServerUnreachable: no answer within the deadline.
          TransportError: the server refuses to answer, or this transport is closed.
          WireError: an answer that is not Reverb's.
        """
        ...

    def ask_server_info(self) -> PendingInfo:
        """`server_info` without waiting for the answer, over the way in use only.

        Raises:
          TransportError: this transport is closed.
        """
        ...

    def delete_items(self, table: str, item_keys: Array) -> None:
        """Takes items out of a table. Keys that it does not have are passed over.

        Args:
          table: its name.
          item_keys: [n] uint64.

        Raises:
          ServerUnreachable: no answer within the deadline; some may be gone.
          TransportError: the server refuses, as it does where it has no such table, or this transport is closed.
        """
        ...

    def update_priorities(self, table: str, item_keys: Array, priorities: Array) -> None:
        """Gives items other priorities. Keys that the table does not have are passed over.

        Args:
          table: its name.
          item_keys: [n] uint64.
          priorities: [n] float64, finite; at least 0 for prioritized samplers and removers.

        Raises:
          ServerUnreachable: no answer within the deadline; some may be changed.
          TransportError: the server refuses, as it does where it has no such table, or this transport is closed.
        """
        ...

    def reset(self, table: str) -> None:
        """Empties a table; the counts of its rate limiter start anew.

        Raises:
          ServerUnreachable: no answer within the deadline.
          TransportError: the server has no such table, or this transport is closed.
        """
        ...

    def checkpoint(self, seconds: float) -> str:
        """Makes the server write a checkpoint; inserts, samples and updates wait meanwhile.

        Args:
          seconds: deadline; the server goes on writing after it.

        Returns:
          The folder on the server's machine.

        Raises:
          ServerUnreachable: no answer within the deadline.
          TransportError: the server has no checkpointer, or could not write, or this transport is closed.
          WireError: an answer that is not Reverb's.
        """
        ...

    def insert_stream(self, messages: Iterator[bytes]) -> Stream:
        """Opens an insert stream that sends `messages`, which are taken in another thread.

        Raises:
          TransportError: this transport is closed.
        """
        ...

    def sample_stream(self, messages: Iterator[bytes]) -> Stream:
        """Opens a sample stream that sends `messages`, which are taken in another thread.

        Raises:
          TransportError: this transport is closed.
        """
        ...

    def close(self) -> None:
        """Closes everything; calls and streams under way end with an error."""
        ...


# Statuses: the names are gRPC's, as Reverb sends them. Source: grpc/status.h, and what was seen of Reverb 0.14 behind proxies.

INSERTING = "inserting"
SAMPLING = "sampling"

RETRYABLE = frozenset({"UNAVAILABLE", "CANCELLED", "ABORTED", "DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL"})
"""Statuses after which the same call may succeed: a cut connection, a proxy's or server's restart."""

NO_ANSWER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""Statuses of a call that no server has answered."""


def stream_error(address: str, doing: str, status: str, details: str | None) -> TransportError:
    """What it means that a stream ended with this status; `doing` says what it was for, such as `INSERTING`."""
    return TransportError(f"server {address}, {doing}: {status}: {details}", retryable=status in RETRYABLE)


def call_error(address: str, doing: str, status: str, details: str | None, seconds: float) -> TransportError:
    """What it means that a call with a deadline of `seconds` ended with this status."""
    if status in NO_ANSWER:
        return ServerUnreachable(
            f"server {address}: no answer within {seconds:g} s ({status}: {details}); "
            "is it running, and is it a Reverb server (TLS or plain as this client expects)?"
        )
    hint = ""
    if status == "UNIMPLEMENTED":
        hint = "; what answers there is not a Reverb server: check the port"
    return stream_error(address, doing, status, f"{details}{hint}")


def refused_call(address: str, why: object) -> TransportError:
    """What it means that no call can be made at all."""
    return TransportError(
        f"server {address}: no call can be made ({why}): the client was closed, or its metadata are no headers"
    )
