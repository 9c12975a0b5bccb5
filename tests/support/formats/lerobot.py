"""Writes episodes by the destination, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlds2reverb.episode import Episode, metadata_specs
from rlds2reverb.formats.destination import Content, Loss
from rlds2reverb.formats.lerobot.write import open_lerobot
from rlds2reverb.specs import column_spec


def content_of(episode: Episode) -> Content:
    """What such episodes have."""
    columns = {path: column_spec(column) for path, column in episode.columns.items()}
    return Content("test", columns, metadata_specs(episode))


def written(path: Path, episodes: Sequence[Episode], options: str = "", synced: int = 1 << 30) -> list[Loss]:
    """Writes a dataset, with a `sync` after every so many episodes; what is lost.

    Args:
      path: the folder to be.
      episodes: at least one.
      options: of the destination, with their "?".
      synced: how many.
    """
    destination = open_lerobot(f"{path}{options}")
    content = replace(content_of(episodes[0]), episodes=episodes)
    path.mkdir(parents=True)
    losses = list(destination.losses(content))
    sink, encode = destination.sink(path, content, None), destination.encoder(content)
    for number, episode in enumerate(episodes, 1):
        losses += sink.write(encode(episode))
        if number % synced == 0:
            sink.sync()
    sink.sync()
    sink.finish()
    sink.close()
    return losses
