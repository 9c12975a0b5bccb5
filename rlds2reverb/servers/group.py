"""A server, and the servers of a client or of a push: called all at once, and remembered where one is missing.

A server has one identity, an object, with three names for the world outside: its `number` stands in batches (`info.source`), its `address`
in messages and reports, and its `name` decides which episodes a push gives it, so that it may move to another address.

Client and push treat a missing server differently. A client asks it again with each call, so it may come back. For a push a server that
was lost stays lost, since the episodes that it did not get are left out: a push makes a `Servers` of its own.

One server's errors and answers are as it gives them; of several, an error names its server.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    Rlds2ReverbError,
    ServerRestarted,
    ServerUnreachable,
    TransportError,
    reason_of,
)
from rlds2reverb.servers.keys import KeyRoutes
from rlds2reverb.servers.tables import merge_infos
from rlds2reverb.transport.base import PendingInfo, Transport
from rlds2reverb.transport.retry import Deadlines, retry_until
from rlds2reverb.wire.messages import ServerInfo

T = TypeVar("T")

LOG = logging.getLogger(
    "rlds2reverb.learner"
)  # what a client notices of its servers stands beside what its samplers do

ASK_SECONDS = 1.0
"""Interval at which the sizes of a table are requested while it is sampled from many servers."""

_BACK_SECONDS = 0.5  # for missing servers to answer that they are back; a slower one is found back at the next call
_LOOK_SECONDS = 0.01


class Server:
    """One server.

    Attributes:
      number: its place among the servers of a client.
      address: "host:port".
      name: decides which episodes a push gives it.
      info: its last answer; None before the first.
      missing: why it is missing; "" while it is there.
    """

    def __init__(
        self,
        number: int,
        address: str,
        transport: Transport | None = None,
        name: str = "",
        info: ServerInfo | None = None,
        missing: str = "",
    ) -> None:
        self.number, self.address, self.name = number, address, name or address
        self.info, self.missing = info, missing
        self._transport = transport

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection, which one that was missing from the beginning of a push has not."""
        return self._transport is not None

    @property
    def transport(self) -> Transport:
        assert self._transport is not None  # only servers that are there are called
        return self._transport

    def size_of(self, table: str) -> int:
        """Items of a table at the last answer; 0 while the server is missing, or without such a table."""
        info = self.info  # another thread may replace it
        if self.missing or info is None or table not in info.tables:
            return 0
        return info.tables[table].current_size

    def check_process(self, deadlines: Deadlines) -> ServerInfo:
        """Asks for the tables. Raises ServerRestarted if another process answers than the one whose answer is `info`."""
        info = retry_until(deadlines.reconnect, deadlines, self.transport.server_info)
        if self.info is not None and info.state_id != self.info.state_id:
            raise ServerRestarted(
                f"server {self.address}: another server process answers at {socket.gethostname()} than at the start of the push: it was restarted, or "
                "the address means another one there (localhost does); run the same push again, by an address that means the same everywhere"
            )
        return info


class Servers:
    """The servers of a client or of a push, in the order of their numbers. Thread-safe.

    Args:
      allow_missing: continue without servers that cannot be reached, as long as one can; ignored for a single server.
      ask_seconds: see `ASK_SECONDS`.
      on_lost: called for each server that is lost, with the error.

    Attributes:
      last_failed: the server of the error that came last through `about`.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        allow_missing: bool = False,
        ask_seconds: float = ASK_SECONDS,
        on_lost: Callable[[Server, Rlds2ReverbError], object] = lambda *_: None,
    ) -> None:
        self._servers = tuple(servers)
        self.allow_missing = allow_missing and len(self._servers) > 1
        self.last_failed: Server | None = None
        self._ask_seconds, self._on_lost = ask_seconds, on_lost
        self._asked_at = time.monotonic()
        self._lock = (
            threading.Lock()
        )  # of what follows, and of `Server.info` and `missing`; no answer is waited for with it held
        self._questions: dict[Server, PendingInfo] = {}
        self._routes: dict[str, KeyRoutes] = {}

    @classmethod
    def of_client(
        cls,
        transports: Sequence[Transport],
        names: Sequence[str] | None = None,
        allow_missing: bool = False,
        ask_seconds: float = ASK_SECONDS,
        missing: Mapping[int, ServerUnreachable] | None = None,
    ) -> Servers:
        """The servers of a client, numbered in the order of their transports.

        Args:
          names: in the same order; their addresses by default.
          missing: number -> error, of servers that were found missing just now.

        Raises:
          ConfigError: no server, or two of one address or name.
          ServerUnreachable: one is missing that may not be, or all are.
        """
        addresses = [transport.address for transport in transports]
        if not addresses:
            raise ConfigError("connect: expected at least one address")
        if len(set(addresses)) < len(addresses):
            raise ConfigError(f"connect: a server is named twice in {', '.join(addresses)}")
        names = addresses if names is None else names
        servers = [
            Server(number, transport.address, transport, name)
            for number, (transport, name) in enumerate(zip(transports, names, strict=True))
        ]
        group = cls(servers, allow_missing, ask_seconds, _log_lost)
        errors = [group.lose(group[number], error) for number, error in sorted((missing or {}).items())]
        if len(errors) == len(group):
            raise errors[-1]
        if len(set(names)) < len(names):
            raise ConfigError(f"connect: two servers have one name in {', '.join(names)}")
        return group

    def __len__(self) -> int:
        return len(self._servers)

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def __getitem__(self, number: int) -> Server:
        return self._servers[number]

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(server.address for server in self)

    @property
    def names(self) -> dict[str, str]:
        """Address -> name."""
        return {server.address: server.name for server in self}

    @property
    def there(self) -> list[Server]:
        """The servers that are not missing."""
        return [server for server in self if not server.missing]

    @property
    def missing(self) -> dict[str, str]:
        """Address -> reason, of missing servers."""
        return {server.address: server.missing for server in self if server.missing}

    def close(self) -> None:
        """Closes all connections."""
        with self._lock:
            for question in self._questions.values():
                question.drop()
            self._questions.clear()
        for server in self:
            if server.is_connected:
                server.transport.close()

    # Lost, and back.

    @contextmanager
    def about(self, server: Server) -> Iterator[None]:
        """Around calls to one server. If it is lost and the rest may continue without it, the block just ends; else its error names the server."""
        try:
            yield
        except (TransportError, CapacityError) as error:
            self.last_failed = server
            self._name(error, server)
            is_last = all(other.missing for other in self if other is not server)
            if not isinstance(error, (ServerUnreachable, ServerRestarted)) or not self.allow_missing or is_last:
                raise
            server.missing = reason_of(error)
            self._on_lost(server, error)

    def add_lost(self, reasons: Mapping[str, str]) -> list[Server]:
        """Marks servers that another process lost, address -> reason; returns those that were there until now.

        Raises:
          ServerUnreachable: no server is left.
        """
        lost = [server for server in self.there if server.address in reasons]
        for server in lost:
            server.missing = reasons[server.address]
        if not self.there:
            raise ServerUnreachable(
                f"no server is left of {', '.join(self.addresses)}; {'; '.join(f'{server.address}: {server.missing}' for server in lost)}"
            )
        return lost

    def lose(self, server: Server, error: TransportError) -> ServerUnreachable:
        """Marks a server as missing, and returns what to raise if it was the last; raises TransportError if none may be missing."""
        if not self.allow_missing:
            self.fail(server, error)
        with self._lock:
            is_new = not server.missing
            server.missing = reason_of(error)
            if (question := self._questions.pop(server, None)) is not None:
                question.drop()  # asked before it was lost: its answer would bring it back
        if is_new:
            self._on_lost(server, error)
        self._name(error, server)
        return ServerUnreachable(f"no server of {', '.join(self.addresses)} can be reached; the last error: {error}")

    def fail(self, server: Server, error: TransportError) -> NoReturn:
        """Raises the error of a server; it names the server where there are several."""
        self._name(error, server)
        raise error

    def _name(self, error: Rlds2ReverbError, server: Server) -> None:
        if len(self) > 1:
            name_server(error, server.address)

    # Calls to many servers at the same time.

    def each(self, ask: Callable[[Server], T], servers: Iterable[Server] | None = None) -> dict[Server, T]:
        """Calls all servers, or these, at the same time: server -> answer. Missing servers are left out, unless all are missing.

        Raises:
          ServerUnreachable: one cannot be reached; with `allow_missing`, when all were called and none can.
          Rlds2ReverbError: as `ask` does; names the server.
        """
        called = [server for server in (self if servers is None else servers) if not server.missing]
        if servers is None:
            called = called or list(self)

        def call(server: Server) -> T | Rlds2ReverbError:
            try:
                return ask(server)
            except Rlds2ReverbError as error:
                return error

        if len(called) < 2:  # the usual case while sampling: no thread for it
            outcomes = [*map(call, called)]
        else:
            with ThreadPoolExecutor(len(called), "rlds2reverb-ask") as threads:
                outcomes = [*threads.map(call, called)]
        answers: dict[Server, T] = {}
        failure: ServerUnreachable | None = None
        for server, answer in zip(called, outcomes):
            if isinstance(answer, ServerUnreachable):
                failure = self.lose(server, answer)
            elif isinstance(answer, TransportError):
                self.fail(server, answer)
            elif isinstance(answer, Rlds2ReverbError):
                raise answer
            else:
                answers[server] = answer
                with self._lock:
                    was_missing, server.missing = server.missing, ""
                if was_missing:
                    _log_back(server)
        if failure is not None and not answers and servers is None:
            raise failure
        return answers

    def look(self, servers: Iterable[Server] | None = None) -> None:
        """Asks all servers, or these, for their tables, and waits for the answers; raises as `each`."""
        for server, info in self.each(lambda server: server.transport.server_info(), servers).items():
            with self._lock:
                server.info = info
                if (question := self._questions.pop(server, None)) is not None:
                    question.drop()  # its answer would be older

    def infos(self) -> dict[Server, ServerInfo]:
        """The tables of all servers that are there. A missing server is not waited for, unless all are missing; raises as `each`."""
        until = time.monotonic() + _BACK_SECONDS
        missing = [server for server in self if server.missing]
        self._ask(missing)
        self.look()
        while (left := until - time.monotonic()) > 0:
            with self._lock:
                if all(self._questions[server].is_over for server in missing if server in self._questions):
                    break
            time.sleep(min(left, _LOOK_SECONDS))
        self._read_answers()
        return {server: server.info for server in self.there if server.info is not None}

    def refresh(self) -> None:
        """Asks for the tables every `ask_seconds`, however often it is called, and takes in answers that came. Waits for none."""
        self._read_answers()
        if time.monotonic() - self._asked_at >= self._ask_seconds:
            self._asked_at = time.monotonic()
            self._ask(self)
            self._read_answers()

    def server_info(self) -> ServerInfo:
        """All tables of all servers, sizes and counts added up. Raises as `infos`, and SpecMismatch or ConfigError for tables that differ."""
        return merge_infos({server.address: info for server, info in self.infos().items()})

    def routes_of(self, table: str) -> KeyRoutes:
        """From which server each key of a table came last."""
        with self._lock:
            return self._routes.setdefault(table, KeyRoutes())

    def _ask(self, servers: Iterable[Server]) -> None:
        with self._lock:
            for server in servers:
                if server not in self._questions:
                    self._questions[server] = server.transport.ask_server_info()

    def _read_answers(self) -> None:
        back = []
        with self._lock:  # all of it, else an answer from before a loss could bring the server back
            over = {server: question for server, question in self._questions.items() if question.is_over}
            for server, question in over.items():
                del self._questions[server]
                if (info := question.answer()) is not None:
                    if server.missing:
                        back.append(server)
                    server.info, server.missing = info, ""
        for server in back:
            _log_back(server)


def name_server(error: Rlds2ReverbError, address: str) -> None:
    """Puts the address of a server into the message of its error, unless it is there."""
    if address not in str(error):
        error.args = (f"{address}: {error}", *error.args[1:])


def _log_back(server: Server) -> None:
    LOG.warning("server %s is back", server.address)


def _log_lost(server: Server, error: Rlds2ReverbError) -> None:
    LOG.warning("server %s is missing, continuing without it: %s", server.address, error)
