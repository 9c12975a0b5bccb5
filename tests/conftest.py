"""Fixtures for all suites: quiet TensorFlow, and one real Reverb server a test process."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

settings.register_profile(
    "fixed", derandomize=True, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("fixed")

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("tensorflow") is None:
    # The core's environment has no TensorFlow: what needs it is not even imported.
    collect_ignore_glob += ["conformance/*", "faults/*", "server/*", "examples/*", "tf/*"]


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    """A real server with tables that take anything.

    Tables "one" and "two" hand out every item once, in the order of insertion, so that sampling n items reads back what
    was stored, in order, and empties the table. "keep" samples uniformly and keeps its items.
    """
    from replay_server import EmbeddedServer, TableConfig

    once = {"sampler": "fifo", "remover": "fifo", "max_times_sampled": 1, "max_size": 10_000_000}
    tables = [TableConfig("one", **once), TableConfig("two", **once), TableConfig("keep")]
    with EmbeddedServer(tables) as running:
        yield running


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    """Our client, connected to `server`; the tables are empty."""
    import reverb

    import rlds2reverb

    other = reverb.Client(server.address)
    for table in ("one", "two", "keep"):
        other.reset(table)
    with rlds2reverb.connect(server.address) as connected:
        yield connected
