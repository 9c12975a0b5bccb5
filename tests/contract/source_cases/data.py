"""The episodes that most cases write in their format."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support import rlds_data

EPISODES = 5


def columns() -> list[Any]:
    """Episodes of lengths that differ; the last two are equal."""
    rng = np.random.default_rng(8)
    made = [rlds_data.episode(rng, 2 + number % 3) for number in range(EPISODES - 1)]
    return [*made, made[-1]]
