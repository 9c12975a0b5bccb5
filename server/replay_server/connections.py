"""waitress with bounds: no request waits for the work of another kind, and no connection is kept for nothing.

waitress has one pool of threads for all requests, a limit of connections after which it takes none, and cuts a connection only
when it says nothing at all for two minutes. So a few requests that wait, or a hundred clients that send a byte per second, keep
everybody out. Here each path that may take long has threads of its own, a request must be complete within `Limits.request_seconds`,
and when too many connections are open the oldest of those that ask nothing goes: a new one is always taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from replay_server.logs import logger

_HEADER_BYTES = 16_384
_BODY_BYTES = 65_536  # nothing here reads one
_TELL_SECONDS = 60.0
"""How often the log says that connections are cut, at most."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one server.

    Attributes:
      connections: most that are open; one more, and the oldest without a request goes.
      request_seconds: longest time from the connection, or from a later request's first byte, to that request's last byte.
      idle_seconds: longest silence between two requests.
      look_seconds: how often the times are looked at.
    """

    connections: int = 256
    request_seconds: float = 10.0
    idle_seconds: int = 120
    look_seconds: int = 1


class Pools:
    """Threads by path; what waitress calls a task dispatcher.

    Args:
      threads: path -> so many for it alone.
      others: threads for all other paths.
    """

    def __init__(self, threads: Mapping[str, int], others: int) -> None:
        self._others = _pool(others)
        self._pools = {path: _pool(count) for path, count in threads.items()}

    def add_task(self, channel: HTTPChannel) -> None:
        """Hands the channel's first request to a thread that answers it."""
        path = getattr(channel.requests[0], "path", "")  # none of a request that could not be read
        self._pools.get("/" + path.lstrip("/"), self._others).add_task(channel)


def _pool(count: int) -> ThreadedTaskDispatcher:
    made = ThreadedTaskDispatcher()
    made.queue_logger = logging.getLogger("replay_server.http.queue")
    made.queue_logger.disabled = True  # a line for every request that waits; a flood would fill the log
    made.set_thread_count(count)
    return made


class _Channel(HTTPChannel):  # type: ignore[misc] # waitress has no types
    """A connection that knows since when it has been sending its request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.asking_since: float | None = time.monotonic()  # None between requests, and while one is answered
        super().__init__(*args, **kwargs)

    def received(self, data: bytes) -> bool:
        """Takes bytes; those after an answer begin another request."""
        if self.asking_since is None:
            self.asking_since = time.monotonic()
        taken = bool(super().received(data))
        if self.request is None:
            self.asking_since = None
        return taken

    def is_overdue(self, latest: float) -> bool:
        """Whether a request has been coming since before `latest`."""
        return not (self.will_close or self.requests) and self.asking_since is not None and self.asking_since < latest

    def handle_expt(self) -> None:
        """Urgent data, which nobody reads, so that it would be told of without end."""
        self.will_close = True


class BoundedServer(TcpWSGIServer):  # type: ignore[misc] # waitress has no types
    """One listening socket; accepts without end, within the limits."""

    channel_class = _Channel

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        self._limits = limits
        self._cut, self._told_at = 0, float("-inf")
        self._log = logger("http")
        super().__init__(*args, **kwargs)

    def handle_accept(self) -> None:
        """Takes a connection, for which another may have to go."""
        channels = [one for one in self.active_channels.values() if not one.will_close]
        if len(channels) >= self._limits.connections:
            self._end(min(channels, key=lambda one: (bool(one.requests), one.creation_time)))
        super().handle_accept()

    def maintenance(self, now: float) -> None:
        """Ends connections that have been silent, or asking, for too long."""
        super().maintenance(now)
        latest = time.monotonic() - self._limits.request_seconds
        for channel in list(self.active_channels.values()):
            if channel.is_overdue(latest):
                self._end(channel)
        if self._cut and time.monotonic() - self._told_at > _TELL_SECONDS:
            self._log.warning("http connections cut", count=self._cut, reason="too slow, or too many")
            self._cut, self._told_at = 0, time.monotonic()

    def _end(self, channel: _Channel) -> None:
        """Closed in the next round: its number must not be given to another one while this round knows it."""
        channel.will_close = True
        self._cut += 1


def bounded_servers(app: Any, host: str, port: int, pools: Pools, limits: Limits) -> list[BoundedServer]:
    """Servers that listen, one per address. `run` of any of them answers for all, and does not return.

    Args:
      app: WSGI.
      host, port: a name may have several addresses; with port 0, which takes a free one, only the first is listened on.
      pools: who answers.
      limits: what is cut.

    Raises:
      OSError, ValueError: the address cannot be listened on.
    """
    adjustments = Adjustments(
        host=host,
        port=port,
        ident=None,
        asyncore_use_poll=True,  # select takes no socket above 1,024, and Reverb may have as many
        connection_limit=1_000_000,  # waitress takes none beyond its own
        channel_timeout=limits.idle_seconds,
        cleanup_interval=limits.look_seconds,
        max_request_header_size=_HEADER_BYTES,
        max_request_body_size=_BODY_BYTES,
    )
    sockets: dict[int, Any] = {}
    return [
        BoundedServer(app, sockets, dispatcher=pools, adj=adjustments, sockinfo=address, limits=limits)
        for address in (adjustments.listen if port else adjustments.listen[:1])
    ]
