"""What a conversion leaves alone: its source, and whatever is no dataset of the format that it writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rlds2reverb.destinations.base import Destination
from rlds2reverb.errors import ConfigError, Rlds2ReverbError
from rlds2reverb.sources import open_source

_GO_ON = "remove it first, or write somewhere else"


def checked_path(path: Path) -> Path:
    """A final place, absolute.

    Raises:
      ConfigError: it ends in no name, as "." and ".." do.
    """
    if path.name in ("", ".."):
        raise ConfigError(
            f"{path}: ends in no name; expected the path of the dataset to be, such as {path / 'converted'}"
        )
    return path.absolute()


def check_apart(path: Path, places: Sequence[Path]) -> None:
    """Refuses a final place that is where the source is, around it, or inside of it.

    Args:
      path: the final place.
      places: the folders and files of the source.

    Raises:
      ConfigError: says what the place is.
    """
    target = path.parent.resolve() / path.name
    for place in {one.resolve() for one in places}:
        if place in (target, path.resolve()):
            raise ConfigError(f"{path}: is the source itself; write somewhere else")
        if place in target.parents:
            raise ConfigError(f"{path}: lies inside of the source, {place}; write somewhere else")
        if target in place.parents:
            raise ConfigError(f"{path}: is there already, and holds the source, {place}; write somewhere else")


def check_free(destination: Destination, path: Path, overwrite: bool) -> None:
    """Refuses a final place that has something that must stay.

    Raises:
      ConfigError: there is something, and it is not to be replaced, or is no dataset of that format.
    """
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise ConfigError(
            f"{path}: is there already; write somewhere else, or replace it with overwrite=True (--overwrite)"
        )
    if path.is_symlink():
        raise ConfigError(f"{path}: is a link to {path.resolve()}; write there, or remove the link")
    odd = _not_ours(destination, path)
    if odd:
        scheme = destination.name.partition(":")[0]
        raise ConfigError(
            f"{path}: {odd}, and only a dataset as {scheme}: writes it is replaced (--overwrite); {_GO_ON}"
        )


def _not_ours(destination: Destination, path: Path) -> str:
    """Why what is there is no dataset of the format; "" where it is one, or an empty folder."""
    if not destination.marks:
        return "is a folder" if path.is_dir() else _unreadable(destination, path)
    if not path.is_dir():
        return "is a file"
    found = False
    for file in _files(path):
        if not any(_matches(file, mark) for mark in destination.marks):
            return f"holds {'/'.join(file)}"
        found = found or _matches(file, destination.marks[0])
    if not found:
        return f"holds no {destination.marks[0]}" if any(_files(path)) else ""
    return _unreadable(destination, path)


def _files(folder: Path) -> Iterator[tuple[str, ...]]:
    """The parts of the paths of all files below a folder; links count as files."""
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*files, *links]):
            yield (Path(place) / name).relative_to(folder).parts


def _matches(parts: Sequence[str], pattern: str) -> bool:
    first, any_folders, last = pattern.partition("/**/")
    head, tail = first.split("/"), last.split("/") if any_folders else []
    if len(parts) < len(head) + len(tail) or (not tail and len(parts) > len(head)):
        return False
    ends = [*parts[: len(head)], *(parts[-len(tail) :] if tail else ())]
    return all(fnmatchcase(part, one) for part, one in zip(ends, [*head, *tail]))


def _unreadable(destination: Destination, path: Path) -> str:
    try:
        open_source(destination.source(path)).spec()
    except Rlds2ReverbError:
        return "cannot be read as one"
    return ""
