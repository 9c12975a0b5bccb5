"""TorchRL's buffers, in TED's own form."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rlds2reverb.destinations.base import Content
from rlds2reverb.destinations.ted.destination import open_ted
from rlds2reverb.episodes import Episode
from rlds2reverb.sources import open_source
from rlds2reverb.specs import column_spec
from tests.sources.cases import data


def write(folder: Path, options: str = "?layout=memmap") -> str:
    """Writes a small buffer into a folder; the name of the source."""
    episodes = [Episode(one) for one in data.columns()]
    content = Content("test", {path: column_spec(column) for path, column in episodes[0].columns.items()}, {})
    destination = open_ted(f"{folder / 'buffer'}{options}")
    (folder / "buffer").mkdir()
    sink = destination.sink(folder / "buffer", content, None)
    for episode in episodes:
        sink.write(episode)
    sink.finish()
    sink.close()
    return destination.source(destination.path)


def opened(written: str = "", options: str = "") -> Any:
    return open_source(write(Path(mkdtemp()), written) + options)


SOURCES = {
    "memory-mapped": lambda: opened("?layout=memmap"),
    "H5": opened,
    "a part": lambda: opened(options="?episodes=1:"),
    "with next": lambda: opened("?layout=memmap", "?next=keep"),
}
PUSHED = ["memory-mapped", "H5"]
