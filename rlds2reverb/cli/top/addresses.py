"""Which servers the command line names, what they are called, and which HTTP address is whose."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.errors import ConfigError
from rlds2reverb.transport.address import named_address

Place = tuple[str, str, str | None]
"""Name, HOST:PORT, and URL or None."""


def paired(servers: Sequence[str], urls: Sequence[str]) -> list[Place]:
    """The servers with their URLs.

    Args:
      servers: each HOST:PORT or NAME=HOST:PORT, or several of them with commas.
      urls: each a URL, which belongs to the server in its place among the servers, or NAME=URL, or HOST:PORT=URL.

    Raises:
      ConfigError: a server or a name stands twice, or a URL belongs to none of them.
    """
    named = [
        named_address(text.strip(), "--server") for listed in servers for text in listed.split(",") if text.strip()
    ]
    if not named:
        raise ConfigError("--server: expected HOST:PORT, such as localhost:8000")
    for number, what in enumerate(("name", "address")):
        of_one_kind = [one[number] for one in named]
        for text in of_one_kind:
            if of_one_kind.count(text) > 1:
                raise ConfigError(f'--server: the {what} "{text}" stands twice')
    found: dict[int, str] = {}
    for place, text in enumerate(urls):
        number, url = _owner(text, place, named)
        if number in found:
            raise ConfigError(f'--http "{text}": the server "{named[number][0]}" has one already, {found[number]}')
        found[number] = url
    return [(name, address, found.get(number)) for number, (name, address) in enumerate(named)]


def _owner(text: str, place: int, named: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Number of the server whose URL it is, and the URL.

    Raises:
      ConfigError: there is no such server.
    """
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
