"""Whatever adapters take for a server becomes a client, and is closed unless it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlds2reverb import Client
from rlds2reverb.adapters import common
from rlds2reverb.adapters.common import check_pickles, open_client
from rlds2reverb.errors import ConfigError
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info


def one() -> Client:
    return Client(MemoryTransport(MemoryServer(table_info())))


def two() -> Client:
    return Client([MemoryTransport(MemoryServer(table_info()), f"{name}:1") for name in "ab"])


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The clients that were closed."""
    found: list[Any] = []
    for kind in (Client,):
        monkeypatch.setattr(kind, "close", lambda self: found.append(self))
    return found


@pytest.mark.parametrize("make", [one, two])
def test_a_client_stays_open(make: Callable[[], Client], closed: list[Any]) -> None:
    client = make()
    with open_client(client) as found:
        assert found is client
    assert closed == []


@pytest.mark.parametrize("make", [one, two])
def test_what_a_function_connects_is_closed(make: Callable[[], Client], closed: list[Any]) -> None:
    with open_client(make) as found:
        assert list(found.tables()) == ["replay"]
    assert closed == [found]


@pytest.mark.parametrize("address", ["a:1", ["a:1", "b:1"], ("a:1", "b:1")])
def test_addresses_are_connected_to(address: Any, closed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    client, asked = one(), []
    monkeypatch.setattr(common, "connect", lambda given: (asked.append(given), client)[1])
    with open_client(address) as found:
        assert found is client
    assert asked == [address]
    assert closed == [client]


def test_a_function_that_connects_nothing_is_told() -> None:
    with pytest.raises(ConfigError, match="it returned a str and not a client"):
        open_client(lambda: "localhost:1")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("make", [one, two])
def test_an_open_client_is_for_no_worker(make: Callable[[], Client]) -> None:
    check_pickles(make)
    check_pickles(["a:1", "b:1"])
    with pytest.raises(ConfigError, match=r"an open client cannot be pickled for workers; give .*functools\.partial"):
        check_pickles(make())
