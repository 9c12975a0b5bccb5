"""Empty environments with nothing but what is installed, pinned and with hashes; and programs that run in them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.project import ROOT

UV = Path(sys.executable).with_name("uv")
"""Of the environment that runs the tests; the lock pins it."""

ALL_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
"""Those that the package is made for."""

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "200", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class Environment:
    """An environment, and an empty folder in which its programs run.

    Attributes:
      folder: of the environment.
      home: where programs run; also their home, so that nothing of the machine's user is found.
    """

    folder: Path
    home: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Where what is installed lies."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def tried(self, program: str, *arguments: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        """What a program of the environment does. Nothing of this checkout, and no other program, is in its reach."""
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.home,
            env={**QUIET, "PATH": str(self.folder / "bin"), "HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def __call__(self, program: str, *arguments: str, seconds: float = 600) -> str:
        """The standard output of one that ends well."""
        done = self.tried(program, *arguments, seconds=seconds)
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def installed(self) -> dict[str, str]:
        """Version of each distribution, by name."""
        code = (
            "import importlib.metadata as m, re\n"
            "for d in m.distributions(): print(re.sub(r'[-_.]+', '-', d.name).lower(), d.version)"
        )
        return dict(line.split() for line in self("python", "-c", code).splitlines())

    def megabytes(self) -> dict[str, float]:
        """What its files take without bytecode, by the folder or file below site-packages."""
        found: dict[str, float] = {}
        for path in self.packages.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                name = path.relative_to(self.packages).parts[0]
                found[name] = found.get(name, 0.0) + path.stat().st_size / 1e6
        return found


def interpreter(version: str) -> str:
    """A Python of this machine.

    Raises:
      CalledProcessError: there is none.
    """
    found = subprocess.run([ROOT / "scripts" / "find-python", version], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def made(folder: Path, python: str) -> Environment:
    """An empty environment of a version of Python, in a new folder."""
    home = folder / "home"
    home.mkdir(parents=True)
    run_uv("venv", "--quiet", "--python", interpreter(python), str(folder / "env"))
    return Environment(folder / "env", home)


def install(environment: Environment, wheel: Path, extras: tuple[str, ...], lock: str) -> None:
    """Installs the wheel with extras, and what they require, of the versions and with the hashes of a lock. What is in no lock fails."""
    named = f"[{','.join(extras)}]" if extras else ""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wanted = environment.home.parent / "wanted.txt"
    wanted.write_text(f"rlds2reverb{named} @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    pins = ROOT / "requirements" / lock
    target = ("--python", str(environment.python))
    run_uv(
        "pip",
        "install",
        "--quiet",
        *target,
        "--require-hashes",
        "--requirement",
        str(wanted),
        "--constraint",
        str(pins),
    )


def run_uv(*arguments: str) -> None:
    """uv, with the settings that the environments of this project are made with."""
    command = f'. scripts/peers-env; {"" if "learners" in arguments[-1] else "unset UV_EXCLUDE; "}exec "$@"'
    done = subprocess.run(
        ["bash", "-euc", command, "-", UV, *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, f"uv {' '.join(arguments)}: {done.stderr}"
