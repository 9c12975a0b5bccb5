"""An environment with an older Python, made once, in which the server runs beside a Python that Reverb has no package for.

```
~/.cache/rlds2reverb/servers/         RLDS2REVERB_CACHE or $XDG_CACHE_HOME move it
    3.11-x86_64-0123456789ab/         the environment, by its Python, the processor and a hash of the lock file; renamed to this when it is whole
    package-0123456789ab/             links to this package, on the server's PYTHONPATH: another version of it needs no other environment
    making-xxxxxxxx/                  an environment that is being made, or what a killed start left
    links-xxxxxxxx/                   links that are being made, or what a killed start left
    LOCK                              held (flock) while an environment is made, by the installer too, which may outlive a killed start
    LINKS                             held while links are made
```

Everything comes from a lock file with hashes, which the wheel ships, and nothing else: settings of uv and pip that say what to install,
where and for which Python are kept away from the making, those that say where packages come from are not. Of Reverb and of TensorFlow only the libraries stay
(`keep_libraries`), a tenth of what the two unpack to. The server's image is built with the same lock file and the same function:
`python -m replay_server.environment SITE_PACKAGES`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from rlds2reverb import errors
from rlds2reverb.errors import ConfigError, WriteError
from rlds2reverb.extras import HOW_TO_GET_UV, LEFT_OUT, find_uv, how_to_install, reverb_exists
from rlds2reverb.files import cache_folder, write_error
from rlds2reverb.versions import program_version

NEEDED_BYTES = 1_500_000_000
"""Free bytes that the making of an environment asks for: it takes 1.2 GB for a while, and leaves 0.2 GB."""

LOCK_FILE = next(
    (
        path
        for path in (
            Path(__file__).with_name("requirements.txt"),
            Path(__file__).parents[2] / "requirements" / "server.txt",
        )
        if path.is_file()
    ),
    Path(__file__).with_name("requirements.txt"),
)
"""Pins and hashes of all that the server needs; installed, the package holds the file (pyproject.toml)."""

_LIBRARIES = {"reverb": "lib*.so", "tensorflow": "libtensorflow_framework.so.?"}
"""Package -> the files that `library.py` loads."""

_ABSENT = '''"""Only a library of this package is here: the replay server needs no more."""

raise ModuleNotFoundError("No module named {name!r}: this environment has only the library that a replay server needs", name={name!r})
'''

_CHECK = "import numpy, flask, yaml, replay_server.service; from replay_server.library import library; library()"

_SOURCES = re.compile(
    r"(UV|PIP)_.*(INDEX|LINKS|CERT|TLS|SSL|PROXY|HTTP|TIMEOUT|RETRIES|HOST|KEYRING|CREDENTIALS|OFFLINE|CONFIG_FILE|CONCURRENT|"
    r"PYTHON_|MANAGED).*"
)
"""Variables of uv and pip that say where packages and Pythons come from. Others say what is installed, and where."""

_NO_PROJECT = "[tool.uv.workspace]\n"
"""A pyproject.toml at which uv ends its search for settings of a project; without it, it looks in the folders above. Source: uv's
documentation, "Configuration files"."""

Tell = Callable[[str], None]


def exec_in_environment(version: str, arguments: Sequence[str], tell: Tell) -> NoReturn:
    """Becomes `rlds2reverb ARGUMENTS` in an environment with this Python, which is made where it is not there yet.

    The process keeps its number, so signals reach the server and its exit code is that of this program.

    Args:
      version: of Python, "3.11".
      arguments: of the command line.
      tell: prints a line on what takes time.

    Raises:
      ConfigError: no environment can be made; nothing of one is left.
      WriteError: its folder cannot be written.
    """
    if not reverb_exists():
        raise ConfigError(f"--python {version}: {how_to_install('server')}")
    folder = cache_folder("servers").absolute()
    if os.pathsep in str(folder):
        raise ConfigError(
            f"--python {version}: {folder}: no path with {os.pathsep!r} can be searched for modules; name another folder with RLDS2REVERB_CACHE"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        package = link_package(folder)
        python = python_of(folder, version, package, tell)
    except WriteError:
        raise
    except OSError as error:
        raise write_error(folder, error, "RLDS2REVERB_CACHE names another folder for it") from error
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(python, [str(python), "-m", "rlds2reverb", *arguments], environment_of(package, folder))  # noqa: S606 - no shell is wanted
    except OSError as error:  # as of another processor's program
        raise ConfigError(
            f"--python {version}: {python} does not start: {error.strerror}; remove the folder {python.parents[1]}, and the next start makes it anew"
        ) from error


def environment_of(package: Path, folder: Path) -> dict[str, str]:
    """The variables of a process in the environment: this package, nothing of the Python that runs here, and no file beside its modules."""
    foreign = {
        "PYTHONHOME",
        "PYTHONPLATLIBDIR",
        "PYTHONEXECUTABLE",
        "PYTHONSTARTUP",
        "PYTHONUSERBASE",
        "VIRTUAL_ENV",
        "__PYVENV_LAUNCHER__",
    }
    return {
        **{name: value for name, value in os.environ.items() if name not in foreign},
        "PYTHONPATH": str(package),
        "PYTHONSAFEPATH": "1",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "PYTHONNOUSERSITE": "1",
        LEFT_OUT: "write the table's signature out: `rlds2reverb inspect SOURCE --server-config` prints it where the dataset can be read",
    }


def _installers_variables(making: Path) -> dict[str, str]:
    """The variables of uv, venv and pip: of what is set here, where packages come from, and nothing of a Python or of what to install."""
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "UV_", "PIP_", "VIRTUAL_ENV", "CONDA_", "__PYVENV_"))
            or _SOURCES.fullmatch(name)
        },
        "UV_CACHE_DIR": str(making / "cache"),
        "UV_LINK_MODE": "hardlink",
    }


def python_of(folder: Path, version: str, package: Path, tell: Tell) -> Path:
    """The interpreter of the environment, made where it is not there or its Python has gone.

    Of several starts at once the first makes it, and the others wait.
    """
    try:
        lock = LOCK_FILE.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"--python {version}: {LOCK_FILE} is missing, which this package ships: install it anew"
        ) from error
    environment = folder / f"{version}-{platform.machine()}-{hashlib.sha256(lock).hexdigest()[:12]}"
    python = environment / "bin" / "python"
    if os.access(python, os.X_OK):
        return python
    with _locked(folder, lambda: tell("another start makes the server's environment; waiting for it ...")) as lock_fd:
        if not os.access(python, os.X_OK):
            for leftover in (*folder.glob("making-*"), environment):
                shutil.rmtree(leftover, ignore_errors=True)
            _make(environment, version, package, lock_fd, tell)
    return python


def _make(environment: Path, version: str, package: Path, lock_fd: int, tell: Tell) -> None:
    folder = environment.parent
    if (free := shutil.disk_usage(folder).free) < NEEDED_BYTES:
        raise ConfigError(
            f"--python {version}: {folder} has {free / 1e9:.1f} GB free, and an environment takes {NEEDED_BYTES / 1e9:.1f} GB while it is "
            f"made (0.2 GB later); make room, or name another folder with RLDS2REVERB_CACHE"
        )
    making = Path(tempfile.mkdtemp(prefix="making-", dir=folder))
    try:
        (making / "pyproject.toml").write_text(_NO_PROJECT, encoding="utf-8")
        variables = _installers_variables(making)
        steps = list(_steps(making, version, variables))  # raises before anything is said where there is no way
        tell(f"making an environment with Python {version} for the server in {environment}; this is done once ...")
        for step in steps:
            _run(step, version, variables, making, lock_fd)
        (packages,) = (making / "environment" / "lib").glob("python*/site-packages")
        keep_libraries(packages)
        python = str(making / "environment" / "bin" / "python")
        check = f"import sys; from {__name__} import {check_pins.__name__} as check; check(sys.argv[1]); {_CHECK}"
        _run([python, "-c", check, str(LOCK_FILE)], version, environment_of(package, folder), making, lock_fd)
        (making / "environment").rename(environment)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _steps(making: Path, version: str, variables: Mapping[str, str]) -> Iterator[list[str]]:
    """The commands that make it: by uv, which may bring the Python; else by a Python of this machine.

    uv's cache is a folder that goes with `making`: the packages are taken apart afterwards, and would lie twice on the disk.
    """
    environment, python = str(making / "environment"), str(making / "environment" / "bin" / "python")
    flags = ["--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(LOCK_FILE)]
    if (uv := find_uv()) is not None:
        uv = os.path.abspath(uv)  # noqa: PTH100 - a link's name stays; PATH may have a relative folder
        yield [uv, "venv", "--quiet", "--no-project", "--python", version, environment]
        yield [uv, "pip", "install", "--python", python, *flags]
    elif (interpreter := _find_python(version, making, variables)) is not None:
        yield [interpreter, "-m", "venv", environment]
        yield [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir", "--no-user", *flags]
    else:
        raise ConfigError(
            f"--python {version}: it takes uv, or python{version} with venv on PATH, and neither is here; install uv with: {HOW_TO_GET_UV}"
        )


def _find_python(version: str, folder: Path, variables: Mapping[str, str]) -> str | None:
    """An interpreter of this version that can make environments; a name on PATH may be a stub that starts none."""
    candidate = shutil.which(f"python{version}")
    if candidate is None:
        return None
    candidate = os.path.abspath(candidate)  # noqa: PTH100 - as for uv
    question = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
    answer = subprocess.run(
        [candidate, "-c", question],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=variables,
        cwd=folder,
        check=False,
    )
    return candidate if answer.returncode == 0 else None


def _run(command: Sequence[str], version: str, variables: Mapping[str, str], folder: Path, lock_fd: int) -> None:
    """Runs a step in this folder; the lock is held for as long as it, or a child of its own, lives."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=variables,
        cwd=folder,
        pass_fds=(lock_fd,),
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        output = "\n".join(done.stdout.strip().splitlines()[-12:])
        raise ConfigError(
            f"--python {version}: the environment for the server could not be made, and nothing of it is left. "
            f"{Path(command[0]).name} {' '.join(command[1:3])} ended with {done.returncode}: {output}"
        )


@contextmanager
def _locked(folder: Path, on_wait: Callable[[], None], name: str = "LOCK") -> Iterator[int]:
    """Holds a lock of the folder, and gives its descriptor."""
    with (folder / name).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def keep_libraries(packages: Path) -> None:
    """Removes all of Reverb and TensorFlow but the libraries that a server loads, and tests of other packages.

    What is left of the two raises `ModuleNotFoundError` when it is imported, as if it were not installed.

    Args:
      packages: the folder site-packages.
    """
    for name, pattern in _LIBRARIES.items():
        package = packages / name
        libraries = {path.name for path in package.glob(pattern)}
        if not libraries:
            raise ConfigError(
                f"{package}: expected {pattern}, which the server loads; is the lock file of another version?"
            )
        for path in package.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in libraries:
                path.unlink()
        (package / "__init__.py").write_text(_ABSENT.format(name=name), encoding="utf-8")
    for tests in packages.glob("numpy/**/tests"):
        shutil.rmtree(tests, ignore_errors=True)


def check_pins(lock: str | Path, packages: Path | None = None) -> None:
    """Checks that everything in the lock file is installed, in its version; called in the environment, whose Python the markers are about.

    Args:
      packages: the folder site-packages; that of this Python by default.

    Raises:
      ConfigError: something is missing, or of another version, as when an installer took for installed what lies elsewhere.
    """
    from packaging.requirements import Requirement  # the lock file has it
    from packaging.utils import canonicalize_name

    path = [str(packages or sysconfig.get_path("purelib"))]
    versions = {canonicalize_name(item.metadata["Name"]): item.version for item in metadata.distributions(path=path)}
    pins = map(Requirement, re.findall(r"^[^\s#][^\\\n]*", Path(lock).read_text(encoding="utf-8"), re.MULTILINE))
    differing = [
        f"{pin.name}{pin.specifier} (there is {versions.get(canonicalize_name(pin.name), 'none')})"
        for pin in pins
        if (pin.marker is None or pin.marker.evaluate())
        and not pin.specifier.contains(versions.get(canonicalize_name(pin.name), "0"), prereleases=True)
    ]
    if differing:
        raise ConfigError(f"{path[0]}: expected what the lock file has: {', '.join(differing)}")


def link_package(folder: Path) -> Path:
    """A folder with nothing but this package, as links, and its version, as `importlib.metadata` finds it, if it is known here."""
    places = {name: Path(path).resolve().parent for name, path in _PACKAGES.items()}
    number = program_version()
    identity = "\n".join((*map(str, places.values()), number))
    linked = folder / f"package-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if linked.is_dir():
        return linked
    with _locked(folder, lambda: None, "LINKS"):
        for leftover in folder.glob("links-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if linked.is_dir():
            return linked
        making = Path(tempfile.mkdtemp(prefix="links-", dir=folder))
        (making / "package").mkdir()  # open to others as umask has it, which `making` is not
        if number:
            about = making / "package" / f"rlds2reverb-{number}.dist-info" / "METADATA"
            about.parent.mkdir()
            about.write_text(f"Metadata-Version: 2.1\nName: rlds2reverb\nVersion: {number}\n", encoding="utf-8")
        for name, place in places.items():
            (making / "package" / name).symlink_to(place, target_is_directory=True)
        (making / "package").rename(linked)
        making.rmdir()
    return linked


_PACKAGES = {"rlds2reverb": errors.__file__, "replay_server": __file__}


if __name__ == "__main__":
    keep_libraries(Path(sys.argv[1]))
