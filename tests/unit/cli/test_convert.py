"""`rlds2reverb convert` as a person uses it: what it prints where, its exit codes, and what is left when it is stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb import cli
from rlds2reverb.cli import convert
from rlds2reverb.conversion import verify
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.errors import ConversionError
from rlds2reverb.formats.destination import Loss
from rlds2reverb.formats.tfds.write import TfdsDestination, TfdsSink

Run = Callable[..., tuple[int, str, str]]

SOURCE = "bundled:cartpole@train[:3]"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process: its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "convert", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        shown = capsys.readouterr()
        code = stop.value.code
        return int(code or 0), shown.out, shown.err

    return run


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"tfds:{tmp_path / 'my_set'}"


def test_a_report_for_people_and_one_for_programs(run: Run, name: str, tmp_path: Path) -> None:
    code, out, err = run(SOURCE, name, "--verify")
    assert (code, err) == (0, "")
    told = dict(line.split("  ", 1) for line in out.splitlines())
    assert told["read"].strip() == "3 episodes, 81 steps"
    assert told["written"].strip() == "3 episodes, 81 steps"
    assert told["verified"].strip() == "3 episodes, equal to the source; read by rlds2reverb"
    assert told["destination"].strip() == str(tmp_path / "my_set" / "1.0.0")
    code, out, _ = run(SOURCE, name, "--overwrite", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["episodes_read"], report["episodes_written"], report["verified"]) == (3, 3, None)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ConversionError("another value")])
@pytest.mark.parametrize("compared", [0, 2])
def test_a_comparison_that_is_not_finished_is_not_told_as_one(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch, error: Any, compared: int
) -> None:
    differences = verify.differences
    calls = iter(range(9))

    def differ(*given: Any) -> list[str]:
        if next(calls) == compared:
            raise error
        return differences(*given)

    monkeypatch.setattr(verify, "differences", differ)
    code, out, _ = run(SOURCE, name, "--verify")
    assert code
    assert "equal to the source" not in out
    told = dict(line.split("  ", 1) for line in out.splitlines())
    assert told["not verified"].strip() == f"the comparison ended after {compared} of 3 episodes"
    assert "verified" not in told


@pytest.mark.parametrize(("resumed", "speed"), [(0, "0.46 episodes/s"), (20, "0.06 episodes/s"), (23, "0 episodes/s")])
def test_a_slow_conversion_has_a_speed_that_says_something(
    capsys: pytest.CaptureFixture[str], resumed: int, speed: str
) -> None:
    report = ConvertReport("data", "made", "/data/made", episodes_read=23, episodes_resumed=resumed, seconds=50.0)
    convert.print_report(False, report)
    assert f"50.00 s, {speed}\n" in capsys.readouterr().out


def test_what_is_there_is_not_touched(run: Run, name: str) -> None:
    assert run(SOURCE, name)[0] == 0
    code, out, err = run(SOURCE, name)
    assert (code, out) == (2, "")
    assert "is there already" in err
    assert err.count("\n") == 1


def test_losses_are_told_before_and_after_and_refused_strictly(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [Loss("flags", "is left out", "reward"), Loss("metadata", "x"), Loss("flags", "is left out", "discount")]
    monkeypatch.setattr(TfdsDestination, "losses", lambda *_: lost)
    code, out, err = run(SOURCE, name, "--verify")
    assert code == 0
    assert err.splitlines() == ["lost flags: reward, discount: is left out", "lost metadata: x"]
    assert out.splitlines()[-2:] == [
        "lost         flags, metadata",
        "verified     3 episodes, equal to the source except for the reported losses; read by rlds2reverb",
    ]
    code, _, err = run(SOURCE, name, "--overwrite", "--strict", "--allow-loss", "flags")
    assert code == 1
    assert "cannot hold all of it: metadata: x" in err
    assert run(SOURCE, name, "--overwrite", "--strict", "--allow-loss", "all")[0] == 0


def test_a_full_disk_says_what_is_written_and_how_to_go_on(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(TfdsSink, "sync", full)
        code, out, err = run(SOURCE, name)
    assert code == 6
    assert "3 episodes, 81 steps" in out
    assert "nothing of it was put on disk; the same command begins anew" in err
    assert "my_set/1.0.0: cannot be written: No space left on device" in err.replace("\\", "/")
    assert run(SOURCE, name)[0] == 0


def test_ctrl_c_says_how_to_go_on(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TfdsSink, "finish", interrupted)
    code, out, err = run(SOURCE, name)
    assert code == 130
    assert "stopped" in out
    assert "the same command continues after the 3 episodes on disk" in err
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("bundled:nonsense", "tfds:/tmp/x/my_set"), 3, "bundled dataset"),
        ((SOURCE, "nonsense:x"), 2, 'destination "nonsense:x": expected SCHEME:NAME'),
        ((SOURCE, "tfd:/tmp/x/my_set"), 2, 'did you mean "tfds:/tmp/x/my_set"?'),
        ((SOURCE, "tfds:/tmp/x/my_set", "--transform", "drop=nope"), 2, '"nope" is no column'),
        ((SOURCE, "tfds:/tmp/x/my_set", "--allow", "nope"), 2, "unknown code nope"),
        ((SOURCE, "tfds:/tmp/x/my_set", "--encoded", "observation"), 3, "encoded"),
        ((SOURCE,), 2, "Missing argument 'DEST'"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_an_exit_code(
    run: Run, arguments: tuple[str, ...], code: int, said: str
) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1
