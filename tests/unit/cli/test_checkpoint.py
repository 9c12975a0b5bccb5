"""`rlds2reverb checkpoint` and the token that a server may want."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from rlds2reverb.cli.checkpoint import command
from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError

WRITTEN = {
    "generation": 3,
    "folder": "/checkpoints/000003",
    "items": {"t": 5},
    "bytes": 7,
    "seconds": 0.5,
    "written": True,
}


class Server(BaseHTTPRequestHandler):
    """Notes what it is asked, and answers as it is told."""

    asked: ClassVar[list[tuple[str, str, str | None]]] = []
    answer: ClassVar[tuple[int, dict[str, Any], dict[str, str]]] = (200, WRITTEN, {})

    def do_POST(self) -> None:
        self.asked.append((self.command, self.path, self.headers.get("Authorization")))
        status, document, headers = self.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        """Nothing to standard error."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("RLDS2REVERB_TOKEN", raising=False)
    Server.asked.clear()
    Server.answer = (200, WRITTEN, {})
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(url: str, *arguments: str, **environment: str) -> Any:
    """The result; an error of ours is raised."""
    result = CliRunner().invoke(command, ["--http", url, *arguments], env=environment)
    if result.exception is not None:
        raise result.exception
    return result


def test_the_token_comes_from_an_option_a_file_or_the_environment(url: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    run(url)
    run(url, "--token", "s3cret")
    run(url, "--token-file", str(file))
    assert json.loads(run(url, "--json", RLDS2REVERB_TOKEN="s3cret").stdout) == WRITTEN
    ask, sent = ("POST", "/checkpoint"), "Bearer s3cret"
    assert Server.asked == [(*ask, None), (*ask, sent), (*ask, sent), (*ask, sent)]


def test_a_token_that_is_none_is_refused_before_anything_is_asked(url: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    for arguments, message in (
        (("--token", "a", "--token-file", str(file)), "give one of them"),
        (("--token-file", str(file)), r"--token-file .*token: cannot be read"),
        (("--token", "two words"), "--token: expected visible ASCII"),
        (("--token", "s\u00e9cret"), "--token: expected visible ASCII"),
        (("--token", ""), "--token: expected visible ASCII"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(url, *arguments)
    file.write_text("\n")
    with pytest.raises(ConfigError, match=r"--token-file .*: expected visible ASCII"):
        run(url, "--token-file", str(file))
    assert Server.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_token_is_not_carried_elsewhere(url: str, status: int) -> None:
    Server.answer = (status, {}, {"Location": f"{url}/elsewhere"})
    with pytest.raises(TransportError, match=f"HTTP {status}"):
        run(url, "--token", "s3cret")
    assert Server.asked == [("POST", "/checkpoint", "Bearer s3cret")]


@pytest.mark.parametrize(("status", "may_help"), [(401, False), (403, False), (421, False), (503, True)])
def test_what_the_server_says_is_told(url: str, status: int, may_help: bool) -> None:
    Server.answer = (status, {"error": "so it is"}, {})
    with pytest.raises(TransportError, match="no checkpoint: so it is") as caught:
        run(url)
    assert caught.value.retryable == may_help


def test_what_does_not_speak_http_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\n")  # how gRPC begins

        answered = pool.submit(answer)
        with pytest.raises(ServerUnreachable, match=r"does not speak HTTP; give http\.port"):
            run(f"http://127.0.0.1:{listening.getsockname()[1]}")
        answered.result(30)
