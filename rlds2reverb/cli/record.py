"""`rlds2reverb record`: the episodes of an environment, into a dataset or into the tables of a running server."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import click

from rlds2reverb.adapters.gymnasium.options import EnvironmentOptions
from rlds2reverb.cli import without_collecting
from rlds2reverb.cli.connecting import optional_server_options
from rlds2reverb.cli.convert import convert
from rlds2reverb.cli.options import (
    into_option,
    json_option,
    options_from,
    quiet_option,
    suggest,
    view_option,
)
from rlds2reverb.cli.push import push
from rlds2reverb.cli.sections import Command
from rlds2reverb.conversion.convert import ConvertOptions
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.source import Source
from rlds2reverb.keywords import command_options
from rlds2reverb.push.options import PushOptions

# What an environment has not: it is played as long as it is asked to, and its images are pixels.
_NOT_OF_ENVIRONMENTS = ("limit", "encoded", "decode", "split", "val_share", "split_by", "keep_ranges")
_OF_BOTH = {field.name for field in fields(ConvertOptions)} & {field.name for field in fields(PushOptions)}
_OF_DATASETS = [name for name in command_options(ConvertOptions) if name not in (*_OF_BOTH, *_NOT_OF_ENVIRONMENTS)]
_OF_TABLES = [name for name in command_options(PushOptions) if name not in (*_OF_BOTH, *_NOT_OF_ENVIRONMENTS)]
_OF_SERVERS = ("server", "table", "into", "view", "view_config")


@click.command(
    "record",
    cls=Command,
    examples={
        "1,000 random episodes as a dataset of Minari": "rlds2reverb record HalfCheetah-v5 minari:cheetah/random-v0 --episodes 1000 --workers 8",
        "A policy of yours, with the infos": "rlds2reverb record CartPole-v1 tfds:/data/cartpole --steps 100000 --policy my_policies:balance --infos",
        "Into a table": "rlds2reverb record CartPole-v1 --episodes 100 --server localhost:8000 --table replay",
    },
)
@click.argument("environment", metavar="ENV")
@click.argument("destination", metavar="[DEST]", required=False, shell_complete=suggest("destinations"))
@options_from(EnvironmentOptions)
@options_from(ConvertOptions, *_OF_DATASETS)
@optional_server_options
@click.option(
    "--table", multiple=True, metavar="TABLE", shell_complete=suggest("tables"), help="Table to fill; may be repeated."
)
@view_option
@into_option
@options_from(PushOptions, *_OF_TABLES)
@options_from(
    ConvertOptions,
    *[name for name in command_options(ConvertOptions) if name in _OF_BOTH],
    without=_NOT_OF_ENVIRONMENTS,
)
@quiet_option
@json_option
def command(environment: str, destination: str | None, quiet: bool, as_json: bool, **given: Any) -> None:
    """Play episodes of a Gymnasium environment, and write them as a dataset at DEST, or into tables of a running server.

    ENV is an id that gymnasium.make takes, or module:function, which returns an environment. Episode i begins with a reset by seed SEED + i, and its
    random actions follow from that seed, too: the same command gives the same episodes, whatever --envs and --workers say.

    Stopped by an error, Ctrl-C or a kill, the same command goes on where it was.
    """
    playing = {name: given.pop(name) for name in command_options(EnvironmentOptions)}
    common = {name: given.pop(name) for name in _OF_BOTH & given.keys()}
    of_datasets = {name: given.pop(name) for name in _OF_DATASETS}
    of_tables = {name: given.pop(name) for name in _OF_TABLES}
    is_for_server = destination is None
    if is_for_server and not given["server"]:
        raise ConfigError("say where the episodes go: a DEST such as minari:NAME-v0, or --server and --table")
    if is_for_server:
        _refuse_others("--server", _OF_DATASETS, "a dataset (DEST)")
    else:
        _refuse_others(f'"{destination}"', [*_OF_TABLES, *_OF_SERVERS], "a server (--server)")

    def open_environment() -> Source:
        options = EnvironmentOptions(**playing)
        with needing("playing an environment", "gymnasium", SourceError):
            from rlds2reverb.adapters.gymnasium.environments import EnvironmentSource

        return EnvironmentSource(environment, options)

    if destination is None:
        options = {**{name: getattr(PushOptions, name, None) for name in _NOT_OF_ENVIRONMENTS}, **common, **of_tables}
        options = {name: value for name, value in options.items() if name in command_options(PushOptions)}

        def open_data() -> tuple[Source, Any]:
            source = open_environment()
            return source, source

        push(open_data, limit=None, dry_run=False, as_json=as_json, quiet=quiet, **given, **options)
        return
    with without_collecting():
        source = open_environment()
    convert(source, destination, quiet, as_json, **common, **of_datasets)


def _refuse_others(chosen: str, names: Collection[str], whose: str) -> None:
    """Refuses options of the other place to write to."""
    context = click.get_current_context()
    refused = [
        f"--{name.replace('_', '-')}"
        for name in names
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if refused:
        raise ConfigError(f"{', '.join(refused)}: of {whose}; the episodes go to {chosen}. Leave out one of the two")
