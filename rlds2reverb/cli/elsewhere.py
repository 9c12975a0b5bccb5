"""Where Reverb has no package for the Python that runs: what works there instead, and `--python`, which is one of the ways."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from rlds2reverb.cli.output import talk
from rlds2reverb.errors import ConfigError, WriteError
from rlds2reverb.extras import HOW_TO_GET_UV, PYTHONS, find_uv, how_to_install, installable, reverb_exists

_VERSIONS = tuple(".".join(map(str, version)) for version in PYTHONS)
_IMAGE = "rlds2reverb-replay"  # as docker-compose.yml calls it
_CONFIG = "/etc/replay/server.yaml"  # in the image


def python_option(of_what: str) -> Callable[[Any], Any]:
    """The option `--python` of a command that starts a server."""
    return click.option(
        "--python",
        "version",
        type=click.Choice(_VERSIONS),
        help=f"Run {of_what} with this Python, for one that Reverb has no package for. The first time, uv makes an environment of "
        "locked packages in the cache folder (0.2 GB); later starts need no network.",
    )


def become(version: str, context: click.Context, exit_code: int | None = None) -> NoReturn:
    """Becomes this command with this Python; does not come back.

    Args:
      exit_code: of the command where there is no environment; None leaves it to the error.

    Raises:
      NoReverbHere: no environment can be made, and `exit_code` is given.
      ConfigError: the same, without.
      WriteError: its folder cannot be written; without `exit_code`.
    """
    from replay_server.environment import exec_in_environment

    try:
        exec_in_environment(version, [*_group_words(context), str(context.command.name), *_words(context)], talk)
    except (ConfigError, WriteError) as error:
        if exit_code is None:
            raise
        raise NoReverbHere(str(error), (), exit_code) from error


def _group_words(context: click.Context) -> list[str]:
    """The arguments before the command's name, such as `--debug`."""
    return [] if context.parent is None else _words(context.parent, {ParameterSource.COMMANDLINE})


def _words(
    context: click.Context,
    sources: Container[ParameterSource | None] = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT),
) -> list[str]:
    """The arguments that were given, from the command line or a variable, without `--python`."""
    words: list[str] = []
    for option in context.command.params:
        name = str(option.name)
        if name == "version" or context.get_parameter_source(name) not in sources:
            continue
        value, flag = context.params[name], max(option.opts, key=len)
        values = value if isinstance(value, tuple) else (value,)
        words += [flag] if value is True else [word for part in values for word in (flag, str(part))]
    return words


class NoReverbHere(ConfigError):
    """Reverb has no package for the Python, the system or the processor that runs, or the environment for it cannot be made.

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
    raise NoReverbHere(reason, _ways(command, _words(context), _group_words(context)), exit_code)


def _ways(command: str, words: Sequence[str], group_words: Sequence[str]) -> Iterator[str]:
    """In an environment of its own where Reverb exists for the machine; in a container, emulated where it does not."""
    emulated = ""
    if reverb_exists():
        first = "" if find_uv() else f"{HOW_TO_GET_UV} && "
        yield first + shlex.join(["rlds2reverb", *group_words, command, "--python", _VERSIONS[-1], *words])
    else:
        emulated = "--platform linux/amd64 "
    if command == "serve":
        place = words.index("--config")
        config, further = Path(words[place + 1]).absolute(), [*words[:place], *words[place + 2 :]]
        values = dict(word.partition("=")[::2] for word in further)
        ports = [values.get(name, usual) for name, usual in (("grpc.port", "8000"), ("http.port", "8080"))]
        published = " ".join(f"-p 127.0.0.1:{port}:{port}" for port in ports)
        run = f"{published} -v {shlex.quote(str(config))}:{_CONFIG}:ro -v replay:/var/lib/replay {_IMAGE}"
        if further:  # in the place of the image's own command
            run += f" {shlex.join(['rlds2reverb', 'serve', '--config', _CONFIG, *further])}"
    else:
        run = f"{_IMAGE} {shlex.join(['rlds2reverb', command, *words])}"
    package = installable()
    clone = shlex.quote(package) if package and Path(package).is_dir() else "PATH_OF_A_CLONE"
    yield f"docker build {emulated}-t {_IMAGE} {clone} && docker run --rm {emulated}{run}"
