"""LeRobot's datasets as a source: `lerobot:PATH[?OPTIONS]`, `lerobot:ORG/NAME[?OPTIONS]`.

| option | values | meaning |
| --- | --- | --- |
| `last_step` | `repeat`, `mark` | what stands behind the last action; see `readers.alignment` |
| `done_means` | `terminal`, `timeout`, `nothing` | what `next.done` says of an episode's end |
| `task` | `column`, `metadata`, `skip` | where the text of a row's task goes |
| `videos` | `decode`, `skip` | whether videos become columns |
| `tolerance` | seconds | how far a frame may be from its row's time |
| `reserved` | `skip`, `columns` | whether LeRobot's counters become columns |
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import LAST_STEPS
from rlds2reverb.readers.lerobot.dataset import read_dataset
from rlds2reverb.readers.lerobot.reading import COLUMN, DECODE, METADATA, NOTHING, SKIP, TERMINAL, TIMEOUT, Reading
from rlds2reverb.readers.lerobot.recordings import LeRobotRecordings
from rlds2reverb.source_options import Parse, one_of, parted, unescaped, words
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.opening import asked

_REPO = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
_REVISIONS = ("v3.0", "v2.1", "v2.0", "main")


def _seconds(text: str) -> float:
    found = float(text) if re.fullmatch(r"(\d{1,9}(\.\d{0,12})?|\.\d{1,12})(e-?\d)?", text, re.ASCII) else math.nan
    if not found > 0:
        raise ValueError("expected a number of seconds above 0")
    return found


OPTIONS: dict[str, Parse] = {
    "last_step": words(*LAST_STEPS),
    "done_means": words(TERMINAL, TIMEOUT, NOTHING),
    "task": words(COLUMN, METADATA, SKIP),
    "videos": words(DECODE, SKIP),
    "tolerance": _seconds,
    "reserved": one_of(skip=False, columns=True),
}
"""The format's own options, and how each is read."""


def open_lerobot(text: str) -> Source:
    """Opens what stands behind "lerobot:".

    Raises:
      SourceError: there is no such dataset, it is damaged or of another version, or an option makes no sense.
    """
    wanted = asked("lerobot", text, OPTIONS)
    dataset = read_dataset(_folder(wanted.name, wanted.text), Reading(**wanted.options))
    return wanted.source_of(LeRobotRecordings(dataset, wanted.name))


def folder_of(text: str) -> Path:
    """The folder of what stands behind "lerobot:".

    Raises:
      SourceError: there is none.
    """
    return _folder(f"lerobot:{text}", unescaped(parted(text)[0]))


def _folder(people: str, where: str) -> Path:
    """The folder of a path, or of a dataset that lerobot keeps under its name.

    Source of the places: utils/constants.py and dataset_metadata.py of lerobot 0.6.1; huggingface_hub's constants and cache.
    """
    if "\0" in where or not where:
        raise SourceError(f'"{people}": expected a folder, or ORG/NAME')
    path = Path(where).expanduser()
    if path.is_dir() or path.is_absolute() or where.startswith((".", "~")) or not _REPO.fullmatch(where):
        return path
    places = list(_places(where))
    for place in places:
        if (place / "meta/info.json").is_file():
            return place
    raise SourceError(
        f'"{people}": no folder {path}, and no dataset of that name in {places[0].parent.parent} (HF_LEROBOT_HOME); '
        "download it with lerobot or huggingface-cli, or give its folder"
    )


def _places(repo: str) -> Iterator[Path]:
    """Where lerobot looks for a dataset of that name: its own folder, then the snapshots it downloaded, by version."""
    home = _home()
    yield home / repo
    cache = home / "hub" / f"datasets--{repo.replace('/', '--')}"
    for revision in _REVISIONS:
        commit = cache / "refs" / revision
        if commit.is_file() and re.fullmatch(
            r"[0-9a-f]{1,64}", name := commit.read_text(errors="replace")[:80].strip()
        ):
            yield cache / "snapshots" / name
    yield from sorted(cache.glob("snapshots/*"))


def _home() -> Path:
    """HF_LEROBOT_HOME, or the folder lerobot in Hugging Face's."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hugging_face = os.environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    return Path(os.environ.get("HF_LEROBOT_HOME") or str(Path(hugging_face) / "lerobot")).expanduser()
