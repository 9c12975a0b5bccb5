"""What a status page tells of other servers: sums, rows, and why one does not answer; never a wait, never an error of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replay_server.peers import Peers

from rlds2reverb.errors import TransportError
from rlds2reverb.transport.http import Status
from tests.support.cli.top_status import STATUS
from tests.support.forks import Forks
from tests.support.processes import eventually
from tests.support.server_running import Server, get


def status(size: int = 5, name: str = "replay", **server: Any) -> dict[str, Any]:
    limiter = {"inserts_blocked": False, "samples_blocked": True, "samples": "in words"}
    table = {"name": name, "size": size, "max_size": 10, "episodes": 2, "inserts": 7, "samples": 3, "limiter": limiter}
    return {**STATUS, "server": {**STATUS["server"], "memory_bytes": 100, **server}, "tables": [table], "more": 1}


def told_by(answers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    group = Peers(list(answers), lambda address: msgspec.convert(answers[address](), Status))
    group.ask_all()
    return group.document(status())


def test_tables_of_one_name_add_up() -> None:
    told = told_by({"b:8080": lambda: status(size=4), "c:8080": lambda: status(size=1, name="other")})
    assert [server["address"] for server in told["servers"]] == ["this server", "b:8080", "c:8080"]
    assert told["tables"] == [
        {"name": "other", "servers": 1, "size": 1, "max_size": 10, "episodes": 2, "inserts": 7, "samples": 3},
        {"name": "replay", "servers": 2, "size": 9, "max_size": 20, "episodes": 4, "inserts": 14, "samples": 6},
    ]


def test_one_that_gives_no_status_says_why_and_is_not_counted() -> None:
    def fail() -> Any:
        raise TransportError("refused")

    told = told_by({"b:8080": fail})
    assert told["servers"][1]["state"] == "no answer"
    assert told["servers"][1]["problem"] == "refused"
    assert told["tables"][0]["size"] == 5


def test_nobody_waits_and_they_are_asked_once_at_a_time() -> None:
    go_on, asked = threading.Event(), []

    def ask(address: str) -> Any:
        asked.append(address)
        go_on.wait(10)
        return msgspec.convert(status(size=1), Status)

    group = Peers(["b:8080"], ask)
    for _ in range(5):
        assert group.document(status())["servers"][1]["state"] == "no answer"
    go_on.set()

    def check() -> None:
        assert group.document(status())["tables"][0]["size"] == 6

    eventually(check)
    assert asked == ["b:8080"]


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
