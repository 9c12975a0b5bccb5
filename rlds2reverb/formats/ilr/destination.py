"""The destination that a name `ilr:PATH[?OPTIONS]` has: shards (`write`), or a dict of arrays (`write_arrays`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.destination import place_named
from rlds2reverb.formats.ilr.write import ARRAYS, IlrDestination, IlrWriteOptions
from rlds2reverb.formats.ilr.write_arrays import ArraysDestination
from rlds2reverb.formats.options import Parse, at_least_one, one_of, read_path_and_options, whole_number


def _level(text: str) -> int:
    level = whole_number(text)
    if not 1 <= level <= 19:
        raise ValueError("expected 1 to 19")
    return level


_TEXTS = {"benchmark": "benchmark_name", "task": "task_name", "color": "color_space"}
OPTIONS: dict[str, Parse] = {
    "benchmark": str,
    "task": str,
    "color": one_of(RGB="RGB", GRAY="GRAY"),
    "actions": at_least_one,
    "level": _level,
    "terminals": one_of(yes=True, no=False),
    "shard_frames": at_least_one,
    "shards": at_least_one,
}


def open_ilr(text: str) -> IlrDestination:
    """The destination that the text after "ilr:" names.

    Raises:
      ConfigError: the path is missing, or an option has no valid value.
    """
    name = f"ilr:{text}"
    path, chosen = read_path_and_options(name, text, OPTIONS, ConfigError)
    if not path:
        raise ConfigError(f'"{name}": expected ilr:FOLDER, an archive: ilr:NAME.tar.zst, or a dict: ilr:NAME.npz')
    if path.endswith(ARRAYS):
        return _open_arrays(name, place_named(path), chosen)
    texts = {name: chosen.pop(option) for option, name in _TEXTS.items() if option in chosen}
    return IlrDestination(name, place_named(path), IlrWriteOptions(texts, **chosen))


def _open_arrays(name: str, path: Path, chosen: Mapping[str, Any]) -> IlrDestination:
    for option in chosen:
        if option != "terminals":
            raise ConfigError(f'"{name}": {option}: is of shards; a dict of arrays has no description, and is one file')
    return ArraysDestination(name, path, IlrWriteOptions({}, **chosen))
