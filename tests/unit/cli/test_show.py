"""`rlds2reverb show`, as a person uses it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import imagecodecs
import pytest

from rlds2reverb import cli
from rlds2reverb.cli import show
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.look.contents import contents_at
from rlds2reverb.look.film import sheet
from tests.support.look.shown import episode

CARTPOLE = "bundled:cartpole"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs it in this process: its exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "show", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


@pytest.mark.parametrize("number", ["0", "24", "-1", "-25"])
def test_an_episode_by_its_number(run: Run, number: str) -> None:
    code, shown, said = run(CARTPOLE, number)
    assert (code, said) == (0, "")
    assert shown.startswith(f"Episode {int(number) % 25} (index 0 to 24)\ncartpole/1.0.0")
    assert "observation[3]" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("-2", "--columns", "reward"),
        ("--columns", "reward", "-2"),
        ("--columns", "reward", "--", "-2"),
        ("--columns=reward", "-2"),
    ],
)
def test_negative_numbers_stand_anywhere(run: Run, arguments: tuple[str, ...]) -> None:
    code, shown, _ = run(CARTPOLE, *arguments)
    assert code == 0
    assert shown.startswith("Episode 23 (index 0 to 24)")
    assert "observation[0]" not in shown


def test_an_episode_by_the_name_that_others_print(run: Run) -> None:
    name = run(CARTPOLE, "7")[1].splitlines()[1]
    assert run(CARTPOLE, name)[1].startswith(f"Episode 7 (index 0 to 24)\n{name}")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        ((CARTPOLE, "25"), 3, "episode 25: expected 0 to 24, or -25 to -1 from the end; there are 25 episodes"),
        (
            (CARTPOLE, "cartpole-train__99"),
            3,
            "25 episodes looked at, close to it: |25 episodes looked at, the first is",
        ),
        ((CARTPOLE, "0", "--columns", "state"), 2, '--columns "state": no such column.*observation'),
        ((CARTPOLE, "0", "--save", "a.jpg"), 2, "ends in .png, .gif, .mp4, .html"),
        ((CARTPOLE, "0", "--save", "/nowhere/a.png"), 6, "cannot be written"),
        (("bundled:nothing", "0", "--save", "/nowhere/a.png"), 6, "cannot be written"),
        ((CARTPOLE, "0", "--frames", "0"), 2, "--frames"),
        ((CARTPOLE, "0", "--frames", "-3"), 2, "--frames.*-3"),
        ((CARTPOLE, "0", "--fps", "51"), 2, "--fps"),
        ((CARTPOLE, "--nothing"), 2, "No such option"),
        ((CARTPOLE,), 2, "Missing argument 'EPISODE'"),
        ((CARTPOLE, "0", "--transform", "drop=nothing"), 2, "nothing"),
    ],
)
def test_mistakes_are_told_on_one_line(run: Run, arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    code, shown, told = run(*arguments)
    assert (code, shown) == (exit_code, "")
    assert re.search(said, told)
    assert told.count("\n") == 1


@pytest.mark.parametrize("suffix", [".png", ".gif", ".mp4", ".html"])
def test_it_is_saved_and_says_so(run: Run, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    code, shown, said = run(CARTPOLE, "-1", "--save", str(path), "--frames", "5")
    assert (code, shown) == (0, "")
    assert said == f"written: {path}, {path.stat().st_size:,} bytes\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_transforms_and_conventions_are_those_of_a_push(run: Run) -> None:
    shown = run(CARTPOLE, "3", "--transform", "rename=observation:state", "--terminal-discount", "transition")[1]
    assert "state[0]" in shown
    assert "observation" not in shown.partition("curves")[2]


def test_filters_choose_what_is_counted_and_a_function_makes_what_is_shown(run: Run) -> None:
    lengths = [len(read_episode) for read_episode in open_source(CARTPOLE)]
    wanted = [number for number, rows in enumerate(lengths) if rows >= 100]
    name = run(CARTPOLE, str(wanted[1]))[1].splitlines()[1]
    assert run(CARTPOLE, "1", "--where", "length>=100")[1].splitlines()[:2] == [
        f"Episode 1 (index 0 to {len(wanted) - 1})",
        name,
    ]
    code, shown, _ = run(CARTPOLE, "-1", "--map", "tests.support.prepare.filtering:with_a_norm", "--split", "train")
    assert code == 0 and "observation_norm" in shown
    assert run(CARTPOLE, "0", "--where", "length>=100000")[2].endswith("(2,956 steps)\n")


def test_images_are_saved_as_they_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(show, "open_dataset", lambda name: EpisodeList([episode()], name))
    assert run("mine", "0", "--save", str(tmp_path / "a.png"))[0] == 0
    saved = imagecodecs.png_decode((tmp_path / "a.png").read_bytes())
    assert (saved == sheet(contents_at(EpisodeList([episode()]), "0"))).all()
    assert "6 pictures of 32 x 24 pixels" in run("mine", "0")[1]
