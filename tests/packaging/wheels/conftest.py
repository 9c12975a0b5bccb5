"""The files that are tested: those of the folder PACKAGES, or built here; and environments that several tests share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.wheels.installing import ALL_PYTHONS, UV, Environment, install, made
from tests.support.project import ROOT

Install = Callable[..., Environment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(3600))  # packages come from an index


def build(folder: Path, project: Path = ROOT, **settings: str) -> Path:
    """Builds both files into a folder, as a release does."""
    command = [ROOT / "scripts" / "build-packages", folder, project]
    known = {"UV": str(UV), "PYTHON": str(UV.with_name("python"))}
    done = subprocess.run(command, env={**os.environ, **known, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with one wheel and one sdist."""
    given = os.environ.get("PACKAGES")
    return Path(ROOT, given) if given else build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def wheel(files: Path) -> Path:
    (found,) = files.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def sdist(files: Path) -> Path:
    (found,) = files.glob("*.tar.gz")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Environments by Python, extras and lock; each is made once."""

    @cache
    def environment(python: str, *extras: str, lock: str = "core.txt") -> Environment:
        found = made(tmp_path_factory.mktemp(f"python{python}-{'-'.join(extras) or 'core'}"), python)
        install(found, wheel, extras, lock)
        return found

    return environment


@pytest.fixture(scope="session", params=ALL_PYTHONS)
def core(request: pytest.FixtureRequest, installed: Install) -> Environment:
    """The core alone, on each Python."""
    return installed(request.param)
