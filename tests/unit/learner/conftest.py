"""Each test looks at its own threads only."""

from __future__ import annotations

import pytest

from tests.support.learner.tables import set_threads_aside


@pytest.fixture(autouse=True)
def _threads_of_others() -> None:
    set_threads_aside()
