"""Random episodes for the comparisons with the peers, as columns and as the items that a view makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Episode
from tests.support.views.cutting import field_value

LENGTHS = (2, 3, 4, 5, 8, 13)
"""Rows; two rows are one transition."""


def random_episode(rows: int, seed: int = 0, terminal: bool = True, dtype: type = np.float32) -> Episode:
    """Vectors of normal numbers, none of them twice; the last row is terminal, or only the end of the recording."""
    rng = np.random.default_rng([rows, seed])
    last = np.arange(rows) == rows - 1
    return Episode(
        {
            "observation": rng.normal(size=(rows, 2)).astype(dtype),
            "action": rng.normal(size=(rows, 3)).astype(np.float32),
            "reward": rng.normal(size=rows).astype(dtype),
            "discount": rng.uniform(0.5, 1, rows).astype(dtype) * ~np.append(last[1:] & terminal, False),
            "is_first": np.arange(rows) == 0,
            "is_last": last,
            "is_terminal": last & terminal,
        },
        {},
        f"{rows} rows, seed {seed}",
    )


def random_episodes(terminal: bool = True, dtype: type = np.float32) -> list[Episode]:
    """One of every length."""
    return [random_episode(rows, terminal=terminal, dtype=dtype) for rows in LENGTHS]


def items(view: Any, episode: Episode) -> list[dict[str, Array]]:
    """Field -> value of every item, in the order in which they are stored."""
    cut = view.cut(episode)
    return [
        {path: field_value(cut, field, number) for path, field in cut.fields.items()}
        for number in range(len(cut.anchors))
    ]


def columns(view: Any, episode: Episode) -> dict[str, Array]:
    """Field -> values of all items, stacked; for fields whose items have one shape."""
    made = items(view, episode)
    return {path: np.stack([item[path] for item in made]) for path in made[0]}
