"""`rlds2reverb mix` on a server in memory: every item once, and what each source gave."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rlds2reverb import cli
from rlds2reverb.cli import push
from rlds2reverb.client import Client
from rlds2reverb.testing import MemoryTransport
from tests.support.push import in_memory

Run = Callable[..., tuple[int, str, str]]
PARTS = ("bundled:cartpole@train[:3]", "bundled:cartpole@train[10:12]")


@pytest.fixture
def server() -> in_memory.Server:
    return in_memory.Server()


@pytest.fixture
def run(server: in_memory.Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process: its exit code, stdout, stderr."""
    monkeypatch.setattr(push, "open_client", lambda **_: Client(MemoryTransport(server)))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", *arguments, "--server", "memory:1", "--table", "replay"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


def report(shown: str) -> Any:
    return json.loads(shown)


def test_a_mix_pushes_every_item_once_and_tells_what_each_source_gave(run: Run, server: in_memory.Server) -> None:
    code, shown, said = run("mix", *PARTS, "--weights", "2,1", "--seed", "3", "--json")
    assert code == 0
    assert report(shown)["episodes_pushed"] == 5
    for part, episodes in zip(PARTS, (3, 2)):
        assert f"read of {part}: {episodes} episodes, " in said
    stored = dict(server.items["replay"])
    assert run("push", PARTS[0])[0] == 0
    assert run("push", f"mix:{'|'.join(PARTS)}|?seed=9")[0] == 0
    assert server.items["replay"].keys() == stored.keys()


def test_a_nominal_length_is_that_of_the_mix(run: Run) -> None:
    code, shown, _ = run("mix", *PARTS, "--length", "9", "--json")
    assert (code, report(shown)["episodes_pushed"]) == (0, 9)


def test_a_dry_run_sends_nothing(run: Run, server: in_memory.Server) -> None:
    code, shown, _ = run("mix", *PARTS, "--dry-run")
    assert code == 0
    assert "mix of bundled:cartpole" in shown
    assert server.items == {}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((*PARTS, "--weights", "1"), 2, "expected 2 positive numbers"),
        ((*PARTS, "--weights", "a,b"), 2, "expected numbers, such as 2,1"),
        ((PARTS[0], PARTS[0]), 3, "is there twice"),
        ((PARTS[0], "bundled:half_cheetah"), 3, "action: expected int64[], found float32[6]"),
        ((PARTS[0], "bundled:half_cheetah", "--columns", "common"), 3, "found float32[17]"),
        ((), 2, "SOURCE"),
    ],
)
def test_a_mix_without_sense_is_refused(run: Run, arguments: tuple[str, ...], code: int, message: str) -> None:
    found, _, said = run("mix", *arguments)
    assert found == code
    assert message in said
