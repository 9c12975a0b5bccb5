"""The commands on TFDS datasets, each in a process of its own: none of them loads TensorFlow, where there is one and where there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlds2reverb.extras import how_to_install
from rlds2reverb.formats.tfds import bundled_path
from tests.support.fake_reverb import FakeReverb
from tests.unit.server.test_store import add, opened

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
    assert f"serve needs {module}; {how_to_install('server')}" in finished.stderr
    assert "bug" not in finished.stderr


def test_the_package_runs_as_a_module() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "rlds2reverb", "inspect", "bundled:cartpole"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "25 episodes" in finished.stdout
