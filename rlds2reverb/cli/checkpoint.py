"""`rlds2reverb checkpoint`: has a running replay server write a checkpoint now."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.options import SECONDS, json_option
from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError


@click.command("checkpoint")
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
@click.option("--timeout", type=SECONDS, default=3600.0, show_default=True, help="Seconds to wait until it is written.")
@json_option
def command(url: str, timeout: float, as_json: bool) -> None:
    """Have a running replay server (`rlds2reverb serve`) write a checkpoint, and wait for it.

    Inserts and samples wait while it is written.
    """
    written = _ask(url, timeout)
    if as_json:
        output.print_json(written)
        return
    output.print_fields(
        {
            "generation": written["generation"],
            "folder": written["folder"],
            "items": ", ".join(f"{table} {count:,}" for table, count in sorted(written["items"].items())),
            "bytes": f"{written['bytes']:,}",
            "seconds": f"{written['seconds']:.3f}",
        }
    )


def _ask(url: str, timeout: float) -> dict[str, Any]:
    """POST /checkpoint.

    Raises:
      ConfigError: not an http address.
      ServerUnreachable: nothing answers there, or not in time.
      TransportError: the server could not write one; says why.
    """
    try:
        known = urlsplit(url).scheme in ("http", "https")
    except ValueError:
        known = False
    if not known:
        raise ConfigError(f'--http "{url}": expected an address such as http://127.0.0.1:8080')
    request = urllib.request.Request(f"{url.rstrip('/')}/checkpoint", method="POST")  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            written: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise TransportError(f"{url}: no checkpoint: {_reason(error)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerUnreachable(
            f"{url}: no answer ({reason}); is `rlds2reverb serve` running there, and is this its http.port?"
        ) from error
    return written


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code} {error.reason}; is this the replay server's HTTP address?"
