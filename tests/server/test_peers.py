"""What a status page tells of other servers: sums, rows, and why one does not answer; never a wait, never an error of its own."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from replay_server import peers
from replay_server.peers import PeerError, Peers, fetch

from tests.processes import eventually
from tests.server.forks import Forks
from tests.server.running import Server, get


def status(size: int = 5, name: str = "replay", **server: Any) -> dict[str, Any]:
    limiter = {"inserts_blocked": False, "samples_blocked": True, "samples": "in words"}
    table = {"name": name, "size": size, "max_size": 10, "episodes": 2, "inserts": 7, "samples": 3, "limiter": limiter}
    return {"server": {"state": "ready", "problem": "", "memory_bytes": 100, **server}, "tables": [table], "more": 1}


def told_by(answers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    group = Peers(list(answers), lambda address: answers[address]())
    group.ask_all()
    return group.document(status())


def test_tables_of_one_name_add_up() -> None:
    told = told_by({"b:8080": lambda: status(size=4), "c:8080": lambda: status(size=1, name="other")})
    assert [server["address"] for server in told["servers"]] == ["this server", "b:8080", "c:8080"]
    assert told["tables"] == [
        {"name": "other", "servers": 1, "size": 1, "max_size": 10, "episodes": 2, "inserts": 7, "samples": 3},
        {"name": "replay", "servers": 2, "size": 9, "max_size": 20, "episodes": 4, "inserts": 14, "samples": 6},
    ]


def fail() -> Any:
    raise PeerError("refused")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (fail, "refused"),
        (lambda: {"server": 3}, "its status is not that of a replay server: Expected `object`"),
        (lambda: {**status(), "tables": [{"name": "<b>"}]}, "not that of a replay server: Object missing"),
        (list, "not that of a replay server"),
    ],
)
def test_one_that_gives_no_status_says_why_and_is_not_counted(answer: Callable[[], Any], problem: str) -> None:
    told = told_by({"b:8080": answer})
    assert told["servers"][1]["state"] == "no answer"
    assert problem in told["servers"][1]["problem"]
    assert told["tables"][0]["size"] == 5


def test_nobody_waits_and_they_are_asked_once_at_a_time() -> None:
    go_on, asked = threading.Event(), []

    def ask(address: str) -> Any:
        asked.append(address)
        go_on.wait(10)
        return status(size=1)

    group = Peers(["b:8080"], ask)
    for _ in range(5):
        assert group.document(status())["servers"][1]["state"] == "no answer"
    go_on.set()

    def check() -> None:
        assert group.document(status())["tables"][0]["size"] == 6

    eventually(check)
    assert asked == ["b:8080"]


@contextmanager
def answering(code: int, body: bytes, length: int | None = None) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.send_header("Location", "http://localhost:1/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("code", "body", "problem"),
    [
        (421, b"{}", "add it to its http.allowed_hosts"),
        (302, b"", "HTTP 302"),
        (500, b"{}", "HTTP 500"),
        (200, b"no json", "not JSON"),
        (200, b"x" * 200, "larger than 100 bytes"),
    ],
)
def test_what_is_no_status_is_refused(monkeypatch: pytest.MonkeyPatch, code: int, body: bytes, problem: str) -> None:
    monkeypatch.setattr(peers, "_MOST_BYTES", 100)
    with answering(code, body) as address, pytest.raises(PeerError, match=problem):
        fetch(address)


def test_a_status_is_fetched() -> None:
    with answering(200, json.dumps(status()).encode()) as address:
        assert fetch(address) == status()
    with pytest.raises(PeerError, match="refused"):
        fetch(address)
    with answering(200, b"{", length=10) as address, pytest.raises(PeerError):
        fetch(address)


@pytest.mark.server
def test_a_real_server_sums_up_another_and_says_when_it_is_gone(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    tables = [{"name": "replay", "max_size": 10}]
    with Server(forks, tmp_path / "one", {"tables": tables}).until_ready() as one:
        config = {"tables": tables, "http": {"peers": [f"localhost:{one.http}"]}}
        with Server(forks, tmp_path / "two", config).until_ready() as two:

            def both() -> None:
                together = get(f"{two.url}/status.json")[1]["together"]
                assert [server["state"] for server in together["servers"]] == ["ready", "ready"]
                assert together["tables"][0]["max_size"] == 20

            eventually(both)
            assert get(f"{one.url}/status.json")[1]["together"] is None
            one.__exit__(None, None, None)

            def alone() -> None:
                together = get(f"{two.url}/status.json")[1]["together"]
                assert [server["state"] for server in together["servers"]] == ["ready", "no answer"]
                assert together["tables"][0]["max_size"] == 10

            eventually(alone)
