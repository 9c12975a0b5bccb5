"""Functions that filter episodes, which workers import."""

from __future__ import annotations

import numpy as np

from rlds2reverb.episode import Array, Episode


def keeps_some_episodes(episode: Episode) -> bool:
    return len(episode) % 2 == 0


def keeps_some_rows(episode: Episode) -> Array:
    rows: Array = episode.columns["observation"][:, 0] > -0.5
    return rows


def with_a_norm(episode: Episode) -> Episode:
    """Drops the first row, and adds a column."""
    columns = {path: column[1:] for path, column in episode.columns.items()}
    columns["is_first"] = np.arange(len(episode) - 1) == 0
    columns["observation_norm"] = np.linalg.norm(columns["observation"], axis=1)
    return Episode(columns, {**episode.metadata, "rows": len(episode)})


def fails_for_some(episode: Episode) -> Episode:
    if len(episode) == 5:
        raise ValueError("five rows")
    return episode


def makes_nothing(_: Episode) -> None:
    return None
