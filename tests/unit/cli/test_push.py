"""`rlds2reverb push` that is interrupted: at any time it says what is stored."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from rlds2reverb import cli, client
from rlds2reverb.cli import push
from rlds2reverb.client import Client
from rlds2reverb.push.run import Push
from rlds2reverb.testing import MemoryTransport
from tests.support.push import in_memory

SOURCE = "bundled:cartpole@train[:3]"


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


class Interrupted(Push):
    """One that is interrupted when it has done everything."""

    def run(self) -> Any:
        super().run()
        raise KeyboardInterrupt


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Pushes in this process: its exit code, stdout, stderr."""
    server = in_memory.Server()
    monkeypatch.setattr(push, "open_client", lambda **_: Client(MemoryTransport(server)))

    def run(*arguments: str) -> tuple[int, str, str]:
        given = ["push", SOURCE, "--server", "memory:1", "--table", "replay", *arguments]
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", *given])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("module", "what"), [(push, "open_client"), (push, "open_dataset"), (client, "plan_push"), (client, "Push")]
)
def test_before_anything_is_sent_it_says_that_nothing_is_stored(
    run: Any, monkeypatch: pytest.MonkeyPatch, module: ModuleType, what: str
) -> None:
    monkeypatch.setattr(module, what, interrupt)
    code, shown, said = run()
    assert (code, shown) == (130, "")
    assert said.split("\n", 1)[0] == "stopped before anything was sent; nothing of this push is stored"
    assert said.endswith("\nrlds2reverb: interrupted\n")


def test_a_dry_run_stores_nothing_anyway(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "open_dataset", interrupt)
    assert "stored" not in run("--dry-run")[2]


def test_after_everything_was_sent_it_prints_the_account(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "Push", Interrupted)
    code, shown, said = run("--json")
    account = json.loads(shown)
    assert (code, account["episodes_pushed"], account["stopped"]) == (130, 3, "interrupted")
    assert account["items_confirmed"] > 0
    assert "run again, adds the rest" in said
