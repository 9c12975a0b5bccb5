"""Each extra alone, and all of them: what it brings installs, and what it is for works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlds2reverb
from rlds2reverb.extras import ON_ANY_PYTHON
from tests.packaging.wheels.conftest import Install
from tests.packaging.wheels.installing import UV, Environment, interpreter
from tests.support.project import project, requirements_of

NEWEST, FULL = "3.13", "3.11"

FILES = {
    "hdf5": "minari:{folder}/made/test-v0",
    "array-record": "tfds:{folder}/made_set?file_format=array_record",
    "parquet": "tfds:{folder}/made_set?file_format=parquet",
}
"""A destination that only the extra writes; what is written is read back."""

CODES = {
    "images": "import imagecodecs, simplejpeg, numpy as np; from rlds2reverb.images import *; "
    "assert simplejpeg.decode_jpeg(simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8))).shape == (8, 8, 3)",
    "msgpack": "import rlds2reverb.formats.rllib.records, msgpack; assert msgpack.unpackb(msgpack.packb([1])) == [1]",
    "cloud": "import huggingface_hub; from rlds2reverb.formats.buckets import path_of; import obstore.store; "
    "assert str(path_of('gs://bucket/key')) == 'gs://bucket/key'",
    "video": "import rlds2reverb.formats.lerobot.videos, av; assert av.codec.Codec('h264', 'r').name == 'h264'",
    "jax": "import rlds2reverb.adapters.jax",
    "torch": "import rlds2reverb.adapters.torch",
    "lerobot": "import rlds2reverb.adapters.lerobot",
    "torchrl": "import rlds2reverb.adapters.torchrl",
    "ray": "import rlds2reverb.workers.ray",
    "rllib": "import rlds2reverb.adapters.rllib",
    "tfds": "import rlds2reverb.adapters.tf_data, rlds2reverb.formats.tfds.by_tensorflow",
    "tf-agents": "import rlds2reverb.adapters.tf_agents; from rlds2reverb import push_rlds_to_reverb",
    "server": "import replay_server, replay_server.service",
    "top": "import rlds2reverb.cli.top.app",
    "server-config": "import replay_server.command, replay_server.template",
    "formats": "import av, array_record, h5py, imagecodecs, msgpack, pyarrow, simplejpeg",
    "record": "import gymnasium, mujoco, tensorflow_datasets",
}
"""A program that only runs with the extra: the way in to what it is for."""

LEROBOT = "3.12"
LEARNERS = ("jax", "ray", "rllib", "torch", "torchrl")
TOOLS = ("all", "dev", "lint", "test")


def lock_of(extra: str) -> tuple[str, str]:
    """The Python that an extra is tried on, and the lock that pins it there."""
    if extra == "lerobot":
        return LEROBOT, "lerobot.txt"
    if extra in LEARNERS:
        return FULL, "learners.txt"
    return (NEWEST, "core.txt") if extra in ON_ANY_PYTHON else (FULL, "full.txt")


def test_every_extra_is_tried() -> None:
    assert FILES.keys() | CODES.keys() | set(TOOLS) == project()["optional-dependencies"].keys()


@pytest.mark.parametrize("extra", sorted(FILES.keys() | CODES.keys()))
def test_an_extra_alone_does_what_it_is_for(extra: str, installed: Install, tmp_path: Path) -> None:
    python, lock = lock_of(extra)
    environment = installed(python, extra, lock=lock)
    found = environment.installed()
    assert found.keys() >= requirements_of(extra)
    sys.stdout.write(f"\n{extra} on Python {python}: {sum(environment.megabytes().values()):.0f} MB\n")
    if extra in CODES:
        environment("python", "-c", CODES[extra])
    if extra in FILES:
        name = FILES[extra].format(folder=tmp_path)
        environment("rlds2reverb", "convert", "bundled:cartpole", name, "--verify")


@pytest.fixture(scope="module")
def full(installed: Install) -> Environment:
    return installed(FULL, "all", lock="full.txt")


def test_with_everything_the_demo_runs(full: Environment) -> None:
    """An embedded server is filled with a shipped dataset, and sampled by Reverb's own client."""
    told = json.loads(full("rlds2reverb", "demo", "--json"))
    assert told["push"]["items_confirmed"] == told["push"]["items_new"] > 0
    assert told["again"]["items_new"] == 0


def test_beside_a_later_python_the_demo_runs_in_an_environment_of_its_own(installed: Install, tmp_path: Path) -> None:
    """What the wheel ships makes one; the second time nothing is asked of an index."""
    core = installed(NEWEST)
    question = [interpreter(FULL), "-c", "import sys; print(sys.base_prefix)"]
    prefix = subprocess.run(question, capture_output=True, text=True, check=True).stdout.strip()
    places = [core.folder / "bin", UV.parent, Path(prefix, "bin")]
    variables = {**os.environ, "PATH": ":".join(map(str, places)), "RLDS2REVERB_CACHE": str(tmp_path)}
    for is_offline in ("0", "1"):
        done = subprocess.run(
            [core.folder / "bin" / "rlds2reverb", "demo", "--python", FULL, "--json"],
            cwd=core.home,
            env={**variables, "UV_OFFLINE": is_offline},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["push"]["items_confirmed"] == told["push"]["items_new"] > 0
        assert ("making an environment" in done.stderr) is (is_offline == "0")
    (environment,) = tmp_path.glob("servers/3.*")
    megabytes = sum(path.lstat().st_size for path in environment.rglob("*")) / 1e6
    sys.stdout.write(f"\nthe server's environment: {megabytes:.0f} MB\n")
    assert megabytes < 250
    assert [*tmp_path.glob("servers/making-*")] == []


def test_with_everything_the_service_takes_its_config(full: Environment) -> None:
    config = full("rlds2reverb", "inspect", "bundled:cartpole", "--server-config")
    file = full.home / "server.yaml"
    file.write_text(config)
    told = full("python", "-m", "replay_server", "--config", str(file), "--check")
    assert "tables:" in told
    code = (
        "from importlib.resources import files; page = files('replay_server') / 'page' / 'index.html'; "
        "assert '<!doctype html' in page.read_text().lower(); "
        "from importlib.metadata import version; print(version('rlds2reverb'))"
    )
    assert full("python", "-c", code).strip() == rlds2reverb.__version__
