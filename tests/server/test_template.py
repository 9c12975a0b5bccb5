"""The config that `inspect --server-config` writes: a server starts from it, unchanged, and the push it names fills it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from replay_server.template import Wanted, config_text

import rlds2reverb
from rlds2reverb.cli import cli
from rlds2reverb.errors import ServerUnreachable
from tests.server.forks import free_port

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

SIGNATURE = rlds2reverb.open_source("bundled:cartpole").spec()
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "REPLAY__HTTP__PORT": "0"}


def program(*arguments: str) -> str:
    """What the command prints."""
    shown = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.fixture
def address(tmp_path: Path, written: str) -> Iterator[str]:
    """Of a server that runs by the written config, as it stands."""
    path, port = tmp_path / "server.yaml", free_port()
    path.write_text(written)
    command = [sys.executable, "-m", "replay_server", "--config", str(path)]
    with (tmp_path / "log").open("wb") as log:
        environment = {**ENVIRONMENT, "REPLAY__GRPC__PORT": str(port)}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env=environment)
    try:
        until_it_answers(process, f"localhost:{port}", tmp_path / "log")
        yield f"localhost:{port}"
    finally:
        process.kill()
        process.wait()


def until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            rlds2reverb.connect(address, timeout_seconds=0.5).close()
            return
        except ServerUnreachable:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end


@pytest.fixture
def written(request: pytest.FixtureRequest) -> str:
    source, *views = request.param
    return program("inspect", source, "--server-config", *views)


@pytest.mark.parametrize(
    "written",
    [
        ("bundled:half_cheetah",),
        ("bundled:cartpole", "--into", "pairs=two_step:priority=reward", "--into", "long=sequence:length=40"),
    ],
    indirect=True,
)
def test_a_server_starts_from_it_and_the_push_in_its_head_fills_it(written: str, address: str) -> None:
    (push,) = (line for line in written.splitlines() if line.startswith("#   rlds2reverb push"))
    program(*shlex.split(push.replace("localhost:8000", address))[2:])
    sizes = {one["name"]: one["max_size"] for one in yaml.safe_load(written)["tables"]}
    with rlds2reverb.connect(address) as client:
        assert {name: table.current_size for name, table in client.server_info().tables.items()} == sizes


def test_priorities_choose_the_sampler() -> None:
    tables = {"plain": Wanted(3, SIGNATURE), "weighed": Wanted(4, SIGNATURE, by_priority=True)}
    written = yaml.safe_load(config_text("bundled:cartpole", "--into ...", tables))["tables"]
    assert [one["sampler"] for one in written] == ["uniform", {"kind": "prioritized", "exponent": 1.0}]
    assert [one["max_size"] for one in written] == [3, 4]


def test_a_part_of_a_source_is_named_as_such() -> None:
    (whole, *_) = config_text("bundled:cartpole", "", {"t": Wanted(9, SIGNATURE)}).splitlines()
    (part, *_) = config_text("bundled:cartpole", "", {"t": Wanted(9, SIGNATURE)}, 1500).splitlines()
    assert whole == "# A replay server for 9 items of bundled:cartpole, for a push as below."
    assert part == "# A replay server for 9 items of the first 1,500 episodes of bundled:cartpole, for a push as below."
