"""The command line without a server: help, exit codes, one-line errors, light imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rlds2reverb import cli, errors
from rlds2reverb.cli import output, push
from rlds2reverb.errors import keep_report
from rlds2reverb.push.report import PushReport
from tests.support.fake_reverb import FakeReverb
from tests.support.wire.certificates import self_signed


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rlds2reverb.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_help_names_every_command_without_importing_one() -> None:
    code = (
        "import sys; from rlds2reverb.cli import cli; from click.testing import CliRunner;"
        "print(CliRunner().invoke(cli, ['--help']).output);"
        "print('loaded:', [m for m in sys.modules if m in ('numpy', 'grpc', 'tensorflow', 'rlds2reverb.cli.push')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name}" in shown for name in cli.COMMANDS)
    assert "loaded: []" in shown


def test_without_a_command_ten_lines_say_how_to_begin() -> None:
    shown = run()
    lines = shown.stdout.splitlines()
    assert (shown.returncode, shown.stderr, len(lines)) == (0, "", 10)
    assert max(map(len, lines)) <= 80
    named = re.findall(r"rlds2reverb (\w+)(?: (push|sources)\b)?", shown.stdout.partition("\n\n")[2])
    assert {name for name, _ in named} <= cli.COMMANDS.keys()
    assert {topic for _, topic in named if topic} == {"push", "sources"}


def test_every_command_has_a_module_and_the_help_line_of_the_table_fits() -> None:
    for name in cli.COMMANDS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None
        assert command.name == name
        assert command.help


def test_unknown_command_is_a_usage_error() -> None:
    shown = run("pusch")
    assert shown.returncode == 2
    said = "rlds2reverb: error: No such command 'pusch'; did you mean \"push\"? See -c --help\n"
    assert shown.stderr == said


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("push", "bundled:cartpole", "--table", "t", "--server", "nowhere"), 2, "expected HOST:PORT"),
        (("push", "bundled:cartpole", "--table", "t", "--server", "localhost:1"), 5, "nothing listens there"),
        (("status", "--server", "no-such-host.invalid:8000"), 5, 'the name "no-such-host.invalid" is not found'),
        (("status", "--server", "localhost:1", "--wait", "0.2"), 5, "nothing listens there"),
        (("status", "--server", "::1:8000"), 2, "or [::1]:8000 for an IPv6 address"),
        (("status", "--server", "localhost:1", "--timeout", "0.2", "--tls-cert", "x.pem"), 2, "go together"),
        (("status", "--server", "localhost:1", "--header", "novalue"), 2, "expected NAME=VALUE"),
        (("inspect", "nonsense"), 3, 'source "nonsense": expected'),
        (("inspect", "bundled:nothing"), 3, "cartpole"),
        (("inspect", "bundled:cartpole", "--view", "pairs"), 2, 'view "pairs"'),
        (("validate", "bundled:cartpole", "--allow", "everything"), 2, "unknown code"),
        (("push", "x", "--table", "t"), 2, "Missing option '--server'"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    shown = run(*arguments)
    assert said in shown.stderr
    assert shown.returncode == exit_code
    assert shown.stdout == ""
    assert "Traceback" not in shown.stderr
    ours = [line for line in shown.stderr.splitlines() if line.startswith("rlds2reverb: error:")]
    assert len(ours) == 1


@pytest.mark.parametrize(
    ("arguments", "who"),
    [(("serve", "--config", "x"), "serve"), (("inspect", "x", "--server-config"), "--server-config")],
)
def test_what_needs_the_server_package_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], who: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "replay_server"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "replay_server", None)
    with pytest.raises(errors.ConfigError, match=rf"^{who} needs replay_server[.a-z]*; "):
        cli.cli.main(list(arguments), standalone_mode=False)


def test_grpc_does_not_talk_beside_the_error(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_bytes(self_signed(tmp_path)[1])
    with FakeReverb() as fake:
        shown = run("status", "--server", fake.address, "--tls-ca", str(certificate))
    assert shown.returncode == 5
    (line,) = shown.stderr.splitlines()
    assert "it speaks plain text, and this client TLS" in line


def test_debug_shows_the_traceback() -> None:
    shown = run("--debug", "status", "--server", "nowhere")
    assert shown.returncode == 1
    assert "ConfigError" in shown.stderr
    assert "Traceback" in shown.stderr


def test_every_error_of_ours_has_an_exit_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for kind in kinds:
        if kind is not errors.Rlds2ReverbError:
            assert any(issubclass(kind, known) for known, _ in cli.EXIT_CODES), kind


def test_an_unexpected_error_is_called_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(cli.cli, "main", fail)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == cli.EXIT_BUG
    told = capsys.readouterr().err
    assert "this is a bug: RuntimeError: two; lines; run again as rlds2reverb --debug COMMAND ..." in told


def test_an_interruption_is_said_and_has_a_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli, "main", interrupt)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == "rlds2reverb: interrupted\n"


@pytest.mark.parametrize(("again", "said"), [(False, "run again, adds the rest"), (True, "stores it once more")])
def test_an_interrupted_push_says_what_another_run_of_it_does(
    capsys: pytest.CaptureFixture[str], again: bool, said: str
) -> None:
    with pytest.raises(KeyboardInterrupt), push.report_when_stopped(as_json=True, again=again):
        error = KeyboardInterrupt()
        keep_report(error, PushReport("mine", ("replay",), "two_step"))
        raise error
    assert said in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt), push.report_when_stopped(as_json=True, again=again):
        raise KeyboardInterrupt  # before the push began
    assert "nothing of this push is stored" in capsys.readouterr().err


def test_json_has_null_for_what_is_not_finite() -> None:
    runner = CliRunner()

    @click.command()
    def show() -> None:
        output.print_json({"a": float("inf"), "b": [float("nan"), 1.5], "c": (1,)})

    assert json.loads(runner.invoke(show).output) == {"a": None, "b": [None, 1.5], "c": [1]}


def test_broken_pipe_is_quiet() -> None:
    code = "from rlds2reverb.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) in (0, 1)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_answers_h_wherever_it_is_run_from(name: str) -> None:
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    assert "-h, --help" in CliRunner().invoke(command, ["-h"]).output
