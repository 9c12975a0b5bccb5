"""What an import costs: the package loads nothing, the client no optional library, and no module of the core TensorFlow."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from collections.abc import Collection
from typing import Any

import pytest

import rlds2reverb

LEARNERS = ("jax", "ray", "reverb", "rlds", "tensordict", "tensorflow", "tensorflow_datasets", "tf_agents", "torch")
PEERS = ("lerobot", "minari", "torchrl", "webdataset")
"""Libraries of destinations, by which a conversion that is verified is read, too."""

FORMATS = ("PIL", "array_record", "av", "h5py", "imagecodecs", "msgpack", "pyarrow", "simplejpeg")
OPTIONAL = frozenset(
    {*LEARNERS, *PEERS, *FORMATS, "flask", "huggingface_hub", "obstore", "replay_server", "structlog", "textual"}
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
    assert {name for name in found if name.startswith("rlds2reverb.")} == set()


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
