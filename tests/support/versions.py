"""Environments of several versions of the package, for pages about upgrades: the present one, and a wheel of this tree with another number."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.project import ROOT, pyproject
from tests.support.walkthrough import write_program

_PROJECT = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")


def make_environment(folder: Path, version: str | None = None) -> None:
    """FOLDER/bin/rlds2reverb, the command of a version: that of this tree (None), or of a wheel of it that has another number.

    The wheel is unpacked, as an installer does; what it depends on is that of the Python that runs the tests.
    """
    path = f"{ROOT}:{ROOT / 'server'}"
    if version is not None:
        packages = folder / "packages"
        with zipfile.ZipFile(_build_wheel(folder / "source", version)) as wheel:
            wheel.extractall(packages)
        shutil.rmtree(folder / "source")
        path = str(packages)
    write_program(
        folder / "bin" / "rlds2reverb", f"export PYTHONPATH={path}", f'exec {sys.executable} -m rlds2reverb "$@"'
    )


def _build_wheel(source: Path, version: str) -> Path:
    wheel = pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]
    ignored = shutil.ignore_patterns("__pycache__", "*.compiled")
    for name in (*_PROJECT, *wheel["packages"], *wheel["force-include"]):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=ignored)
        else:
            shutil.copy(ROOT / name, target)
    init = source / "rlds2reverb" / "__init__.py"
    text, changes = re.subn(r'^__version__ = ".*"$', f'__version__ = "{version}"', init.read_text(), flags=re.MULTILINE)
    assert changes == 1, "rlds2reverb/__init__.py has no line with the version"
    init.write_text(text)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    done = subprocess.run(command, cwd=source, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = (source / "dist").glob("*.whl")
    return built
