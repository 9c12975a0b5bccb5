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

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from replay_server import admission
from replay_server.alerts import AlertWatch
from replay_server.config import HttpSection
from replay_server.connections import Limits, Pools, bounded_servers
from replay_server.errors import CheckpointError
from replay_server.metrics import registry
from replay_server.peers import Peers
from replay_server.state import ServerState
from replay_server.status import not_loaded, status
from replay_server.store import Checkpoint
from rlds2reverb.errors import ConfigError

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
      alerts: since when they hold; by default only those who look are told.

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
        """Asks through the monitor: who was told that the server is ready finds its tables in the status and the metrics."""
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
