"""Where Reverb has no package for the Python that runs: what works there instead, and `--python`, which is one of the ways."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from rlds2reverb.cli.output import talk
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import HOW_TO_GET_UV, PYTHONS, find_uv, how_to_install, installable, reverb_exists

_VERSIONS = tuple(".".join(map(str, version)) for version in PYTHONS)
_IMAGE = "rlds2reverb-replay"  # as docker-compose.yml calls it


def python_option(of_what: str) -> Callable[[Any], Any]:
    """The option `--python` of a command that starts a server."""
    return click.option(
        "--python",
        "version",
        type=click.Choice(_VERSIONS),
        help=f"Run {of_what} with this Python, for one that Reverb has no package for. The first time, uv makes an environment of "
        "locked packages in the cache folder (0.2 GB); later starts need no network.",
    )


def become(version: str, context: click.Context) -> NoReturn:
    """Becomes this command with this Python; does not come back.

    Raises:
      ConfigError: no environment can be made.
    """
    from replay_server.environment import exec_in_environment

    exec_in_environment(version, [str(context.command.name), *_words(context)], talk)


def _words(context: click.Context) -> list[str]:
    """The arguments that were given, from the command line or a variable, without `--python`."""
    words: list[str] = []
    for option in context.command.params:
        name = str(option.name)
        if name == "version" or context.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        value, flag = context.params[name], max(option.opts, key=len)
        values = value if isinstance(value, tuple) else (value,)
        words += [flag] if value is True else [word for part in values for word in (flag, str(part))]
    return words


class NoReverbHere(ConfigError):
    """Reverb has no package for the Python, the system or the processor that runs.

    Attributes:
      ways: command lines that do work here.
      exit_code: of the command.
    """

    def __init__(self, message: str, ways: Iterable[str], exit_code: int) -> None:
        super().__init__(message)
        self.ways, self.exit_code = tuple(ways), exit_code


def require_reverb(context: click.Context, exit_code: int) -> None:
    """Does nothing where Reverb is installed, or could be.

    Raises:
      NoReverbHere: this machine cannot have Reverb in the Python that runs; the error has the command line in ways that work.
    """
    if find_spec("reverb") is not None or (sys.version_info[:2] in PYTHONS and reverb_exists()):
        return
    command = str(context.command.name)
    reason = f"{command} needs reverb; {how_to_install('server')}. What works here:"
    raise NoReverbHere(reason, _ways(command, _words(context)), exit_code)


def _ways(command: str, words: Sequence[str]) -> Iterator[str]:
    """In an environment of its own where Reverb exists for the machine; in a container, emulated where it does not."""
    emulated = ""
    if reverb_exists():
        first = "" if find_uv() else f"{HOW_TO_GET_UV} && "
        yield first + shlex.join(["rlds2reverb", command, "--python", _VERSIONS[-1], *words])
    else:
        emulated = "--platform linux/amd64 "
    if command == "serve":
        config = Path(words[words.index("--config") + 1]).absolute()
        ports = " ".join(f"-p 127.0.0.1:{port}:{port}" for port in (8000, 8080))
        run = f"{ports} -v {shlex.quote(str(config))}:/etc/replay/server.yaml:ro -v replay:/var/lib/replay {_IMAGE}"
    else:
        run = f"{_IMAGE} {shlex.join(['rlds2reverb', command, *words])}"
    package = installable()
    clone = shlex.quote(package) if package and Path(package).is_dir() else "PATH_OF_A_CLONE"
    yield f"docker build {emulated}-t {_IMAGE} {clone} && docker run --rm {emulated}{run}"
