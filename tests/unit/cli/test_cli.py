"""The command line without a server: help, exit codes, one-line errors, light imports."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from rlds2reverb import cli, convert, errors, inspect, local
from rlds2reverb.cli import output, push, without_collecting
from rlds2reverb.client import Client
from rlds2reverb.errors import ConfigError, ViewError, keep_report
from rlds2reverb.extras import PYTHONS, how_to_install, reverb_exists
from rlds2reverb.formats.tfds import bundled_path
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.report import PushReport
from rlds2reverb.testing import MemoryServer, MemoryTransport
from rlds2reverb.views import VIEWS, view_from
from tests.support.fake_reverb import FakeReverb
from tests.support.learner.tables import once
from tests.support.wire.certificates import self_signed
from tests.unit.server.test_store import add, opened


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
    # Where Reverb itself has no package, a server is refused for that.
    with pytest.raises(errors.ConfigError, match=rf"^{who} needs (replay_server[.a-z]*|reverb); "):
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


# What a command loads before it does anything: its start is mostly that. Told by names; benchmarks/startup.py has the seconds.

HEAVY = {
    "array_record",
    "asyncio",
    "google.protobuf",
    "grpc",
    "http.client",
    "imagecodecs",
    "pyarrow",
    "rich",
    "simplejpeg",
    "tensorflow",
    "tensorflow_datasets",
    "yaml",
}
"""What takes tens of milliseconds or more, beside numpy and click."""

OF_GRPC = {"asyncio", "google.protobuf", "grpc", "http.client"}
"""What asking a server takes: gRPC, which loads asyncio; protobuf; urllib, for the rules of proxies."""


def heavy_modules_of(*arguments: str) -> set[str]:
    """Those that a command has loaded when it ends."""
    program = (
        "import sys\nfrom rlds2reverb.cli import main\n"
        "try: main()\n"
        f"finally: print(*sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        ("inspect", set()),
        ("validate", set()),
        ("show", set()),
        ("index", set()),
        ("push", OF_GRPC),
        ("status", OF_GRPC),
        ("top", OF_GRPC),
        ("checkpoint", set()),
        ("serve", set()),
        ("help", set()),
    ],
)
def test_a_command_loads_what_it_needs(command: str, loaded: set[str]) -> None:
    assert heavy_modules_of(command, "--help") == loaded


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_reading_a_dataset_of_numbers_takes_protobuf_only(command: str) -> None:
    assert heavy_modules_of(command, "bundled:cartpole") == {"google.protobuf"}


def test_the_list_of_commands_loads_nothing() -> None:
    assert heavy_modules_of("--help") == set()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_is_collected_again_after_loading_even_when_that_fails(was_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(KeyError), without_collecting():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()


# A misspelt option is told with what it was meant to be: every option of every command, and of the Python functions that take options.


def swapped(word: str) -> str:
    """The word with two letters in the middle in the other order."""
    at = next((at for at in range(len(word) // 2, len(word) - 1) if word[at] != word[at + 1]), None)
    if at is None:
        at = next(at for at in range(len(word) - 1) if word[at] != word[at + 1])
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def options_of_commands() -> Iterator[tuple[str, str]]:
    for name in cli.COMMANDS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--") and len(option) > 6:
                    yield name, option


@pytest.mark.parametrize(("command", "option"), [*options_of_commands()])
def test_an_option_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["rlds2reverb", command, swapped(option)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert f"No such option '{swapped(option)}'; did you mean \"{option}\"? See " in capsys.readouterr().err


def test_letters_that_are_shared_are_no_suggestion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, meant in (("--tabel", '; did you mean "--table"?'), ("--zzzzzz", "")):
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "push", "bundled:cartpole", given, "x"])
        with pytest.raises(SystemExit):
            cli.main()
        assert f"No such option '{given}'{meant}" in capsys.readouterr().err


# Of any type: mypy would find the misspelt arguments.
untyped_convert: Any = convert
untyped_inspect: Any = inspect
untyped_local: Any = local


def client() -> Any:
    return Client(MemoryTransport(MemoryServer(once())))


@pytest.mark.parametrize(
    ("call", "error", "meant"),
    [
        (lambda: client().sample("replay", batchsize=3), TypeError, "batch_size"),
        (lambda: client().push("bundled:cartpole", "replay", alow_eviction=True), TypeError, "allow_eviction"),
        (lambda: client().plan("bundled:cartpole", "replay", veiw="two_step"), TypeError, "view"),
        (lambda: client().writer("replay", max_waiting_bytes=3), TypeError, "most_waiting_bytes"),
        (lambda: untyped_local("bundled:cartpole", batchsize=3), ConfigError, "batch_size"),
        (lambda: untyped_convert("bundled:cartpole", "tfds:/nowhere", verifyy=True), ConfigError, "verify"),
        (lambda: untyped_inspect("bundled:cartpole", last_rewards="shift"), ConfigError, "last_reward"),
        (lambda: SampleOptions(ragged="padd"), ConfigError, "pad"),
        (lambda: Conventions(last_reward="shfit"), ConfigError, "shift"),
        (lambda: PushOptions("replay", duplicates="onec"), ConfigError, "once"),
        (lambda: PushOptions("replay", on_invalid="skp"), ConfigError, "skip"),
    ],
)
def test_an_argument_of_a_function(call: Callable[[], Any], error: type[Exception], meant: str) -> None:
    with pytest.raises(error, match=rf'; did you mean "{meant}"\?'):
        call()


@pytest.mark.parametrize("field", ["shift", "data_col", "batch_repeat_value"])
def test_a_field_of_a_requirement(field: str) -> None:
    with pytest.raises(ViewError, match=rf'unknown {swapped(field)}; .*; did you mean "{field}"\?'):
        view_from({"view": "requirements", "requirements": {"x": {swapped(field): 1}}})


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_an_option_of_a_view(name: str) -> None:
    with pytest.raises(ViewError, match=r'; did you mean "priority"\?'):
        view_from({"view": name, "priorty": 1.0})


# The commands on TFDS datasets, each in a process of its own: none of them loads TensorFlow, where there is one and where there is none.

NOT_NEEDED = {"array_record", "imagecodecs", "pyarrow", "reverb", "simplejpeg", "tensorflow", "tensorflow_datasets"}

CODE = """
import json, sys
from rlds2reverb import cli
sys.argv[0] = "rlds2reverb"
told, code = sys.argv.pop(1), 0
try:
    cli.main()
except SystemExit as ended:
    code = ended.code
with open(told, "w") as file:
    json.dump({"code": code, "loaded": sorted({name.partition(".")[0] for name in sys.modules})}, file)
"""


@pytest.fixture
def ran(tmp_path: Path) -> Any:
    """Runs a command that must end well; what it printed."""

    def run(*arguments: str) -> str:
        told = tmp_path / "told"
        finished = subprocess.run(
            [sys.executable, "-c", CODE, str(told), *arguments], capture_output=True, text=True, timeout=120, check=True
        )
        found = json.loads(told.read_text())
        assert found["code"] in (0, None), finished.stderr
        assert NOT_NEEDED & set(found["loaded"]) == set()
        assert "numpy" in found["loaded"]
        return finished.stdout

    return run


@pytest.fixture(params=["bundled", "directory", "name"])
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same dataset, named in three ways."""
    if request.param == "bundled":
        return "bundled:half_cheetah"
    copy = shutil.copytree(bundled_path("half_cheetah"), tmp_path / "data" / "half_cheetah" / "1.0.0")
    if request.param == "directory":
        return f"tfds:{copy}@train"
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("RLDS2REVERB_DATA_DIRS", str(tmp_path / "data"))
    return "tfds:HalfCheetah:1.*.*@train"


def test_inspect(ran: Any, name: str) -> None:
    shown = ran("inspect", name)
    assert "4 episodes, 4,004 steps" in shown
    assert "observation" in shown


def test_validate(ran: Any, name: str) -> None:
    assert ran("validate", name) == "no problems in 4 episodes\n"


def test_push(ran: Any, name: str) -> None:
    with FakeReverb("replay") as server:
        ran("push", f"{name.partition('@')[0]}@train[:1]?order=file", "--server", server.address, "--table", "replay")
        assert len(server.tables["replay"].items) == 1000


def test_a_servers_config_and_its_check(ran: Any, name: str, tmp_path: Path) -> None:
    """With what the extra `server-config` brings; the checkpoint is read, too."""
    (path := tmp_path / "server.yaml").write_text(ran("inspect", name, "--server-config"))
    checked = yaml.safe_load(ran("serve", "--config", str(path), "--check"))
    assert checked["tables"]["replay"]["at_start"] == "empty"
    folder = Path(checked["checkpoints"]["folder"])
    assert folder.is_relative_to(tmp_path)
    checkpoint = add(opened(folder), 3)
    checked = yaml.safe_load(ran("serve", "--config", str(path), "--check", "--set", "tables.0.name=one"))
    assert checked["checkpoints"]["starts_from"] == f"checkpoint 1, 3 items, {checkpoint.bytes} bytes"
    assert checked["checkpoints"]["last_checkpoint"].startswith("checkpoint 1, written at ")
    reason = "its items were stored without a signature, the config has one"
    assert checked["tables"]["one"]["at_start"] == f"empty, 3 items set aside: {reason}"


@pytest.mark.parametrize("module", ["flask", pytest.param("reverb", marks=pytest.mark.full)])
def test_a_server_that_lacks_a_library_says_which(tmp_path: Path, module: str) -> None:
    """Where it is installed, it is hidden."""
    (path := tmp_path / "server.yaml").write_text("tables: [{name: t}]")
    code = f"import sys; sys.modules[{module!r}] = None; from rlds2reverb import cli; cli.main()"
    finished = subprocess.run(
        [sys.executable, "-c", code, "serve", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 3
    missing = module if sys.version_info[:2] in PYTHONS and reverb_exists() else "reverb"
    assert f"serve needs {missing}; {how_to_install('server')}" in finished.stderr
    assert "bug" not in finished.stderr


def test_the_package_runs_as_a_module() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "rlds2reverb", "inspect", "bundled:cartpole"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "25 episodes" in finished.stdout
