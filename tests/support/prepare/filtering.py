"""Functions that filter episodes, which workers import."""

from __future__ import annotations

from rlds2reverb.episode import Array, Episode


def keeps_some_episodes(episode: Episode) -> bool:
    return len(episode) % 2 == 0


def keeps_some_rows(episode: Episode) -> Array:
    rows: Array = episode.columns["observation"][:, 0] > -0.5
    return rows
