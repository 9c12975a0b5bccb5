"""The servers of a group: asked all at once, and told of where one is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rlds2reverb.errors import ConfigError, Rlds2ReverbError, ServerUnreachable, TransportError
from rlds2reverb.learner.watch import LOG
from rlds2reverb.push.several.tables import merged
from rlds2reverb.transport.base import PendingInfo, Transport
from rlds2reverb.wire.messages import ServerInfo

T = TypeVar("T")

_BACK_SECONDS = 0.5
"""For servers that are missing, to tell that they are back; one that needs longer is found back when it is asked for next."""

_LOOK_SECONDS = 0.01


class Servers:
    """Several servers, by number and by address. Thread-safe.

    Args:
      transports: the ways to them.
      allow_missing: go on without those that cannot be reached, as long as one can.

    Raises:
      ConfigError: there is none, or one is named twice.
    """

    def __init__(self, transports: Sequence[Transport], allow_missing: bool = False) -> None:
        self.transports = tuple(transports)
        self.allow_missing = allow_missing
        self._lock = threading.Lock()  # of what follows
        self._missing: set[int] = set()
        self._asked: dict[int, PendingInfo] = {}  # of those that are missing
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
        with self._lock:
            return tuple(self.addresses[number] for number in sorted(self._missing))

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for question in self._asked.values():
                question.drop()
            self._asked.clear()
        for transport in self.transports:
            transport.close()

    def each(self, ask: Callable[[Transport], T], numbers: Sequence[int] | None = None) -> dict[int, T]:
        """Number -> answer, of all servers or of these, all at once. Those that are missing are left out, where others are not.

        Raises:
          ServerUnreachable: one cannot be reached; with `allow_missing`, none can, where all were asked.
          Rlds2ReverbError: as `ask` does; names the server.
        """
        chosen = range(len(self.transports)) if numbers is None else numbers
        with self._lock:
            there = [number for number in chosen if number not in self._missing]
        if numbers is None:
            there = there or list(chosen)
        answers: dict[int, T] = {}
        failure: ServerUnreachable | None = None
        for number, answer in zip(there, self._asked_all(ask, there), strict=True):
            if isinstance(answer, ServerUnreachable):
                failure = self.lost(number, answer)
            elif isinstance(answer, Rlds2ReverbError):
                raise self.named(number, answer) if isinstance(answer, TransportError) else answer
            else:
                answers[number] = answer
                self.found(number)
        if failure is not None and not answers and numbers is None:
            raise failure
        return answers

    def infos(self) -> dict[int, ServerInfo]:
        """What each tells of its tables. A server that is missing is not waited for, but where all are; raises as `each` does."""
        began = time.monotonic()
        self._ask_missing()
        infos = self.each(lambda transport: transport.server_info())
        infos.update(self._back(began + _BACK_SECONDS))
        return dict(sorted(infos.items()))

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
        with self._lock:
            is_new = number not in self._missing
            self._missing.add(number)
        if is_new:
            LOG.warning("server %s is missing, and others go on: %s", address, error)
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
        with self._lock:
            was_missing = number in self._missing
            self._missing.discard(number)
        if was_missing:
            LOG.warning("server %s is back", self.addresses[number])

    def _asked_all(self, ask: Callable[[Transport], T], numbers: Sequence[int]) -> list[T | Rlds2ReverbError]:
        """What these answer, or the errors, in their order."""

        def asked(number: int) -> T | Rlds2ReverbError:
            try:
                return ask(self.transports[number])
            except Rlds2ReverbError as error:
                return error

        if len(numbers) < 2:  # the usual case while sampling: no thread for it
            return [asked(number) for number in numbers]
        with ThreadPoolExecutor(len(numbers), "rlds2reverb-ask") as threads:
            return list(threads.map(asked, numbers))

    def _ask_missing(self) -> None:
        """Asks those that are missing, and were not asked yet; nothing is waited for."""
        with self._lock:
            for number in self._missing - self._asked.keys():
                self._asked[number] = self.transports[number].ask_server_info()

    def _back(self, until: float) -> dict[int, ServerInfo]:
        """What those that were missing tell, as far as they tell it by then; later answers are looked at the next time."""
        while not self._is_all_told and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        with self._lock:
            over = {number: question for number, question in self._asked.items() if question.is_over}
            for number in over:
                del self._asked[number]
        answers = {number: question.answer() for number, question in over.items()}
        infos = {number: info for number, info in answers.items() if info is not None}
        for number in infos:
            self.found(number)
        return infos

    @property
    def _is_all_told(self) -> bool:
        with self._lock:
            return all(question.is_over for question in self._asked.values())
