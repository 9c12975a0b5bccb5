"""A web server on this machine, which can be asked to misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@dataclass
class Web:
    """A server of the files below a folder, and how it answers.

    Attributes:
      place: its address, "http://127.0.0.1:PORT".
      statuses: path, without the first "/" -> status to answer, whatever is there.
      redirects: path -> address to go to.
      cut: whether an answer's body ends in the middle, by the number of the GET.
      has_ranges, has_head: whether it answers requests for ranges, and HEAD.
      etag: of all files; None for none.
      changed: the Last-Modified of all files; "" for none.
      requests: method, path and range of each request.
    """

    place: str
    statuses: dict[str, int] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cut: Callable[[int], bool] = lambda _number: False
    has_ranges: bool = True
    has_head: bool = True
    etag: str | None = '"first"'
    changed: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)


@contextmanager
def web(folder: Path) -> Iterator[Web]:
    """A server in threads of this process."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(405 if not server_state.has_head else 0)

        def do_GET(self) -> None:
            self._answer(0)

        def _answer(self, status: int) -> None:
            name, state = unquote(self.path[1:]), server_state
            with lock:
                state.requests.append((self.command, name, self.headers.get("Range", "")))
                number = sum(method == "GET" for method, *_ in state.requests) - 1
            file = folder / name
            status = status or state.statuses.get(name, 0) or (302 if name in state.redirects else 0)
            if not status and not file.is_file():
                status = 404
            match = self.headers.get("If-Match")
            if not status and match and (state.etag != match or match.startswith("W/")):
                status = 412
            data, headers = b"", {}
            if not status:
                status, data = 200, file.read_bytes()
                wanted = self.headers.get("Range", "").removeprefix("bytes=")
                if wanted and state.has_ranges:
                    first, last = map(int, wanted.split("-"))
                    last = min(last, len(data) - 1)
                    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
                    status, data = 206, data[first : last + 1]
                headers |= {"ETag": state.etag} if state.etag else {}
                headers |= {"Last-Modified": state.changed} if state.changed else {}
            elif status == 302:
                headers["Location"] = state.redirects[name]
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                is_cut = bool(data) and state.cut(number)
                self.wfile.write(data[: len(data) // 2] if is_cut else data)
                self.close_connection = is_cut

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server_state = Web(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server_state
        finally:
            server.shutdown()
            thread.join()
