"""Functions that filter episodes, which workers import."""

from __future__ import annotations

import numpy as np

from rlds2reverb.episode import Array, Episode


def keeps_some_episodes(episode: Episode) -> bool:
    return len(episode) % 2 == 0


def keeps_some_rows(episode: Episode) -> Array:
    rows: Array = episode.columns["observation"][:, 0] > -0.5
    return rows


def has_four_pictures(episode: Episode) -> bool:
    return episode.columns["observation"].ndim == 4 and len(episode) == 4


def with_a_norm(episode: Episode) -> Episode:
    """Drops the first row, and adds a column."""
    columns = {path: column[1:] for path, column in episode.columns.items()}
    columns["is_first"] = np.arange(len(episode) - 1) == 0
    columns["observation_norm"] = np.linalg.norm(columns["observation"], axis=1)
    return Episode(columns, {**episode.metadata, "rows": len(episode)})


def with_flipped_colours(episode: Episode) -> Episode:
    """Of pixels; files it leaves alone, and says what it got."""
    image = episode.columns["observation"]
    columns = episode.columns if image.dtype == object else {**episode.columns, "observation": image[..., ::-1]}
    return Episode(columns, {**episode.metadata, "dtype": image.dtype.name})


def fails_for_some(episode: Episode) -> Episode:
    if len(episode) == 5:
        raise ValueError("five rows")
    return episode


def makes_nothing(_: Episode) -> None:
    return None
