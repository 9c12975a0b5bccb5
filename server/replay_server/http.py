"""HTTP beside gRPC: health, metrics, status, and checkpoints on request.

| path | answer |
| --- | --- |
| GET / | the status page |
| GET /status.json | what it shows; the same of `http.peers`, and their sums, under "together" |
| GET /history.json | runs, checkpoints, memory and items of the last days, as far as the checkpoint folder remembers them |
| GET /runbook | docs/runbook.md as a page; each alert has its anchor there |
| GET /page/NAME | what the two pages are made of |
| GET /healthz | 200 while the process lives |
| GET /readyz | 200 when Reverb answers a ServerInfo call within its deadline and the folder is ours, else 503 and why |
| GET /metrics | for Prometheus |
| POST /checkpoint | writes one, answers when it is there; 503 when it cannot be written, or the server is not ready |

Whoever asks for a checkpoint while one is written shares the next one with all others who do.
Any path: 421 for a host name that is not ours; POST: 403 for a page of another origin, 401 without the token; see `admission`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flask
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from replay_server import admission
from replay_server.alerts import AlertWatch
from replay_server.config import HttpSection
from replay_server.errors import CheckpointError
from replay_server.logs import logger
from replay_server.metrics import registry
from replay_server.peers import Peers
from replay_server.state import ServerState
from replay_server.status import not_loaded, status
from replay_server.store import Checkpoint
from rlds2reverb.errors import ConfigError

# waitress with bounds: no request waits for the work of another kind, and no connection is kept for nothing.
#
# waitress has one pool of threads for all requests, a limit of connections after which it takes none, and cuts a connection only
# when it says nothing at all for two minutes. So a few requests that wait, or a hundred clients that send a byte per second, keep
# everybody out. Here each path that may take long has threads of its own, a request must be complete within `Limits.request_seconds`,
# and when too many connections are open the oldest of those that ask nothing goes: a new one is always taken.

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
        """Urgent data, which nobody reads: it would be reported again and again."""
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


Answer = tuple[dict[str, Any], int] | tuple[dict[str, Any], int, dict[str, str]]

MOST_WAITING = 32
"""Requests that may wait for a checkpoint at a time. They share one, so more are asked for by mistake or in bad faith."""

_RETRY_SECONDS = "10"
_THREADS = {"/healthz": 2, "/readyz": 8, "/checkpoint": MOST_WAITING + 2}
"""Threads per path, so that neither checkpoints nor a Reverb that does not answer keep others waiting. Two more refuse at once."""
_OTHER_THREADS = 4
_PAGE = Path(__file__).parent / "page"
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class HttpServer:
    """Serves an application in a thread of its own.

    Args:
      app: see `make_app`.
      section: where to listen.
      limits: of its connections.

    Attributes:
      url: with the port it got.

    Raises:
      ConfigError: the address cannot be listened on.
    """

    def __init__(self, app: flask.Flask, section: HttpSection, limits: Limits = Limits()) -> None:
        pools = Pools(_THREADS, _OTHER_THREADS)
        try:
            self._servers = bounded_servers(app, section.host, section.port, pools, limits)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"http {section.host}:{section.port}: cannot listen ({error}); choose another http.host or http.port"
            ) from error
        host = f"[{section.host}]" if ":" in section.host else section.host
        self.url = f"http://{host}:{self._servers[0].effective_port}"
        self._thread = threading.Thread(target=self._servers[0].run, name="http", daemon=True)

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answers no more."""
        for server in self._servers:
            server.close()


def make_app(state: ServerState, write: Callable[[], Checkpoint], alerts: AlertWatch | None = None) -> flask.Flask:
    """The WSGI application.

    Args:
      state: what it tells.
      write: writes a checkpoint and returns it; raises `CheckpointError`.
      alerts: since when they hold; by default they are computed when somebody looks.

    Raises:
      ConfigError: the token cannot be read.
    """
    app = flask.Flask("replay_server", static_folder=None)
    check_every_request(app, state.config.http)
    answers = _Answers(state, AlertWatch(state) if alerts is None else alerts)
    app.get("/", defaults={"name": "index.html"})(file_of_page)
    app.get("/runbook", defaults={"name": "runbook.html"})(file_of_page)
    app.get("/page/<name>")(file_of_page)
    app.get("/history.json")(answers.past)
    app.get("/status.json")(answers.document)
    app.get("/healthz")(answers.healthy)
    app.get("/readyz")(answers.ready)
    app.get("/metrics")(answers.metrics)
    app.post("/checkpoint")(_Checkpoints(state, write).checkpoint)
    return app


def file_of_page(name: str) -> flask.Response:
    """A file of the pages, which run only what is theirs and ask nobody but this server."""
    response = flask.send_from_directory(_PAGE, name, max_age=0)
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _others(section: HttpSection) -> list[str]:
    """The peers without this server itself, so that all servers may have the same list."""
    own = {f"{name}:{section.port}" for name in section.allowed_hosts}
    return [address for address in section.peers if address not in own]


class _Answers:
    """Answers that only tell how the server is."""

    def __init__(self, state: ServerState, alerts: AlertWatch) -> None:
        self._state, self._alerts, self._metrics = state, alerts, registry(state)
        self._peers = Peers(_others(state.config.http))

    def document(self) -> flask.Response:
        own = status(self._state)
        together = self._peers.document(own) if self._peers.addresses else None
        return flask.jsonify({**own, "alerts": self._alerts.document(), "together": together})

    def past(self) -> flask.Response:
        return flask.jsonify(self._state.recorder.document(self._state.config.checkpoints.every_seconds))

    def metrics(self) -> flask.Response:
        return flask.Response(generate_latest(self._metrics), content_type=CONTENT_TYPE_LATEST)

    def healthy(self) -> Answer:
        return {"status": "alive", "state": self._state.phase}, 200

    def ready(self) -> Answer:
        """Asks through the monitor, so that a client which sees the server ready finds its tables in the status and the metrics."""
        if obstacle := self._state.obstacle():
            return self._not_ready(obstacle)
        seen = self._state.monitor.look()
        if seen.error:
            return self._not_ready(seen.error)
        sizes = {table.name: table.current_size for table in seen.tables()}
        return {"status": "ready", "tables": sizes, **not_loaded(self._state.unloaded)}, 200

    def _not_ready(self, reason: str) -> Answer:
        return {"status": "not ready", "state": self._state.phase, "reason": reason}, 503


class _Checkpoints:
    """Checkpoints on request, for so many at a time."""

    def __init__(self, state: ServerState, write: Callable[[], Checkpoint]) -> None:
        self._state, self._write = state, write
        self._may_wait = threading.BoundedSemaphore(MOST_WAITING)

    def checkpoint(self) -> Answer:
        if self._state.phase != "ready":
            return {"error": f"the server is {self._state.phase}; ask again when /readyz says ready"}, 503
        if not self._may_wait.acquire(blocking=False):
            error = f"{MOST_WAITING} requests wait for a checkpoint already; ask again in {_RETRY_SECONDS} s"
            return {"error": error}, 503, {"Retry-After": _RETRY_SECONDS}
        try:
            checkpoint = self._write()
        except CheckpointError as error:
            return {"error": str(error)}, 503
        finally:
            self._may_wait.release()
        return {**checkpoint.summary(), "folder": str(checkpoint.folder)}, 200


def check_every_request(app: flask.Flask, section: HttpSection) -> None:
    """Refuses each request that `admission` refuses.

    /healthz is answered whatever name it is asked by: it tells nothing, and an orchestrator ends a server that does not answer.

    Raises:
      ConfigError: the token cannot be read.
    """
    ours = admission.names_of(section.host, section.allowed_hosts)
    token = admission.wanted_token(section.token, section.token_file)

    @app.before_request
    def check() -> Answer | None:
        refusal = _refusal(flask.request, ours, token)
        if refusal is None:
            return None
        headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
        return {"error": refusal.error}, refusal.status, headers


def _refusal(request: flask.Request, ours: frozenset[str], token: str | None) -> admission.Refusal | None:
    host = request.headers.get("Host")
    if request.path != "/healthz":
        protocol = str(request.environ.get("SERVER_PROTOCOL"))
        if refusal := admission.refuse_host(host, protocol, ours):
            return refusal
    if request.method in ("GET", "HEAD"):
        return None
    return admission.refuse_origin(request.headers.get("Origin"), host) or admission.refuse_token(
        request.headers.get("Authorization"), token
    )
