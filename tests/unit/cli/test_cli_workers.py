"""--workers: the same report, with one line more; what `inspect` and `validate` tell is the same."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlds2reverb.cli import cli, main, progress
from rlds2reverb.cli.progress import ShownProgress
from rlds2reverb.extras import how_to_install
from rlds2reverb.testing import table_info
from tests.support.fake_reverb import FakeReverb

SOURCE = "bundled:cartpole"


@pytest.fixture
def server() -> Iterator[FakeReverb]:
    with FakeReverb(table_info("replay", max_size=1_000_000)) as running:
        yield running


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process: its exit code, and stdout."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), capsys.readouterr().out

    return run


def push(run: Run, server: FakeReverb, *arguments: str) -> dict[str, Any]:
    code, text = run("push", SOURCE, "--server", server.address, "--table", "replay", "--json", *arguments)
    assert code == 0
    told: dict[str, Any] = json.loads(text)
    return told


def test_a_push_by_workers_stores_and_reports_what_one_process_does(
    run: Run, server: FakeReverb, tmp_path: Path
) -> None:
    ledger = ("--ledger", str(tmp_path / "ledger.db"), "--limit", "20")
    divided = push(run, server, "--workers", "2", *ledger)
    keys = set(server.stored["replay"])
    alone = push(run, server, "--limit", "20")
    assert set(server.stored["replay"]) == keys
    of_runs = ("seconds", "bytes", "items_per_second", "workers", "items_new", "reconnects")
    assert {name: divided[name] for name in divided if name not in of_runs} == {
        name: alone[name] for name in alone if name not in of_runs
    }
    assert (divided["workers"], alone["workers"]) == (2, 0)
    resumed = push(run, server, "--workers", "1", *ledger)
    assert (resumed["episodes_resumed"], resumed["episodes_read"]) == (20, 0)


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_what_a_dataset_is_like_does_not_depend_on_who_reads_it(run: Run, command: str) -> None:
    arguments = (command, SOURCE, "--limit", "30", "--json")
    told = [run(*arguments), run(*arguments, "--workers", "2")]
    assert [code for code, _ in told] == [0, 0]
    one, divided = (json.loads(text) for _, text in told)
    for spans in (one.get("ranges", {}), divided.get("ranges", {})):
        for span in spans.values():
            span.pop("mean")
    assert divided == one


@pytest.mark.parametrize(("command", "is_quiet"), [("inspect", False), ("validate", False), ("validate", True)])
def test_the_bar_shows_what_all_workers_have_read_and_quietly_there_is_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, is_quiet: bool
) -> None:
    told: list[ShownProgress] = []
    monkeypatch.setattr(progress, "LateBar", lambda _: nullcontext(told.append))
    monkeypatch.setattr(sys, "stderr", Terminal())
    code, text = run(command, SOURCE, "--limit", "20", "--workers", "1", "--json", *["--quiet"] * is_quiet)
    assert code == 0
    assert json.loads(text)["episodes"] == 20
    if is_quiet:
        assert told == []
    else:
        assert (told[-1].done, told[-1].total) == (20, 20)


class Terminal(io.StringIO):
    """Is one, and remembers what it shows."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("push", SOURCE, "--table", "replay", "--view", "across_episodes"), "items depend on the episodes before"),
        (("inspect", SOURCE, "--view", "across_episodes"), "items depend on the episodes before"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_a_sentence(
    server: FakeReverb, arguments: tuple[str, ...], told: str
) -> None:
    own = ("--server", server.address) if arguments[0] == "push" else ()
    result = CliRunner().invoke(cli, [*arguments, *own, "--workers", "2"])
    assert told in str(result.exception)


@pytest.mark.parametrize("arguments", [("push", SOURCE, "--table", "replay"), ("validate", SOURCE)])
def test_ray_is_an_extra(server: FakeReverb, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    own = ("--server", server.address) if arguments[0] == "push" else ()
    result = CliRunner().invoke(cli, [*arguments, *own, "--ray", "auto"])
    assert f"needs ray; {how_to_install('ray')}" in str(result.exception)
