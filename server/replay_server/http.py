"""HTTP beside gRPC: health, metrics, status, and checkpoints on request.

| path | answer |
| --- | --- |
| GET / | the status page |
| GET /status.json | its data; with `http.peers` theirs, and sums over all servers, under "together" |
| GET /history.json | runs, checkpoints, memory and items of the last days, as the checkpoint folder remembers them |
| GET /runbook | docs/runbook.md as a page; each alert has its anchor there |
| GET /page/NAME | files of the two pages |
| GET /healthz | 200 while the process lives |
| GET /readyz | 200 when Reverb answers a ServerInfo call within its deadline and the folder is ours, else 503 and why |
| GET /metrics | for Prometheus |
| POST /checkpoint | writes one if anything has changed since the newest one, or with `?anew=1` in any case, and answers when it is there; 503 when it cannot be written, or the server is not ready |

Requests for a checkpoint that come while one is written share the next one.
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
from rlds2reverb.look.html import ASSETS

# waitress has one pool of threads for all requests, a limit of connections after which it accepts none, and cuts a connection
# only when it is silent for two minutes. So a few requests that wait, or a hundred clients that send a byte per second, keep
# everybody out. Here each path that may take long has threads of its own, a request must be complete within
# `ConnectionLimits.request_seconds`, and when too many connections are open the oldest without a request is closed: a new one is always
# accepted.

_HEADER_BYTES = 16_384
_BODY_BYTES = 65_536  # nothing here reads one
_TELL_SECONDS = 60.0  # between two lines of the log about connections that were cut


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds of one server.

    Attributes:
      connections: most that are open; one more, and the oldest without a request is closed.
      request_seconds: longest time from the connection, or from a later request's first byte, to that request's last byte.
      idle_seconds: longest silence between two requests.
      look_seconds: time between two checks of these.
    """

    connections: int = 256
    request_seconds: float = 10.0
    idle_seconds: int = 120
    look_seconds: int = 1


class Pools:
    """Threads by path, and `others` for all other paths; what waitress calls a task dispatcher."""

    def __init__(self, threads: Mapping[str, int], others: int) -> None:
        self._others = _pool(others)
        self._pools = {path: _pool(count) for path, count in threads.items()}

    def add_task(self, channel: HTTPChannel) -> None:
        path = getattr(channel.requests[0], "path", "")  # a request that could not be read has none
        self._pools.get("/" + path.lstrip("/"), self._others).add_task(channel)


def _pool(count: int) -> ThreadedTaskDispatcher:
    dispatcher = ThreadedTaskDispatcher()
    dispatcher.queue_logger = logging.getLogger("replay_server.http.queue")
    dispatcher.queue_logger.disabled = True  # a line for every request that waits; a flood would fill the log
    dispatcher.set_thread_count(count)
    return dispatcher


class _Channel(HTTPChannel):  # type: ignore[misc] # waitress has no types
    """A connection that knows since when it has been sending its request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.asking_since: float | None = time.monotonic()  # None between requests, and while one is answered
        super().__init__(*args, **kwargs)

    def received(self, data: bytes) -> bool:
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
        self.will_close = True  # urgent data, which nobody reads: it would be reported again and again


class BoundedServer(TcpWSGIServer):  # type: ignore[misc] # waitress has no types
    """One listening socket; accepts without end, within the limits."""

    channel_class = _Channel

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        self._limits = limits
        self._cut, self._logged_at = 0, float("-inf")
        self._log = logger("http")
        super().__init__(*args, **kwargs)

    def handle_accept(self) -> None:
        channels = [channel for channel in self.active_channels.values() if not channel.will_close]
        if len(channels) >= self._limits.connections:
            # False sorts before True: a connection whose request is answered now goes last.
            self._end(min(channels, key=lambda channel: (bool(channel.requests), channel.creation_time)))
        super().handle_accept()

    def maintenance(self, now: float) -> None:
        """Ends connections that have been silent, or sending, for too long."""
        super().maintenance(now)
        latest = time.monotonic() - self._limits.request_seconds
        for channel in list(self.active_channels.values()):
            if channel.is_overdue(latest):
                self._end(channel)
        if self._cut and time.monotonic() - self._logged_at > _TELL_SECONDS:
            self._log.warning("http connections cut", count=self._cut, reason="too slow, or too many")
            self._cut, self._logged_at = 0, time.monotonic()

    def _end(self, channel: _Channel) -> None:
        """Closed in the next round: its number must not be given to another one while this round knows it."""
        channel.will_close = True
        self._cut += 1


Answer = tuple[dict[str, Any], int] | tuple[dict[str, Any], int, dict[str, str]]

MOST_WAITING = 32
"""Requests that may wait for a checkpoint at a time. They share one, so more come by mistake or in bad faith."""

_RETRY_SECONDS = "10"
_THREADS = {"/healthz": 2, "/readyz": 8, "/checkpoint": MOST_WAITING + 2}
"""Threads per path, so that neither checkpoints nor a Reverb that does not answer delay other requests. Two refuse at once."""
_OTHER_THREADS = 4
_PAGE = Path(__file__).parent / "page"
_SHARED = {"probe.js": ASSETS}  # what reports have, too: name -> folder
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


PAGE_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}


def page_files() -> dict[str, Path]:
    """The files of the pages, by the paths of their requests."""
    names = [path.name for path in _PAGE.iterdir() if path.suffix in (".html", ".css", ".js")]
    files = {f"/page/{name}": _PAGE / name for name in names} | {
        f"/page/{name}": folder / name for name, folder in _SHARED.items()
    }
    return {**files, "/": _PAGE / "index.html", "/runbook": _PAGE / "runbook.html"}


class HttpServer:
    """Serves an application in a thread of its own; `url` has the port it got.

    Raises:
      ConfigError: the address cannot be listened on.
    """

    def __init__(self, app: flask.Flask, section: HttpSection, limits: ConnectionLimits = ConnectionLimits()) -> None:
        pools, sockets = Pools(_THREADS, _OTHER_THREADS), dict[int, Any]()
        try:
            adjustments = Adjustments(
                host=section.host,
                port=section.port,
                ident=None,
                asyncore_use_poll=True,  # select takes no socket above 1,024, and Reverb may have as many
                connection_limit=1_000_000,  # waitress accepts none beyond its own
                channel_timeout=limits.idle_seconds,
                cleanup_interval=limits.look_seconds,
                max_request_header_size=_HEADER_BYTES,
                max_request_body_size=_BODY_BYTES,
            )
            self._servers = [  # one per address of the host; of a free port only the first
                BoundedServer(app, sockets, dispatcher=pools, adj=adjustments, sockinfo=address, limits=limits)
                for address in (adjustments.listen if section.port else adjustments.listen[:1])
            ]
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"http {section.host}:{section.port}: cannot listen ({error}); choose another http.host or http.port"
            ) from error
        host = f"[{section.host}]" if ":" in section.host else section.host
        self.url = f"http://{host}:{self._servers[0].effective_port}"
        self._thread = threading.Thread(target=self._servers[0].run, name="http", daemon=True)  # answers for all

    def start(self) -> None:
        self._thread.start()

    def sockets(self) -> list[int]:
        """Descriptors of the sockets on which it listens."""
        return [server.socket.fileno() for server in self._servers]

    def stop(self) -> None:
        for server in self._servers:
            server.close()


def peers_of(section: HttpSection) -> list[str]:
    """The peers without this server itself, so that all servers may have the same list."""
    own = {f"{name}:{section.port}" for name in section.allowed_hosts}
    return [address for address in section.peers if address not in own]


def make_app(
    state: ServerState,
    write: Callable[[], Checkpoint],
    alerts: AlertWatch | None = None,
    write_anew: Callable[[], Checkpoint] | None = None,
) -> flask.Flask:
    """The WSGI application.

    Args:
      write: writes a checkpoint if anything has changed, and returns the newest one; raises `CheckpointError`.
      alerts: since when they hold; by default they are computed when somebody looks.
      write_anew: writes one whatever has changed; by default `write`.

    Raises:
      ConfigError: the token cannot be read.
    """
    app = flask.Flask("replay_server", static_folder=None)
    section, known_alerts, metrics = state.config.http, alerts or AlertWatch(state), registry(state)
    check_every_request(app, section)
    peers = Peers(peers_of(section))
    may_wait = threading.BoundedSemaphore(MOST_WAITING)

    @app.get("/", defaults={"name": "index.html"})
    @app.get("/runbook", defaults={"name": "runbook.html"})
    @app.get("/page/<name>")
    def page(name: str) -> flask.Response:
        """A file of the pages, which run only their own scripts and contact only this server."""
        response = flask.send_from_directory(_SHARED.get(name, _PAGE), name, max_age=0)
        response.headers.update(PAGE_HEADERS)
        return response

    @app.get("/history.json")
    def history() -> flask.Response:
        return flask.jsonify(state.recorder.document(state.config.checkpoints.every_seconds))

    @app.get("/status.json")
    def document() -> flask.Response:
        document = status(state)
        together = peers.document(document) if peers.addresses else None
        return flask.jsonify({**document, "alerts": known_alerts.document(), "together": together})

    @app.get("/healthz")
    def healthy() -> Answer:
        return {"status": "alive", "state": state.phase}, 200

    @app.get("/readyz")
    def ready() -> Answer:
        reason = state.obstacle()
        if not reason:
            # Through the monitor: who sees the server ready finds its tables in the status and the metrics.
            seen = state.monitor.look()
            if not (reason := seen.error):
                sizes = {table.name: table.current_size for table in seen.tables()}
                return {"status": "ready", "tables": sizes, **not_loaded(state.unloaded)}, 200
        return {"status": "not ready", "state": state.phase, "reason": reason}, 503

    @app.get("/metrics")
    def all_metrics() -> flask.Response:
        return flask.Response(generate_latest(metrics), content_type=CONTENT_TYPE_LATEST)

    @app.post("/checkpoint")
    def checkpoint() -> Answer:
        if state.phase != "ready":
            return {"error": f"the server is {state.phase}; ask again when /readyz says ready"}, 503
        if not may_wait.acquire(blocking=False):
            error = f"{MOST_WAITING} requests wait for a checkpoint already; ask again in {_RETRY_SECONDS} s"
            return {"error": error}, 503, {"Retry-After": _RETRY_SECONDS}
        try:
            written = (write_anew or write)() if flask.request.args.get("anew") == "1" else write()
        except CheckpointError as error:
            return {"error": str(error)}, 503
        finally:
            may_wait.release()
        return {**written.summary(), "folder": str(written.folder), "written": written.is_new}, 200

    return app


def check_every_request(app: flask.Flask, section: HttpSection) -> None:
    """Refuses each request that `admission` refuses.

    /healthz is answered whatever name it is asked by: it tells nothing, and an orchestrator ends a server that does not answer.
    """
    ours = admission.names_of(section.host, section.allowed_hosts)
    token = admission.read_token(section.token, section.token_file)

    @app.before_request
    def check() -> Answer | None:
        headers, refusal = flask.request.headers, None
        host = headers.get("Host")
        if flask.request.path != "/healthz":
            refusal = admission.refuse_host(host, str(flask.request.environ.get("SERVER_PROTOCOL")), ours)
        if refusal is None and flask.request.method not in ("GET", "HEAD"):
            refusal = admission.refuse_origin(headers.get("Origin"), host)
            refusal = refusal or admission.refuse_token(headers.get("Authorization"), token)
        if refusal is None:
            return None
        challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
        return {"error": refusal.error}, refusal.status, challenge
