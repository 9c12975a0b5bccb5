"""HDF5 files of unknown origin, as columns: opened for reading, links followed inside the dataset's folder only, sizes checked before a read.

What is read at once is held against the file's size by HDF5's own metadata: shape, dtype, chunks and filters, bytes that are stored. A file
that was made to attack may take more; docs/datasets.md says how to read such data in a container. h5py gives errors of many kinds over a damaged
file; here they become `SourceError`, or `BrokenEpisode` for what is read of one episode.

A file is opened once for a pass over its episodes (`with opened(path) as file`), and read by one thread at a time: h5py has one lock for all
files. Links to other files lead through `found`, never through libhdf5, so that each is checked.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import stat
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import h5py
import numpy as np

from rlds2reverb.episode import Array, byte_view
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import line_of

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

_MOST_BYTES = 1 << 32
"""Of what is read of one column at once: an episode's."""
_FREE_BYTES = 256 << 20
"""May be read whatever the file has."""
_MOST_EXPANSION = 100
"""How many times as large as the file values may be, where they are more than that."""
_MOST_CHUNK_BYTES = 1 << 30
_MOST_DEPTH = 16
_MOST_LEAVES = 10_000
_MOST_LINKS = 16
"""Soft and external links on the way to one dataset."""
_MOST_ATTRIBUTES = 100_000
_MOST_ATTRIBUTE_BYTES = 64 << 20
_FILTERS = {
    h5py.h5z.FILTER_DEFLATE: "gzip",
    h5py.h5z.FILTER_SZIP: "szip",
    307: "bzip2",
    32000: "LZF",
    32001: "Blosc",
    32004: "LZ4",
    32008: "bitshuffle",
    32013: "ZFP",
    32015: "Zstandard",
    32026: "Blosc2",
}
"""Names of filters: https://github.com/HDFGroup/hdf5_plugins/blob/master/docs/RegisteredFilterPlugins.md."""

Stamp = tuple[int, int]
"""Size in bytes, and the time of the last change in nanoseconds."""


@contextmanager
def opened(path: Path, folder: Path | None = None, stamp: Stamp | None = None) -> Iterator[h5py.Group]:
    """The file's root, open for reading.

    Args:
      path: of the file.
      folder: links may lead to the files in it; by default that of the file.
      stamp: what it was when it was first looked at (`stamp_of`).

    Raises:
      SourceError: it is missing, no regular file, not HDF5, or changed since it was first looked at, or while it was read.
    """
    with ExitStack() as closing:
        root = _open(path, path.parent if folder is None else folder, closing)
        found = stamp_of(root)
        if stamp not in (None, found):
            raise SourceError(f"{path}: was written anew after it was first looked at; open the source again")
        yield root
        if stamp_of(root) != found:
            raise SourceError(f"{path}: was written anew while it was read; open the source again")


def stamp_of(root: h5py.Group) -> Stamp:
    """Tells whether a file is still what it is now."""
    return _file_of(root).bytes.stamp


def path_of(thing: h5py.Group | h5py.Dataset) -> Path:
    """The file that a group or a dataset is in."""
    return Path(unquote(h5py.h5f.get_name(thing.id).decode(), errors="surrogateescape"))


def where(thing: h5py.Group | h5py.Dataset) -> str:
    """The file and the place in it; for messages."""
    return f"{path_of(thing)}: {thing.name}"


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
        if isinstance(one, h5py.ExternalLink):
            at = _linked(at, one)
        elif one.path.startswith("/"):
            at = _file_of(at).root
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
        raise BrokenEpisode("", f"{where(group)}: its names cannot be read: {line_of(error)}") from error
    if len(listed) > most:
        raise BrokenEpisode("", f"{where(group)}: more than {most:,} names")
    return listed


def leaves(group: h5py.Group, below: str = "", depth: int = 0) -> dict[str, h5py.Dataset]:
    """Path -> dataset, of all datasets in a group and in the groups in it.

    Raises:
      BrokenEpisode: something in it cannot be read, lies too deep, or there are too many.
    """
    made: dict[str, h5py.Dataset] = {}
    for name in names(group):
        path = f"{below}/{name}" if below else name
        one = found(group, name)
        if isinstance(one, h5py.Dataset):
            made[path] = one
        elif one is not None:
            if depth == _MOST_DEPTH:
                raise BrokenEpisode(path, f"{where(one)}: lies more than {_MOST_DEPTH} groups deep")
            made |= leaves(one, path, depth + 1)
        if len(made) > _MOST_LEAVES:
            raise BrokenEpisode(path, f"{where(group)}: more than {_MOST_LEAVES:,} datasets")
    return made


class Column:
    """A dataset with rows, looked up and checked once.

    Args:
      group: where it is.
      name: of the dataset, with "/" in it for one deeper inside.
      path: what it is the column of; for messages.
      dataset: its id, when it was looked up already.

    Raises:
      BrokenEpisode: it is missing, no dataset of numbers or texts, or not stored in a way that is read.

    Attributes:
      shape: of all rows; the first size is their number.
      dtype: of the values; object for text.
    """

    def __init__(self, group: h5py.Group, name: str, path: str, dataset: h5py.h5d.DatasetID | None = None) -> None:
        self.path, self._place = path, (group, name)
        try:
            one = located(group, name) if dataset is None else dataset
            if not isinstance(one, h5py.h5d.DatasetID) or not one.shape:
                raise self._broken(f"expected a dataset with rows, found {_kind(found(group, name))}")
            self._id, self.shape = one, one.shape
            stored = one.dtype
            is_text = stored.kind == "O" and h5py.check_string_dtype(stored) is not None
            self.dtype = np.dtype(object) if is_text or stored.kind == "S" else stored
            self._row_bytes = math.prod(self.shape[1:]) * stored.itemsize
            self._is_virtual = False
            self._offset = self._place_in_file() if stored.kind in "biufc" else None
            if self._offset is None:
                self._check_storage()
            if not is_text and stored.kind not in "biufcS":
                raise self._broken(f"holds {_content(stored)}; expected numbers or texts")
        except BrokenEpisode as broken:
            raise BrokenEpisode(path, broken.why) from broken
        except ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def where(self) -> str:
        """The file, and the place in it; for messages."""
        group, name = self._place
        return f"{where(group).rstrip('/')}/{name}"

    @property
    def spec(self) -> ArraySpec:
        """That of a row."""
        return ArraySpec(self.shape[1:], self.dtype)

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all; text as `bytes`.

        Raises:
          BrokenEpisode: they cannot be read, or are too large.
        """
        stop = len(self) if stop is None else max(0, min(stop, len(self)))
        start = min(start, stop)
        self._check_size((stop - start) * self._row_bytes)
        try:
            if self.dtype.kind == "O":
                texts: Array = h5py.Dataset(self._id, readonly=True)[start:stop].astype(object)
                return texts
            values = np.empty((stop - start, *self.shape[1:]), self.dtype)
            if self._offset is not None:
                _file_of(self._place[0]).bytes.fill(values, self._offset + start * self._row_bytes)
            elif values.size == math.prod(self.shape):  # h5py's selections cost more than short columns
                self._id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
            elif values.size:
                space = self._id.get_space()
                space.select_hyperslab((start, *(0 for _ in self.shape[1:])), values.shape)
                self._id.read(h5py.h5s.create_simple(values.shape), space, values)
        except ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error
        return values

    def _place_in_file(self) -> int | None:
        """Where the first row begins in the group's file, when all lie there one after the other, as they are in memory: such rows are read without libhdf5, which
        is faster. None otherwise; HDF5 tells no place where values lie in chunks or in other files.
        """
        offset = self._id.get_offset()
        if offset is None or self._id.get_storage_size() < len(self) * self._row_bytes:
            return None
        if h5py.h5f.get_name(self._id) != _file_of(self._place[0]).name:  # a link led to another file
            return None
        return int(offset) if self._id.get_type().equal(_native(self.dtype.str)) else None

    def _check_storage(self) -> None:
        plan = self._id.get_create_plist()
        layout = plan.get_layout()
        if plan.get_external_count() or (layout == h5py.h5d.VIRTUAL and not self._is_of_this_file()):
            raise self._broken("its values lie in other files, which are not read")
        if layout != h5py.h5d.CHUNKED:
            return
        for number in (plan.get_filter(at)[0] for at in range(plan.get_nfilters())):
            if not h5py.h5z.filter_avail(number):
                missing = f"filter {number}" + (f" ({_FILTERS[number]})" if number in _FILTERS else "")
                raise self._broken(
                    f"is packed by {missing}, which this h5py has not; HDF5_PLUGIN_PATH says where plugins are"
                )
        size = math.prod(plan.get_chunk()) * self._id.get_type().get_size()
        if size > _MOST_CHUNK_BYTES:
            raise self._broken(f"cannot be read: chunks of {size:,} bytes; expected at most {_MOST_CHUNK_BYTES:,}")

    def _is_of_this_file(self) -> bool:
        """Whether all sources of a virtual dataset are plain datasets in the same file."""
        parts, root = h5py.Dataset(self._id, readonly=True).virtual_sources(), _file_of(self._place[0]).root
        ours = [found(root, one.dset_name) for one in parts if one.file_name == "."]
        plain = [one for one in ours if isinstance(one, h5py.Dataset) and not one.is_virtual and not one.external]
        self._is_virtual = True
        return len(plain) == len(parts)

    def _check_size(self, size: int) -> None:
        if size <= _FREE_BYTES:
            return
        try:
            is_stored = self._is_virtual or self._id.get_storage_size() > 0
            stored = h5py.h5i.get_file_id(self._id).get_filesize() if is_stored else 0
        except ERRORS as error:
            raise self._broken(f"cannot be read: {line_of(error)}") from error
        most = min(_MOST_BYTES, max(_FREE_BYTES, _MOST_EXPANSION * stored))
        if size > most:
            raise self._broken(
                f"has {size:,} bytes to read at once, of {stored:,} in the file; at most {most:,} are read"
            )

    def _broken(self, why: str) -> BrokenEpisode:
        return BrokenEpisode(self.path, f"{self.where}: {why}")


def column(group: h5py.Group, name: str, path: str, rows: slice | None = None) -> Array:
    """Some rows of a dataset, or all; text as `bytes`.

    Args:
      group: where it is.
      name: of the dataset, with "/" in it for one deeper inside.
      path: what it is the column of; for messages.
      rows: which; without a step.

    Raises:
      BrokenEpisode: it is missing, no dataset of numbers or texts, too large, or cannot be read.
    """
    one = Column(group, name, path)
    start, stop, _ = (rows or slice(None)).indices(len(one))
    return one.rows(start, stop)


def value(group: h5py.Group, name: str) -> Any:
    """A dataset without rows: a number or `bytes`; None where it is empty.

    Raises:
      BrokenEpisode: it is missing, or something else.
    """
    one, place = found(group, name), f"{where(group).rstrip('/')}/{name}"
    try:
        if not isinstance(one, h5py.Dataset) or one.shape != ():
            raise BrokenEpisode(name, f"{place}: expected one value, found {_kind(one)}")
        if h5py.check_string_dtype(one.dtype) is None and one.dtype.kind not in "biufcS":
            raise BrokenEpisode(name, f"{place}: holds {_content(one.dtype)}; expected a number or a text")
        return one[()]
    except ERRORS as error:
        raise BrokenEpisode(name, f"{place}: cannot be read: {line_of(error)}") from error


def attributes(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """The attributes of a group, a dataset or the file; None for an empty one. What is neither numbers nor texts is left out.

    Raises:
      SourceError: one cannot be read, or they are too many or too large.
    """
    try:
        return _attributes(thing)
    except ERRORS as error:
        raise SourceError(f"{where(thing)}: its attributes cannot be read: {line_of(error)}") from error


def _attributes(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    count = h5py.h5a.get_num_attrs(thing.id)
    if count > _MOST_ATTRIBUTES:
        raise ValueError(f"{count:,} of them; expected at most {_MOST_ATTRIBUTES:,}")
    values: dict[str, Any] = {}
    for number in range(count):
        one = h5py.h5a.open(thing.id, index=number)
        kind, shape = one.get_type(), one.shape
        if not _is_plain(kind):
            continue
        size = math.prod(shape or ()) * kind.get_size()
        if size > _MOST_ATTRIBUTE_BYTES:
            raise ValueError(f"one of {size:,} bytes; expected at most {_MOST_ATTRIBUTE_BYTES:,}")
        name = _decoded(one.name)
        if shape is None:
            values[name] = None
        elif one.dtype.kind in "biufc":  # without opening it once more
            made = np.zeros(shape, one.dtype)
            one.read(made)
            values[name] = made[()] if made.ndim == 0 else made
        else:
            values[name] = thing.attrs[name]
    return values


def _is_plain(kind: Any) -> bool:
    """Whether values are numbers or texts. libhdf5 2.0 crashes on other types in a damaged file."""
    if isinstance(kind, h5py.h5t.TypeArrayID):
        return _is_plain(kind.get_super())
    plain = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeStringID, h5py.h5t.TypeEnumID)
    return isinstance(kind, plain) or kind.dtype.kind == "c"


class _Group(h5py.Group):  # type: ignore[misc]
    """A group, and the file in which it was found."""

    def __init__(self, identifier: Any, file: _File) -> None:
        super().__init__(identifier)
        self.of = file


@dataclass
class _File:
    """An open file, and the files that its external links lead to; they stay open as long as it does."""

    path: Path
    name: bytes
    folder: Path
    bytes: _Bytes
    closing: ExitStack
    linked: dict[Path, _Group] = field(default_factory=dict)
    root: Any = None


def _file_of(group: Any) -> _File:
    return group.of  # type: ignore[no-any-return]


def _open(path: Path, folder: Path, closing: ExitStack) -> _Group:
    try:
        data = closing.enter_context(_Bytes(path))
        root = h5py.h5g.open(closing.enter_context(h5py.File(data, "r")).id, b"/")
    except ERRORS as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else line_of(error)
        raise SourceError(f"{path}: cannot be read as HDF5: {why}") from error
    one = _File(path, h5py.h5f.get_name(root), folder, data, closing)
    one.root = _Group(root, one)
    return one.root


def _object(group: h5py.Group, name: str) -> Any:
    """The group, dataset id or unfollowed link of that name; None for any other object."""
    try:
        encoded = name.encode("utf-8", "surrogateescape")
        kind = _kind_of_link(group.id.links, encoded)
        if kind is None:
            return None
        if kind != h5py.h5l.TYPE_HARD:
            target = group.id.links.get_val(encoded)
            if kind == h5py.h5l.TYPE_SOFT:
                return h5py.SoftLink(_decoded(target))
            return h5py.ExternalLink(*map(_decoded, target)) if kind == h5py.h5l.TYPE_EXTERNAL else None
        one = h5py.h5o.open(group.id, encoded)
    except ERRORS as error:
        place = f"{where(group).rstrip('/')}/{name}"
        raise BrokenEpisode("", f"{place}: cannot be read: {line_of(error)}") from error
    if isinstance(one, h5py.h5d.DatasetID):
        return one
    return _Group(one, _file_of(group)) if isinstance(one, h5py.h5g.GroupID) else None


def _kind_of_link(links: Any, name: bytes) -> int | None:
    """The kind of the link; None if the group has no link of that name."""
    try:
        return int(links.get_info(name).type)
    except ERRORS:
        if links.exists(name):
            raise
        return None


def _linked(group: h5py.Group, link: h5py.ExternalLink) -> _Group:
    """The root of the file that a link leads to."""
    one = _file_of(group)
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


class _Bytes(io.FileIO):
    """A file's bytes on their way to libhdf5, which walks the objects of a global heap (it holds texts of free length) by the sizes that stand
    there, and walks for ever over one of 0, as in a file of which a block was never written.

    Source of the layout: HDF5 File Format Specification 3.0, III.E "Disk Format: Level 1E - Global Heap".

    Raises:
      OSError: it cannot be opened, or is no regular file.
    """

    _HEAP = b"GCOL\1\0\0\0"
    _OBJECT = struct.Struct("<HHIQ")
    _SEARCHED_BYTES = 1 << 20
    """Metadata comes in reads of at most as much (H5F_ACCUM_MAX_SIZE in H5Faccum.c); longer ones are values."""

    def __init__(self, path: Path) -> None:
        super().__init__(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)), "rb")
        self._path, self._sound_heaps = path, set[int]()
        if not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
            self.close()
            raise OSError("not a regular file")

    def __repr__(self) -> str:
        """h5py shows this as the file's name, so it must be ASCII."""
        return quote(str(self._path), safe="/\\:.,;=+-_~@#()[]{} !&'", errors="surrogateescape")

    @property
    def stamp(self) -> Stamp:
        """Changes when the file is rewritten."""
        told = os.fstat(self.fileno())
        return told.st_size, told.st_mtime_ns

    def readinto(self, buffer: Any) -> int:
        """Fills all of the buffer from here on.

        Raises:
          OSError: the file ends before, or a heap in it has no end.
        """
        view, start = memoryview(buffer).cast("B"), self.tell()
        self._fill(view, start)
        if len(view) <= self._SEARCHED_BYTES:
            data = bytes(view)
            at = data.find(self._HEAP)
            while at >= 0:
                self._check_heap(start + at)
                at = data.find(self._HEAP, at + 1)
        return len(view)

    def fill(self, values: Array, offset: int) -> None:
        """Fills a C-ordered array with the bytes from `offset`; raises `OSError` if the file ends too early."""
        if values.nbytes:
            self.seek(offset)
            self._fill(memoryview(byte_view(values)), offset)

    def _fill(self, view: memoryview, start: int) -> None:
        done = 0
        while done < len(view):
            count = super().readinto(view[done:])
            if not count:
                raise OSError(f"the file ends at byte {start + done:,}; expected {len(view) - done:,} more")
            done += count

    def _check_heap(self, start: int) -> None:
        if start in self._sound_heaps:
            return
        self.seek(start)
        header = self.read(16)
        size = int.from_bytes(header[8:], "little")
        data, at = header + self.read(max(0, min(size, self.stamp[0] - start) - 16)), 16
        while at + self._OBJECT.size <= len(data):
            index, _, _, length = self._OBJECT.unpack_from(data, at)
            step = 16 + (length + 7) // 8 * 8 if index else length
            if step < 16 or step > size - at:
                raise OSError(f"the heap of texts at byte {start:,} is damaged at byte {start + at:,}")
            at += step
        self._sound_heaps.add(start)


def _decoded(name: str | bytes) -> str:
    """A name in a file as text; bytes that are no UTF-8 come back when it is encoded."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


@cache
def _native(dtype: str) -> Any:
    """The file datatype that h5py writes for a numpy dtype."""
    return h5py.h5t.py_create(np.dtype(dtype))


def _kind(one: Any) -> str:
    if one is None:
        return "nothing"
    return f"a {type(one).__name__.lower().strip('_')}" + (
        f" of shape {one.shape}" if isinstance(one, h5py.Dataset) else ""
    )


def _content(dtype: np.dtype[Any]) -> str:
    if h5py.check_vlen_dtype(dtype) is not None:
        return "arrays of lengths that differ"
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    if dtype.names:
        return f"a compound of {', '.join(dtype.names)}"
    return "opaque bytes" if dtype.kind == "V" else f"values of dtype {dtype}"


class Output:
    """A new file for HDF5 to write, where an error of the disk is raised by Python, and not within HDF5.

    HDF5 writes most of a file while it is closed. A write that fails there leaves objects that cannot be closed: h5py prints a traceback for each
    of them, and the process crashes when they are collected (observed with HDF5 1.14.6). So HDF5 writes to this object, which keeps an error to
    itself, and in memory what the disk does not take, until `check` raises. Use `with Output(path) as output, h5py.File(output, "w") as file`.

    Args:
      path: of the file; one that is there is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._path = path
        self._error: OSError | KeyboardInterrupt | None = None
        self._in_memory: list[tuple[int, bytes]] = []
        self._end = self._at = 0

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.check()

    def check(self) -> None:
        """Call it often: what HDF5 writes behind an error is kept in memory.

        Raises:
          OSError: the disk does not take the file.
        """
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, os.strerror(self._error.errno or 0), str(self._path)) from self._error
        if self._error is not None:
            raise self._error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of a file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at

    def write(self, data: Any) -> int:
        """Writes all of it, to memory if need be."""
        view = memoryview(data).cast("B")
        start, stop = self._at, self._at + len(view)
        try:
            while self._error is None and self._at < stop:
                self._file.seek(self._at)
                self._at += self._file.write(view[self._at - start :])
        except (OSError, KeyboardInterrupt) as error:
            self._error = error
        if self._at < stop:
            self._in_memory.append((self._at, bytes(view[self._at - start :])))
        self._at = stop
        self._end = max(self._end, stop)
        return len(view)

    def read(self, size: int) -> bytes:
        """As of a file. HDF5 calls `readinto`; h5py knows an object for a file by this one."""
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(buffer)])

    def readinto(self, buffer: Any) -> int:
        """Reads what was written; zeros elsewhere."""
        view = memoryview(buffer).cast("B")
        start, stop = self._at, min(self._at + len(view), max(self._at, self._end))
        self._file.seek(start)
        count = self._file.readinto(view[: stop - start]) or 0
        view[count : stop - start] = bytes(stop - start - count)
        for at, data in self._in_memory:
            first, last = max(at, start), min(at + len(data), stop)
            if first < last:
                view[first - start : last - start] = data[first - at : last - at]
        self._at = stop
        return stop - start

    def truncate(self, size: int) -> int:
        """As of a file."""
        self._end = size
        if self._error is None:
            try:
                self._file.truncate(size)
            except OSError as error:
                self._error = error
        return size

    def flush(self) -> None:
        """Nothing waits here."""
