"""What a conversion never overwrites: its source, and any other data than a dataset of the destination's format."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import islice
from pathlib import Path

from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SourceError, reason_of
from rlds2reverb.formats import open_source
from rlds2reverb.formats.buckets import BucketPath, path_of
from rlds2reverb.formats.destination import Destination
from rlds2reverb.formats.mix import SEPARATOR, MixedSource
from rlds2reverb.formats.options import split_options, unescape_text
from rlds2reverb.formats.registry import SOURCES
from rlds2reverb.formats.source import Source
from rlds2reverb.formats.splits import take_split

_FOLDERS = re.compile(r"[^:;|,?=]*[/\\]")
_MOST_FILES = 100_000
"""Of a pattern."""


def places_of(source: object, opened: Source) -> list[Path]:
    """The existing folders and files that a source is read from; [] for one in memory, or at a server.

    Args:
      source: the argument of `open_source`.
      opened: its result.
    """
    if isinstance(source, str):
        names = [source]
    elif isinstance(opened, MixedSource):
        names = [tally.name for tally in opened.tallies]
    else:
        names = [opened.name]
    return [place for place in dict.fromkeys(place for name in names for place in _list_places(name)) if _exists(place)]


def label_of(source: object, opened: Source) -> str:
    """A source's name with all its options but without its folders, so that it stays the same when data is moved.

    Arguments as `places_of`.
    """
    if isinstance(source, str):
        name = source
    else:
        name = f"{opened.name} {opened.order}" if isinstance(opened, MixedSource) else opened.name
    return _FOLDERS.sub("", name)


def _list_places(name: str) -> Iterator[Path]:
    with suppress(SourceError):
        name = take_split(name)[0]
    scheme, _, text = name.partition(":")
    if scheme == "mix":
        for part in text.split(SEPARATOR):
            yield from _list_places(part)
        return
    entry = SOURCES.find(name)
    if entry is None or any(form.choices for form in entry[1].forms):
        return
    if (place := entry[1].place) is not None:
        with suppress(SourceError):
            yield place(text)
        return
    whole = split_options(text)[0]  # paths or patterns of paths, separated by ";"
    for written in map(unescape_text, {whole, *whole.split(";")}):
        if not written or "\0" in written:
            continue
        try:
            path = path_of(written).absolute()
        except SourceError:  # "~nobody"
            continue
        yield path
        if has_magic(written):
            above = next(parent for parent in path.parents if not has_magic(str(parent)))
            yield from islice(above.glob(str(path.relative_to(above))), _MOST_FILES)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, say
        return False


def check_path(path: Path) -> Path:
    """A final place, absolute.

    Raises:
      ConfigError: it does not end in a name (such as "." and "..").
    """
    if path.name in ("", ".."):
        raise ConfigError(
            f"{path}: ends in no name; expected the path of the dataset to be, such as {path / 'converted'}"
        )
    return path.absolute()


def check_apart(path: Path, places: Sequence[Path]) -> None:
    """Refuses a final place that equals, contains, or is inside a folder or file of the source.

    Args:
      path: the final place.
      places: the folders and files of the source.

    Raises:
      ConfigError: it does; the message says how.
    """
    target = path.parent.resolve() / path.name
    for place in {place.resolve() for place in places}:
        if place in (target, path.resolve()):
            raise ConfigError(f"{path}: is the source itself; write somewhere else")
        if place in target.parents:
            raise ConfigError(f"{path}: lies inside of the source, {place}; write somewhere else")
        if target in place.parents:
            raise ConfigError(f"{path}: is there already, and holds the source, {place}; write somewhere else")


def check_free(destination: Destination, path: Path, overwrite: bool) -> None:
    """Refuses a final place with something that must not be replaced.

    Raises:
      ConfigError: the place exists, and `overwrite` is not set or it is no dataset of that format.
    """
    if not is_there(path):
        return
    if not overwrite:
        raise ConfigError(
            f"{path}: is there already; write somewhere else, add to it (append=True, --append), or replace it (overwrite=True, --overwrite)"
        )
    if path.is_symlink():
        raise ConfigError(f"{path}: is a link to {path.resolve()}; write there, or remove the link")
    if odd := _why_not_ours(destination, path):
        scheme = destination.name.partition(":")[0]
        raise ConfigError(
            f"{path}: {odd}; only a dataset as {scheme}: writes it is replaced or added to. Write somewhere else, or move away what is there"
        )


def is_there(path: Path) -> bool:
    """Whether there is anything of that name, be it a broken link, or in a bucket."""
    return path.exists() if isinstance(path, BucketPath) else os.path.lexists(path)


def _why_not_ours(destination: Destination, path: Path) -> str:
    """Why the existing path is not a dataset of the format; "" if it is one, or an empty folder."""
    if not destination.marks:
        return "is a folder" if path.is_dir() else _why_unreadable(destination, path)
    if not path.is_dir():
        return "is a file"
    is_marked = False
    for file in list_files(path):
        if not any(matches_mark(file, mark) for mark in destination.marks):
            return f"holds {'/'.join(file)}"
        is_marked = is_marked or matches_mark(file, destination.marks[0])
    if not is_marked:
        return f"holds no {destination.marks[0]}" if any(list_files(path)) else ""
    return _why_unreadable(destination, path)


def list_files(folder: Path) -> Iterator[tuple[str, ...]]:
    """The files and links below a folder, each by the parts of its path; links to folders are not followed."""
    if isinstance(folder, BucketPath):
        for path in folder.walk():
            yield path.relative_to(folder).parts
        return
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*files, *links]):
            yield (Path(place) / name).relative_to(folder).parts


def matches_mark(parts: Sequence[str], pattern: str) -> bool:
    """Whether a file, by the parts of its path, fits a pattern in which "/**/" stands for any folders."""
    first, any_folders, last = pattern.partition("/**/")
    head, tail = first.split("/"), last.split("/") if any_folders else []
    if len(parts) < len(head) + len(tail) or (not tail and len(parts) > len(head)):
        return False
    ends = [*parts[: len(head)], *(parts[-len(tail) :] if tail else ())]
    return all(map(fnmatchcase, ends, [*head, *tail]))


def _why_unreadable(destination: Destination, path: Path) -> str:
    try:
        open_source(destination.source(path)).spec()
    except Rlds2ReverbError as error:
        return f"cannot be read ({reason_of(error)})"
    return ""
