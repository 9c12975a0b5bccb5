"""How much chaos, and which: the size and the seed of a run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.forks import Forks

SIZE = float(os.environ.get("CHAOS_SIZE", "0.1"))
"""1 for the whole suite (some 95 minutes), 0.1 for a tenth of its kills and of its soak."""

SEED = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
"""CHAOS_SEED=N draws the same faults again; when they come still depends on the machine."""


def pytest_report_header() -> str:
    return f"chaos: CHAOS_SIZE={SIZE:g} CHAOS_SEED={SEED}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Drawn from the run's seed and the test's name, so that one test alone meets the same faults."""
    return np.random.default_rng([SEED, *request.node.nodeid.encode()])


@pytest.fixture
def size() -> float:
    """The share of the whole suite that is run."""
    return SIZE


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    """Starts services in a tenth of a second each."""
    made = Forks(tmp_path / "services.log")
    yield made
    made.close()
