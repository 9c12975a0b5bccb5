"""The commands on real datasets and a real server, as a user runs them."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import replay_server
from replay_server import TableConfig
from replay_server.tables import SampleToInsertRatio

import rlds2reverb
from rlds2reverb import cli
from rlds2reverb.views import view_of
from tests.conformance import bad_dataset
from tests.support.forks import Forks
from tests.support.processes import started, wait_until


@dataclass
class Shown:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    """Runs the program in this process, as the console script would."""

    def run(*arguments: str) -> Shown:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", *arguments])
        try:
            cli.main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return Shown(code, captured.out, captured.err)

    return run


Run = Callable[..., Shown]


@pytest.fixture(scope="module")
def cartpole(forks: Forks) -> Iterator[Any]:
    spec = rlds2reverb.open_source("bundled:cartpole").spec()
    tables = [
        TableConfig("replay", view_of("two_step").signature(spec)),
        TableConfig("eights", view_of("sequence:length=8,stride=4").signature(spec)),
        TableConfig("moves", view_of("transition").signature(spec)),
        TableConfig("again", view_of("two_step").signature(spec)),
        TableConfig("queue", view_of("two_step").signature(spec), sampler="fifo", max_times_sampled=1),
        TableConfig("empty"),
        TableConfig("small", view_of("two_step").signature(spec), max_size=100),
        TableConfig(
            "blocked",
            view_of("two_step").signature(spec),
            rate_limiter=SampleToInsertRatio(samples_per_insert=1.0, error_buffer=10.0),
        ),
    ]
    with forks.embedded(tables) as server:
        yield server


def test_push_fills_a_table_and_again_adds_nothing(run: Run, cartpole: Any, tmp_path: Path) -> None:
    arguments = ("push", "bundled:cartpole", "--server", cartpole.address, "--table", "replay", "--json")
    first = run(*arguments, "--ledger", str(tmp_path / "ledger.db"))
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert (report["episodes_pushed"], report["steps_pushed"], report["items_confirmed"]) == (25, 2956, 2931)
    again = json.loads(run(*arguments).stdout)
    assert (again["items_confirmed"], again["items_new"]) == (2931, 0)
    resumed = json.loads(run(*arguments, "--ledger", str(tmp_path / "ledger.db")).stdout)
    assert (resumed["episodes_resumed"], resumed["items_confirmed"]) == (25, 0)
    status = json.loads(run("status", "--server", cartpole.address, "--json").stdout)
    assert status["replay"]["size"] == 2931
    assert status["replay"]["signature"]["observation"] == "float32[2, 4]"


def test_push_prints_a_summary_for_people(run: Run, cartpole: Any) -> None:
    shown = run("push", "bundled:cartpole@train[:3]", "--server", cartpole.address, "--table", "eights",
                "--view", "sequence:length=8,stride=4")  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "3 episodes" in shown.stdout
    assert "items/s" in shown.stdout


def test_push_says_once_which_columns_no_item_holds(run: Run, cartpole: Any) -> None:
    push = ("push", "bundled:cartpole", "--limit", "1", "--server", cartpole.address)
    assert run(*push, "--table", "replay").stderr == ""
    told = run(*push, "--table", "moves", "--view", "transition", "--json")
    assert told.stderr == "not in the items: discount, is_first\n"
    assert json.loads(told.stdout)["not_in_items"] == {"moves": ["discount", "is_first"]}
    both = run(*push, "--into", "replay=two_step", "--into", "moves=transition", "--dry-run")
    assert both.stderr.startswith("not in the items of moves: discount, is_first\n")


def test_push_takes_the_first_episodes_where_it_is_told_how_many(run: Run, cartpole: Any) -> None:
    shown = run("push", "bundled:cartpole", "--limit", "1", "--server", cartpole.address, "--table", "replay")
    assert shown.returncode == 0, shown.stderr
    assert "bundled:cartpole, first 1\n" in shown.stdout
    assert "(view two_step)" in shown.stdout
    assert "1 episode, 39 steps\n" in shown.stdout


def test_pushed_again_it_says_that_nothing_was_new(run: Run, cartpole: Any) -> None:
    arguments = ("push", "bundled:cartpole@train[:3]", "--server", cartpole.address, "--table", "again")
    assert "78 items, 78 new" in run(*arguments).stdout
    assert "78 items, 0 new" in run(*arguments).stdout


def test_dry_run_sends_nothing(run: Run, cartpole: Any) -> None:
    before = run("status", "--server", cartpole.address, "--json").stdout
    shown = run("push", "bundled:cartpole", "--server", cartpole.address, "--table", "replay", "--dry-run")
    assert shown.returncode == 0
    assert "nothing was sent" in shown.stderr
    assert "of at most 1,000,000 items, so " in shown.stdout
    assert "  observation     float32[2, 4]\n" in shown.stdout
    assert run("status", "--server", cartpole.address, "--json").stdout == before


@pytest.mark.parametrize("more", [(), ("--workers", "2"), ("--ledger", "l.db")], ids=str)
def test_dry_run_refuses_what_the_push_refuses_before_the_first_byte(
    run: Run, cartpole: Any, tmp_path: Path, more: tuple[str, ...]
) -> None:
    given = [str(tmp_path / argument) if argument == "l.db" else argument for argument in more]
    push = ("push", "bundled:cartpole", "--server", cartpole.address, "--table", "small", *given)
    for command in ((*push, "--dry-run"), push):
        shown = run(*command)
        assert shown.returncode == 4, shown.stderr
        assert "max_size 100 is smaller than the push (2931 items)" in shown.stderr
    assert json.loads(run("status", "--server", cartpole.address, "--json").stdout)["small"]["size"] == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said", "stored"),
    [
        (("--table", "nothere"), 2, 'no table "nothere"', None),
        (("--table", "eights"), 4, "observation: items have float32[2, 4], table has float32[8, 4]", None),
        (
            ("--table", "small"),
            4,
            "max_size 100 is smaller than the push",
            "0 episodes read and not confirmed, 25 episodes not read",
        ),
        (("--table", "blocked", "--stall-seconds", "3"), 5, 'table "blocked": inserting waits for', "11 items"),
    ],
)
def test_a_table_that_does_not_fit_is_said_on_one_line(
    run: Run, cartpole: Any, arguments: tuple[str, ...], exit_code: int, said: str, stored: str | None
) -> None:
    shown = run("push", "bundled:cartpole", "--server", cartpole.address, *arguments)
    assert shown.returncode == exit_code
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr
    assert ("not stored" in shown.stdout) is (stored is not None)
    assert stored is None or stored in shown.stdout
    assert sum(line.startswith("rlds2reverb: error:") for line in shown.stderr.splitlines()) == 1


def test_sample_shows_what_a_push_stored_and_takes_no_more_than_it_shows(run: Run, cartpole: Any) -> None:
    assert run("push", "bundled:cartpole@train[:2]", "--server", cartpole.address, "--table", "queue").returncode == 0
    arguments = ("sample", "--server", cartpole.address, "--table", "queue")
    shown = run(*arguments, "-n", "3", "--json", "--values", "8")
    assert shown.returncode == 0, shown.stderr
    items = [json.loads(line) for line in shown.stdout.splitlines()]
    steps = next(iter(rlds2reverb.open_source("bundled:cartpole@train[:1]"))).columns
    for number, item in enumerate(items):
        columns = item["columns"]
        assert columns["observation"]["values"] == steps["observation"][number : number + 2].ravel().tolist()
        assert columns["action"]["values"] == steps["action"][number : number + 2].tolist()
        assert (item["times_sampled"], item["probability"]) == (1, 1.0)
    assert len({item["key"] for item in items}) == 3
    assert "an item leaves with its first sample; 53 more samples may be taken before the next insert" in shown.stderr
    status = json.loads(run("status", "--server", cartpole.address, "--json").stdout)["queue"]
    assert (status["size"], status["rate_limiter"]["samples"]) == (50, 3)
    rest = run(*arguments, "-n", "51", "--timeout-seconds", "1")
    assert rest.returncode == 5
    assert rest.stdout.count("and has left the table") == 50
    assert 'table "queue": sampling waits for 1 more insert' in rest.stderr


def test_sample_that_waits_is_ended_by_ctrl_c(cartpole: Any, tmp_path: Path) -> None:
    arguments = (
        "-m",
        "rlds2reverb",
        "sample",
        "--server",
        cartpole.address,
        "--table",
        "empty",
        "--timeout-seconds",
        "100",
    )
    with started(tmp_path, *arguments) as process:
        wait_until(lambda: "waiting for samples: " in process.errors)
        assert process.end(signal.SIGINT) == 130
        assert "0 of 1 sample came" in process.errors


def test_inspect_tells_spec_signature_counts_and_ranges(run: Run) -> None:
    inspection = json.loads(run("inspect", "bundled:cartpole", "--json").stdout)
    assert (inspection["episodes"], inspection["steps"], inspection["items"]) == (25, 2956, 2931)
    assert inspection["step_spec"]["observation"] == "float32[4]"
    assert inspection["trajectory_data_spec"]["next_step_type"] == "int32[?]"
    action = inspection["ranges"]["action"]
    assert action.pop("dimensions") == [], "a scalar has no dimensions of its own"
    assert action == pytest.approx({"min": 0, "max": 1, "mean": 0.4991, "not_finite": 0}, abs=1e-4)
    low, high = np.transpose(inspection["ranges"]["observation"]["dimensions"])
    steps = np.concatenate(
        [episode.columns["observation"] for episode in rlds2reverb.open_source("bundled:cartpole").read()]
    )
    assert np.array_equal(low, steps.min(axis=0)) and np.array_equal(high, steps.max(axis=0))
    assert inspection["return"]["max"] == 500
    assert inspection["problems"] == {}
    shown = run("inspect", "bundled:half_cheetah", "--limit", "1", "--view", "episode").stdout
    assert "1 episode, 1,001 steps" in shown
    assert "float32[?, 17]" in shown


def test_validate_is_silent_about_good_data_and_exits_1_on_bad(run: Run, tmp_path: Path) -> None:
    assert run("validate", "bundled:half_cheetah").returncode == 0
    directory = bad_dataset.write(tmp_path)
    shown = run("validate", f"tfds:{directory}", "--json")
    assert shown.returncode == 1, shown.stderr
    assert set(json.loads(shown.stdout)["problems"]) == {"nan", "terminal_discount"}
    assert run("validate", f"tfds:{directory}", "--allow", "nan").returncode == 0
    assert run("validate", f"tfds:{directory}", "--allow", "nan", "--strict").returncode == 1


def test_demo_runs_the_main_job_and_ends_with_how_to_go_on(run: Run) -> None:
    shown = run("demo", "--dataset", "cartpole")
    assert shown.returncode == 0, shown.stderr
    assert "25 episodes, 2,956 steps of bundled:cartpole\n" in shown.stdout
    assert "the table still holds 2,931 items: " in shown.stdout
    end = r"\nnow data of your own: (\S*rlds2reverb) inspect tfds:\S+\nall commands: \1 --help\n$"
    assert re.search(end, shown.stderr)


def test_demo_tells_the_same_as_json(run: Run, cartpole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_server, "EmbeddedServer", lambda tables: nullcontext(cartpole))
    shown = run("demo", "--dataset", "cartpole", "--json")
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["table_size"] == result["push"]["items_confirmed"] == result["again"]["items_confirmed"] == 2931
    assert result["sample"]["observation"].startswith("float32[2, 4]")
