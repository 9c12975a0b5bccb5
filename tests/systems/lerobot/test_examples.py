"""The example that trains LeRobot's policies: on a dataset on disk, and on a table that it fills."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lerobot")

from rlds2reverb.adapters.lerobot import policy_view
from rlds2reverb.formats import open_source
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import ArraySpec, ImageSpec, map_with_path
from rlds2reverb.views.trajectory import table_signature
from tests.support.project import ROOT
from tests.systems.lerobot.training import config_of

EXAMPLES = ROOT / "examples"


def run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES / "learners")])}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reach")
    run("make_reach.py", str(folder), "--episodes", "24")
    return f"tfds:{folder}/reach/1.0.0"


def check_report(output: str) -> None:
    found = re.search(r"^held-out error ([\d.]+), of the mean action ([\d.]+)$", output, re.MULTILINE)
    assert found, output
    assert float(found[1]) < 2 * float(found[2])


def test_act_is_trained_on_a_dataset_and_saved(reach: str, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    check_report(run("learners/lerobot_policy.py", reach, "--steps", "20", "--batch-size", "8", "--save", str(folder)))
    assert json.loads((folder / "config.json").read_text())["type"] == "act"


def test_diffusion_policy_is_trained_on_a_table(reach: str, start_server: Callable[..., Any]) -> None:
    spec = filled_spec(open_source(reach).spec())
    files = map_with_path(
        lambda path, leaf: ArraySpec.of_images(ImageSpec(leaf.shape, leaf.dtype)) if path.endswith("image") else leaf,
        spec,
    )
    signature = table_signature(policy_view(config_of("diffusion")).signature(files))
    address = start_server({"name": "reach", "signature": signature}).address
    arguments = ["--policy", "diffusion", "--steps", "20", "--batch-size", "8", "--server", address]
    check_report(run("learners/lerobot_policy.py", reach, *arguments))
