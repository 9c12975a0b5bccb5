"""`rlds2reverb checkpoint`: has a running replay server write a checkpoint now."""

from __future__ import annotations

import re
from pathlib import Path

import click

from rlds2reverb.cli import output, progress
from rlds2reverb.cli.options import SECONDS, json_option, quiet_option
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import ConfigError
from rlds2reverb.transport.http import ServerHttp

_TOKEN = re.compile("[!-~]+")


@click.command(
    "checkpoint",
    cls=Command,
    examples={
        "Of the server of this machine": "rlds2reverb checkpoint",
        "Of another one, which wants a token": "rlds2reverb checkpoint --http http://replay:8080 --token-file token.txt",
        "For a script": "rlds2reverb checkpoint --json",
        "Also when nothing seems to have changed": "rlds2reverb checkpoint --anew",
    },
)
@click.option(
    "--http",
    "url",
    default="http://127.0.0.1:8080",
    show_default=True,
    envvar="RLDS2REVERB_HTTP",
    show_envvar=True,
    metavar="URL",
    help="The server's HTTP address.",
)
@click.option(
    "--token",
    envvar="RLDS2REVERB_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="The server's http.token, if it has one. Other users of this machine can see options: better the file.",
)
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), help="A file that holds the token.")
@click.option("--timeout", type=SECONDS, default=3600.0, show_default=True, help="Seconds to wait until it is written.")
@click.option("--anew", is_flag=True, help="Write it whatever has changed since the newest one.")
@quiet_option
@json_option
def command(
    url: str, token: str | None, token_file: Path | None, timeout: float, anew: bool, quiet: bool, as_json: bool
) -> None:
    """Have a running replay server (`rlds2reverb serve`) write a checkpoint, and wait for it.

    Inserts and samples wait while it is written. Nothing is written when nothing has changed since the newest one, which is shown then.
    """
    token = _token(token, token_file)
    with progress.reporting(quiet, "the server writes a checkpoint"):
        written = ServerHttp(url).checkpoint(timeout, token, anew)
    if as_json:
        output.print_json(written)
        return
    if not written.written and not quiet:
        output.talk(
            f"nothing has changed since checkpoint {written.generation}, so none was written; --anew writes one"
        )
    output.print_fields(
        {
            "checkpoint": written.generation,
            "folder": written.folder,
            "items": ", ".join(f"{table} {count:,}" for table, count in sorted(written.items.items())),
            "bytes": f"{written.bytes:,}",
            "seconds": f"{written.seconds:.3f}",
        }
    )


def _token(token: str | None, token_file: Path | None) -> str | None:
    source = "--token"
    if token_file is not None:
        if token is not None:
            raise ConfigError("--token (or RLDS2REVERB_TOKEN) and --token-file: give one of them")
        source = f"--token-file {token_file}"
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: cannot be read ({error})") from error
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigError(f"{source}: expected visible ASCII characters, without spaces")
    return token
