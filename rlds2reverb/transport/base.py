"""Calls and streams to one Reverb server, its address, and the errors: all of this package.

`GrpcTransport` reaches a real server, `testing.MemoryTransport` one in memory; one suite of tests runs over both. Code above a
transport knows neither gRPC nor sockets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError
from rlds2reverb.wire.messages import ServerInfo

CHECKPOINT_ATTEMPTS = 10
"""Most requests of a checkpoint while another one deletes it. Only small ones are written so fast that they meet."""


class Stream(Protocol):
    """An open stream: iterate it for the server's messages, then `end` it."""

    def __iter__(self) -> Iterator[bytes]:
        """The server's messages, until it ends the stream.

        Raises:
          TransportError: the stream broke, or was refused, cancelled or abandoned; `retryable` says whether a new one may work.
        """

    def cancel(self) -> None:
        """Ends it on this side, without waiting. Reading it raises an error from now on."""

    def end(self) -> None:
        """Releases it, once it was read to its end or is not wanted any more. Call it once."""

    def abandon(self) -> None:
        """Cancels it because its connection may be dead; new calls and streams use another connection."""


class PendingInfo(Protocol):
    """A call of ServerInfo in flight. End it with `answer` or `drop`."""

    @property
    def is_over(self) -> bool:
        """Whether the call has ended, with or without an answer."""

    def answer(self) -> ServerInfo | None:
        """The server's answer; None without one. Call it only when `is_over`.

        Raises:
          WireError: an answer that is not Reverb's.
        """

    def drop(self) -> None:
        """Cancels the call."""


class Transport(Protocol):
    """Calls and streams to one server. Thread-safe. `address` names the server in messages, as "host:port" does."""

    address: str

    def server_info(self, at_once: bool = False) -> ServerInfo:
        """Asks for all tables. If the connection may be dead, asks over another one as well, and uses that from then on.

        Args:
          at_once: fail without waiting where a look at the address shows that no server is there: refused, unknown name, another protocol.

        Raises:
          ServerUnreachable: no answer within the deadline, cut connections included; says why, if that can be seen.
          TransportError: the server refuses to answer, this transport is closed, or the process was forked.
          WireError: an answer that is not Reverb's.
        """

    def ask_server_info(self) -> PendingInfo:
        """`server_info` without waiting for the answer, over the connection in use only.

        Raises:
          TransportError: this transport is closed.
        """

    def delete_items(self, table: str, item_keys: Array) -> None:
        """Deletes items of a table. Keys that it does not have are skipped.

        Args:
          item_keys: [n] uint64.

        Raises:
          ServerUnreachable: no answer within the deadline; some items may be deleted.
          TransportError: the server refuses, as for an unknown table, or this transport is closed.
        """

    def update_priorities(self, table: str, item_keys: Array, priorities: Array) -> None:
        """Sets priorities of items. Keys that the table does not have are skipped.

        Args:
          item_keys: [n] uint64.
          priorities: [n] float64, finite; at least 0 for prioritized samplers and removers.

        Raises:
          ServerUnreachable: no answer within the deadline; some priorities may be changed.
          TransportError: the server refuses, as for an unknown table, or this transport is closed.
        """

    def reset(self, table: str) -> None:
        """Empties a table; its rate limiter starts from zero.

        Raises:
          ServerUnreachable: no answer within the deadline.
          TransportError: the server has no such table, or this transport is closed.
        """

    def checkpoint(self, seconds: float, attempts: int = CHECKPOINT_ATTEMPTS) -> str:
        """Has the server write a checkpoint; inserts, samples and updates wait meanwhile.

        Args:
          seconds: deadline; the server continues to write after it.
          attempts: most requests, while another checkpoint deletes this one. The service asks once: it keeps any that is finished.

        Returns:
          The folder on the server's machine.

        Raises:
          ServerUnreachable: no answer within the deadline.
          TransportError: the server has no checkpointer, or cannot write, or this transport is closed.
          WireError: an answer that is not Reverb's.
        """

    def insert_stream(self, messages: Iterator[bytes]) -> Stream:
        """Opens an insert stream that sends `messages`, iterated in another thread.

        Raises:
          TransportError: this transport is closed.
        """

    def sample_stream(self, messages: Iterator[bytes]) -> Stream:
        """Opens a sample stream that sends `messages`, iterated in another thread.

        Raises:
          TransportError: this transport is closed.
        """

    def close(self) -> None:
        """Closes all connections; calls and streams in flight end with an error."""


# Errors by gRPC's status names. Source: grpc/status.h, and Reverb 0.14 behind proxies, observed.

INSERTING = "inserting"
SAMPLING = "sampling"

RETRYABLE = frozenset({"UNAVAILABLE", "CANCELLED", "ABORTED", "DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL"})
"""Statuses after which the same call may succeed: a cut connection, a proxy's or server's restart."""

NO_ANSWER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""Statuses of a call that no server has answered."""


_REFUSED_BEFORE_THE_SERVER = {
    "PERMISSION_DENIED": (
        "; what stands before the server does not let this client make this call: give the certificate of a role that may "
        "(--tls-cert and --tls-key, credentials=), or ask who runs the server"
    ),
    "UNAUTHENTICATED": (
        "; what stands before the server takes only clients that it knows: give a certificate of its authority (--tls-cert and "
        "--tls-key, credentials=)"
    ),
}
"""By status, how to go on. Reverb itself has neither (docs/runbook/roles.md)."""


def stream_error(address: str, doing: str, status: str, details: str | None) -> TransportError:
    """The error of a stream that ended with this status; `doing` says what it was for, such as `INSERTING`."""
    hint = _REFUSED_BEFORE_THE_SERVER.get(status, "")
    return TransportError(f"server {address}, {doing}: {status}: {details}{hint}", retryable=status in RETRYABLE)


def call_error(address: str, doing: str, status: str, details: str | None, seconds: float) -> TransportError:
    """The error of a call with a deadline of `seconds` that ended with this status."""
    if status in NO_ANSWER:
        return ServerUnreachable(
            f"server {address}: no answer within {seconds:g} s ({status}: {details}); "
            "is it running, and is it a Reverb server (TLS or plain as this client expects)?"
        )
    hint = "; what answers there is not a Reverb server: check the port" if status == "UNIMPLEMENTED" else ""
    return stream_error(address, doing, status, f"{details}{hint}")


def refused_call(address: str, why: object) -> TransportError:
    """The error when no call can be made at all."""
    return TransportError(
        f"server {address}: no call can be made ({why}): the client was closed, or its metadata are no headers"
    )


_HOST_AND_PORT = re.compile(r"(\[[^\s/\[\]]+\]|[^\s/:\[\]]+):([0-9]{1,5})")


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; a host that is an IPv6 address stands in brackets, and comes without them.

    >>> host_and_port("localhost:8000"), host_and_port("[::1]:8000")
    (('localhost', 8000), ('::1', 8000))
    """
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise ConfigError(
            f'server address "{address}": expected HOST:PORT, such as localhost:8000, or [::1]:8000 for an IPv6 address'
        )
    return match[1].strip("[]"), int(match[2])


def named_address(text: str, what: str) -> tuple[str, str]:
    """Name and address of "NAME=HOST:PORT" or "HOST:PORT", whose name is the address. Does not check the address.

    Args:
      what: begins the message of the error: "connect:", "--server".
    """
    name, separator, address = text.rpartition("=")
    if separator and (not name or " " in name):
        raise ConfigError(f'{what} "{text}": expected NAME=HOST:PORT, a name without spaces')
    return name or address, address
