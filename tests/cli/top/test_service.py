"""What is taken from a service's status, and what is refused of whatever else answers over HTTP."""

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

from rlds2reverb.cli.top.service import Address, Checkpoint, read
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, ServerUnreachable, TransportError, WireError
from tests.cli.top.made import NOW, STATUS
from tests.processes import dead_port

PATIENCE = 60.0
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_a_status_is_read() -> None:
    service = read(STATUS)
    assert (service.phase, service.memory_bytes, service.started_at) == ("ready", 1_234_000_000, NOW - 7200)
    assert service.checkpoint == Checkpoint(42, NOW - 300, 5_000_000)
    assert service.checkpoint_problem == ""


def test_the_folders_problem_comes_before_the_last_error() -> None:
    part = {**STATUS["checkpoints"], "problem": "lost", "last_error": "full", "failures": 3}
    service = read({**STATUS, "checkpoints": part})
    assert (service.checkpoint_problem, service.failures) == ("lost", 3)


def test_texts_are_one_line_that_no_terminal_obeys() -> None:
    service = read({**STATUS, "server": {**STATUS["server"], "problem": "a\n\x1b[2Jb"}})
    assert service.problem == "a \\x1b[2Jb"


@given(st.sampled_from(["server", "checkpoints"]), st.data(), JSON)
def test_anything_else_is_an_error_of_ours_or_has_the_types(part: str, data: st.DataObject, value: Any) -> None:
    document = copy.deepcopy(STATUS)
    document[part][data.draw(st.sampled_from(list(document[part])))] = value
    try:
        service = read(document)
    except WireError:
        return
    for number in (service.now, service.started_at, service.memory_bytes, service.failures):
        assert abs(number) < 2**63
    assert service.problem.isprintable()


@pytest.mark.parametrize("document", [None, [], {}, {"server": 1}, {"server": {}, "checkpoints": {}}, "text"])
def test_what_is_no_status_is_refused(document: Any) -> None:
    with pytest.raises(WireError, match="not that of a replay server"):
        read(document)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "1", None])
def test_a_number_is_a_number(value: Any) -> None:
    with pytest.raises(WireError, match='expected a number "memory_bytes"'):
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
    assert Address(f"{answer.url}{path}").ask(PATIENCE) == read(STATUS)
    assert answer.paths == [asked]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"", "HTTP 404; is this the server's http.port"),
        (421, b"", "http.allowed_hosts"),
        (302, b"", "HTTP 302"),
        (200, b"<html>", "its status is not JSON"),
        (200, b"[" * 100_000, "its status is not JSON"),
        (200, b"\xff\xfe", "its status is not JSON"),
        (200, b"{}", "not that of a replay server"),
        (200, b" " * ((8 << 20) + 1), "larger than"),
    ],
)
def test_other_answers_are_told(answer: Answer, status: int, body: bytes, said: str) -> None:
    answer.status, answer.body = status, body
    answer.headers = {"Location": "http://127.0.0.1:1/"} if status == 302 else {}
    with pytest.raises((TransportError, WireError), match=said):
        Address(answer.url).ask(PATIENCE)


def test_where_nobody_listens_that_is_told() -> None:
    with dead_port() as port, pytest.raises(ServerUnreachable, match="no answer"):
        Address(f"http://127.0.0.1:{port}").ask(PATIENCE)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://a", "http://", "http://a:0", "http://a:x", "http://a/?q=1", "http://a b", "http://[::1", "http://a\x1b"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected an address such as"):
        Address(url)


def test_certificates_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificates cannot be used"):
        Address("https://a", tmp_path / "absent.pem")
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigError, match="certificates cannot be used"):
        Address("https://a", None, tmp_path / "empty.pem", tmp_path / "empty.pem")


def test_tls_where_there_is_none_is_told(answer: Answer) -> None:
    with pytest.raises(Rlds2ReverbError, match="no answer"):
        Address(answer.url.replace("http:", "https:")).ask(PATIENCE)
