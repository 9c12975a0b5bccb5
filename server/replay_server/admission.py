"""Which HTTP requests are accepted: checks of the Host header, the Origin header and the token.

**Host.** A page of any site can have its own name resolve to 127.0.0.1 (DNS rebinding), and then reads this server as its own
origin; only the Host header still has the foreign name. So a request must name the server by `localhost`, by the name that it
listens on, or by one of `http.allowed_hosts`. An address (127.0.0.1, 10.0.0.7, [::1]) is always accepted: rebinding needs a
name, and probes of an orchestrator use it. So is an HTTP/1.0 request without a Host: every browser sends one.

**Origin.** A browser names the page that sends a request. From another origin, no request may change anything.

**Token.** Optional. Where one is configured, every request that changes something needs it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlds2reverb.errors import ConfigError

TOKEN = r"[!-~]{1,4096}"  # noqa: S105 - a pattern: visible ASCII, which a header can carry as it is

_FILE_BYTES = 8192

_AUTHORITY = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
"""What a Host header holds. Source: RFC 9110, 7.2, and RFC 3986, 3.2.2, but a name takes only what DNS and Docker take."""

_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^\s/,?#@]+)")


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused: an HTTP status, and a sentence for the client."""

    status: int
    error: str


def names_of(listening: str, allowed: Iterable[str]) -> frozenset[str]:
    """The host names by which this server may be requested.

    Args:
      listening: `http.host`; an address allows no name, least of all 0.0.0.0.
      allowed: `http.allowed_hosts`.
    """
    return frozenset({"localhost", *(_plain(name) for name in (listening, *allowed) if not _is_address(name))})


def refuse_host(host: str | None, protocol: str, ours: frozenset[str]) -> Refusal | None:
    """The refusal of a Host header that does not name this server; None when it does."""
    if host is None and protocol == "HTTP/1.0":
        return None
    authority = _AUTHORITY.fullmatch(host or "")
    if authority is None:
        return Refusal(400, f"Host {host or ''!r}: expected one name or address, such as localhost:8080")
    if _is_address(authority["address"] or authority["name"]) or _plain(authority["name"]) in ours:
        return None
    return Refusal(
        421,
        f"Host {host!r} is none of this server's names; if it should be, add {authority['name']!r} to http.allowed_hosts in "
        "the server's config",
    )


def refuse_origin(origin: str | None, host: str | None) -> Refusal | None:
    """The refusal of a request from a page of another origin; None without an Origin header, or for this server's own."""
    if origin is None:
        return None
    if origin == "null":
        return Refusal(403, "a page without an origin may not ask for checkpoints")
    match = _ORIGIN.fullmatch(origin)
    if match is None or (match["scheme"].startswith("http") and not _AUTHORITY.fullmatch(match["authority"])):
        return Refusal(400, f"Origin {origin!r}: expected one origin, such as http://localhost:8080")
    if match["scheme"] not in ("http", "https") or match["authority"].lower() != (host or "").lower():
        return Refusal(403, f"a page of {origin} may not ask for checkpoints")
    return None


def refuse_token(authorization: str | None, token: str | None) -> Refusal | None:
    """The refusal of a request without the configured token, compared in constant time; None when it is accepted."""
    if token is None:
        return None
    scheme, _, sent = (authorization or "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), token.encode()):
        return None
    what = "another one came" if authorization else "none came"
    return Refusal(
        401, f"a token is wanted (http.token of the server's config), {what}; send it as: Authorization: Bearer TOKEN"
    )


def read_token(token: str | None, token_file: str | None) -> str | None:
    """The token of a config; None when it has none.

    Raises:
      ConfigError: given twice, or its file cannot be read or holds no token.
    """
    if token_file is None:
        return token
    if token is not None:
        raise ConfigError("$.http.token: there is a token_file, too; give one of them")
    try:
        with Path(token_file).open("rb") as file:
            text = file.read(_FILE_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise ConfigError(f"$.http.token_file: {token_file}: cannot be read ({error.strerror})") from error
    if re.fullmatch(TOKEN, text) is None:
        raise ConfigError(f"$.http.token_file: {token_file}: expected one line, 1 to 4096 visible characters of ASCII")
    return text


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _plain(name: str | None) -> str:
    """In lower case and without a final dot, for comparison."""
    return (name or "").lower().removesuffix(".")
