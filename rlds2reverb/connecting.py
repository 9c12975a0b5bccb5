"""The way in for Python: `connect`, then `push`, `sample`, or `writer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlds2reverb.client import Client
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, ServerUnreachable
from rlds2reverb.transport.address import named_address
from rlds2reverb.transport.base import Transport
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.transport.retry import Deadlines, retry_until

_WAITED_FOR = "One that is just starting is waited for with --wait SECONDS (wait_seconds=)"


def connect(
    address: str | list[str] | tuple[str, ...],
    credentials: Any = None,
    metadata: Sequence[tuple[str, str]] = (),
    timeout_seconds: float = Deadlines.call,
    wait_seconds: float = 0.0,
    allow_missing: bool = False,
) -> Client:
    """Connects to a Reverb server and asks it for its tables, so that a wrong address fails here, and at once.

    gRPC does not survive a fork: in a process forked from one that has connected, this and every call on a client from
    before the fork raise an error. Start workers with `multiprocessing.get_context("spawn")`, or fork before the first
    connection and connect in each child.

    Args:
      address: "host:port"; or several, for one client of all of them, whose tables are filled and sampled together. One of
        several may be "name=host:port": by its name, in place of the address, a push knows which episodes it gets.
      credentials: `Certificates`, or `grpc.ssl_channel_credentials(...)`, for TLS (client certificates included); None for plain text.
      metadata: (name, value) pairs sent with every call.
      timeout_seconds: deadline of this and every other short call.
      wait_seconds: wait so long for a server that is just starting: refused connections and unknown names are tried again.
      allow_missing: of several servers, go on without those that cannot be reached, as long as one can.

    Raises:
      ConfigError: the address is not "host:port", or one of several is named twice.
      ServerUnreachable: nothing listens there, the name is not found, or what is there is no Reverb server. Each is told at
        once, in a sentence of its own. Or no answer comes within the deadline.
      TransportError: the server refuses to answer, or this process was forked from one that had connected.
      WireError: an answer that is not Reverb's.
    """
    deadlines = Deadlines(backoff_most=1.0)  # a server that has started is not kept waiting for long

    def made(one: str) -> GrpcTransport:
        return GrpcTransport(one, credentials, metadata, timeout_seconds)

    def opened(one: str) -> GrpcTransport:
        try:
            return retry_until(wait_seconds, deadlines, lambda: _open(made(one)))
        except ServerUnreachable as error:
            if not error.retryable:
                raise
            waited = f"Waited {wait_seconds:g} s for it (--wait, wait_seconds=)" if wait_seconds else _WAITED_FOR
            raise ServerUnreachable(f"{error}{'' if str(error).endswith('?') else '.'} {waited}") from error.__cause__

    if not isinstance(address, str):
        return _group(_several(address), opened, made, allow_missing)
    if allow_missing:
        raise ConfigError("connect: allow_missing is for several servers; give their addresses as a list")
    return Client(opened(address))


def way_to(
    address: str,
    credentials: Any = None,
    metadata: Sequence[tuple[str, str]] = (),
    timeout_seconds: float = Deadlines.call,
) -> Transport:
    """A way to a server that need not be there yet: nothing is asked. Arguments as of `connect`.

    Raises:
      ConfigError: the address is not "host:port".
      TransportError: this process was forked from one that had connected.
    """
    return GrpcTransport(address, credentials, metadata, timeout_seconds)


def _group(
    addresses: Sequence[str],
    opened: Callable[[str], GrpcTransport],
    made: Callable[[str], GrpcTransport],
    allow_missing: bool,
) -> Client:
    """A client of several servers, of which one answers at least; all are asked at once.

    Args:
      addresses: of the servers.
      opened: the way to a server that answers.
      made: the way to one, without a word.
      allow_missing: see `connect`.
    """
    found: dict[int, GrpcTransport | Rlds2ReverbError] = {}
    named = [named_address(address, "connect:") for address in addresses]
    addresses = [address for _, address in named]

    def attempt(number: int) -> None:
        try:
            found[number] = opened(addresses[number])
        except Rlds2ReverbError as error:
            found[number] = error

    try:
        with ThreadPoolExecutor(max(1, len(addresses)), "rlds2reverb-connect") as threads:
            list(threads.map(attempt, range(len(addresses))))
        missing = _missing(found, allow_missing)
        found.update({number: made(addresses[number]) for number in missing})
        transports = [
            one for _, one in sorted(found.items(), key=lambda pair: pair[0]) if isinstance(one, GrpcTransport)
        ]
        return Client(transports, allow_missing, missing=missing, names=[name for name, _ in named])
    except BaseException:
        for one in found.values():
            if isinstance(one, GrpcTransport):
                one.close()
        raise


def _several(addresses: Any) -> Sequence[str]:
    """What was given in place of one address.

    Raises:
      ConfigError: no list or tuple of addresses.
    """
    if not isinstance(addresses, list | tuple) or not all(isinstance(one, str) for one in addresses):
        raise ConfigError(
            f'connect: expected an address such as "localhost:8000", or a list of them, got {addresses!r}'
        )
    return addresses


def _missing(found: dict[int, GrpcTransport | Rlds2ReverbError], allow_missing: bool) -> dict[int, ServerUnreachable]:
    """The servers that cannot be reached.

    Raises:
      Rlds2ReverbError: what was found at the first server where it is not that, or may not be.
    """
    missing: dict[int, ServerUnreachable] = {}
    for number, one in sorted(found.items(), key=lambda pair: pair[0]):
        if isinstance(one, ServerUnreachable) and allow_missing:
            missing[number] = one
        elif isinstance(one, Rlds2ReverbError):
            raise one
    return missing


def _open(transport: GrpcTransport) -> GrpcTransport:
    """The transport, when a server answers over it."""
    try:
        transport.server_info(at_once=True)
    except BaseException:
        transport.close()
        raise
    return transport
