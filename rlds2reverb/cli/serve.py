"""`rlds2reverb serve`, which is `python -m replay_server` too: the long-running replay server."""

from __future__ import annotations

from pathlib import Path

import click

from rlds2reverb.cli.elsewhere import become, python_option, require_reverb
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing


@click.command(
    "serve",
    cls=Command,
    examples={
        "Run a server": "rlds2reverb serve --config server.yaml",
        "Only see whether its config makes sense": "rlds2reverb serve --config server.yaml --check",
        "See the checkpoints, and go back to last Tuesday's": "rlds2reverb serve --config server.yaml --start-from 2026-11-17 --check",
        "With another value than in the file": "rlds2reverb serve --config server.yaml --set http.port=9000",
        "From Python 3.12 or later, in an environment of its own": "rlds2reverb serve --config server.yaml --python 3.11",
    },
)
@click.option(
    "--config",
    "path",
    required=True,
    envvar="REPLAY_CONFIG",
    show_envvar=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file. `rlds2reverb inspect SOURCE --server-config` prints one for a dataset.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a value: http.port=9000; repeatable."
)
@click.option(
    "--start-empty",
    is_flag=True,
    help="Start although checkpoints exist that cannot be loaded: from the newest one that can, else as with a new folder.",
)
@click.option(
    "--start-from",
    metavar="NUMBER|TIME",
    help="Start from an older checkpoint of the folder (or of the bucket that it is sent to): its number, or a date or time, which means the "
    "newest one until then (2026-11-17, 2026-11-17T08:30, UTC). Newer ones stay. For one start: leave it out of what restarts the server.",
)
@click.option("--check", is_flag=True, help="Validate the config, print what would run, and exit.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Same as --set log.format=...")
@python_option("the server")
@click.pass_context
def command(
    context: click.Context,
    path: Path,
    overrides: tuple[str, ...],
    start_empty: bool,
    start_from: str | None,
    check: bool,
    log_format: str | None,
    version: str | None,
) -> None:
    """Run the replay server until SIGTERM or SIGINT, which write a checkpoint first.

    Values are taken from --set, then from environment variables such as REPLAY__HTTP__PORT, then from the file.

    \b
    Exit codes:
      0  stopped, with a checkpoint
      1  the last checkpoint failed, or a second signal came
      2  the config makes no sense
      3  the server could not start, or with --check would not
    """
    if version is not None:
        become(version, context, exit_code=3)
    if not check:
        require_reverb(context, exit_code=3)
    with needing("serve --check", "server-config", ConfigError) if check else needing("serve", "server", ConfigError):
        from replay_server.command import run
    formats = () if log_format is None else (f"log.format={log_format}",)
    starts = ("checkpoints.start_empty=true",) if start_empty else ()
    run(path, (*overrides, *starts, *formats), check, start_from)
