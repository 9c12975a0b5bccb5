"""Options of the commands that ask a server, and the client that they make. What needs no server does not load gRPC."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rlds2reverb.cli.options import SECONDS, Command, with_options
from rlds2reverb.client import Client, connect
from rlds2reverb.errors import ConfigError
from rlds2reverb.transport.grpc import Certificates
from rlds2reverb.transport.retry import Deadlines

_HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]+")

way_options = with_options(
    click.option("--tls-ca", type=click.Path(path_type=Path), help="Certificate authority (PEM); turns TLS on."),
    click.option("--tls-cert", type=click.Path(path_type=Path), help="Client certificate (PEM)."),
    click.option("--tls-key", type=click.Path(path_type=Path), help="Key of the client certificate (PEM)."),
    click.option("--header", multiple=True, metavar="NAME=VALUE", help="Metadata sent with every call; repeatable."),
    click.option(
        "--timeout",
        type=SECONDS,
        default=Deadlines.call,
        show_default=True,
        help="Seconds to wait for the server to answer.",
    ),
)


def _server_options(is_required: bool) -> Callable[[Command], Command]:
    return with_options(
        click.option(
            "--server",
            required=is_required,
            envvar="RLDS2REVERB_SERVER",
            show_envvar=True,
            metavar="HOST:PORT[,HOST:PORT...]",
            help="Address of the Reverb server; or addresses of servers that are used as one, each as NAME=HOST:PORT if it is to keep its name elsewhere.",
        ),
        click.option(
            "--allow-missing",
            is_flag=True,
            help="With more than one server, continue without those that cannot be reached. A push leaves their episodes out; run again, it stores them.",
        ),
        way_options,
        click.option(
            "--wait",
            type=SECONDS,
            help="Seconds to wait for a server that is just starting; without it, an address where nothing listens is an error at once.",
        ),
    )


server_options = _server_options(is_required=True)
optional_server_options = _server_options(is_required=False)
"""For a command that does without Reverb in some cases; it checks `server` itself."""


def open_client(
    server: str,
    allow_missing: bool,
    header: tuple[str, ...],
    timeout: float,
    wait: float | None,
    **certificates: Path | None,
) -> Client:
    """Connects as `server_options` say; `certificates` are tls_ca, tls_cert and tls_key."""
    metadata, credentials = metadata_of(header), credentials_of(**certificates)
    if "," in server:
        addresses = [address.strip() for address in server.split(",") if address.strip()]
        return connect(addresses, credentials, metadata, timeout, wait or 0.0, allow_missing)
    if allow_missing:
        raise ConfigError("--allow-missing is for several servers: --server HOST:PORT,HOST:PORT")
    return connect(server, credentials, metadata, timeout, wait or 0.0)


def table_names(options: Mapping[str, Any], timeout: float) -> list[str]:
    with open_client(timeout=timeout, wait=None, **options) as client:
        return sorted(client.server_info().tables)


def metadata_of(header: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in header]
    for text, (name, separator, value) in zip(header, pairs):
        if not separator or not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ConfigError(f'--header "{text}": expected NAME=VALUE, a name of letters, digits, "_", "-" and "."')
    return [(name.lower(), value) for name, _, value in pairs]


def credentials_of(tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None) -> Certificates | None:
    """The TLS credentials of these files; None where there are none, for a connection in plain text."""
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together")
    if tls_ca is None and tls_cert is None:
        return None
    return Certificates(_read_pem(tls_ca), _read_pem(tls_key), _read_pem(tls_cert))


def _read_pem(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if b"-----BEGIN " not in data:
        raise ConfigError(f"{path}: expected PEM (-----BEGIN ...), got {len(data)} other bytes")
    return data
