"""Options that make no sense are refused by the name of the function that was called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.client import Client
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.options import check_count
from rlds2reverb.testing import MemoryServer, MemoryTransport

mix: Any = rlds2reverb.mix


def client() -> Any:  # of any type: mypy would find the wrong arguments
    return Client(MemoryTransport(MemoryServer("replay")))


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda: client().sample("replay", 10, nonsense=1), "Client.sample"),
        (lambda: client().writer("replay", nonsense=1), "Client.writer"),
        (lambda: mix([([], 1.0)], nonsense=1), "mix"),
    ],
)
def test_an_unknown_option_names_the_function(call: Any, where: str) -> None:
    with pytest.raises(TypeError, match=f"^{where}: got an unexpected keyword argument 'nonsense'"):
        call()


@pytest.mark.parametrize("count", [1, np.int64(4), np.uint8(2)])
def test_whole_numbers_of_any_kind_are_counts(count: Any) -> None:
    check_count("batch_size", count)


@pytest.mark.parametrize("count", [0, -1, True, 1.0, np.float32(2), "3", None])
def test_nothing_else_is(count: Any) -> None:
    with pytest.raises(ConfigError, match=r"^batch_size .*: expected a whole number of at least 1$"):
        check_count("batch_size", count)


@pytest.mark.parametrize("priorities", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, 1.0]])
def test_priorities_are_finite(priorities: Any) -> None:
    with pytest.raises(ConfigError, match="expected finite numbers"):
        client().update_priorities("replay", np.array([1, 2], np.uint64), priorities)


def test_heaps_take_negative_priorities() -> None:
    server = MemoryServer("replay")
    server.put("replay", 7, [np.zeros(1)])
    with Client(MemoryTransport(server)) as learner:
        learner.update_priorities("replay", [np.uint64(7)], -2.0)
    assert server.tables["replay"].items[7].priority == -2.0
