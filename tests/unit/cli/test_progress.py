"""How progress looks: nothing for what is short, a bar on a terminal, lines elsewhere, and stdout as it is without."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.cli import inspect, output, progress
from rlds2reverb.cli.progress import LateBar, ProgressLines, ShownProgress, describe_count, describe_progress
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.transport.http import ServerHttp, WrittenCheckpoint
from rlds2reverb.views import View, two_step
from tests.support.processes import read_to_end, wait_until

SOURCE = "bundled:cartpole@train[:3]"
HALF = Progress(5, 5000, 20, 4000, 2_000_000, 2.0)


def test_a_line_has_rates_an_eta_and_what_is_waited_for() -> None:
    waiting = Progress(5, 5000, 20, 4000, 2_000_000, 2.0, 'table "replay": needs 3 more samples')
    assert describe_progress(waiting).text == "5/20 episodes  2,500 steps/s  1.00 MB/s  ETA 0:00:06  waiting"
    assert describe_progress(Progress(1, 10, 7201, 0, 0, 1.0)).text.endswith("ETA 2:00:00")
    assert (
        describe_progress(Progress(4, 0, 8, 0, 0, 2.0, doing="verifying")).text
        == "verifying  4/8 episodes  2.00/s  ETA 0:00:02"
    )


def test_what_is_slow_has_rates_that_say_something() -> None:
    slow = Progress(1, 3, 8, 2, 46_300, 100.0)
    assert describe_progress(slow).text == "1/8 episodes  0.03 steps/s  0.00046 MB/s  ETA 0:11:40"
    assert describe_progress(Progress(23, 0, None, 0, 0, 50.0)).text == "23 episodes  0.46/s"
    assert describe_count(1, None, "item", 216.0).text == "1 item  0.0046/s"


@pytest.mark.parametrize("count", [None, 4])
def test_where_nobody_knows_the_end_there_are_counts_only(count: int | None) -> None:
    """4: a table that has grown since it was asked."""
    assert describe_progress(Progress(5, 5000, count, 0, 0, 2.0)).text == "5 episodes  2,500 steps/s"
    assert describe_progress(Progress(5, 5000, count, 0, 0, 2.0)).total is None


def test_other_things_are_counted_alike() -> None:
    assert describe_count(250, 1000, "sample", 5.0) == ShownProgress(
        "250/1,000 samples  50.0/s  ETA 0:00:15", 250, 1000
    )
    assert describe_count(0, None, "sample", 0.0).text == "0 samples  0/s"


def test_lines_come_again_and_again_and_tell_the_newest() -> None:
    lines: list[str] = []
    came = threading.Semaphore(0)

    def tell(line: str) -> None:
        lines.append(line)
        came.release()

    with ProgressLines(tell, "opening", seconds=0.01) as heard:
        assert came.acquire(timeout=120)
        heard(describe_progress(HALF))
        wait_until(lambda: len(set(lines)) > 1)
    assert lines[0].startswith("opening  0:0")
    assert lines[-1] == describe_progress(HALF).text
    ended = len(lines)
    heard(describe_progress(HALF))
    assert len(lines) == ended


def test_a_wait_is_told_once_when_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.on_progress(quiet=False) as update:
        for inserts in (1, 2, 3):
            text = f'table "t": inserting waits for {inserts} more samples'
            update(Progress(1, 1, None, 1, 1, 1.0, text, ("t",)))
    assert capsys.readouterr().err.count("waiting:") == 1


class Drawn:
    """A bar that notes what is done with it."""

    def __init__(self) -> None:
        self.shown: list[ShownProgress] = []
        self.said: list[str] = []
        self.is_open = threading.Event()
        self.is_gone = False

    def __enter__(self) -> Drawn:
        self.is_open.set()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_gone = True

    def show(self, shown: ShownProgress) -> None:
        self.shown.append(shown)

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    made = Drawn()
    monkeypatch.setattr(progress, "_bar", lambda: made)
    return made


def test_a_short_command_draws_no_bar(drawn: Drawn) -> None:
    with LateBar("starting", after_seconds=3600) as heard:
        heard(describe_progress(HALF))
    assert not drawn.is_open.is_set()


def test_a_bar_is_drawn_late_and_taken_away(drawn: Drawn, capsys: pytest.CaptureFixture[str]) -> None:
    with LateBar("starting", after_seconds=0.01) as heard:
        assert drawn.is_open.wait(120)
        heard(ShownProgress("1 episode", 1, 2, waiting="for a sampler"))
    assert [line.text for line in drawn.shown] == ["starting", "1 episode"]
    assert drawn.said == ["waiting: for a sampler"]
    assert drawn.is_gone


def test_a_bar_that_an_error_ends_is_taken_away(drawn: Drawn) -> None:
    with pytest.raises(ZeroDivisionError), LateBar("starting", after_seconds=0.01):
        assert drawn.is_open.wait(120)
        raise ZeroDivisionError
    assert drawn.is_gone


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines without a pause, and a source that waits until one has come; quiet, it does not wait."""
    lines: list[str] = []
    told = ProgressLines._run

    def at_once(self: ProgressLines) -> None:
        self._seconds = 0.01
        told(self)

    def opened(name: str) -> EpisodeList:
        if "--quiet" not in sys.argv:
            wait_until(lambda: bool(lines))
        return open_source(name)  # type: ignore[return-value]

    talk = output.talk
    monkeypatch.setattr(ProgressLines, "_run", at_once)
    monkeypatch.setattr(output, "talk", lambda text: (lines.append(text), talk(text)))
    monkeypatch.setattr(inspect, "open_dataset", opened)
    return lines


@pytest.mark.parametrize("command", ["inspect", "validate"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_stdout_is_the_same_with_progress_and_without(
    run: Any, patient: Any, command: str, form: tuple[str, ...]
) -> None:
    code, shown, said = run(command, SOURCE, *form)
    quiet_code, quietly, silence = run(command, SOURCE, *form, "--quiet")
    assert (code, shown) == (quiet_code, quietly)
    assert code == 0
    assert said.startswith("starting  0:0")
    assert "starting" not in silence


def test_a_checkpoint_that_takes_long_is_told(run: Any, patient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written = WrittenCheckpoint(3, "/c/000003", {"t": 5}, 7, 0.5)

    def ask(*_: Any) -> WrittenCheckpoint:
        wait_until(lambda: bool(patient))
        return written

    monkeypatch.setattr(ServerHttp, "checkpoint", ask)
    assert run("checkpoint")[2].startswith("the server writes a checkpoint  0:0")


def heard_while(
    read: Callable[[Callable[[Progress], object]], object], monkeypatch: pytest.MonkeyPatch
) -> list[Progress]:
    """All that is told while something is read, with no pause between."""
    monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", -1.0)
    told: list[Progress] = []
    read(told.append)
    return told


@pytest.mark.parametrize("views", [{}, {"t": two_step()}], ids=["judged", "inspected"])
@pytest.mark.parametrize("limit", [None, 2])
def test_reading_tells_every_episode_and_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, views: dict[str, View]
) -> None:
    source, count = open_source(SOURCE), limit or 3
    told = heard_while(lambda hear: inspect_source(source, views, limit, on_progress=hear), monkeypatch)
    assert [(moment.episodes, moment.episode_count) for moment in told] == [(n, count) for n in range(1, count + 1)]
    assert all(np.diff([moment.steps for moment in told]) > 0)


def test_a_source_that_does_not_know_its_number_has_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpisodeList, "episode_count", None)
    source = EpisodeList([next(iter(open_source(SOURCE)))])
    told = heard_while(lambda hear: inspect_source(source, {}, 1, on_progress=hear), monkeypatch)
    assert [moment.episode_count for moment in told] == [None]


def test_verifying_a_conversion_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2reverb.conversion.convert._PROGRESS_SECONDS", -1.0)
    told: list[Progress] = []
    rlds2reverb.convert(SOURCE, f"ted:{tmp_path / 'mine'}", verify=True, on_progress=told.append)
    assert [(moment.doing, moment.episodes) for moment in told][-3:] == [
        ("verifying", 1),
        ("verifying", 2),
        ("verifying", 3),
    ]
    assert {moment.doing for moment in told[:3]} == {""}


ON_A_TERMINAL = """
import sys, time
from rlds2reverb.cli import progress
progress.BAR_AFTER_SECONDS = 0
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.views import two_step
with progress.LateBar("starting", 0.01) as heard:
    deadline = time.monotonic() + 120
    while heard._bar is None and time.monotonic() < deadline:
        time.sleep(0.01)
    heard(progress.describe_progress(Progress(5, 5000, 20, 0, 0, 2.0, "for [b]ab\\x1b[31m", ())))
    print("data", flush=True)
"""


def test_on_a_terminal_the_bar_is_drawn_and_data_go_to_stdout() -> None:
    """stderr is a terminal of 80 columns, stdout a pipe."""
    ours, theirs = pty.openpty()
    try:
        ran = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(theirs)
        seen = read_to_end(ours)
        shown, _ = ran.communicate(timeout=120)
    finally:
        os.close(ours)
    assert (ran.returncode, shown) == (0, b"data\n")
    assert b"5/20 episodes" in seen
    assert b"waiting: for [b]ab\\x1b[31m" in seen
