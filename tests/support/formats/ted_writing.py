"""Writes episodes by a sink alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_destination
from rlds2reverb.formats.destination import Content, Loss
from rlds2reverb.specs import column_spec

LAYOUTS = {"h5": "?layout=h5", "memmap": "?layout=memmap"}


def content_of(episodes: Sequence[Episode]) -> Content:
    return Content("a test", {path: column_spec(column) for path, column in episodes[0].columns.items()}, {})


def write(folder: Path, episodes: Sequence[Episode], options: str = "") -> tuple[str, list[Loss], list[list[Loss]]]:
    """The name of the source of what was written, and the losses of all and of each."""
    destination = open_destination(f"ted:{folder / 'buffer'}{options}")
    content = content_of(episodes)
    losses = list(destination.losses(content))
    destination.path.mkdir(parents=True)
    sink = destination.sink(destination.path, content, None)
    each = [list(sink.write(episode)) for episode in episodes]
    sink.sync()
    sink.finish()
    sink.close()
    return destination.source(destination.path), losses, each
