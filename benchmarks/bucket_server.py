"""A small S3 on this machine that serves a folder: what the benchmark of buckets reads from. `python -m benchmarks.bucket_server FOLDER SECONDS`.

It lists, and gives whole files and ranges, each answer after a delay. `/-/counts` tells the requests so far, and the bytes of their bodies.
Its address is the first line of stdout; it ends with its stdin.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


def serve(folder: Path, delay: float) -> None:
    counts = {"requests": 0, "bytes": 0}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = (
            True  # else the end of an answer waits up to 40 ms for an acknowledgement, as no service's does
        )

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            address = urlsplit(self.path)
            key = unquote(address.path).strip("/").partition("/")[2]  # behind the bucket's name
            if address.path == "/-/counts":
                self._send(200, json.dumps(counts).encode())
                return
            time.sleep(delay)
            counts["requests"] += 1
            query = parse_qs(address.query)
            if "list-type" in query:
                self._send(200, _listing(folder, query.get("prefix", [""])[0]).encode(), {"Content-Type": "text/xml"})
                return
            path = folder / key
            if not path.is_file():
                self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            size = path.stat().st_size
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range") or "")
            start, stop = (int(found[1]), min(int(found[2]) + 1, size)) if found else (0, size)
            headers = {"ETag": _etag(path), "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
            if found:
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            if self.command == "HEAD":
                self._send(200, b"", {**headers, "Content-Length": str(size)})
                return
            with path.open("rb") as file:
                file.seek(start)
                self._send(206 if found else 200, file.read(stop - start), headers)

        def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            counts["bytes"] += len(data)
            self.send_response_only(status)
            for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        sys.stdin.read()


def _etag(path: Path) -> str:
    found = path.stat()
    return f'"{hashlib.sha1(f"{found.st_size} {found.st_mtime_ns}".encode()).hexdigest()}"'


def _listing(folder: Path, prefix: str) -> str:
    below = folder / prefix
    parts = []
    for path in sorted(below.iterdir()) if below.is_dir() else ():
        key = escape(f"{prefix}{path.name}")
        if path.is_dir():
            parts.append(f"<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>")
        else:
            changed = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(path.stat().st_mtime))
            about = f"<Size>{path.stat().st_size}</Size><LastModified>{changed}</LastModified><ETag>{escape(_etag(path))}</ETag>"
            parts.append(f"<Contents><Key>{key}</Key>{about}<StorageClass>STANDARD</StorageClass></Contents>")
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(parts)}</ListBucketResult>"


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]))
