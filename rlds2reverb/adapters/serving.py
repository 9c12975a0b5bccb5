"""What adapters take for the server of a table, and the client that they get of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from rlds2reverb.client import Client
from rlds2reverb.connecting import connect
from rlds2reverb.errors import ConfigError

Server: TypeAlias = str | list[str] | tuple[str, ...] | Callable[[], Client] | Client
"""One of these:

| server | client |
| --- | --- |
| "host:port", or several of them in a list or a tuple | a new one, as `rlds2reverb.connect` makes it |
| a function without arguments | the one that it returns, which is closed after use |
| a client | itself; it stays open |
"""


def opened(server: Server) -> AbstractContextManager[Client]:
    """The client of a server, closed at the end unless it was given.

    Raises:
      ConfigError: a function returned no client.
      Rlds2ReverbError: as `rlds2reverb.connect` does.
    """
    if isinstance(server, Client):
        return nullcontext(server)
    if isinstance(server, str):
        return connect(server)
    if not callable(server):
        return connect(server)
    made = server()
    if not isinstance(made, Client):
        raise ConfigError(f"server: a function that connects; it returned a {type(made).__name__} and not a client")
    return made


def check_pickles(server: Server) -> None:
    """For what workers get pickled.

    Raises:
      ConfigError: it is a client, which no other process can use.
    """
    if isinstance(server, Client):
        raise ConfigError(
            'server: an open client cannot be pickled for workers; give "host:port", a list of them, or a function that connects '
            "(functools.partial(rlds2reverb.connect, ...))"
        )
