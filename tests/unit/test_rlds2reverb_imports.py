"""What an import costs: the package loads nothing, the client no optional library, and no module of the core TensorFlow."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

import pytest

import rlds2reverb
from tests.support.project import ROOT, pyproject

LEARNERS = ("jax", "ray", "reverb", "rlds", "tensordict", "tensorflow", "tensorflow_datasets", "tf_agents", "torch")
PEERS = ("lerobot", "minari", "torchrl", "webdataset")
"""Libraries of destinations, by which a conversion that is verified is read, too."""

FORMATS = ("PIL", "array_record", "av", "h5py", "imagecodecs", "msgpack", "pyarrow", "simplejpeg")
OPTIONAL = frozenset(
    {
        *LEARNERS,
        *PEERS,
        *FORMATS,
        "flask",
        "gymnasium",
        "huggingface_hub",
        "obstore",
        "replay_server",
        "structlog",
        "textual",
    }
)
"""Packages that the core does without."""

NEED_A_LEARNERS_LIBRARY = (
    "adapters",
    "workers.ray",
    "formats.loading",
    "formats.rlds",
    "formats.tfds.by_tensorflow",
    "tf_agents",
)

_WITHOUT = """
import importlib, json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
for name in {names!r}:
    importlib.import_module(name)
{then}
print(json.dumps(sorted(sys.modules)))
"""


def loaded(names: list[str], blocked: Collection[str] = (), then: str = "") -> set[str]:
    """Modules that a fresh interpreter has after these imports, in an environment without the packages `blocked`."""
    code = _WITHOUT.format(names=names, blocked=sorted(blocked), then=then)
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_of_it() -> None:
    found = loaded(["rlds2reverb"])
    assert not found & {*OPTIONAL, "numpy", "grpc", "google.protobuf", "sqlite3", "click", "rich"}
    assert {name for name in found if name.startswith("rlds2reverb.")} == {"rlds2reverb.hooks"}


def test_the_client_loads_no_optional_library() -> None:
    found = loaded(["rlds2reverb.client"])
    assert "rlds2reverb.push.run" in found
    assert {name.partition(".")[0] for name in found} & OPTIONAL == set()


def test_every_module_but_the_adapters_imports_without_a_learners_library() -> None:
    names = [
        found.name
        for found in pkgutil.walk_packages(rlds2reverb.__path__, "rlds2reverb.")
        if "datasets." not in found.name
    ]
    core = [
        name
        for name in names
        if not name.removeprefix("rlds2reverb.").startswith((*NEED_A_LEARNERS_LIBRARY, "__main__"))
        and not (name.startswith("rlds2reverb.formats.") and name.endswith(".by_library"))
    ]
    assert len(core) > 100
    loaded(core, blocked=(*LEARNERS, *PEERS))


def test_the_core_inspects_a_dataset_without_any_optional_library() -> None:
    loaded(
        [],
        blocked=OPTIONAL,
        then='from rlds2reverb.cli import cli; cli.main(["inspect", "bundled:cartpole", "--limit", "2"], standalone_mode=False)',
    )


@pytest.mark.parametrize("name", sorted(rlds2reverb.__all__))
def test_every_public_name_is_there_or_says_which_extra_it_needs(name: str) -> None:
    assert name in dir(rlds2reverb)
    try:
        found: Any = getattr(rlds2reverb, name)
    except ModuleNotFoundError as missing:
        if "needs tensorflow; " not in str(missing):
            raise
        pytest.skip("needs an extra, and says so")
    assert found.__doc__


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'rlds2reverb' has no attribute 'nonsense'"):
        rlds2reverb.nonsense  # type: ignore[attr-defined]  # noqa: B018


_ALONE = """
import importlib, json, pkgutil, sys
import rlds2reverb.formats

missing = {}
for module in pkgutil.walk_packages(rlds2reverb.formats.__path__, "rlds2reverb.formats."):
    if ".datasets" not in module.name:
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing[module.name] = error.name
episode = next(iter(rlds2reverb.formats.open_source("bundled:cartpole")))
ours = [module.__file__ for name, module in sys.modules.items() if name.startswith("rlds2reverb.")]
try:
    rlds2reverb.formats.open_source("mix:soup.yaml")
except rlds2reverb.errors.SourceError as error:
    refusal = str(error)
print(json.dumps([missing, ours, len(episode), episode._repr_html_(), refusal]))
"""


def test_no_import_contract_has_an_exception() -> None:
    rules = pyproject()["tool"]["importlinter"]
    assert not rules.get("exclude_type_checking_imports")
    assert [contract["name"] for contract in rules["contracts"] if "ignore_imports" in contract] == []


def test_formats_work_with_the_modules_below_them_alone(tmp_path: Path) -> None:
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    below = layers[1 + next(number for number, layer in enumerate(layers) if "formats" in layer.split(" | ")) :]
    copy = tmp_path / "rlds2reverb"
    copytree(ROOT / "rlds2reverb" / "formats", copy / "formats")
    (copy / "__init__.py").touch()
    for name in " | ".join(below).split(" | "):
        copyfile(ROOT / "rlds2reverb" / f"{name}.py", copy / f"{name}.py")
    run = [sys.executable, "-c", _ALONE]
    environment = {**os.environ, "PYTHONPATH": ""}
    finished = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    missing, modules, length, html, refusal = json.loads(finished.stdout)
    assert {name for name in missing.values() if name.startswith("rlds2reverb")} == set()
    assert {name for name in missing.values() if name.partition(".")[0] not in OPTIONAL} == set()
    assert all(Path(module).is_relative_to(tmp_path) for module in modules)
    assert len(modules) > 60
    assert length > 1
    assert html.startswith("<pre>Episode")
    assert refusal.startswith("mix:soup.yaml: mixture files and statistics need the whole package rlds2reverb")
