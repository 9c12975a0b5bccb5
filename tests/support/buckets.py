"""Object storage on this machine: moto's S3 and GCS, a proxy that disturbs it, and a hub with one dataset."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

KEYS = {"AWS_ACCESS_KEY_ID": "some-key", "AWS_SECRET_ACCESS_KEY": "some-secret", "AWS_REGION": "us-east-1"}
"""Environment variables of credentials that moto takes."""

_OTHERS = (
    "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN",
)  # fmt: skip


def environment(url: str, home: Path) -> dict[str, str | None]:
    """Environment variables (None: unset) with which both schemes lead to a server, and nothing to this machine's credentials."""
    return {
        **dict.fromkeys(_OTHERS),
        **KEYS,
        "AWS_ENDPOINT_URL": url,
        "RLDS2REVERB_CACHE": str(home / "cache"),
        "AWS_CONFIG_FILE": str(home / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "credentials"),
        "CLOUDSDK_CONFIG": str(home),
        "STORAGE_EMULATOR_HOST": url,
    }


@dataclass
class Storage:
    """A storage service: its address, and what is put there."""

    url: str

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self._store(bucket).put(key, data)

    def upload(self, folder: Path, bucket: str, prefix: str) -> None:
        """Puts all files below a folder, or one file, under a prefix."""
        if folder.is_file():
            self.put(bucket, prefix, folder.read_bytes())
            return
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(bucket, f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def remove(self, bucket: str, key: str) -> None:
        self._store(bucket).delete(key)

    def create(self, bucket: str) -> None:
        import boto3

        keys = {"aws_access_key_id": "some-key", "aws_secret_access_key": "some-secret", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=self.url, **keys).create_bucket(Bucket=bucket)

    def _store(self, bucket: str) -> Any:
        from obstore.store import S3Store

        return S3Store(
            bucket,
            config={
                "endpoint": self.url,
                "access_key_id": "some-key",
                "secret_access_key": "some-secret",
                "region": "us-east-1",
            },
            client_options={"allow_http": True},
        )


@contextmanager
def storage() -> Iterator[Storage]:
    """moto's server, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield Storage(process.stdout.readline().strip())
        finally:
            process.kill()


_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()  # until the process that started it has ended
server.stop()
"""


@dataclass
class Request:
    """A request at the proxy: `number` counts those for objects (GET, with a range or not), from 0."""

    method: str
    path: str
    range: str
    number: int


@dataclass
class Faults:
    """What the proxy does before it asks the service, and to the answer.

    Attributes:
      before: called with each GET of an object; an HTTP status to answer instead, or None. It may sleep, or change objects.
      before_write: the same for each PUT, POST and DELETE.
      cut: whether an answer's body ends in the middle.
      is_public: whether requests need no signature.
      requests: all that were made.
      sent: bytes of bodies.
    """

    url: str
    before: Callable[[Request], int | None] = lambda _: None
    before_write: Callable[[Request], int | None] = lambda _: None
    cut: Callable[[Request], bool] = lambda _: False
    is_public: bool = True
    requests: list[Request] = field(default_factory=list)
    sent: int = 0


_DROPPED = {"connection", "transfer-encoding", "content-length", "date", "server"}


@contextmanager
def proxy(upstream: str) -> Iterator[Faults]:
    """A proxy before a service, in threads of this process."""
    address = urlsplit(upstream)
    lock = threading.Lock()
    faults = Faults("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            with lock:
                number = sum(
                    past_request.method == "GET" and bool(past_request.range) for past_request in faults.requests
                )
                request = Request(self.command, unquote(self.path), self.headers.get("range") or "", number)
                faults.requests.append(request)
            if request.method in ("PUT", "POST", "DELETE"):
                status = faults.before_write(request)
            else:
                status = faults.before(request) if request.method == "GET" and request.range else None
            if status is not None:
                self._answer(
                    status, {}, b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
                )
                return
            connection = http.client.HTTPConnection(str(address.hostname), address.port)
            headers = {key: value for key, value in self.headers.items() if key.lower() != "connection"}
            if faults.is_public and self.headers.get("Authorization", "").strip() in ("", "Bearer"):
                # moto refuses unsigned requests, and such without a token, which a GCS emulator takes.
                headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}
                headers["Authorization"] = "Bearer anybody"
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            kept = {key: value for key, value in answer.getheaders() if key.lower() not in _DROPPED}
            if self.command == "HEAD":
                kept["Content-Length"] = answer.getheader("content-length") or "0"
            connection.close()
            is_cut = request.method == "GET" and bool(request.range) and faults.cut(request)
            with lock:
                faults.sent += len(data)
            self._answer(answer.status, kept, data, len(data) // 2 if is_cut else None)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass

        def _answer(self, status: int, headers: dict[str, str], data: bytes, cut: int | None = None) -> None:
            self.send_response_only(status)
            for key, value in headers.items():
                self.send_header(key, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[:cut])
            if cut is not None:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(Handler) as url:
        faults.url = url
        yield faults


LARGE = 1000
"""Most bytes of a file that the hub keeps itself."""

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(folder: Path, repo: str) -> Iterator[str]:
    """A hub with the files of a folder as a dataset's only revision; large files are redirected to another address. Yields its address.

    Source of the answers' forms: huggingface_hub 2.4, hf_api.py (`repo_info`, `get_paths_info`, `list_repo_tree`, `list_datasets`).
    """
    organisation = repo.partition("/")[0]

    def about(path: Path) -> dict[str, Any]:
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
        data = path.read_bytes()
        told = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": name}
        if len(data) > LARGE:
            told["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return told

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
            if path == "/api/datasets":
                is_asked = query.get("author") == [organisation]
                self._json([{"id": repo, "sha": COMMIT, "private": False, "tags": []}] if is_asked else [])
            elif found := re.fullmatch(rf"/api/datasets/{repo}(/revision/(?P<revision>[^/]+))?", path):
                if found["revision"] in (None, "main", COMMIT):
                    self._json(
                        {
                            "id": repo,
                            "sha": COMMIT,
                            "siblings": [],
                            "private": False,
                            "tags": [],
                            "downloads": 0,
                            "likes": 0,
                        }
                    )
                else:
                    self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
            elif found := re.fullmatch(rf"/api/datasets/{repo}/tree/{COMMIT}(/(?P<path>.*))?", path):
                below = folder / (found["path"] or "")
                if below.is_dir():
                    is_deep = query.get("recursive", [""])[0].lower() == "true"
                    self._json([about(child) for child in sorted(below.rglob("*") if is_deep else below.iterdir())])
                else:
                    self._json({"error": "not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            elif found := re.fullmatch(rf"/datasets/{repo}/resolve/(main|{COMMIT})/(?P<path>.*)", path):
                self._file(folder / found["path"], path)
            elif found := re.fullmatch(r"/elsewhere/(?P<path>.*)", path):
                self._file(folder / found["path"], "")
            else:
                self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            wanted = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode())["paths"]
            self._json([about(folder / wanted_name) for wanted_name in wanted if (folder / wanted_name).exists()])

        def _file(self, path: Path, asked: str) -> None:
            if not path.is_file():
                self._json({"error": "not found"}, 404, {"X-Error-Code": "EntryNotFound"})
                return
            if asked and path.stat().st_size > LARGE:
                where = (
                    f"http://{self.headers['host']}/elsewhere/{path.relative_to(folder).as_posix()}?Signature=secret"
                )
                self._json({}, 302, {"Location": where})
                return
            size = path.stat().st_size
            bounds = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range") or "")
            start, stop = (int(bounds[1]), int(bounds[2]) + 1) if bounds else (0, size)
            with path.open("rb") as file:
                file.seek(start)
                part = file.read(stop - start)
            self.send_response_only(206 if bounds else 200)
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{size}")
            self.send_header("Content-Length", str(len(part)))
            self.send_header("ETag", f'"{hashlib.sha1(str(path).encode()).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(part)

        def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(value).encode()
            self.send_response_only(status)
            for key, text in {
                "Content-Type": "application/json",
                "Content-Length": str(len(data)),
                **(headers or {}),
            }.items():
                self.send_header(key, text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(Handler) as url:
        yield url


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that went away

    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def delayed(seconds: float) -> Callable[[Request], None]:
    """A `Faults.before` that waits before each answer."""

    def before(_: Request) -> None:
        time.sleep(seconds)

    return before
