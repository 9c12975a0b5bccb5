"""`rlds2reverb top`: the tables of running servers, live."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.connecting import credentials_of, metadata_of, way_options
from rlds2reverb.cli.options import SECONDS, json_option
from rlds2reverb.cli.output import has_reader
from rlds2reverb.cli.sections import Command
from rlds2reverb.cli.top import plain
from rlds2reverb.cli.top.rows import SORTS
from rlds2reverb.cli.top.watching import Watch, WatchedServer, WatchTarget
from rlds2reverb.errors import ConfigError, ServerUnreachable
from rlds2reverb.extras import how_to_install
from rlds2reverb.transport.base import named_address
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.transport.http import ServerHttp

_LEAST_INTERVAL, _MOST_INTERVAL = 0.05, 86_400.0
_SLACK_SECONDS = 5.0  # beside the deadlines of two requests, for --once


@click.command(
    "top",
    cls=Command,
    examples={
        "Tables, memory and checkpoints": "rlds2reverb top --server localhost:8000 --http http://localhost:8080",
        "Two servers, by names": "rlds2reverb top --server a=host-a:8000 --server b=host-b:8000",
        "Print it once, for a script": "rlds2reverb top --server localhost:8000 --once --json",
    },
)
@click.option(
    "--server",
    "servers",
    required=True,
    multiple=True,
    envvar="RLDS2REVERB_SERVER",
    show_envvar=True,
    metavar="HOST:PORT",
    help="Address of a Reverb server; NAME=HOST:PORT shows it by that name. Repeat it, or give several with commas.",
)
@click.option(
    "--http",
    "urls",
    multiple=True,
    envvar="RLDS2REVERB_HTTP",
    show_envvar=True,
    metavar="URL",
    help="HTTP address of the server's `rlds2reverb serve`, for memory and checkpoints. Repeat it in the order of the servers, or "
    "give it as NAME=URL, or HOST:PORT=URL.",
)
@click.option("--interval", type=SECONDS, default=2.0, show_default=True, help="Seconds from one question to the next.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="waits",
    show_default=True,
    help="What tables are sorted by: waits has blocked ones first, then names.",
)
@click.option("--reverse", is_flag=True, help="The other way round: numbers from the smallest.")
@click.option(
    "--once", is_flag=True, help="Ask twice, an interval apart, print one block and end; 5 if a server does not answer."
)
@way_options
@json_option
def command(once: bool, as_json: bool, sort: str, reverse: bool, interval: float, **places: Any) -> None:
    """Watch the tables of running servers: sizes, rates, what inserts and samples wait for, memory, checkpoints.

    On a terminal it is a live view; h shows its keys. Elsewhere it prints a block of lines for every interval, or with --json
    a line of JSON. A server that does not answer is shown as such, with since when and why, and taken up when it is back.
    """
    if not _LEAST_INTERVAL <= interval <= _MOST_INTERVAL:
        raise ConfigError(f"--interval {interval:g}: expected {_LEAST_INTERVAL:g} to {_MOST_INTERVAL:g} seconds")
    targets = _targets(**places)
    watch = Watch(targets, interval, places["timeout"])
    why = ""
    if once:
        _print_once(watch, interval, 2 * places["timeout"], _printer(as_json, sort, reverse))
    elif not as_json and sys.stdout.isatty() and not (why := _why_not_live()):
        from rlds2reverb.cli.top import app  # textual, only where it is drawn

        app.show(watch, sort, reverse)
    else:
        if why:
            output.talk(f"rlds2reverb: {why}: a block of lines for every interval")
        _print_blocks(watch, interval, _printer(as_json, sort, reverse, output.print_json_line))


def _targets(
    servers: Sequence[str],
    urls: Sequence[str],
    header: Sequence[str],
    timeout: float,
    tls_ca: Path | None,
    **pair: Path | None,
) -> list[WatchTarget]:
    metadata, credentials = metadata_of(header), credentials_of(tls_ca=tls_ca, **pair)
    files = (tls_ca, pair["tls_cert"], pair["tls_key"])
    return [
        WatchTarget(
            name,
            GrpcTransport(address, credentials, metadata, timeout),
            None if url is None else ServerHttp(url, *files),
            address,
        )
        for name, address, url in pair_urls(servers, urls)
    ]


def _why_not_live() -> str:
    """Why there can be no live view on this terminal, or ""."""
    if importlib.util.find_spec("textual") is None:
        return f"the live view needs textual; {how_to_install('top')}"
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return "this terminal cannot move its cursor (TERM)"
    if not all(stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__)):
        return "the live view needs a terminal for standard input and standard error"  # textual draws on the latter
    return ""


Print = Callable[[Sequence[WatchedServer]], None]


def _printer(
    as_json: bool, sort: str, is_reverse: bool, print_json: Callable[[Any], None] = output.print_json
) -> Print:
    if as_json:
        return lambda servers: print_json(plain.document(servers, time.time()))
    return lambda servers: output.print_lines(plain.block(servers, sort, is_reverse, time.time()))


def _print_once(watch: Watch, interval: float, timeout: float, show: Print) -> None:
    """One block, from two requests. A server that does not answer is an error, raised when the block is printed."""

    def is_enough(servers: Sequence[WatchedServer]) -> bool:
        return all(
            (server.problem or len(server.history) > 1)
            and (server.status is not None or server.status_problem or not server.url)
            for server in servers
        )

    with watch:
        servers = watch.wait(is_enough, interval + timeout + _SLACK_SECONDS)
        show(servers)
    silent = [server.problem or f"server {server.name}: no answer yet" for server in servers if not server.answers]
    if silent:
        raise ServerUnreachable("; ".join(silent))


def _print_blocks(watch: Watch, interval: float, show: Print) -> None:
    """A block for each interval, until stdout has no reader; the first when every server has answered, or failed to."""
    with watch:
        watch.wait(lambda servers: all(server.answers or server.problem for server in servers), interval)
        pause = threading.Event()
        while True:
            show(watch.servers())
            sys.stdout.flush()
            if not has_reader():
                return
            pause.wait(interval)


def pair_urls(servers: Sequence[str], urls: Sequence[str]) -> list[tuple[str, str, str | None]]:
    """Name, HOST:PORT, and URL or None, of each server.

    Servers are HOST:PORT or NAME=HOST:PORT, also more of them with commas. A plain URL belongs to the server of the same position;
    others are NAME=URL or HOST:PORT=URL.
    """
    named = [
        named_address(text.strip(), "--server") for listed in servers for text in listed.split(",") if text.strip()
    ]
    if not named:
        raise ConfigError("--server: expected HOST:PORT, such as localhost:8000")
    for number, what in enumerate(("name", "address")):
        of_one_kind = [pair[number] for pair in named]
        for text in of_one_kind:
            if of_one_kind.count(text) > 1:
                raise ConfigError(f'--server: the {what} "{text}" stands twice')
    urls_by_server: dict[int, str] = {}
    for place, text in enumerate(urls):
        number, url = _owner(text, place, named)
        if number in urls_by_server:
            raise ConfigError(
                f'--http "{text}": the server "{named[number][0]}" has one already, {urls_by_server[number]}'
            )
        urls_by_server[number] = url
    return [(name, address, urls_by_server.get(number)) for number, (name, address) in enumerate(named)]


def _owner(text: str, place: int, named: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Number of the server whose URL it is, and the URL."""
    if text.startswith(("http://", "https://")):
        if place >= len(named):
            raise ConfigError(f'--http "{text}": there are more of them than servers; give NAME=URL')
        return place, text
    owner, separator, url = text.partition("=")
    if not separator:
        raise ConfigError(f'--http "{text}": expected an address such as http://127.0.0.1:8080, or NAME=URL')
    for number, names in enumerate(named):
        if owner in names:
            return number, url
    raise ConfigError(f'--http "{text}": no --server is called "{owner}"')
