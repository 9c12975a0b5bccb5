"""`rlds2reverb checkpoint`: has a running replay server write a checkpoint now."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from rlds2reverb.cli import output, progress
from rlds2reverb.cli.options import ANSWERS_H, SECONDS, json_option, quiet_option
from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError

_TOKEN = re.compile("[!-~]+")


@click.command("checkpoint", context_settings=ANSWERS_H)
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
@quiet_option
@json_option
def command(url: str, token: str | None, token_file: Path | None, timeout: float, quiet: bool, as_json: bool) -> None:
    """Have a running replay server (`rlds2reverb serve`) write a checkpoint, and wait for it.

    Inserts and samples wait while it is written.
    """
    headers = _headers(token, token_file)
    with progress.told_in_words(quiet, "the server writes a checkpoint"):
        written = _ask(url, headers, timeout)
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


def _headers(token: str | None, token_file: Path | None) -> dict[str, str]:
    """What carries the token; nothing without one.

    Raises:
      ConfigError: both are given, the file cannot be read, or what it holds is no token.
    """
    source = "--token"
    if token_file is not None:
        if token is not None:
            raise ConfigError("--token (or RLDS2REVERB_TOKEN) and --token-file: give one of them")
        source = f"--token-file {token_file}"
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: cannot be read ({error})") from error
    if token is None:
        return {}
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{source}: expected visible ASCII characters, without spaces")
    return {"Authorization": f"Bearer {token}"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as the answer: the token is for the server that was named, and a redirected POST becomes a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _ask(url: str, headers: dict[str, str], timeout: float) -> dict[str, Any]:
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
    request = urllib.request.Request(f"{url.rstrip('/')}/checkpoint", method="POST", headers=headers)  # noqa: S310 - checked above
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=timeout) as answer:
            written: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        may_help = error.code == 503  # busy, or not ready
        raise TransportError(f"{url}: no checkpoint: {_reason(error)}", retryable=may_help) from error
    except http.client.HTTPException as error:
        raise ServerUnreachable(
            f"{url}: what answers there does not speak HTTP; give http.port of `rlds2reverb serve`, not the port of gRPC"
        ) from error
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
