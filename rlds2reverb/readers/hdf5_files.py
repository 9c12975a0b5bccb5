"""HDF5 files of unknown origin: opened for reading, links followed inside the dataset's folder only, what is read is bounded.

h5py gives errors of many kinds over a damaged file; here they become `SourceError`, or `BrokenEpisode` for what is read of one episode.

A file is opened once for a pass over its episodes (`with opened(path) as file`), and read by one thread at a time: h5py has one lock
for all files. Links to other files lead through `found`, never through libhdf5, so that each is checked.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h5py

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.hdf5_bytes import CheckedFile
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.wording import line_of

ERRORS = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    UnicodeError,
    OverflowError,
    MemoryError,
    NotImplementedError,
)
"""What h5py raises over a damaged file."""

_MOST_LINKS = 16
"""Soft and external links on the way to one dataset."""
_SAFE_IN_PATHS = "/\\:.,;=+-_~@#()[]{} !&'"


@dataclass
class _Open:
    """A file that is open, and those that links in it led to."""

    path: Path
    folder: Path
    bytes: CheckedFile
    linked: dict[Path, h5py.File] = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)


Stamp = tuple[int, int]
"""Size in bytes, and the time of the last change in nanoseconds."""

_OPEN: dict[str, _Open] = {}
"""`h5py.File.filename` -> the file: all that h5py tells of a file that Python opened."""
_TAKEN: set[str] = set()
_TAKING = threading.Lock()


@contextmanager
def opened(path: Path, folder: Path | None = None, stamp: Stamp | None = None) -> Iterator[h5py.File]:
    """The file, open for reading.

    Args:
      path: of the file.
      folder: links may lead to the files in it; by default that of the file.
      stamp: what it was when it was first looked at (`stamp_of`).

    Raises:
      SourceError: it is missing, no regular file, not HDF5, or changed since it was first looked at, or while it was read.
    """
    with ExitStack() as closing:
        file = _open(path, path.parent if folder is None else folder, closing)
        checked = bytes_of(file)
        if stamp not in (None, checked.stamp):
            raise SourceError(f"{path}: was written anew after it was first looked at; open the source again")
        yield file
        if not checked.is_unchanged:
            raise SourceError(f"{path}: was written anew while it was read; open the source again")


def stamp_of(file: h5py.File) -> Stamp:
    """Tells whether a file is still what it is now."""
    return bytes_of(file).stamp


def where(thing: h5py.Group | h5py.Dataset) -> str:
    """The file and the place in it; for messages."""
    return f"{path_of(thing)}: {thing.name}"


def bytes_of(thing: h5py.Group | h5py.Dataset) -> CheckedFile:
    """The bytes of the file that a group or a dataset is in."""
    return checked_of(thing.id)


def checked_of(identifier: Any) -> CheckedFile:
    """The bytes of the file that something of h5py's lower level is in."""
    return _open_one(identifier).bytes


def path_of(thing: h5py.Group | h5py.Dataset) -> Path:
    """The file that a group or a dataset is in."""
    return _open_one(thing.id).path


def _open_one(identifier: Any) -> _Open:
    return _OPEN[h5py.h5f.get_name(identifier).decode()]


def failure_of(thing: h5py.Group | h5py.Dataset, error: BaseException) -> str:
    """What an error of h5py says, on one line."""
    return bytes_of(thing).failure or line_of(error)


def found(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """What is there under a name, "/" in it for one deeper inside; None where nothing is.

    Raises:
      BrokenEpisode: a link leads out of the folder, to a file that cannot be read, or in a circle.
    """
    one = located(group, name)
    return h5py.Dataset(one, readonly=True) if isinstance(one, h5py.h5d.DatasetID) else one


def located(group: h5py.Group, name: str) -> h5py.Group | h5py.h5d.DatasetID | None:
    """As `found`, but the id of a dataset, which costs less than one that h5py makes ready for every use."""
    at: Any = group
    ahead, links = deque(name.split("/")), 0
    while ahead:
        part = ahead.popleft()
        if not part or part == ".":
            continue
        if not isinstance(at, h5py.Group):
            return None
        one = _object(at, part)
        if not isinstance(one, (h5py.SoftLink, h5py.ExternalLink)):
            at = one
            continue
        links += 1
        if links > _MOST_LINKS:
            place = f"{where(group).rstrip('/')}/{name}"
            raise BrokenEpisode("", f"{place}: more than {_MOST_LINKS} links, one after the other")
        at = _linked(at, one) if isinstance(one, h5py.ExternalLink) else _from(at, one.path)
        ahead.extendleft(reversed(one.path.split("/")))
    return at


def names(group: h5py.Group, most: int = 1_000_000) -> list[str]:
    """The names in a group, in the order of the file.

    Raises:
      BrokenEpisode: they cannot be read, or are more.
    """
    try:
        listed = [decoded(name) for name in itertools.islice(group.id, most + 1)]
    except ERRORS as error:
        raise BrokenEpisode("", f"{where(group)}: its names cannot be read: {failure_of(group, error)}") from error
    if len(listed) > most:
        raise BrokenEpisode("", f"{where(group)}: more than {most:,} names")
    return listed


def decoded(name: str | bytes) -> str:
    """A name in a file as text; bytes that are no UTF-8 come back when it is encoded."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


def _open(path: Path, folder: Path, closing: ExitStack) -> h5py.File:
    try:
        name = closing.enter_context(_reserved(quote(str(path), safe=_SAFE_IN_PATHS)))
        checked = CheckedFile(path, name)
        closing.callback(checked.close)
        file = h5py.File(checked, "r")
        closing.callback(file.close)
        sizes = file.id.get_create_plist().get_sizes()
    except ERRORS as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else line_of(error)
        raise SourceError(f"{path}: cannot be read as HDF5: {why}") from error
    if sizes != (8, 8):
        raise SourceError(
            f"{path}: cannot be read as HDF5: offsets of {sizes[0]} and lengths of {sizes[1]} bytes; expected 8"
        )
    one = _OPEN[name] = _Open(path, folder, checked)
    closing.callback(_OPEN.pop, name)
    closing.push(one.closing)
    return file


@contextmanager
def _reserved(name: str) -> Iterator[str]:
    """A name that no open file has, as long as it is needed: the same file may be open several times."""
    with _TAKING:
        free = next(one for at in itertools.count() if (one := f"{name}%{at}" if at else name) not in _TAKEN)
        _TAKEN.add(free)
    try:
        yield free
    finally:
        _TAKEN.discard(free)


def _object(group: h5py.Group, name: str) -> Any:
    """A group, a dataset's id, or a link that is not followed; None for nothing, and for what is neither."""
    try:
        encoded = name.encode("utf-8", "surrogateescape")
        kind = _kind_of_link(group.id.links, encoded)
        if kind is None:
            return None
        if kind != h5py.h5l.TYPE_HARD:
            return _link(kind, group.id.links.get_val(encoded))
        one = h5py.h5o.open(group.id, encoded)
    except ERRORS as error:
        place = f"{where(group).rstrip('/')}/{name}"
        raise BrokenEpisode("", f"{place}: cannot be read: {failure_of(group, error)}") from error
    if isinstance(one, h5py.h5d.DatasetID):
        return one
    return h5py.Group(one) if isinstance(one, h5py.h5g.GroupID) else None


def _kind_of_link(links: Any, name: bytes) -> int | None:
    """None where there is no link of the name."""
    try:
        return int(links.get_info(name).type)
    except ERRORS:
        if links.exists(name):
            raise
        return None


def _link(kind: int, target: Any) -> h5py.SoftLink | h5py.ExternalLink | None:
    if kind == h5py.h5l.TYPE_SOFT:
        return h5py.SoftLink(decoded(target))
    return h5py.ExternalLink(*map(decoded, target)) if kind == h5py.h5l.TYPE_EXTERNAL else None


def _from(group: h5py.Group, path: str) -> h5py.Group:
    return group.file["/"] if path.startswith("/") else group


def _linked(group: h5py.Group, link: h5py.ExternalLink) -> h5py.File:
    """The file that a link leads to, open as long as the one with the link."""
    one = _open_one(group.id)
    try:
        folder, path = one.folder.resolve(), (one.path.parent / link.filename).resolve()
        inside = path.is_relative_to(folder)
    except ERRORS as error:
        raise BrokenEpisode("", f"{where(group)}: a link to {link.filename!r}: {line_of(error)}") from error
    if not inside:
        raise BrokenEpisode("", f"{where(group)}: a link to {path}, which is not in {folder}; not followed")
    if path not in one.linked:
        try:
            one.linked[path] = _open(path, folder, one.closing)
        except SourceError as error:
            raise BrokenEpisode("", f"{where(group)}: a link to {link.filename!r}: {error}") from error
    return one.linked[path]
