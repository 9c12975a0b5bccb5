"""`rlds2reverb push` that is interrupted: at any time it says what is stored."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from rlds2reverb import cli, client
from rlds2reverb.cli import push
from rlds2reverb.cli.push import print_report
from rlds2reverb.client import Client
from rlds2reverb.episode import Notice, note
from rlds2reverb.push.report import PushReport
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


# How a push looks, as a person reads it.

MADE = {"a": 4000, "b": 3}


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (PushReport("s", ("a",), "v", items_made={"a": 4000}), ""),
        (PushReport("s", ("a", "b"), "v", items_made=MADE), "a 4,000, b 3"),
        (
            PushReport("s", ("a", "b"), "v", items_made=MADE, episodes_resumed=2),
            "a 4,000, b 3, those of resumed episodes included",
        ),
    ],
)
def test_what_was_made_is_no_part_of_what_was_confirmed(
    capsys: pytest.CaptureFixture[str], report: PushReport, line: str
) -> None:
    print_report(as_json=False, report=report)
    told = dict(row.split("  ", 1) for row in capsys.readouterr().out.splitlines())
    assert told["confirmed"].strip().startswith("0 items")
    assert "(" not in told["confirmed"]
    assert told.get("items made", "").strip() == line


def test_what_was_said_of_the_dataset_and_done_to_its_ends_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Notice("lost_records", "50 of 150 are missing", 50)
    notices = (note("last_step", "it is repeated"), lost, Notice("rounded_float64", "all", 9, "action"))
    print_report(
        as_json=False, report=PushReport("s", ("a",), "v", ends_mended=1200, ends_found_late=1, notices=notices)
    )
    *fields, first, second, third = capsys.readouterr().out.splitlines()
    told = dict(row.split("  ", 1) for row in fields)
    assert told["ends"].strip() == "1,200 last observations not as recorded"
    assert told["ends late"].strip() == "1 episode stored whose end is not its own: notice ends_found_late"
    assert first == "note last_step: it is repeated"
    assert second == "advice lost_records: 50 of 150 are missing"
    assert third == 'advice rounded_float64: column "action": all'
    print_report(as_json=True, report=PushReport("s", ("a",), "v", notices=notices))
    assert json.loads(capsys.readouterr().out)["notices"][1] == notices[1].as_dict()
