"""What `serve` and `demo` say where Reverb has no package: one line, and a command line for each way that works there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from replay_server import environment

from rlds2reverb import extras
from rlds2reverb.cli import elsewhere
from tests.support.project import ROOT

Run = Callable[..., tuple[int, str, str]]
CONTAINER = f"docker build {{}}-t rlds2reverb-replay {ROOT} && docker run --rm {{}}"


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The package believes that it runs on Python 3.13, on this system and processor, without Reverb, and uv is on PATH."""
    system, processor = request.param
    believed = SimpleNamespace(version_info=(3, 13, 0, "final", 0), platform=system, executable="/nowhere/python")
    monkeypatch.setattr(extras, "sys", believed)
    monkeypatch.setattr(elsewhere, "sys", believed)
    monkeypatch.setattr(extras, "platform", SimpleNamespace(machine=lambda: processor))
    monkeypatch.setattr(elsewhere, "find_spec", lambda name: None)
    monkeypatch.setattr(elsewhere, "find_uv", lambda: "/usr/bin/uv")
    return request.param


@pytest.mark.parametrize("machine", [("linux", "x86_64")], indirect=True)
def test_beside_a_later_python_an_environment_and_the_container_are_proposed(
    machine: tuple[str, str], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "a server.yaml"
    further = ["--set", "http.port=9000", "--start-empty", "--start-from", "2026-11-17", "--log-format", "json"]
    given = ["--config", str(config), *further]
    code, out, told = run("serve", *given)
    assert (code, out) == (3, "")
    first, *ways = told.splitlines()
    assert first.startswith("rlds2reverb: error: serve needs reverb; this part runs on Python 3.10 and 3.11 on Linux")
    assert shlex.split(ways[0]) == ["rlds2reverb", "serve", "--python", "3.11", *given]
    assert ways[1].startswith("  " + CONTAINER.format("", "-p 127.0.0.1:8000:8000"))
    assert f"-v '{config}':/etc/replay/server.yaml:ro" in ways[1]
    assert "-p 127.0.0.1:9000:9000 " in ways[1]
    as_run = shlex.split(ways[1].partition(" rlds2reverb-replay rlds2reverb ")[2])
    assert as_run[:3] == ["serve", "--config", "/etc/replay/server.yaml"]
    assert sorted(as_run[3:]) == sorted(further)
    assert len(ways) == 2
    _, _, told = run("serve", "--config", str(config))
    assert told.endswith(":/var/lib/replay rlds2reverb-replay\n")
    monkeypatch.setattr(elsewhere, "find_uv", lambda: None)
    code, out, told = run("demo", "--json")
    assert code == 2
    assert told.splitlines()[1] == "  pip install uv && rlds2reverb demo --python 3.11 --json"
    message = json.loads(out)["error"]["message"]
    assert "What works here: pip install uv && " in message
    assert message.endswith(CONTAINER.format("", "rlds2reverb-replay rlds2reverb demo --json"))


@pytest.mark.parametrize("machine", [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")], indirect=True)
def test_on_other_machines_the_container_is(machine: tuple[str, str], run: Run) -> None:
    system, processor = machine
    code, _, told = run("demo", "--dataset", "cartpole")
    assert code == 2
    name = {"darwin": "macOS", "linux": "Linux", "win32": "Windows"}[system]
    assert f"this is Python 3.13 on {name} {processor}" in " ".join(told.split())
    emulated = "--platform linux/amd64 "
    words = "rlds2reverb-replay rlds2reverb demo --dataset cartpole"
    assert told.splitlines()[-1] == "  " + CONTAINER.format(emulated, f"{emulated}{words}")
    assert "--python" not in told


def test_a_server_whose_environment_cannot_be_made_could_not_start(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "reverb_exists", lambda: True)
    for cache in (tmp_path / "a:b", tmp_path / "file"):
        (tmp_path / "file").touch()
        monkeypatch.setenv("RLDS2REVERB_CACHE", str(cache))
        code, _, told = run("serve", "--config", "server.yaml", "--python", "3.11")
        assert (code, cache.name in told) == (3, True)


def test_an_unknown_python_is_refused(run: Run) -> None:
    code, _, told = run("demo", "--python", "3.12")
    assert code == 2
    assert "'3.12' is not one of '3.10', '3.11'" in told
