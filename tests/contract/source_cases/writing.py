"""Writes the episodes of most cases by our own destinations."""

from __future__ import annotations

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_destination
from rlds2reverb.formats.destination import Content
from rlds2reverb.specs import column_spec
from tests.contract.source_cases import data


def written(name: str) -> str:
    """Writes what a destination is named by; the name of the source."""
    episodes = [Episode(columns) for columns in data.columns()]
    content = Content("test", {path: column_spec(column) for path, column in episodes[0].columns.items()}, {})
    destination = open_destination(name)
    (destination.path if destination.marks else destination.path.parent).mkdir(parents=True)
    sink, encode = destination.sink(destination.path, content, None), destination.encoder(content)
    for episode in episodes:
        sink.write(encode(episode))
    sink.sync()
    sink.finish()
    sink.close()
    return destination.source(destination.path)
