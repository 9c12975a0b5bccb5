"""mypy sees the types of the installed wheel: what is right passes, what is wrong is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.wheels.conftest import Install
from tests.packaging.wheels.installing import Environment

RIGHT = """
from typing import assert_type

import numpy as np

import rlds2reverb
from replay_server import EmbeddedServer, TableConfig

with EmbeddedServer([TableConfig("replay")]) as server, rlds2reverb.connect(server.address) as client:
    report = client.push("bundled:cartpole", table="replay", view="sequence:length=8,stride=4")
    assert_type(report, rlds2reverb.PushReport)
    assert_type(report.items_confirmed, int)
    for data, info in client.sample("replay", 256, samples=1024):
        assert_type(info, rlds2reverb.BatchInfo)
episode = rlds2reverb.Episode({"reward": np.ones(3, np.float32)})
assert_type(len(episode), int)
"""

WRONG = {
    'client.push("bundled:cartpole")': "call-arg",
    'client.push("bundled:cartpole", table="replay").items_konfirmed': "attr-defined",
    'client.sample("replay", "many")': "arg-type",
    'client.sample("replay", batchsize=3)': "call-arg",
    'client.push("bundled:cartpole", "replay", on_invalid=3)': "arg-type",
    'rlds2reverb.convert("bundled:cartpole", "npz:x", limits=3)': "call-arg",
    "rlds2reverb.no_such_name": "attr-defined",
    'rlds2reverb.connect(1, wait_seconds="long")': "arg-type",
}
"""Lines behind `client = rlds2reverb.connect(...)`, and what mypy calls the mistake."""


@pytest.fixture(scope="module")
def environment(installed: Install) -> Environment:
    return installed("3.11")


def checked(environment: Environment, program: Path) -> str:
    """What mypy, of the environment that runs the tests, says of a program for another one."""
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        environment.python,
        "--cache-dir",
    ]
    done = subprocess.run(
        [*command, environment.home / "cache", "--config-file", "", program],
        cwd=environment.home,
        capture_output=True,
        text=True,
        env={},
        timeout=1200,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_what_is_right_passes(environment: Environment, tmp_path: Path) -> None:
    program = tmp_path / "right.py"
    program.write_text(RIGHT.replace("from typing import assert_type", "from typing_extensions import assert_type"))
    assert checked(environment, program).startswith("Success"), checked(environment, program)


def test_what_is_wrong_is_found(environment: Environment, tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text("\n".join(["import rlds2reverb", 'client = rlds2reverb.connect("x:1")', *WRONG]))
    told = checked(environment, program).splitlines()
    for number, (line, code) in enumerate(WRONG.items(), 3):
        found = [reported for reported in told if f"wrong.py:{number}: error" in reported]
        assert any(error.endswith(f"[{code}]") for error in found), (line, told)
