"""HDF5 files of unknown origin: opened for reading, links followed inside the dataset's folder only, what is read is bounded.

h5py gives errors of many kinds over a damaged file; here they become `SourceError`, or `BrokenEpisode` for what is read of one episode.

A file is opened once for a pass over its episodes (`with opened(path) as file`), and read by one thread at a time: h5py has one lock
for all files. Links to other files lead through `found`, never through libhdf5, so that each is checked.
"""

from __future__ import annotations

import itertools
import math
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
_MOST_ATTRIBUTES = 100_000
_MOST_ATTRIBUTE_BYTES = 64 << 20
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
    return _OPEN[thing.file.filename].bytes


def path_of(thing: h5py.Group | h5py.Dataset) -> Path:
    """The file that a group or a dataset is in."""
    return _OPEN[thing.file.filename].path


def failure_of(thing: h5py.Group | h5py.Dataset, error: BaseException) -> str:
    """What an error of h5py says, on one line."""
    return bytes_of(thing).failure or line_of(error)


def found(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """What is there under a name, "/" in it for one deeper inside; None where nothing is.

    Raises:
      BrokenEpisode: a link leads out of the folder, to a file that cannot be read, or in a circle.
    """
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
        listed = [_decoded(name) for name in itertools.islice(group.id, most + 1)]
    except ERRORS as error:
        raise BrokenEpisode("", f"{where(group)}: its names cannot be read: {failure_of(group, error)}") from error
    if len(listed) > most:
        raise BrokenEpisode("", f"{where(group)}: more than {most:,} names")
    return listed


def attributes(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """The attributes of a group, a dataset or the file; None for an empty one. What is neither numbers nor texts is left out.

    Raises:
      SourceError: one cannot be read, or they are too many or too large.
    """
    try:
        return _attributes(thing)
    except ERRORS as error:
        raise SourceError(f"{where(thing)}: its attributes cannot be read: {failure_of(thing, error)}") from error


def _attributes(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    count = h5py.h5a.get_num_attrs(thing.id)
    if count > _MOST_ATTRIBUTES:
        raise ValueError(f"{count:,} of them; expected at most {_MOST_ATTRIBUTES:,}")
    values = {}
    for number in range(count):
        one = h5py.h5a.open(thing.id, index=number)
        if not _is_plain(one.get_type()):
            continue
        size = math.prod(one.shape or ()) * one.get_type().get_size()
        if size > _MOST_ATTRIBUTE_BYTES:
            raise ValueError(f"one of {size:,} bytes; expected at most {_MOST_ATTRIBUTE_BYTES:,}")
        name = _decoded(one.name)
        value = thing.attrs[name]
        values[name] = None if isinstance(value, h5py.Empty) else value
    return values


def _is_plain(kind: Any) -> bool:
    """Whether values are numbers or texts. libhdf5 2.0 crashes over others where the file is damaged."""
    if isinstance(kind, h5py.h5t.TypeArrayID):
        return _is_plain(kind.get_super())
    plain = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeStringID, h5py.h5t.TypeEnumID)
    return isinstance(kind, plain) or kind.dtype.kind == "c"


def _decoded(name: str | bytes) -> str:
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
    """A group, a dataset, or a link that is not followed; None for nothing, and for what is neither."""
    try:
        encoded = name.encode("utf-8", "surrogateescape")
        if not group.id.links.exists(encoded):
            return None
        kind = group.id.links.get_info(encoded).type
        if kind != h5py.h5l.TYPE_HARD:
            return _link(kind, group.id.links.get_val(encoded))
        one = h5py.h5o.open(group.id, encoded)
    except ERRORS as error:
        place = f"{where(group).rstrip('/')}/{name}"
        raise BrokenEpisode("", f"{place}: cannot be read: {failure_of(group, error)}") from error
    if isinstance(one, h5py.h5d.DatasetID):
        return h5py.Dataset(one, readonly=True)
    return h5py.Group(one) if isinstance(one, h5py.h5g.GroupID) else None


def _link(kind: int, target: Any) -> h5py.SoftLink | h5py.ExternalLink | None:
    if kind == h5py.h5l.TYPE_SOFT:
        return h5py.SoftLink(_decoded(target))
    return h5py.ExternalLink(*map(_decoded, target)) if kind == h5py.h5l.TYPE_EXTERNAL else None


def _from(group: h5py.Group, path: str) -> h5py.Group:
    return group.file["/"] if path.startswith("/") else group


def _linked(group: h5py.Group, link: h5py.ExternalLink) -> h5py.File:
    """The file that a link leads to, open as long as the one with the link."""
    one = _OPEN[group.file.filename]
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
