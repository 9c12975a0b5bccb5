"""The servers of a group: asked one after the other, and told of where one is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError
from rlds2reverb.learner.several.tables import merged
from rlds2reverb.learner.watch import LOG
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.messages import ServerInfo

T = TypeVar("T")


class Servers:
    """Several servers, by number and by address.

    Args:
      transports: the ways to them.
      allow_missing: go on without those that cannot be reached, as long as one can.

    Raises:
      ConfigError: there is none, or one is named twice.
    """

    def __init__(self, transports: Sequence[Transport], allow_missing: bool = False) -> None:
        self.transports = tuple(transports)
        self.allow_missing = allow_missing
        self._missing: set[int] = set()
        addresses = self.addresses
        if not addresses:
            raise ConfigError("connect: expected at least one address")
        if len(set(addresses)) < len(addresses):
            raise ConfigError(f"connect: a server is named twice in {', '.join(addresses)}")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all, in their order."""
        return tuple(transport.address for transport in self.transports)

    @property
    def missing(self) -> tuple[str, ...]:
        """Addresses of those that could not be reached when they were last asked."""
        return tuple(self.addresses[number] for number in sorted(self._missing))

    def close(self) -> None:
        """Closes the connections."""
        for transport in self.transports:
            transport.close()

    def each(self, ask: Callable[[Transport], T], numbers: Sequence[int] | None = None) -> dict[int, T]:
        """Number -> answer, of all servers or of these, one after the other.

        Raises:
          ServerUnreachable: one cannot be reached; with `allow_missing`, none can, where all were asked.
          Rlds2ReverbError: as `ask` does; names the server.
        """
        answers: dict[int, T] = {}
        failure: ServerUnreachable | None = None
        for number in range(len(self.transports)) if numbers is None else numbers:
            try:
                answers[number] = ask(self.transports[number])
                self.found(number)
            except ServerUnreachable as error:
                failure = self.lost(number, error)
        if failure is not None and not answers and numbers is None:
            raise failure
        return answers

    def infos(self) -> dict[int, ServerInfo]:
        """What each tells of its tables; raises as `each` does."""
        return self.each(lambda transport: transport.server_info())

    def merged(self, infos: dict[int, ServerInfo]) -> ServerInfo:
        """The tables of these together.

        Raises:
          SpecMismatch, ConfigError: a table is not the same on all that have it.
        """
        return merged({self.addresses[number]: info for number, info in infos.items()})

    def lost(self, number: int, error: TransportError) -> ServerUnreachable:
        """Takes note of a server that cannot be reached, and returns what to raise when it is the last.

        Raises:
          TransportError: none may be missing.
        """
        address = self.addresses[number]
        named = self.named(number, error)
        if not self.allow_missing:
            raise named from error
        if number not in self._missing:
            LOG.warning("server %s is missing, and others go on: %s", address, error)
        self._missing.add(number)
        return ServerUnreachable(f"no server of {', '.join(self.addresses)} can be reached; the last error: {named}")

    def named(self, number: int, error: TransportError) -> TransportError:
        """The error, with the server's address in its message."""
        address = self.addresses[number]
        if address in str(error):
            return error
        named = type(error)(f"{address}: {error}")
        named.retryable = error.retryable
        return named

    def found(self, number: int) -> None:
        """Takes note of a server that answers."""
        if number in self._missing:
            LOG.warning("server %s is back", self.addresses[number])
            self._missing.discard(number)
