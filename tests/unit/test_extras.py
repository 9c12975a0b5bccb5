"""What to do about a missing library, on every Python that runs this package."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlds2reverb
from rlds2reverb import extras
from rlds2reverb.extras import ON_ANY_PYTHON, PYTHONS, how_to_install, needing
from tests.support.project import ROOT, project

FULL = [(3, 10), (3, 11)]
CORE_ONLY = [(3, 12), (3, 13), (4, 0)]


@pytest.fixture
def running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The package believes that this Python runs it; pytest goes on knowing better."""
    monkeypatch.setattr(extras, "sys", SimpleNamespace(version_info=(*request.param, 0, "final", 0), platform="linux"))
    return request.param


@pytest.mark.parametrize("running", FULL, indirect=True)
def test_where_an_extra_can_be_installed_the_command_is_told(running: tuple[int, int]) -> None:
    assert how_to_install("server") == f'install with: pip install "{ROOT}[server]"'
    assert how_to_install("server", "tfds") == f'install with: pip install "{ROOT}[server,tfds]"'


@pytest.mark.parametrize("running", CORE_ONLY, indirect=True)
def test_where_it_cannot_nothing_is_recommended(running: tuple[int, int]) -> None:
    major, minor = running
    assert how_to_install("tfds") == (
        f"this part runs on Python 3.10 and 3.11 only, and this is Python {major}.{minor}"
    )


@pytest.mark.parametrize("running", [*FULL, *CORE_ONLY], indirect=True)
def test_what_is_for_any_python_is_recommended_on_all(running: tuple[int, int]) -> None:
    for extra in ON_ANY_PYTHON:
        assert how_to_install(extra) == f'install with: pip install "{ROOT}[{extra}]"'
    assert ("pip install" in how_to_install("images", "tfds")) == (running in PYTHONS)


def test_in_an_image_another_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(extras.LEFT_OUT, "take the other")
    assert how_to_install("parquet") == "this installation leaves that library out; take the other"
    assert "image" not in how_to_install("tfds")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str | None], Path]:
    """The package runs from a folder of packages, with this record of where it was installed from; a folder for a clone."""

    def install(record: str | None) -> Path:
        monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages/rlds2reverb/extras.py"))
        told = SimpleNamespace(read_text=lambda name: record if name == "direct_url.json" else None)
        monkeypatch.setattr(metadata, "distribution", lambda name: told)
        return tmp_path

    return install


def test_a_clone_that_the_package_was_installed_from_is_named(
    installed: Callable[[str | None], Path], tmp_path: Path
) -> None:
    clone = tmp_path / "a clone"
    installed(json.dumps({"url": clone.as_uri(), "dir_info": {}}))
    assert how_to_install("video").endswith('"PATH[video]", where PATH is a clone of rlds2reverb')
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    assert how_to_install("video") == f'install with: pip install "{clone}[video]"'


def test_a_file_that_the_package_was_installed_from_is_named(
    installed: Callable[[str | None], Path], tmp_path: Path
) -> None:
    wheel = tmp_path / "rlds2reverb-0.1.0-py3-none-any.whl"
    wheel.touch()
    installed(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    assert how_to_install("video") == f'install with: pip install "{wheel}[video]"'


def test_what_came_from_an_index_is_there_again(installed: Callable[[str | None], Path]) -> None:
    installed(None)
    assert how_to_install("video") == 'install with: pip install "rlds2reverb[video]"'


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", '{"url": 3}', '{"url": "https://example.org/x.whl"}', '{"url": "file:///none/x.whl"}'],
)
def test_without_a_clone_the_command_says_that_it_needs_one(
    installed: Callable[[str | None], Path], record: str | None
) -> None:
    installed(record)
    assert how_to_install("video") == 'install with: pip install "PATH[video]", where PATH is a clone of rlds2reverb'


@pytest.mark.parametrize(
    ("system", "machine", "exists"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("darwin", "arm64", True),
        ("darwin", "x86_64", False),
        ("win32", "AMD64", False),
    ],
)
def test_array_record_is_recommended_where_it_exists(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, exists: bool
) -> None:
    monkeypatch.setattr(extras, "sys", SimpleNamespace(version_info=sys.version_info, platform=system))
    monkeypatch.setattr(extras, "platform", SimpleNamespace(machine=lambda: machine))
    assert ("pip install" in how_to_install("array-record")) is exists
    assert ("TFRecords" in how_to_install("array-record")) is not exists
    (marker,) = re.findall(r"; (.*)", *project()["optional-dependencies"]["array-record"])
    assert eval(marker, {"sys_platform": system, "platform_machine": machine}) is exists


@pytest.mark.parametrize("running", [*FULL, *CORE_ONLY], indirect=True)
@pytest.mark.parametrize("name", ["push_rlds_to_reverb", "create_trajectory_data_spec"])
def test_the_drop_in_without_tensorflow_says_the_same(
    running: tuple[int, int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def missing(module: str) -> Any:
        if module == "rlds2reverb.tf_agents":
            raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
        return sys.modules[module]

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError) as error:
        getattr(rlds2reverb, name)
    assert str(error.value) == f"{name} needs tensorflow; {how_to_install('tf-agents')}"


def test_no_other_text_recommends_an_installation() -> None:
    files = [*(ROOT / "rlds2reverb").rglob("*.py"), *(ROOT / "server").rglob("*.py")]
    telling = [file.name for file in files if "pip install" in file.read_text(encoding="utf-8")]
    assert telling == ["extras.py"]


def test_the_installation_page_names_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("\n## Extras\n")[2]
    rows = re.findall(r"^\| (`[\w`, -]+) \|.* \| ([^|]+) \|$", page, re.MULTILINE)
    pythons = {name: pythons for names, pythons in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert pythons.keys() == project()["optional-dependencies"].keys()
    assert {name for name, known in pythons.items() if "3.13" in known} == ON_ANY_PYTHON | {"lint", "test"}


def test_what_is_for_any_python_needs_no_tensorflow() -> None:
    wanted = project()["optional-dependencies"]
    assert wanted.keys() >= ON_ANY_PYTHON
    assert set(re.findall(r"[\w-]+", "".join(wanted["formats"]))) - {"rlds2reverb"} < ON_ANY_PYTHON
    others = [requirement for extra in ON_ANY_PYTHON - {"formats"} for requirement in wanted[extra]]
    assert not [other for other in others if "tensorflow" in other or "rlds2reverb" in other]


def test_the_installation_page_and_the_packages_metadata_name_the_same_pythons() -> None:
    known = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    assert f"Python {known}" in (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    needs_tensorflow = {
        name
        for name, wanted in project()["optional-dependencies"].items()
        if any("tensorflow" in requirement for requirement in wanted)
    }
    table = re.findall(r"^\| `([\w-]+)`", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert needs_tensorflow <= set(table)


def test_a_library_that_is_missing_inside_is_told_with_the_extra_that_brings_it() -> None:
    with pytest.raises(KeyError) as error, needing("reading x", "tfds", KeyError):
        importlib.import_module("no_such_library")
    assert error.value.args == (f"reading x needs no_such_library; {how_to_install('tfds')}",)


def test_a_library_that_is_missing_deeper_down_is_told_by_whoever_is_asked() -> None:
    deep = r"reading y needs no_such_library; .*\[images\]"
    with pytest.raises(ModuleNotFoundError, match=deep) as error, needing("reading y", "images", ModuleNotFoundError):
        with needing("reading x", "parquet", ModuleNotFoundError):
            importlib.import_module("no_such_library")
    assert error.value.name == "no_such_library"


@pytest.mark.parametrize("name", ["rlds2reverb.nonsense", None])
def test_a_module_of_our_own_that_is_missing_is_a_bug_and_stays_one(name: str | None) -> None:
    with pytest.raises(ModuleNotFoundError, match="lost"), needing("reading x", "tfds", KeyError):
        raise ModuleNotFoundError("lost", name=name)
