"""What is read of a server's status, and what is refused of whatever else answers over HTTP."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, Rlds2ReverbError, ServerUnreachable, TransportError, WireError
from rlds2reverb.transport.http import ServerHttp, Status
from tests.support.cli.top_status import STATUS
from tests.support.processes import dead_port

PATIENCE = 60.0
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def read(document: Any) -> Status:
    return ServerHttp("http://a")._decode(json.dumps(document).encode(), Status, "status")


@given(st.sampled_from(["server", "checkpoints"]), st.data(), JSON)
def test_anything_else_is_an_error_of_ours_or_has_the_types(part: str, data: st.DataObject, value: Any) -> None:
    document = copy.deepcopy(STATUS)
    document[part][data.draw(st.sampled_from(list(document[part])))] = value
    try:
        status = read(document)
    except WireError:
        return
    for number in (status.server.now, status.server.memory_bytes, status.checkpoints.failures):
        assert abs(number) < 2**63


@pytest.mark.parametrize("document", [None, [], {}, {"server": 1}, {"server": {}, "checkpoints": {}}, "text"])
def test_what_is_no_status_is_refused(document: Any) -> None:
    with pytest.raises(WireError, match="not that of a replay server"):
        read(document)


@pytest.mark.parametrize("value", [10**400, "1", None, -1, 0.5])
def test_a_count_is_a_count(value: Any) -> None:
    with pytest.raises(WireError, match=r"server\.memory_bytes|not JSON"):
        read({**STATUS, "server": {**STATUS["server"], "memory_bytes": value}})


class Answer:
    """What the server of a test answers with, and what it was asked for."""

    def __init__(self) -> None:
        self.status, self.body, self.paths = 200, json.dumps(STATUS).encode(), []  # type: ignore[var-annotated]
        self.headers: dict[str, str] = {}
        self.url = ""


@pytest.fixture
def answer() -> Iterator[Answer]:
    """A real HTTP server, and what it answers."""
    given = Answer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.paths.append(self.path)
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(given.body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        given.url = f"http://127.0.0.1:{server.server_port}"
        yield given
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "asked"), [("", "/status.json"), ("/", "/status.json"), ("/a/b/", "/a/b/status.json")]
)
def test_a_service_is_asked_for_its_status(answer: Answer, path: str, asked: str) -> None:
    assert ServerHttp(f"{answer.url}{path}").status(PATIENCE) == read(STATUS)
    assert answer.paths == [asked]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"", "HTTP 404; is this the server's http.port"),
        (421, b"", "http.allowed_hosts"),
        (302, b"", "HTTP 302"),
        (200, b"<html>", "its status is not JSON"),
        (200, b"[" * 100_000, "its status is not"),
        (200, b"\xff\xfe", "its status is not JSON"),
        (200, b"{}", "not that of a replay server"),
        (200, b" " * ((8 << 20) + 1), "larger than"),
    ],
)
def test_other_answers_are_told(answer: Answer, status: int, body: bytes, said: str) -> None:
    answer.status, answer.body = status, body
    answer.headers = {"Location": "http://127.0.0.1:1/"} if status == 302 else {}
    with pytest.raises((TransportError, WireError), match=said):
        ServerHttp(answer.url).status(PATIENCE)


def test_where_nobody_listens_that_is_told() -> None:
    with dead_port() as port, pytest.raises(ServerUnreachable, match="no answer"):
        ServerHttp(f"http://127.0.0.1:{port}").status(PATIENCE)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://a", "http://", "http://a:0", "http://a:x", "http://a/?q=1", "http://a b", "http://[::1", "http://a\x1b"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected an address such as"):
        ServerHttp(url)


def test_certificates_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificates cannot be used"):
        ServerHttp("https://a", tmp_path / "absent.pem")
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigError, match="certificates cannot be used"):
        ServerHttp("https://a", None, tmp_path / "empty.pem", tmp_path / "empty.pem")


def test_tls_where_there_is_none_is_told(answer: Answer) -> None:
    with pytest.raises(Rlds2ReverbError, match="no answer"):
        ServerHttp(answer.url.replace("http:", "https:")).status(PATIENCE)
