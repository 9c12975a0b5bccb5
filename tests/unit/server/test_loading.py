"""What answers while Reverb loads a checkpoint and this process cannot."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from replay_server import loading, logs
from replay_server.http import PAGE_HEADERS, page_files
from replay_server.loading import LoadProgress, stand_in

from tests.support.processes import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

STATUS = {"server": {"state": "restoring", "now": 0.0, "progress": []}, "tables": []}


def ask(port: int, path: str, host: str = "localhost", method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def standing_in(listening: socket.socket, total: int) -> Any:
    log = {"form": "json", "level": "info"}
    return stand_in(total, [listening.fileno()], frozenset({"localhost"}), page_files(), PAGE_HEADERS, STATUS, log)


def test_another_process_answers_and_says_how_far_it_is(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.write_bytes(bytes(8 << 20))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with standing_in(listening, 16 << 20):
            assert ask(port, "/healthz", "elsewhere") == (200, '{"status": "alive", "state": "restoring"}')
            file.read_bytes()

            def check_half() -> None:
                code, text = ask(port, "/readyz")
                share = re.search(r"the server is restoring (\d+) %", json.loads(text)["reason"])
                assert code == 503
                assert share is not None
                assert 50 <= int(share[1]) < 60

            eventually(check_half)
            server = json.loads(ask(port, "/status.json")[1])["server"]
            assert (server["state"], server["progress"][0]["what"]) == ("restoring", "loading the checkpoint")
            assert server["progress"][0]["of_bytes"] == 16 << 20
            assert server["now"] > 1e9
            code, page = ask(port, "/")
            assert (code, "<!doctype html>" in page.lower()) == (200, True)
            assert ask(port, "/page/status.js")[0] == 200
            assert ask(port, "/page/../loading.py")[0] == 503
            assert ask(port, "/status.json", "elsewhere.example")[0] == 421
            assert ask(port, "/checkpoint", method="POST")[0] == 503
        listening.settimeout(0.2)
        with socket.create_connection(("127.0.0.1", port)), listening.accept()[0]:
            pass  # the socket is this process's again


def test_a_process_that_cannot_be_started_stops_no_start(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with socket.create_server(("127.0.0.1", 0)) as listening, standing_in(listening, 1):
        pass
    assert "nobody answers while the checkpoint is loaded" in "".join(capfd.readouterr())


def test_what_the_system_does_not_say_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = {"pid": os.getpid(), "before": 0, "total": 1 << 60, "status": STATUS}
    assert LoadProgress(setup).words() == " 0 %"
    monkeypatch.setattr(loading, "bytes_read", lambda _: None)
    assert (LoadProgress(setup).words(), list(LoadProgress(setup).fields())) == ("", ["seconds"])


def test_work_under_way_is_told_until_it_ends() -> None:
    with (
        logs.log_progress(logs.logger("test"), "first", lambda: logs.share(43, 100)),
        logs.log_progress(logs.logger("test"), "second"),
    ):
        works = logs.under_way()
        assert [work["what"] for work in works] == ["first", "second"]
        assert works[0]["percent"] == 43
    assert logs.under_way() == []
