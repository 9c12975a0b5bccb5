"""One process that forks services, for all suites of the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.forks import Forks


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Starts services in a tenth of a second each."""
    made = Forks(tmp_path_factory.mktemp("forks") / "log")
    yield made
    made.close()
