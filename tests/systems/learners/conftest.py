"""For tests with learners' libraries: a real server, started by the Python that has Reverb, and tables with real data."""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")  # before JAX is imported: four devices

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import rlds2reverb
from tests.systems.learners.servers import ONCE, SERVER_PYTHON, Server, numbers, signature_of

CARTPOLE, CHEETAH = "bundled:cartpole", "bundled:half_cheetah"

StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def start_server() -> Iterator[StartServer]:
    """Starts servers with these tables: `start_server({"name": "replay", "signature": ...}, ...).address`. All end with the session."""
    python = os.environ.get(SERVER_PYTHON, "")
    if not python:
        raise LookupError(
            f"{SERVER_PYTHON} is not set: the Python that has Reverb; `make test-learners` and `make test-lerobot` set it"
        )

    def start(*tables: dict[str, Any]) -> Server:
        started = Server(python, *tables)
        running.callback(started.stop)
        return started

    with ExitStack() as running:
        yield start


@pytest.fixture(scope="session")
def replay(start_server: StartServer) -> str:
    """The address of a server with data; tests do not change it, but for the table "prioritized", whose priorities change.

    | table | data | view | sampler |
    | --- | --- | --- | --- |
    | transitions | cartpole | transition | uniform |
    | prioritized | cartpole | transition | prioritized |
    | two_step_cartpole | cartpole | two_step | uniform |
    | two_step | half_cheetah (3 episodes) | two_step | uniform |
    | sequences | cartpole | sequence:length=8,pad_end=true | uniform |
    | slices | cartpole | slices:length=8,per_episode=20 | uniform |
    | collected | nothing: pages write into it | transition | uniform |
    """
    tables = {
        "transitions": (CARTPOLE, "transition"),
        "prioritized": (CARTPOLE, "transition"),
        "two_step_cartpole": (CARTPOLE, "two_step"),
        "two_step": (f"{CHEETAH}@train[:3]", "two_step"),
        "sequences": (CARTPOLE, "sequence:length=8,pad_end=true"),
        "slices": (CARTPOLE, "slices:length=8,per_episode=20"),
    }
    configs = [{"name": name, "signature": signature_of(*made)} for name, made in tables.items()]
    configs[1] |= {"sampler": "prioritized", "priority_exponent": 1.0}
    configs.append({"name": "collected", "signature": signature_of(CARTPOLE, "transition")})
    address = start_server(*configs).address
    with rlds2reverb.connect(address) as client:
        for name, (dataset, view) in tables.items():
            assert client.push(dataset, name, view=view).items_confirmed
    return address


@pytest.fixture(scope="session")
def numbered(start_server: StartServer) -> str:
    """The address of a server whose tables take the view "transition" of `numbers`: "one" and "two" hand out every item once, "keep" is uniform."""
    signature = signature_of(numbers(1), "transition")
    tables: dict[str, dict[str, Any]] = {"one": ONCE, "two": ONCE, "keep": {}}
    return start_server(*({"name": name, "signature": signature, **more} for name, more in tables.items())).address


@pytest.fixture
def client(replay: str) -> Iterator[rlds2reverb.Client]:
    with rlds2reverb.connect(replay) as connected:
        yield connected
