"""The servers of a client, one or many: called all at once, and remembered where one is missing.

One server is a pool of one: its errors and answers are those of the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from typing import NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, ServerUnreachable, TransportError
from rlds2reverb.learner.batch_queue import LOG
from rlds2reverb.push.tables import merged, table_of
from rlds2reverb.transport.base import PendingInfo, Transport
from rlds2reverb.wire.messages import ServerInfo

T = TypeVar("T")

ASK_SECONDS = 1.0
"""Interval at which the sizes of a table are requested while it is sampled from many servers."""

LEAST_KEYS = 1 << 17
"""Keys whose server is remembered: five hundred batches of 256."""

_BACK_SECONDS = 0.5  # for missing servers to answer that they are back; a slower one is found back at the next call
_LOOK_SECONDS = 0.01


class ServerPool:
    """The servers, numbered in the order of their transports, and calls to them. Thread-safe.

    Args:
      allow_missing: continue without servers that cannot be reached, as long as one can; ignored for a single server.
      ask_seconds: see `ASK_SECONDS`.
      missing: number -> error, of servers that were found missing just now.

    Raises:
      ConfigError: no server, or one is named twice.
      ServerUnreachable: one is missing that may not be, or all are.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        allow_missing: bool = False,
        ask_seconds: float = ASK_SECONDS,
        missing: Mapping[int, ServerUnreachable] | None = None,
    ) -> None:
        self.transports = tuple(transports)
        self.allow_missing = allow_missing and len(transports) > 1
        self.ask_seconds = ask_seconds
        self._lock = threading.Lock()  # of what follows
        self._missing: set[int] = set()
        self._requests: dict[int, PendingInfo] = {}  # to missing servers
        self._routes: dict[str, KeyRoutes] = {}
        addresses = self.addresses
        if not addresses:
            raise ConfigError("connect: expected at least one address")
        if len(set(addresses)) < len(addresses):
            raise ConfigError(f"connect: a server is named twice in {', '.join(addresses)}")
        lost = [self.lost(number, error) for number, error in sorted((missing or {}).items())]
        if len(lost) == len(transports):
            raise lost[-1]

    def __len__(self) -> int:
        return len(self.transports)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(transport.address for transport in self.transports)

    @property
    def missing(self) -> tuple[str, ...]:
        """Addresses of the servers that did not answer the last call."""
        with self._lock:
            return tuple(self.addresses[number] for number in sorted(self._missing))

    def close(self) -> None:
        with self._lock:
            for pending in self._requests.values():
                pending.drop()
            self._requests.clear()
        for transport in self.transports:
            transport.close()

    # Calls to many servers at the same time.

    def each(self, ask: Callable[[Transport], T], numbers: Sequence[int] | None = None) -> dict[int, T]:
        """Calls all servers, or these, at the same time: number -> answer. Missing servers are left out, unless all are missing.

        Raises:
          ServerUnreachable: one cannot be reached; with `allow_missing`, when all were called and none can.
          Rlds2ReverbError: as `ask` does; names the server.
        """
        chosen = range(len(self)) if numbers is None else numbers
        with self._lock:
            there = [number for number in chosen if number not in self._missing]
        if numbers is None:
            there = there or list(chosen)
        answer_of, called = partial(_answered, ask), [self.transports[number] for number in there]
        if len(there) > 1:
            with ThreadPoolExecutor(len(there), "rlds2reverb-ask") as threads:
                found = list(threads.map(answer_of, called))
        else:  # the usual case while sampling: no thread for it
            found = list(map(answer_of, called))
        answers: dict[int, T] = {}
        failure: ServerUnreachable | None = None
        for number, answer in zip(there, found, strict=True):
            if isinstance(answer, ServerUnreachable):
                failure = self.lost(number, answer)
            elif isinstance(answer, TransportError):
                self.fail(number, answer)
            elif isinstance(answer, Rlds2ReverbError):
                raise answer
            else:
                answers[number] = answer
                self.found(number)
        if failure is not None and not answers and numbers is None:
            raise failure
        return answers

    def infos(self) -> dict[int, ServerInfo]:
        """Number -> tables of the server. A missing server is not waited for, unless all are missing; raises as `each`."""
        began = time.monotonic()
        with self._lock:
            for number in self._missing - self._requests.keys():
                self._requests[number] = self.transports[number].ask_server_info()
        infos = self.each(methodcaller("server_info"))
        infos.update(self._back(began + _BACK_SECONDS))
        return dict(sorted(infos.items()))

    def merged(self, infos: Mapping[int, ServerInfo]) -> ServerInfo:
        """The tables of these servers, sizes and counts added up; raises SpecMismatch or ConfigError for tables that differ."""
        if len(infos) == 1:
            return next(iter(infos.values()))
        return merged({self.addresses[number]: info for number, info in infos.items()})

    def server_info(self) -> ServerInfo:
        """All tables of all servers. Raises as `infos` and `merged`."""
        return self.merged(self.infos())

    def update_priorities(self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Changes priorities, each on the server that its item was sampled from last; keys of unknown servers are sent to all.

        Args:
          keys: [n] uint64.
          priorities: [n], or one for all.

        Raises:
          ConfigError: shapes or values that make no sense, or no server has such a table; nothing was changed.
          ServerUnreachable: a server cannot be reached, and may not be missing; some priorities may be changed.
          TransportError: a server refuses a priority.
        """
        item_keys, values = checked_priorities(keys, priorities)
        masks = self._routed(table, item_keys)

        def update(one: Transport) -> None:
            mine = masks[self._number_of(one)]
            one.update_priorities(table, item_keys[mine], values[mine])

        with self._naming(table):
            self.each(update, [*masks])

    def delete(self, table: str, keys: npt.ArrayLike) -> None:
        """Removes items from a table; keys that a server does not have are ignored. Raises as `update_priorities` does."""
        item_keys = checked_keys(keys)
        masks = self._routed(table, item_keys)
        with self._naming(table):
            self.each(lambda one: one.delete_items(table, item_keys[masks[self._number_of(one)]]), [*masks])

    def reset(self, table: str) -> None:
        """Empties a table on all servers, and resets rate limiters. Raises as `update_priorities` does; some may be empty then."""
        with self._naming(table):
            self.each(lambda one: one.reset(table), self._having(table))

    def routes_of(self, table: str) -> KeyRoutes:
        with self._lock:
            return self._routes.setdefault(table, KeyRoutes())

    def _routed(self, table: str, keys: Array) -> dict[int, Array]:
        """Number of a server -> [n] bool, the keys that are sent there; without servers that get none."""
        if len(self) == 1:
            return {0: np.ones(len(keys), bool)}
        servers = self.routes_of(table).servers_of(keys)
        unknown = servers < 0
        numbers = self._having(table) if unknown.any() else sorted(set(servers.tolist()))
        masks = {number: unknown | (servers == number) for number in numbers}
        return {number: mask for number, mask in masks.items() if mask.any()}

    def _having(self, table: str) -> list[int]:
        if len(self) == 1:
            return [0]  # it says so itself when it has none
        infos = self.infos()
        table_of(self.merged(infos), table)
        return [number for number, info in infos.items() if table in info.tables]

    def _number_of(self, transport: Transport) -> int:
        return self.transports.index(transport)

    @contextmanager
    def _naming(self, table: str) -> Iterator[None]:
        """Raises a ConfigError in place of a server's refusal if no server has the table."""
        try:
            yield
        except TransportError as error:
            if not error.retryable:
                table_of(self.server_info(), table)
            raise

    def lost(self, number: int, error: TransportError) -> ServerUnreachable:
        """Marks a server as missing, and returns what to raise if it was the last; raises TransportError if none may be missing."""
        if not self.allow_missing:
            self.fail(number, error)
        address = self.addresses[number]
        with self._lock:
            is_new = number not in self._missing
            self._missing.add(number)
        if is_new:
            LOG.warning("server %s is missing, continuing without it: %s", address, error)
        named = self._named(number, error)
        return ServerUnreachable(f"no server of {', '.join(self.addresses)} can be reached; the last error: {named}")

    def fail(self, number: int, error: TransportError) -> NoReturn:
        """Raises the error of a server; it names the server where there are many."""
        named = self._named(number, error)
        if named is error:
            raise error
        raise named from error

    def found(self, number: int) -> None:
        """Marks a server as answering."""
        with self._lock:
            was_missing = number in self._missing
            self._missing.discard(number)
        if was_missing:
            LOG.warning("server %s is back", self.addresses[number])

    def _named(self, number: int, error: TransportError) -> TransportError:
        address = self.addresses[number]
        if len(self) == 1 or address in str(error):
            return error
        named = type(error)(f"{address}: {error}")
        named.retryable = error.retryable
        return named

    def _back(self, until: float) -> dict[int, ServerInfo]:
        """Number -> ServerInfo of missing servers that answered before `until`; the next call reads later answers."""
        while (left := until - time.monotonic()) > 0:
            with self._lock:
                if all(pending.is_over for pending in self._requests.values()):
                    break
            time.sleep(min(left, _LOOK_SECONDS))
        with self._lock:
            over = {number: pending for number, pending in self._requests.items() if pending.is_over}
            for number in over:
                del self._requests[number]
        answers = {number: pending.answer() for number, pending in over.items()}
        infos = {number: info for number, info in answers.items() if info is not None}
        for number in infos:
            self.found(number)
        return infos


def _answered(ask: Callable[[Transport], T], transport: Transport) -> T | Rlds2ReverbError:
    try:
        return ask(transport)
    except Rlds2ReverbError as error:
        return error


class TableSizes:
    """Number of items of a table on each server; requested now and then, and never waited for. Any thread may close it.

    Attributes:
      infos: by number, the latest answers of the servers that can be reached.
    """

    def __init__(self, servers: ServerPool, table: str, infos: Mapping[int, ServerInfo]) -> None:
        self._servers, self._table = servers, table
        self.infos = dict(infos)
        self._away = set(range(len(servers))) - set(infos)
        self._requests: dict[int, PendingInfo] = {}
        self._requested_at = time.monotonic()
        self._lock = threading.Lock()  # of the requests
        self._is_closed = False

    def now(self) -> Array:
        """[n] float64 items of each server at its last answer; 0 for one that is away, or has no such table."""
        with self._lock:
            self._read_answers()
            if time.monotonic() - self._requested_at >= self._servers.ask_seconds and not self._is_closed:
                self._requested_at = time.monotonic()
                for number, transport in enumerate(self._servers.transports):
                    if number not in self._requests:
                        self._requests[number] = transport.ask_server_info()
                self._read_answers()
        return np.array([self._size(number) for number in range(len(self._servers))], np.float64)

    def asked(self, number: int) -> int:
        """Items of one server, requested now; 0 for one that is away, or cannot be reached. Raises as `ServerPool.each`."""
        if number not in self._away:
            self.put(self._servers.each(methodcaller("server_info"), [number]))
            self._away |= {number} if self._servers.addresses[number] in self._servers.missing else set()
        return self._size(number)

    def put(self, infos: Mapping[int, ServerInfo]) -> None:
        """Takes in answers to other calls."""
        self.infos.update(infos)
        self._away -= set(infos)

    def lose(self, number: int) -> None:
        """Marks a server as away; its next answer brings it back."""
        self._away.add(number)
        with self._lock:
            if number in self._requests:
                self._requests.pop(number).drop()

    def is_away(self, number: int) -> bool:
        return number in self._away

    def close(self) -> None:
        """Drops pending requests, and makes no more."""
        with self._lock:
            self._is_closed = True
            for pending in self._requests.values():
                pending.drop()
            self._requests.clear()

    def _read_answers(self) -> None:
        for number in [number for number, pending in self._requests.items() if pending.is_over]:
            info = self._requests.pop(number).answer()
            if info is not None:
                self.put({number: info})
                self._servers.found(number)

    def _size(self, number: int) -> int:
        if number in self._away or self._table not in self.infos[number].tables:
            return 0
        return self.infos[number].tables[self._table].current_size


class KeyRoutes:
    """Remembers the servers of keys. Thread-safe: all samplers of a table share one, and priorities are updated by it.

    The keys are in two halves. Once the newer half is full, the older one is forgotten, and the newer takes its place.

    Args:
      least: number of different keys, the latest, that are remembered for certain; never more than twice as many are.
    """

    def __init__(self, least: int = LEAST_KEYS) -> None:
        self._least = least
        self._lock = threading.Lock()
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def __len__(self) -> int:
        """A key in both halves counts twice."""
        with self._lock:
            return len(self._newer) + len(self._older)

    def remember(self, keys: Array, servers: Array) -> None:
        """Adds [n] uint64 keys, and [n] numbers of their servers."""
        for start in range(0, len(keys), self._least):  # no half is ever fuller than it may be
            came = dict(zip(keys[start : start + self._least].tolist(), servers[start : start + self._least].tolist()))
            with self._lock:
                if len(self._newer) + sum(key not in self._newer for key in came) > self._least:
                    self._newer, self._older = {}, self._newer
                self._newer.update(came)

    def servers_of(self, keys: Array) -> Array:
        """[n] int64 number of the server that each key came from last; -1 for unknown keys."""
        wanted = keys.tolist()
        with self._lock:
            found = [self._newer.get(key, self._older.get(key, -1)) for key in wanted]
        return np.array(found, np.int64)


def checked_keys(keys: npt.ArrayLike) -> Array:
    """[n] uint64 keys of items, also from int64 of the same bits, as PyTorch has them; raises ConfigError for any other dtype."""
    item_keys = np.atleast_1d(np.asarray(keys))
    if item_keys.dtype == np.int64:
        item_keys = item_keys.view(np.uint64)
    if item_keys.dtype.kind != "u" and item_keys.size:
        raise ConfigError(f"keys: expected uint64, as info.key has them, got {item_keys.dtype}{list(item_keys.shape)}")
    flat: Array = item_keys.astype(np.uint64).ravel()
    return flat


def checked_priorities(keys: npt.ArrayLike, priorities: npt.ArrayLike) -> tuple[Array, Array]:
    """[n] uint64 keys and [n] float64 priorities; a single priority is for all keys.

    Negative priorities are left to the server: heaps order by them, prioritized samplers and removers refuse them.

    Raises:
      ConfigError: the numbers of keys and priorities differ, or a priority is not finite.
    """
    item_keys = checked_keys(keys)
    values = np.asarray(priorities, np.float64)
    values = np.full(len(item_keys), values) if values.ndim == 0 else values.ravel()
    if len(values) != len(item_keys):
        raise ConfigError(f"priorities: {len(values)} for {len(item_keys)} keys; expected one each")
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ConfigError(
            f"priorities: {values[wrong[0]]} at index {wrong[0]} ({len(wrong)} such): expected finite numbers"
        )
    return item_keys, values
