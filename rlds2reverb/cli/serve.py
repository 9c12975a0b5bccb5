"""`rlds2reverb serve`, which is `python -m replay_server` too: the long-running replay server."""

from __future__ import annotations

from pathlib import Path

import click

from rlds2reverb.errors import ConfigError


@click.command("serve", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "path",
    required=True,
    envvar="REPLAY_CONFIG",
    show_envvar=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file; see configs/server.yaml.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a value: http.port=9000; repeatable."
)
@click.option("--check", is_flag=True, help="Validate the config, print what would run, and exit.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Same as --set log.format=...")
def command(path: Path, overrides: tuple[str, ...], check: bool, log_format: str | None) -> None:
    """Run the replay server until SIGTERM or SIGINT, which write a checkpoint first.

    Values are taken from --set, then from environment variables such as REPLAY__HTTP__PORT, then from the file.

    \b
    Exit codes: 0 stopped, with a checkpoint; 1 the last checkpoint failed, or a second signal came; 2 the config
    makes no sense; 3 the server could not start.
    """
    try:
        from replay_server.command import run
    except ImportError as error:
        raise ConfigError(f'serve: {error}; install the server with: pip install "rlds2reverb[server]"') from error
    formats = () if log_format is None else (f"log.format={log_format}",)
    run(path, (*overrides, *formats), check)
