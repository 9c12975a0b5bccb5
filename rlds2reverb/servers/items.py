"""Items of a table changed or deleted by their keys, on the servers that have them.

A key does not say on which server its item is. Samplers note it for the keys that they draw (`keys.KeyRoutes`); any other key is sent to
all servers with such a table, which skip what they do not have.

All functions raise ConfigError if no server has such a table, or for keys or priorities that make no sense, and change nothing then;
ServerUnreachable if a server cannot be reached and may not be missing, and TransportError if it refuses: some items may be changed then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from rlds2reverb.episode import Array
from rlds2reverb.errors import TransportError
from rlds2reverb.servers.group import Server, Servers
from rlds2reverb.servers.keys import check_keys, check_priorities
from rlds2reverb.servers.tables import table_of


def update_priorities(servers: Servers, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
    """Sets the priorities of items.

    Args:
      keys: [n] uint64.
      priorities: [n], or one for all.
    """
    item_keys, values = check_priorities(keys, priorities)
    masks = _divide_keys(servers, table, item_keys)

    def update(server: Server) -> None:
        own = masks[server]
        server.transport.update_priorities(table, item_keys[own], values[own])

    with _missing_table_named(servers, table):
        servers.each(update, masks)


def delete(servers: Servers, table: str, keys: npt.ArrayLike) -> None:
    """Deletes items; `keys` are [n] uint64."""
    item_keys = check_keys(keys)
    masks = _divide_keys(servers, table, item_keys)
    with _missing_table_named(servers, table):
        servers.each(lambda server: server.transport.delete_items(table, item_keys[masks[server]]), masks)


def reset(servers: Servers, table: str) -> None:
    """Empties a table on all servers; its rate limiters start from zero."""
    with _missing_table_named(servers, table):
        servers.each(lambda server: server.transport.reset(table), _find_servers_with(servers, table))


def _divide_keys(servers: Servers, table: str, keys: Array) -> dict[Server, Array]:
    """[n] bool for each server, the keys that are sent there; without servers that get none."""
    if len(servers) == 1:  # saves a call for each update: a server without the table says so itself
        return {servers[0]: np.ones(len(keys), bool)}
    numbers = servers.routes_of(table).servers_of(keys)
    unknown = numbers < 0
    receivers = (
        _find_servers_with(servers, table) if unknown.any() else [servers[number] for number in np.unique(numbers)]
    )
    masks = {server: unknown | (numbers == server.number) for server in receivers}
    return {server: mask for server, mask in masks.items() if mask.any()}


def _find_servers_with(servers: Servers, table: str) -> list[Server]:
    if len(servers) == 1:  # saves a call: a server without the table says so itself
        return [servers[0]]
    table_of(servers.server_info(), table)
    return [server for server in servers.there if server.info is not None and table in server.info.tables]


@contextmanager
def _missing_table_named(servers: Servers, table: str) -> Iterator[None]:
    """Raises a ConfigError in place of a server's refusal if no server has the table."""
    try:
        yield
    except TransportError as error:
        if not error.retryable:
            table_of(servers.server_info(), table)
        raise
