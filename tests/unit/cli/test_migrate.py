"""`migrate`: what it says, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.support.fake_reverb import FakeReverb
from tests.support.project import ROOT

Run = Callable[..., tuple[int, str, str]]
NAMES = "columns=step_type+observation+action+next_step_type+reward+discount"
OLD = f"{ROOT / 'tests' / 'data' / 'reverb'}?table=pairs,{NAMES}"


@pytest.fixture
def server() -> Iterator[FakeReverb]:
    with FakeReverb("new") as running:
        yield running


def test_a_checkpoint_fills_a_table(run: Run, server: FakeReverb) -> None:
    address = ("--server", server.address, "--table", "new", "--quiet")
    code, shown, said = run("migrate", OLD, *address, "--dry-run")
    assert (code, said) == (0, "the tables take these items; nothing was sent\n")
    assert "episodes   3, named by their content" in shown
    assert not server.tables["new"].items
    code, shown, _ = run("migrate", OLD, *address)
    assert code == 0
    assert len(server.tables["new"].items) == 15
    assert (
        "proof      all items were confirmed; the table was not read back: " in shown
    )  # this server writes no checkpoint
    code, shown, _ = run("migrate", OLD, *address, "--json")
    report = json.loads(shown)
    assert (code, report["episodes"], report["items"], report["push"]["items_new"]) == (0, 3, {}, 0)


def test_a_table_that_is_not_there_is_printed_for_the_config(run: Run, server: FakeReverb) -> None:
    view = ("--view", "sequence:length=3")
    code, shown, said = run("migrate", OLD, "--server", server.address, "--table", "next", *view, "--quiet")
    (table,) = yaml.safe_load(shown)
    assert (code, table["name"], table["signature"]["!namedtuple"]) == (2, "next", "Trajectory")
    assert 'no table "next" on the server, there are: new' in said
    code, shown, _ = run("migrate", OLD, "--server", server.address, "--table", "next", *view, "--json")
    (problem,) = json.loads(shown)["error"]["problems"]
    assert (code, yaml.safe_load(problem)) == (2, [table])


def test_without_the_server_the_missing_table_is_named_all_the_same(
    run: Run, server: FakeReverb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "replay_server.template", None)
    code, shown, said = run("migrate", OLD, "--server", server.address, "--table", "next", "--quiet")
    assert (code, shown) == (2, "")
    assert 'no table "next" on the server' in said


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((OLD,), 2, "name the new table"),
        ((OLD.replace("pairs", "empty"), "--table", "new"), 3, "holds no items"),
        ((OLD.replace("pairs", "none"), "--table", "new"), 3, 'no table "none"'),
        (
            (f"{OLD.partition('?')[0]}?table=windows", "--table", "new"),
            3,
            "say so with no_end=truncated behind its name",
        ),
        (
            (f"{OLD.partition('?')[0]}?table=windows,no_end=truncated", "--table", "new"),
            3,
            "1 of 3 episodes lack items or rows, which were removed, not stored yet, or in no window",
        ),
        (("/nowhere?table=x", "--table", "new"), 3, "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused(
    run: Run, server: FakeReverb, arguments: tuple[str, ...], code: int, message: str
) -> None:
    got, _, said = run("migrate", *arguments, "--server", server.address, "--quiet")
    assert (got, len(server.tables["new"].items)) == (code, 0)
    assert message in said
