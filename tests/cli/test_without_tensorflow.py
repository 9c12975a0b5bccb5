"""The commands on TFDS datasets, each in a process of its own: none of them loads TensorFlow, where there is one and where there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb.datasets import bundled_path
from tests.transport.fake_reverb import FakeReverb

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
    assert ran("validate", name) == "no problems\n"


def test_push(ran: Any, name: str) -> None:
    with FakeReverb("replay") as server:
        ran("push", f"{name.partition('@')[0]}@train[:1]?order=file", "--server", server.address, "--table", "replay")
        assert len(server.tables["replay"].items) == 1000


def test_the_package_runs_as_a_module() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "rlds2reverb", "inspect", "bundled:cartpole"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "25 episodes" in finished.stdout
