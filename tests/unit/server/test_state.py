"""What a server tells of itself in different places never contradicts itself; with an in-memory Reverb."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from replay_server import http as http_module
from replay_server.config import decode, table_configs
from replay_server.http import make_app
from replay_server.monitor import Monitor, TableCounts
from replay_server.service import ReplayService
from replay_server.state import ServerState
from replay_server.status import rates_of, status

from rlds2reverb.errors import ServerUnreachable
from rlds2reverb.transport.http import MOST_BYTES
from rlds2reverb.wire.messages import ServerInfo
from tests.support.push.in_memory import table_info

pytestmark = pytest.mark.timeout(60)

NAME = 'replay": 1'
"""A name that a sentence about it must not be cut at."""
INFO = ServerInfo(7, {NAME: table_info(NAME), "other": table_info("other")})


class Reverb:
    """Answers, or does not."""

    def __init__(self) -> None:
        self.answers = True

    def ask(self) -> ServerInfo:
        if self.answers:
            return INFO
        raise ServerUnreachable("no answer")


@pytest.fixture
def reverb() -> Reverb:
    return Reverb()


@pytest.fixture
def state(tmp_path: Path, reverb: Reverb) -> ServerState:
    """Of a service that never starts."""
    config = decode({"tables": [{"name": NAME}], "checkpoints": {"folder": str(tmp_path)}}, "config")
    made = ReplayService(config, table_configs(config)).state
    made.monitor = Monitor(reverb.ask)
    return made


@pytest.fixture
def http(state: ServerState) -> FlaskClient:
    return make_app(state, nobody_asks).test_client()


def nobody_asks() -> Any:
    raise AssertionError("nobody asks for a checkpoint here")


def told(http: FlaskClient) -> tuple[bool, bool, list[str]]:
    """What /readyz says, then what /metrics says, and the tables of /status.json."""
    ready = http.get("/readyz").status_code == 200
    measured = "replay_ready 1.0" in http.get("/metrics").get_data(as_text=True)
    return ready, measured, [table["name"] for table in http.get("/status.json").get_json()["tables"]]


def test_who_was_told_that_it_is_ready_finds_the_same_everywhere(
    http: FlaskClient, state: ServerState, reverb: Reverb
) -> None:
    reverb.answers = False
    state.monitor.start()
    state.monitor.stop()  # it does not ask again in its thread: only /readyz does
    state.phase = "ready"
    assert told(http) == (False, False, [])
    reverb.answers = True
    assert told(http) == (True, True, sorted(INFO.tables))
    reverb.answers = False
    assert told(http) == (False, False, sorted(INFO.tables))  # as of the newest answer
    assert http.get("/status.json").get_json()["server"]["problem"] == "no answer"


@pytest.mark.parametrize("phase", ["starting", "restoring", "ready", "stopping"])
@pytest.mark.parametrize("problem", ["", "the folder is lost"])
@pytest.mark.parametrize("answers", [True, False])
def test_readiness_is_one_word_in_every_phase(
    http: FlaskClient, state: ServerState, reverb: Reverb, phase: Any, problem: str, answers: bool
) -> None:
    state.monitor.look()  # so that an answer of before is known
    state.phase, reverb.answers, state.lock._problem = phase, answers, problem
    ready, measured, _ = told(http)
    assert ready == measured == (phase == "ready" and answers and not problem)
    assert http.get("/healthz").get_json()["state"] == phase


def test_a_late_answer_does_not_replace_a_newer_one() -> None:
    asked, leave = threading.Event(), threading.Event()
    answers: list[Callable[[], ServerInfo]] = []

    def slow() -> ServerInfo:
        asked.set()
        assert leave.wait(30)
        return ServerInfo(1, {})

    answers += [slow, lambda: INFO]
    monitor = Monitor(lambda: answers.pop(0)())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(monitor.look)
        assert asked.wait(30)
        assert monitor.look().info is INFO
        leave.set()
        assert first.result().tables() == []
    assert monitor.snapshot.info is INFO


def test_who_asks_again_and_again_adds_nothing_to_the_history() -> None:
    monitor = Monitor(lambda: INFO)
    monitor.start()
    monitor.stop()
    for _ in range(50):
        monitor.look()
    assert len(monitor.history()) == 1


def test_the_words_of_a_limiter_are_whole_whatever_the_table_is_called(state: ServerState) -> None:
    state.monitor.look()
    words = {table["name"]: table["limiter"] for table in status(state)["tables"]}
    assert words[NAME] == words["other"]
    assert words[NAME]["inserts"].startswith("inserts may go on (")


@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 50)), max_size=300))
def test_rates_are_finite_and_never_negative_whatever_the_clock_does(steps: list[tuple[float, int]]) -> None:
    total, history = 0, []
    for when, inserts in steps:
        total += inserts
        history.append((round(when, 3), {"t": TableCounts(total, total, total)}))
    rates = rates_of("t", history)
    assert len(rates.time) == len(rates.inserts) == len(rates.samples) < 120
    assert all(0 <= rate < float("inf") for rate in rates.inserts)


def test_a_thousand_tables_with_their_curves_are_less_than_a_peer_reads(http: FlaskClient, state: ServerState) -> None:
    names = [f"table-{n:04d}" for n in range(1000)]
    info = ServerInfo(7, {name: table_info(name) for name in names})
    state.monitor = Monitor(lambda: info)
    state.monitor.look()
    for second in range(600):
        counts = dict.fromkeys(names, TableCounts(second * 123_457, second * 123_457, 10**6))
        state.monitor._history.append((1.8e9 + second * 1.001, counts))
    answer = http.get("/status.json").get_data()
    assert len(answer) < MOST_BYTES // 2
    assert len(json.loads(answer)["tables"][0]["rates"]["time"]) > 10


def test_pages_run_and_ask_nothing_but_their_own_server(http: FlaskClient) -> None:
    for path in ("/", "/runbook", "/page/status.js", "/page/probe.js", "/page/style.css"):
        with http.get(path) as answer:
            assert answer.status_code == 200
            policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'")
        assert "*" not in policy
        assert "http" not in policy


def test_pages_have_neither_scripts_nor_styles_nor_handlers_within() -> None:
    folder = Path(http_module.__file__).parent / "page"
    for path in folder.glob("*.html"):
        tags = re.findall(r"<[a-z][^>]*>", path.read_text())
        assert not [tag for tag in tags if re.search(r"\son[a-z]+=|\sstyle=|^<style|^<script(?![^>]*\ssrc=)", tag)]
    for path in folder.glob("*.*"):
        assert path.name == "runbook.html" or len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize(
    "path", ["/page/../http.py", "/page/..%2fhttp.py", "/page/%2e%2e/http.py", "/page/nothing", "/page/"]
)
def test_nothing_but_the_pages_files_is_handed_out(http: FlaskClient, path: str) -> None:
    assert http.get(path).status_code == 404
