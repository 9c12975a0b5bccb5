"""Answers HTTP and logs while Reverb loads a checkpoint, in a process of its own.

Reverb's constructor holds Python's lock until everything is loaded (observed in dm-reverb 0.14), so that no thread of the server's process
runs meanwhile: no request is answered, not even /healthz, and nothing is logged. A large checkpoint takes minutes. So a small process
stands in: it has the server's listening sockets, answers reading requests with what the server's status was before, and how far the load
is, and logs that every ten seconds. How far: Reverb tells nothing, but the system says how many bytes its process has read. What it does
after the last byte cannot be seen.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from replay_server.admission import refuse_host
from replay_server.logs import PROGRESS_SECONDS, bytes_read, configure, logger, share

FROM_BYTES = 64 << 20
"""A smaller checkpoint is loaded before another process has started."""

EVENT = "loading the checkpoint"

_END_SECONDS = 5.0
_REQUEST_SECONDS = 10.0
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


@contextmanager
def stand_in(
    total: int,
    sockets: Sequence[int],
    names: frozenset[str],
    pages: Mapping[str, Path],
    headers: Mapping[str, str],
    status: Mapping[str, Any],
    log: Mapping[str, str],
) -> Iterator[None]:
    """While the block runs, another process answers on the server's sockets and logs. Without one, nobody answers: that stops no start.

    Args:
      total: bytes of the checkpoint, which this process reads in the block.
      sockets: descriptors of the listening sockets.
      names: host names that are answered, see `admission`.
      pages: path of a request -> file.
      headers: of each answer.
      status: the document of /status.json as of now.
      log: format and level.
    """
    setup = {
        "pid": os.getpid(),
        "before": bytes_read() or 0,
        "total": total,
        "sockets": list(sockets),
        "names": sorted(names),
        "pages": {path: str(file) for path, file in pages.items()},
        "headers": dict(headers),
        "status": status,
        "log": dict(log),
    }
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", "from replay_server.loading import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=sockets,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(setup).encode() + b"\n")
        process.stdin.flush()
    except OSError as error:
        logger("service").warning("nobody answers while the checkpoint is loaded", error=str(error))
    try:
        yield
    finally:
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class LoadProgress:
    """How far another process is in reading a checkpoint."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._setup, self._began = setup, time.monotonic()

    def fields(self) -> dict[str, Any]:
        """Seconds since the begin, bytes that were read, the total and the percentage; only the first where the system does not say."""
        seconds = {"seconds": round(time.monotonic() - self._began, 1)}
        now = bytes_read(self._setup["pid"])
        return seconds if now is None else {**seconds, **share(now - self._setup["before"], self._setup["total"])}

    def words(self) -> str:
        """Such as " 43 %"."""
        fields = self.fields()
        return f" {fields['percent']} %" if "percent" in fields else ""

    def status(self) -> dict[str, Any]:
        """The status document as of now."""
        document: dict[str, Any] = self._setup["status"]
        server = {**document["server"], "now": time.time(), "progress": [{"what": EVENT, **self.fields()}]}
        return {**document, "server": server}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, descriptor: int, progress: LoadProgress, setup: Mapping[str, Any]) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=descriptor)
        self.progress, self.setup = progress, setup

    def handle_error(self, *_: Any) -> None:
        """Whoever has gone away while it was answered is no event."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        refusal = refuse_host(self.headers.get("Host"), self.request_version, frozenset(self.server.setup["names"]))
        if path == "/healthz":
            self._answer(200, {"status": "alive", "state": "restoring"})
        elif refusal is not None:
            self._answer(refusal.status, {"error": refusal.error})
        elif path == "/status.json":
            self._answer(200, self.server.progress.status())
        elif (file := self.server.setup["pages"].get(path)) is not None:
            self._send(200, _TYPES[Path(file).suffix], Path(file).read_bytes())
        else:
            reason = f"the server is restoring{self.server.progress.words()}"
            self._answer(503, {"status": "not ready", "state": "restoring", "reason": reason, "error": reason})

    do_HEAD = do_POST = do_GET  # noqa: N815

    def _answer(self, code: int, document: Mapping[str, Any]) -> None:
        self._send(code, "application/json", json.dumps(document).encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        headers = {
            **self.server.setup["headers"],
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged, as elsewhere."""


def main() -> None:
    """Answers and logs until standard input ends, which it does with the server, too."""
    setup = json.loads(sys.stdin.readline())
    configure(**setup["log"])
    progress, log = LoadProgress(setup), logger("service")
    for descriptor in setup["sockets"]:
        server = _Server(descriptor, progress, setup)
        threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()

    def log_lines() -> None:
        while True:
            time.sleep(PROGRESS_SECONDS)
            log.info(EVENT, **progress.fields())

    threading.Thread(target=log_lines, daemon=True).start()
    sys.stdin.read()
