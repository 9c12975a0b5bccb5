"""A conversion whose first run is stopped, and a second one that goes on from the state that was saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rlds2reverb.episode import Episode
from rlds2reverb.formats.destination import Content, Destination


def write_in_two_runs(
    destination: Destination, content: Content, folder: Path, episodes: Sequence[Episode], stop: int, behind: int
) -> None:
    """Writes into a new folder.

    Args:
      stop: the episodes before the saved state.
      behind: those that the first run writes after it, and the second writes anew.
    """
    folder.mkdir()
    sink = destination.sink(folder, content, None)
    for episode in episodes[:stop]:
        sink.write(episode)
    state = json.loads(json.dumps(sink.sync()))
    for episode in episodes[stop : stop + behind]:
        sink.write(episode)
    sink.sync()
    sink.close()
    sink = destination.sink(folder, content, state)
    for episode in episodes[stop:]:
        sink.write(episode)
    state = sink.sync()
    sink.finish()
    destination.sink(folder, content, state).finish()  # interrupted, and done again
