"""HTTP beside gRPC: health, metrics, status, and checkpoints on request.

| path | answer |
| --- | --- |
| GET / | the status page |
| GET /status.json | what it shows |
| GET /healthz | 200 while the process lives |
| GET /readyz | 200 when Reverb answers a ServerInfo call within its deadline, else 503 and why |
| GET /metrics | for Prometheus |
| POST /checkpoint | writes one, answers when it is there; 503 when it cannot be written, or the server is not ready |
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import flask
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from waitress.server import create_server

from replay_server.metrics import registry
from replay_server.records import CheckpointError
from replay_server.status import status
from rlds2reverb.errors import ConfigError, Rlds2ReverbError

if TYPE_CHECKING:
    from replay_server.service import ReplayService

_PAGE = Path(__file__).parent / "page"
_THREADS = 8


class HttpServer:
    """Serves one service in a thread of its own.

    Args:
      service: what is served.
      host, port: to listen on; 0 for a free port.

    Attributes:
      url: with the port it got.

    Raises:
      ConfigError: the address cannot be listened on.
    """

    def __init__(self, service: ReplayService, host: str, port: int) -> None:
        try:
            self._server: Any = create_server(make_app(service), host=host, port=port, threads=_THREADS, ident=None)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"http {host}:{port}: cannot listen ({error}); choose another http.host or http.port"
            ) from error
        self.url = f"http://{host}:{self._server.effective_port}"
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answers no more."""
        self._server.close()


def make_app(service: ReplayService) -> flask.Flask:
    """The WSGI application."""
    app = flask.Flask("replay_server", static_folder=None)
    metrics = registry(service)

    @app.get("/")
    def page() -> flask.Response:
        response = flask.send_from_directory(_PAGE, "index.html")
        response.headers["Content-Security-Policy"] = (
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
        )
        return response

    @app.get("/status.json")
    def document() -> flask.Response:
        return flask.jsonify(status(service))

    @app.get("/healthz")
    def healthy() -> tuple[dict[str, Any], int]:
        return {"status": "alive", "state": service.state}, 200

    @app.get("/readyz")
    def ready() -> tuple[dict[str, Any], int]:
        if service.state != "ready":
            return {"status": "not ready", "state": service.state, "reason": f"the server is {service.state}"}, 503
        try:
            tables = service.ask().tables
        except Rlds2ReverbError as error:
            return {"status": "not ready", "state": service.state, "reason": str(error)}, 503
        return {"status": "ready", "tables": {name: table.current_size for name, table in tables.items()}}, 200

    @app.get("/metrics")
    def for_prometheus() -> flask.Response:
        return flask.Response(generate_latest(metrics), content_type=CONTENT_TYPE_LATEST)

    @app.post("/checkpoint")
    def checkpoint() -> tuple[dict[str, Any], int]:
        origin = flask.request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != flask.request.host:
            return {"error": f"a page of {origin} may not ask for checkpoints"}, 403
        if service.state != "ready":
            return {"error": f"the server is {service.state}; ask again when /readyz says ready"}, 503
        try:
            generation = service.checkpoints.write("request")
        except CheckpointError as error:
            return {"error": str(error)}, 503
        manifest = generation.manifest
        return {
            "generation": generation.number,
            "folder": str(generation.folder),
            "items": manifest.items,
            "bytes": generation.bytes,
            "seconds": manifest.seconds,
        }, 200

    return app
