"""Completion of command lines: what is offered, and what bash, zsh and fish make of it."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

import rlds2reverb
from rlds2reverb import cli
from rlds2reverb.cli.completion import SECONDS, VARIABLE, answer, patience, quote_for_bash, split_line
from rlds2reverb.testing import table_info
from rlds2reverb.views import VIEWS
from tests.support.fake_reverb import FakeReverb

INSTALL = Path(__file__).parents[3] / "scripts" / "install-shells"
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine starts a program slowly."""
    monkeypatch.setenv(SECONDS, "100")


def offered(*words: str) -> list[str]:
    """The items for a command line; the last word is being written."""
    *before, word = words
    found = ShellComplete(cli.cli, {}, "rlds2reverb", VARIABLE).get_completions(before, word)
    return [item.value for item in found]


def test_commands_come_with_their_help_and_load_nothing() -> None:
    assert offered("in") == ["inspect", "index"]
    assert offered("") == list(cli.COMMANDS)
    code = (
        "import sys; from rlds2reverb.cli import main; main();"
        "print([name for name in ('numpy', 'grpc', 'rlds2reverb.cli.push') if name in sys.modules])"
    )
    asked = {**os.environ, VARIABLE: "fish_complete", "COMP_WORDS": "rlds2reverb ", "COMP_CWORD": ""}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=asked)
    *commands, loaded = ended.stdout.splitlines()
    assert len(commands) > 5
    assert loaded == "[]"


def test_options_choices_views_and_codes() -> None:
    assert offered("inspect", "x", "--js") == ["--json"]
    assert offered("push", "x", "--on-invalid", "sk") == ["skip"]
    assert offered("push", "x", "--view", "tw") == ["two_step"]
    assert set(offered("push", "x", "--view", "")) == set(VIEWS)
    assert offered("push", "x", "--view", "sequence:le") == ["sequence:length="]
    assert "sequence:length=8,length=" not in offered("push", "x", "--view", "sequence:length=8,")
    assert offered("push", "x", "--into", "mine=n_st") == ["mine=n_step"]
    assert offered("validate", "x", "--allow", "terminal_d") == ["terminal_discount"]
    assert offered("inspect", "x", "--transform", "open_x/bridge") == ["open_x/bridge_orig", "open_x/bridge_oxe"]
    assert offered("push", "x", "--transform", "drop_f") == ["drop_first_rows="]
    assert offered("schema", "che") == ["checkpoint"]


def test_topics_and_commands_that_help_takes() -> None:
    assert offered("help", "") == [*cli.TOPICS, *cli.COMMANDS]
    assert offered("help", "s") == ["sources", "show", "status", "sample", "serve", "schema"]
    assert offered("help", "pu") == ["push"]
    assert offered("hel") == ["help"]


def test_sources_by_scheme_name_and_split() -> None:
    assert "bundled:" in offered("inspect", "")
    assert offered("inspect", "bund") == ["bundled:"]
    assert offered("inspect", "bundled:") == ["bundled:cartpole", "bundled:half_cheetah"]
    assert offered("inspect", "bundled:cartpole@") == ["bundled:cartpole@train"]
    assert offered("mix", "bundled:cartpole", "bundled:h") == ["bundled:half_cheetah"]
    assert offered("inspect", "mix:bundled:cartpole|bundled:h") == ["mix:bundled:cartpole|bundled:half_cheetah"]
    assert offered("inspect", "nothing:x") == []


def test_paths_behind_a_scheme(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a.hdf5").touch()
    (tmp_path / ".hidden").touch()
    assert offered("inspect", f"d4rl:{tmp_path}/") == [f"d4rl:{tmp_path}/a folder/", f"d4rl:{tmp_path}/a.hdf5"]
    assert offered("inspect", f"d4rl:{tmp_path}/.h") == [f"d4rl:{tmp_path}/.hidden"]
    assert offered("convert", "x", f"ted:{tmp_path}/a.") == [f"ted:{tmp_path}/a.hdf5"]
    assert offered("inspect", f"d4rl:{tmp_path}/none/") == []


def test_datasets_that_are_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    (tmp_path / "door" / "human-v2" / "data").mkdir(parents=True)
    (tmp_path / "door" / "loop").symlink_to(tmp_path)
    version = tmp_path / "tfds" / "robots" / "big" / "1.0.0"
    version.mkdir(parents=True)
    (version / "dataset_info.json").write_text(json.dumps({"splits": [{"name": "train"}, {"name": "val"}]}))
    assert offered("inspect", "minari:") == ["minari:door/human-v2"]
    assert offered("inspect", "tfds:") == ["tfds:robots/big"]
    assert offered("inspect", f"tfds:{version}@v") == [f"tfds:{version}@val"]


@pytest.fixture
def server() -> Any:
    with FakeReverb(table_info("replay"), table_info("re $(touch x)"), table_info("re\x1b[31m")) as running:
        yield running


def test_tables_of_the_server_on_the_line(server: FakeReverb, monkeypatch: pytest.MonkeyPatch) -> None:
    to = ("--server", server.address)
    assert offered("push", "x", *to, "--table", "rep") == ["replay"]
    assert offered("push", "x", *to, "--into", "rep") == ["replay="]
    assert offered("inspect", f"reverb:{server.address}/rep") == [f"reverb:{server.address}/replay"]
    monkeypatch.setenv("RLDS2REVERB_SERVER", server.address)
    assert offered("sample", "--table", "rep") == ["replay"]
    monkeypatch.delenv("RLDS2REVERB_SERVER")
    assert offered("sample", "--table", "rep") == []


def test_patience_is_what_the_environment_says() -> None:
    assert [patience({SECONDS: text}) for text in ("2", "-1", "soon")] == [2, 0, 5]
    assert patience({}) == 5


def asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Puts into the environment what a shell's script does."""
    monkeypatch.setenv(VARIABLE, "fish_complete")
    monkeypatch.setenv("COMP_WORDS", shlex.join(("rlds2reverb", *words)))
    monkeypatch.setenv("COMP_CWORD", words[-1])


def test_what_would_move_the_cursor_is_not_offered(server: FakeReverb) -> None:
    found = offered("sample", "--server", server.address, "--table", "re")
    assert sorted(found) == ["re $(touch x)", "replay"]


@pytest.mark.parametrize("words", [("push", "x", "--server", "127.0.0.1:1", "--table", ""), ("inspect", "bundled:no@")])
def test_whatever_goes_wrong_there_is_no_answer_and_no_word_of_it(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, *words)
    answer(cli.cli)
    assert capsys.readouterr() == ("", "")


def test_a_question_that_makes_no_sense_is_not_answered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for shell in ("bash_complete", "none"):
        monkeypatch.setenv(VARIABLE, shell)
        answer(cli.cli)
    assert capsys.readouterr() == ("", "")


def test_an_answer_that_takes_too_long_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import time; from rlds2reverb.cli import cli, completion, suggestions\n"
        "suggestions.BUNDLED = (time.sleep(3600) for _ in range(1))\n"
        "completion.answer(cli)"
    )
    asked(monkeypatch, "inspect", "bundled:")
    monkeypatch.setenv(SECONDS, "0.2")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rlds2reverb ", ["rlds2reverb", ""]),
        ("rlds2reverb ins", ["rlds2reverb", "ins"]),
        ("rlds2reverb inspect 'a b", ["rlds2reverb", "inspect", "a b"]),
        ('rlds2reverb inspect "a ', ["rlds2reverb", "inspect", "a "]),
        (r"rlds2reverb inspect a\ b:c#d", ["rlds2reverb", "inspect", "a b:c#d"]),
    ],
)
def test_a_line_is_cut_into_words_as_a_shell_does(line: str, words: list[str]) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize(
    ("incomplete", "word", "value", "shown"),
    [
        ("bundled:ca", "ca", "bundled:cartpole", "cartpole"),
        ("bundled:", "", "bundled:cartpole", "cartpole"),
        ("bundled:ca", "'bundled:ca", "bundled:cartpole", "bundled:cartpole"),
        ("--on-invalid=sk", "sk", "--on-invalid=skip", "skip"),
        ("d4rl:/my d", "/my\\ d", "d4rl:/my data/", "/my\\ data/"),
        ("t", "t", "t $(x)", "t\\ \\$\\(x\\)"),
        ("t", '"t', "t (x)", "t (x)"),
    ],
)
def test_bash_gets_what_it_puts_in_place_of_its_own_word(incomplete: str, word: str, value: str, shown: str) -> None:
    assert quote_for_bash(incomplete, word, value) == shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH: this program by its name."""
    made = tmp_path_factory.mktemp("bin")
    paths = os.pathsep.join([str(Path(rlds2reverb.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    program = f'#!/bin/sh\nPYTHONPATH={shlex.quote(paths)} exec {shlex.quote(sys.executable)} -m rlds2reverb "$@"\n'
    (made / "rlds2reverb").write_text(program)
    (made / "rlds2reverb").chmod(0o755)
    (made / "my data").mkdir()
    return made


def shell_at(name: str) -> str:
    """Where a shell is; the test is skipped where it is not and cannot be installed."""
    if shutil.which(name) is None:
        installed = subprocess.run([INSTALL], capture_output=True, text=True, timeout=280, check=False)
        if shutil.which(name) is None:
            pytest.skip(f"no {name}: {installed.stderr.strip()[-200:]}")
    return str(shutil.which(name))


START = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
}
READY = "READY>"


class Terminal:
    """A shell on a terminal, that types as a person does."""

    def __init__(self, name: str, folder: Path) -> None:
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb", "PS1": READY}
        environment["HOME"] = environment["ZDOTDIR"] = str(folder)
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [shell_at(name), *START[name]],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, wanted: Callable[[str], bool]) -> str:
        """All that is seen from now on, when it is what is wanted."""
        self.seen, deadline = "", time.monotonic() + 120
        while not wanted(self.seen):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._ours], [], [], left)[0]:
                pytest.fail(f"it never came; seen: {self.seen!r}")
            self.seen += os.read(self._ours, 65536).decode(errors="replace")
        return self.seen

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


LINES = [
    ("rlds2reverb insp\t", "inspect "),
    ("rlds2reverb inspect bundled:cart\t", "bundled:cartpole "),
    ("rlds2reverb inspect bundled:cartpole@tr\t", "bundled:cartpole@train "),
    ("rlds2reverb push x --on-invalid=sk\t", "--on-invalid=skip "),
    ("rlds2reverb push x --into t=two\t", "t=two_step "),
    ("rlds2reverb inspect d4rl:./my\t", "d4rl:./my\\ data/"),
]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_tab_completes_on_a_terminal(shell: str, folder: Path) -> None:
    """What the shell has made of each line is told by the line itself, run as arguments of `told`."""
    terminal = Terminal(shell, folder)
    try:
        terminal.until(lambda seen: READY in seen or "%" in seen)
        setup = 'eval "$(rlds2reverb completion ' + shell + ')"; PS1="RE""ADY>"; echo do""ne'
        terminal.type(setup + "\n")
        terminal.until(lambda seen: "done" in seen.replace(setup, "") and READY in seen.rpartition("done")[2])
        for typed, wanted in LINES:
            terminal.type(typed)
            terminal.until(lambda seen: wanted in seen.replace("\r", "").replace("\a", ""))  # noqa: B023
            terminal.type("\x15\n")  # takes the line back
            terminal.until(lambda seen: READY in seen)
    finally:
        terminal.close()


def test_fish_completes(folder: Path, server: FakeReverb) -> None:
    fish = shell_at("fish")
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}

    def completed(line: str) -> str:
        script = f"rlds2reverb completion fish | source; complete -C {shlex.quote(line)}"
        ended = subprocess.run(
            [fish, "--no-config", "-c", script],
            capture_output=True,
            text=True,
            env=environment,
            cwd=folder,
            timeout=120,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    assert completed("rlds2reverb insp") == f"inspect\t{cli.COMMANDS['inspect']}\n"
    assert completed("rlds2reverb inspect bundled:cart") == "bundled:cartpole\n"
    assert completed("rlds2reverb push x --on-invalid=sk") == "--on-invalid=skip\n"
    assert completed("rlds2reverb inspect d4rl:./my") == "d4rl:./my data/\n"
    assert "replay" in completed(f"rlds2reverb sample --server {server.address} --table rep")
    assert completed("rlds2reverb sample --server 127.0.0.1:1 --table rep") == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_one_that_its_shell_takes(shell: str, folder: Path) -> None:
    script = subprocess.run([folder / "rlds2reverb", "completion", shell], capture_output=True, text=True, check=True)
    (folder / "script").write_text(script.stdout)
    checked = subprocess.run([shell_at(shell), "-n", folder / "script"], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_script_of_each_shell_is_printed_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for shell in SHELLS:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "completion", shell])
        with pytest.raises(SystemExit):
            cli.main()
        assert "_rlds2reverb_completion" in capsys.readouterr().out
