"""Checkpoints of Reverb."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import spec_of
from rlds2reverb.views.trajectory import two_step
from tests.contract.source_cases import data
from tests.support.stored import folders


def write(folder: Path) -> str:
    """Writes a small checkpoint into a folder; the name of the source."""
    episodes = [Episode(column, {}, f"name {at}") for at, column in enumerate(data.columns())]
    signature = two_step().signature(spec_of(episodes[0]))
    found = folders.pushed(episodes, two_step(), signature=signature)
    return f"reverb:{folders.write_stored(folder / 'checkpoint', found, {'replay': signature})}"


def opened(options: str = "") -> Any:
    return open_source(write(Path(mkdtemp())) + options)


SOURCES = {
    "as it is": opened,
    "a part": lambda: opened("?episodes=1:"),
    "split": lambda: opened("?gaps=split"),
    "items": lambda: opened("?as=items"),
}
PUSHED = ["as it is"]
