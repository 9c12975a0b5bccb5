"""The server's environment with an older Python, made by a stand-in of uv: once, whole or not at all, whatever comes between."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from replay_server import environment
from replay_server.environment import keep_libraries, link_package, python_of

import rlds2reverb
from rlds2reverb import extras
from rlds2reverb.errors import ConfigError
from tests.support.project import ROOT, project

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not extras.reverb_exists(), reason="environments are made where Reverb exists"),
]

STAND_IN = """#!{python}
import json, os, pathlib, sys
log, gate, failure = {log!r}, {gate!r}, {failure!r}
with open(log, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + chr(10))
with open(log + ".settings", "a") as file:
    file.write(json.dumps([os.getcwd(), os.path.exists("pyproject.toml"), dict(os.environ)]) + chr(10))
if "-c" in sys.argv:
    sys.exit(0)
if "install" not in sys.argv:
    folder = pathlib.Path(sys.argv[-1])
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh" + chr(10) + {script!r})
    (folder / "bin" / "python").chmod(0o755)
    packages = folder / "lib" / "python3.11" / "site-packages"
    for name in ("reverb/libpybind.so", "reverb/ops/gen.py", "reverb/client.py", "tensorflow/libtensorflow_framework.so.2", "tensorflow/libtensorflow_cc.so.2", "numpy/core/tests/test_x.py", "numpy/core/y.py"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text("")
    sys.exit(0)
if os.path.exists(gate):
    open(gate).read()  # until the other end is closed
if failure:
    print(failure)
    sys.exit(2)
"""


class Installer:
    """A stand-in of uv, or of a Python with venv and pip, alone on PATH."""

    def __init__(self, folder: Path, name: str = "uv") -> None:
        self.folder, self.program, self.log, self.gate = folder, folder / name, folder / "log", folder / "gate"
        self.script = 'exit "${CODE:-0}"'
        folder.mkdir()
        self.write()

    def write(self, failure: str = "") -> None:
        values = {"log": str(self.log), "gate": str(self.gate), "failure": failure, "script": self.script}
        self.program.write_text(STAND_IN.format(python=sys.executable, **values))
        self.program.chmod(0o755)

    def settings(self) -> list[tuple[str, bool, dict[str, str]]]:
        """Of each call: the current folder, whether a project is there, the variables."""
        return [json.loads(line) for line in Path(f"{self.log}.settings").read_text().splitlines()]

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    installer = Installer(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(installer.folder))
    monkeypatch.setattr(environment, "find_uv", lambda: shutil.which("uv"))
    monkeypatch.setattr(environment, "NEEDED_BYTES", 0)
    return installer


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    (folder := tmp_path / "servers").mkdir()
    return folder


def make(servers: Path, told: list[str] | None = None) -> Path:
    return python_of(servers, "3.11", link_package(servers), ([] if told is None else told).append)


def made(servers: Path) -> list[str]:
    return sorted(path.name for path in servers.iterdir() if path.name.startswith(("3.", "making", "links")))


def test_it_is_made_once_and_later_starts_need_nothing(servers: Path, uv: Installer) -> None:
    told: list[str] = []
    python = make(servers, told)
    venv, install = uv.calls()
    assert venv[:1] == ["venv"]
    assert venv[-3:-1] == ["--python", "3.11"]
    assert install[:2] == ["pip", "install"]
    assert {"--require-hashes", "--no-deps", ":all:", str(environment.LOCK_FILE)} <= {*install}
    assert len(told) == 1
    assert f"Python 3.11 for the server in {python.parents[1]}" in told[0]
    uv.program.unlink()
    assert make(servers, told) == python
    assert len(told) == 1
    assert made(servers) == [python.parents[1].name]


def test_only_the_libraries_stay(servers: Path, uv: Installer) -> None:
    packages = make(servers).parents[1] / "lib/python3.11/site-packages"
    files = {path.relative_to(packages).as_posix() for path in packages.rglob("*") if path.is_file()}
    own = {"reverb/__init__.py", "tensorflow/__init__.py", "numpy/core/y.py"}
    assert files == {"reverb/libpybind.so", "tensorflow/libtensorflow_framework.so.2", *own}
    for name in ("reverb", "tensorflow"):
        question = f"import importlib.util as u; print(u.find_spec({name!r}) is not None); import {name}"
        answer = subprocess.run(
            [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(packages)!r}); {question}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert answer.stdout == "True\n"
        assert f"ModuleNotFoundError: No module named '{name}'" in answer.stderr
    shutil.rmtree(packages / "reverb")
    with pytest.raises(ConfigError, match=r"reverb: expected lib\*\.so"):
        keep_libraries(packages)


def test_of_two_starts_at_once_one_makes_it(servers: Path, uv: Installer) -> None:
    os.mkfifo(uv.gate)
    told: list[str] = []
    pythons: list[Path] = []
    waits = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        if "waiting" in line:
            waits.set()

    def start() -> None:
        pythons.append(python_of(servers, "3.11", link_package(servers), tell))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waits.wait(30)
    uv.gate.open("w").close()
    for thread in threads:
        thread.join(30)
    assert len(uv.calls()) == 2
    assert len({*pythons}) == 1
    assert len(pythons) == 2
    assert sorted("waiting" in line for line in told) == [False, True]


def test_what_a_killed_start_left_is_removed_when_its_installer_has_ended(servers: Path, uv: Installer) -> None:
    os.mkfifo(uv.gate)
    code = (
        "import pathlib, sys; from replay_server import environment as e; e.NEEDED_BYTES = 0; "
        "e.find_uv = lambda: sys.argv[2]; folder = pathlib.Path(sys.argv[1]); "
        "e.python_of(folder, '3.11', e.link_package(folder), lambda line: print(line, flush=True))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(servers), str(uv.program)], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert "making an environment" in started.stdout.readline()
    with uv.gate.open("w"):  # opened when the installer waits there
        started.kill()
        started.communicate()
        assert made(servers)[0].startswith("making-")
        with (servers / "LOCK").open("ab") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the installer goes on, and holds it
    uv.gate.unlink()
    python = make(servers)
    assert made(servers) == [python.parents[1].name]
    assert len(uv.calls()) == 4


@pytest.mark.parametrize(
    "failure", ["error: Hash mismatch for `numpy==1.26.4`", "error: No space left on device (os error 28)"]
)
def test_what_cannot_be_installed_leaves_nothing(servers: Path, uv: Installer, failure: str) -> None:
    uv.write(failure)
    with pytest.raises(ConfigError, match=re.escape(f"nothing of it is left. uv pip install ended with 2: {failure}")):
        make(servers)
    assert made(servers) == []
    uv.write()
    assert os.access(make(servers), os.X_OK)


def test_an_environment_whose_server_does_not_load_is_not_kept(servers: Path, uv: Installer) -> None:
    uv.script = "echo 'ImportError: numpy of another version'; exit 1"
    uv.write()
    with pytest.raises(ConfigError, match="ended with 1: ImportError: numpy of another version"):
        make(servers)
    assert made(servers) == []


def test_a_disk_without_room_is_refused_before_anything_is_fetched(
    servers: Path, uv: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(ConfigError, match=r"GB free, and an environment takes .*RLDS2REVERB_CACHE"):
        make(servers)
    assert uv.calls() == []


def test_another_lock_file_is_another_environment(
    servers: Path, uv: Installer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = make(servers)
    (lock := tmp_path / "other.txt").write_text("numpy==1.26.4 --hash=sha256:00\n")
    monkeypatch.setattr(environment, "LOCK_FILE", lock)
    assert make(servers) != first
    assert len(made(servers)) == 2
    lock.unlink()
    with pytest.raises(ConfigError, match="which this package ships"):
        make(servers)


def test_another_version_of_the_package_has_the_same_environment(
    servers: Path, uv: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, links = make(servers), link_package(servers)
    number = rlds2reverb.__version__
    monkeypatch.setattr(environment, "program_version", lambda: "9.8.7")
    later = link_package(servers)
    assert make(servers) == python
    assert later != links
    for folder, version in ((links, number), (later, "9.8.7")):
        (about,) = metadata.distributions(path=[str(folder)])
        assert (about.name, about.version) == ("rlds2reverb", version)
        assert (folder / "rlds2reverb").resolve() == ROOT / "rlds2reverb"
        assert (folder / "replay_server").resolve() == ROOT / "server" / "replay_server"


def test_one_whose_python_is_gone_is_made_again(servers: Path, uv: Installer) -> None:
    python = make(servers)
    python.unlink()
    python.symlink_to(servers / "removed" / "python3.11")
    assert make(servers) == python
    assert len(uv.calls()) == 4


def test_without_uv_a_python_with_venv_makes_it(
    servers: Path, tmp_path: Path, uv: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv.program.unlink()
    with pytest.raises(ConfigError, match=r"uv, or python3\.11 with venv .*: pip install uv"):
        make(servers)
    uv.program = uv.folder / "python3.11"
    uv.script = f'exec {uv.program} "$@"'  # pip of the environment
    uv.write()
    make(servers)
    asked, venv, install, check = uv.calls()
    assert asked[0] == check[0] == "-c"
    assert venv[:2] == ["-m", "venv"]
    assert install[:3] == ["-m", "pip", "install"]
    assert {"--require-hashes", "--no-cache-dir", str(environment.LOCK_FILE)} <= {*install}


@pytest.mark.parametrize("name", ["uv", "python3.11"])
def test_settings_of_the_folder_and_of_the_shell_stay_outside_and_the_index_does_not(
    servers: Path, tmp_path: Path, uv: Installer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    uv.program.rename(uv.folder / name)
    uv.program = uv.folder / name
    uv.script = f'exec {uv.program} "$@"'
    uv.write()
    own = {
        "UV_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "PIP_INDEX_URL",
        "PIP_CERT",
        "UV_PYTHON_INSTALL_DIR",
        "HTTPS_PROXY",
        "UV_HTTP_TIMEOUT",
    }
    foreign = {
        "PYTHONPATH",
        "PYTHONHOME",
        "UV_CONSTRAINT",
        "UV_OVERRIDE",
        "UV_EXCLUDE_NEWER",
        "UV_NO_BINARY",
        "UV_WORKING_DIR",
        "UV_PYTHON",
    }
    foreign |= {"PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_CONSTRAINT", "PIP_NO_DEPS", "VIRTUAL_ENV", "CONDA_PREFIX"}
    for variable in own | foreign:
        monkeypatch.setenv(variable, "of the shell")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "programs")
    make(servers)
    *steps, _ = uv.settings()  # the last is the check, in the environment
    assert len(steps) == {"uv": 2, "python3.11": 3}[name]
    for folder, has_project, variables in steps:
        assert folder.startswith(f"{servers}/making-")
        assert has_project  # uv looks no further up
        assert own <= variables.keys()
        assert not foreign & variables.keys()


def test_what_is_not_installed_as_locked_is_named(tmp_path: Path) -> None:
    (lock := tmp_path / "lock.txt").write_text(
        "a-b==1.0 \\\n    --hash=sha256:00\nc==2 ; python_full_version < '3' \\\n    --hash=sha256:00\nd==3rc1\ne==4 ; python_full_version > '3'\n"
    )
    for name in ("A_B-1.0", "c-1", "d-3rc1", "e-4"):
        (about := tmp_path / f"{name}.dist-info").mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(*name.split("-")))
    environment.check_pins(lock, tmp_path)
    shutil.rmtree(tmp_path / "e-4.dist-info")
    (tmp_path / "A_B-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: A_B\nVersion: 1.1\n")
    with pytest.raises(ConfigError, match=r"has: a-b==1\.0 \(there is 1\.1\), e==4 \(there is none\)$"):
        environment.check_pins(lock, tmp_path)


def test_links_are_open_to_others_and_those_of_killed_starts_are_removed(servers: Path) -> None:
    before = os.umask(0o027)
    try:
        (servers / "links-killed").mkdir()
        links = link_package(servers)
    finally:
        os.umask(before)
    assert links.stat().st_mode & 0o777 == 0o750
    assert {path.name for path in servers.iterdir()} == {links.name, "LINKS"}


def test_a_package_without_metadata_is_linked_without(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "program_version", lambda: "")
    assert {path.name for path in link_package(servers).iterdir()} == {"rlds2reverb", "replay_server"}


def test_a_program_of_another_processor_and_a_path_that_cannot_be_searched_are_refused(
    uv: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "a:b"))
    with pytest.raises(ConfigError, match=r"a:b/servers: no path with ':' can be searched .* RLDS2REVERB_CACHE"):
        environment.exec_in_environment("3.11", ["serve"], print)
    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache/servers").mkdir(parents=True)
    python = make(tmp_path / "cache/servers")
    assert platform.machine() in python.parents[1].name
    python.write_bytes(b"\x7fELF" + b"\0" * 60)
    with pytest.raises(ConfigError, match=re.escape(f"Exec format error; remove the folder {python.parents[1]}, and")):
        environment.exec_in_environment("3.11", ["serve"], print)


def test_the_process_becomes_the_server(uv: Installer, tmp_path: Path) -> None:
    """Its number stays, its exit code is the server's, and nothing of the Python that ran is left in its variables."""
    uv.script = 'if [ "$1" != -c ]; then echo "$$ $PYTHONPATH $VIRTUAL_ENV|$@"; exit 7; fi'
    uv.write()
    code = "from replay_server import environment as e; e.NEEDED_BYTES = 0; from rlds2reverb import cli; cli.main()"
    words = ["serve", "--config", "a b.yaml", "--set", "http.port=1", "--set", "grpc.port=2", "--start-empty"]
    variables = {
        **os.environ,
        "PATH": f"{uv.folder}:/usr/bin:/bin",
        "RLDS2REVERB_CACHE": str(tmp_path / "cache"),
        "VIRTUAL_ENV": "of another",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'server'}",
    }
    started = subprocess.Popen(
        [sys.executable, "-c", code, "--debug", *words, "--python", "3.11"],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = started.communicate(timeout=50)
    assert started.returncode == 7
    links = next((tmp_path / "cache/servers").glob("package-*"))
    assert output == f"{started.pid} {links} |-m rlds2reverb --debug {' '.join(words)}\n"


def test_on_another_processor_there_is_none(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(extras, "platform", SimpleNamespace(machine=lambda: "aarch64"))
    monkeypatch.setattr(environment, "reverb_exists", lambda: False)
    with pytest.raises(ConfigError, match=r"--python 3\.11: this part runs on Python .* on Linux aarch64"):
        environment.exec_in_environment("3.11", ["serve"], print)


def test_the_lock_file_has_a_hash_of_everything_and_no_address() -> None:
    text = environment.LOCK_FILE.read_text()
    assert "://" not in text
    pins: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        first, *hashes = block.split(" \\\n")
        assert hashes
        assert all(re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}", line) for line in hashes)
        requirement = Requirement(first)
        pins.setdefault(requirement.name, []).append(next(iter(requirement.specifier)).version)
    extra = project()["optional-dependencies"]
    needed = [*project()["dependencies"], *extra["server"], *extra["server-config"], *extra["cloud"]]
    for requirement in map(Requirement, needed):
        name = {"tensorflow": "tensorflow-cpu"}.get(requirement.name, requirement.name)
        if name != "rlds2reverb":
            assert all(requirement.specifier.contains(version) for version in pins[name]), name
