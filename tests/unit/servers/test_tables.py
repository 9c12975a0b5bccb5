"""Tables of several servers as one: sizes add up, and what differs is an error."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb import Client, connect
from rlds2reverb.errors import ConfigError, ServerUnreachable, SpecMismatch
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from tests.support.servers.memory import filled, group_of, server_of, table


def test_sizes_and_counts_add_up() -> None:
    plain = table_info("only_here", max_size=5)
    one, two = server_of(*range(3)), MemoryServer(table(max_size=50), plain)
    filled(filled(two, *range(10, 14)), 7, name="only_here")
    with group_of(one, two) as group:
        tables = group.tables()
        assert {name: (info.current_size, info.max_size) for name, info in tables.items()} == {
            "replay": (7, 10_050),
            "only_here": (1, 5),
        }
        assert tables["replay"].rate_limiter.inserts == 7
        assert list(group.servers()) == ["a:8000", "b:8000"]
        assert group.server_info().tables == tables


def test_a_table_must_be_the_same_on_all_that_have_it() -> None:
    other = {"x": ArraySpec((2,), np.dtype(np.int64))}
    with (
        group_of(server_of(), server_of(signature=other)) as group,
        pytest.raises(SpecMismatch, match="of b:8000, beside that of a:8000"),
    ):
        group.tables()
    with (
        group_of(server_of(), server_of(signature=None)) as group,
        pytest.raises(ConfigError, match="on b:8000 it has no signature"),
    ):
        group.sample("replay")
    with (
        group_of(server_of(), server_of(sampler="fifo")) as group,
        pytest.raises(ConfigError, match="samplers fifo and uniform"),
    ):
        group.sample("replay")
    with group_of(server_of(), server_of()) as group, pytest.raises(ConfigError, match='no table "other"'):
        group.sample("other")


def test_groups_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one address"):
        connect([])
    with pytest.raises(ConfigError, match="named twice in a:1, a:1"):
        Client([MemoryTransport(server_of(), "a:1"), MemoryTransport(server_of(), "a:1")])
    with pytest.raises(ConfigError, match="allow_missing is for several"):
        connect("localhost:1", allow_missing=True)
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        connect(["nonsense", "localhost:1"])
    for nonsense in (8000, None, [8000], {"localhost:1": 1}):
        with pytest.raises(ConfigError, match='expected an address such as "localhost:8000", or a list of them, got'):
            connect(nonsense)  # type: ignore[arg-type]
    with pytest.raises(ServerUnreachable):
        connect(["localhost:1"], allow_missing=True, timeout_seconds=1.0)


def test_one_server_of_a_group_is_a_client() -> None:
    server = server_of(*range(5))
    with group_of(server) as group, Client(MemoryTransport(server)) as client:
        assert group.tables() == client.tables()
        assert group.sample("replay", 4).structure == client.sample("replay", 4).structure
