"""`rlds2reverb record` as a person uses it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb import cli, open_source
from rlds2reverb.cli import push
from rlds2reverb.client import Client
from rlds2reverb.testing import MemoryTransport
from tests.support.processes import started, wait_until
from tests.support.push import in_memory

pytestmark = pytest.mark.full

SLOW = """
import time

def balance(observation):
    time.sleep(0.002)
    return int(observation[2] > 0)
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the program in this process: its exit code, stdout and stderr."""
    server = in_memory.Server()
    monkeypatch.setattr(push, "open_client", lambda **_: Client(MemoryTransport(server)))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "record", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


def test_a_dataset_and_more_of_it(run: Any, tmp_path: Path) -> None:
    name = f"minari:{tmp_path}/cart-v0"
    code, out, err = run("CartPole-v1", name, "--episodes", "4", "--verify")
    assert (code, err) == (0, "")
    assert "verified     4 episodes" in out
    code, out, _ = run("CartPole-v1", name, "--episodes", "6", "--append")
    assert code == 0
    assert "written      2 episodes" in out
    assert "duplicate 4" in out
    assert open_source(name).episode_count == 6


def test_into_a_table_each_item_once(run: Any) -> None:
    arguments = ("CartPole-v1", "--steps", "50", "--server", "memory:1", "--table", "replay")
    code, out, _ = run(*arguments)
    assert code == 0
    assert "confirmed" in out
    assert ", 0 new" not in out
    code, again, _ = run(*arguments)
    assert code == 0
    assert ", 0 new" in again


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("CartPole-v1", "--episodes", "1"), 2, "say where the episodes go"),
        (("CartPole-v1", "minari:{}", "--episodes", "1", "--steps", "1"), 2, "and not both"),
        (("CartPole-v1", "minari:{}"), 2, "say how much to play"),
        (("CartPole-v1", "minari:{}", "--episodes", "1", "--table", "replay"), 2, "--table: of a server"),
        (
            ("CartPole-v1", "--episodes", "1", "--server", "a:1", "--table", "x", "--verify"),
            2,
            "--verify: of a dataset",
        ),
        (("CartPole-v1", "--episodes", "1", "--server", "a:1"), 2, "name the tables to fill"),
        (("CartPole-v1", "minari:{}", "--episodes", "1", "--policy", "no:such"), 2, "cannot be imported"),
        (("CartPole-v77", "minari:{}", "--episodes", "1"), 3, "cannot be made"),
    ],
)
def test_what_makes_no_sense_is_told(run: Any, arguments: tuple[str, ...], code: int, why: str, tmp_path: Path) -> None:
    given = [text.format(tmp_path / "cart-v0") for text in arguments]
    stopped, _, err = run(*given)
    assert (stopped, why in err) == (code, True), err
    assert list(tmp_path.iterdir()) == []


def test_without_gymnasium_it_says_how_to_get_it(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("environments", "spaces", "collector"):
        monkeypatch.delitem(sys.modules, f"rlds2reverb.adapters.gymnasium.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    code, _, err = run("CartPole-v1", f"minari:{tmp_path}/cart-v0", "--episodes", "1")
    assert code == 3
    assert "playing an environment needs gymnasium; install with" in err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_stopped_goes_on(number: signal.Signals, run: Any, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    name = f"tfds:{tmp_path}/cart"
    arguments = ["CartPole-v1", name, "--episodes", "40", "--policy", "slow:balance", "--quiet"]
    script = "import rlds2reverb.conversion.convert as c; c.SYNC_SECONDS = 0; from rlds2reverb.cli import main; main()"
    progress = tmp_path / "cart" / ".converting-1.0.0" / "progress.json"
    with started(
        tmp_path, "-c", script, "record", *arguments, PYTHONPATH=f"{tmp_path}:{':'.join(sys.path)}"
    ) as process:
        wait_until(progress.exists)
        process.end(number)
    assert progress.exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        code, out, err = run(*arguments, "--json")
    assert code == 0, err
    assert json.loads(out)["episodes_resumed"] > 0
    assert len({episode.id for episode in open_source(f"{name}/1.0.0")}) == 40
