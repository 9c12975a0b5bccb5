"""HDF5 files of unknown origin, as columns: opened for reading, links followed inside the dataset's folder only, sizes checked before a read.

The size of a read is compared with the file's size by HDF5's own metadata: shape, dtype, chunks and filters, stored bytes. A hostile file
may take more memory; docs/datasets.md says how to read such data in a container. h5py raises errors of many kinds for a damaged file; here
they become `SourceError`, or `BrokenEpisode` for the data of one episode.

A file is opened once for a pass over its episodes (`with open_file(path) as file`), and read by one thread at a time: h5py has one lock for
all files. Links to other files are followed by `find`, never by libhdf5, so that each is checked.
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
from rlds2reverb.formats import paths
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.dataset_files import FOLLOW_LINKS, boundary_of, may_lead_to
from rlds2reverb.formats.paths import Stamp, WrittenAnew
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.interrupts import held_interrupts, raise_lost_interrupt
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import line_of

ERRORS = (  # raised by h5py for a damaged file
    OSError, RuntimeError, KeyError, ValueError, TypeError, UnicodeError, OverflowError, MemoryError, NotImplementedError
)  # fmt: skip

_MOST_BYTES = 1 << 32  # of one read of a column: an episode's
_MOST_CHUNK_BYTES = 1 << 30
_MOST_DEPTH = 16
_MOST_LEAVES = 10_000
_MOST_NAMES = 1_000_000  # in one group
_MOST_LINKS = 16  # soft and external links on the way to one dataset
_MOST_ATTRIBUTES = 100_000
_MOST_ATTRIBUTE_BYTES = 64 << 20
_FILTERS = {  # names of filters: https://github.com/HDFGroup/hdf5_plugins/blob/master/docs/RegisteredFilterPlugins.md
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


@contextmanager
def open_file(path: Path, folder: Path | None = None) -> Iterator[h5py.Group]:
    """The file's root, open for reading. Links may lead to files in `folder`, by default that of its dataset or its own.

    Raises:
      SourceError: it is missing, not a regular file, not HDF5, or changed while it was read.
    """
    with ExitStack() as closing:
        root = _open(path, boundary_of(path) if folder is None else folder, closing)
        stamp = root.of.bytes.stamp()
        yield root
        if root.of.bytes.stamp() != stamp:
            raise WrittenAnew(f"{path}: was written anew while it was read; open the source again")


def path_of(thing: h5py.Group | h5py.Dataset) -> Path:
    return Path(unquote(h5py.h5f.get_name(thing.id).decode(), errors="surrogateescape"))


def where(thing: h5py.Group | h5py.Dataset) -> str:
    return f"{path_of(thing)}: {thing.name}"


def find(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """The object of a name, with "/" for nested groups; None if there is none.

    Raises:
      BrokenEpisode: a link leads out of the folder, to a file that cannot be read, or in a circle.
    """
    thing = find_handle(group, name)
    return h5py.Dataset(thing, readonly=True) if isinstance(thing, h5py.h5d.DatasetID) else thing


def find_handle(group: h5py.Group, name: str) -> h5py.Group | h5py.h5d.DatasetID | None:
    """As `find`, but with the id of a dataset, which costs less than h5py's `Dataset`."""
    at: Any = group
    ahead, links = deque(name.split("/")), 0
    while ahead:
        part = ahead.popleft()
        if not part or part == ".":
            continue
        if not isinstance(at, h5py.Group):
            return None
        thing = _object(at, part)
        if not isinstance(thing, (h5py.SoftLink, h5py.ExternalLink)):
            at = thing
            continue
        links += 1
        if links > _MOST_LINKS:
            raise BrokenEpisode("", f"{_place(group, name)}: more than {_MOST_LINKS} links, one after the other")
        if isinstance(thing, h5py.ExternalLink):
            at = _linked(at, thing)
        elif thing.path.startswith("/"):
            at = _file_of(at).root
        ahead.extendleft(reversed(thing.path.split("/")))
    return at


def list_names(group: h5py.Group) -> list[str]:
    """The names in a group, in the order of the file; raises `BrokenEpisode` if they cannot be read, or are too many."""
    try:
        names = [_decode(name) for name in itertools.islice(group.id, _MOST_NAMES + 1)]
    except ERRORS as error:
        raise BrokenEpisode("", f"{where(group)}: its names cannot be read: {line_of(error)}") from error
    if len(names) > _MOST_NAMES:
        raise BrokenEpisode("", f"{where(group)}: more than {_MOST_NAMES:,} names")
    return names


def list_datasets(group: h5py.Group, below: str = "", depth: int = 0) -> dict[str, h5py.Dataset]:
    """Path -> dataset, of all datasets in a group and in the groups in it. Raises `BrokenEpisode` if they are too deep or too many."""
    datasets: dict[str, h5py.Dataset] = {}
    for name in list_names(group):
        path = f"{below}/{name}" if below else name
        thing = find(group, name)
        if isinstance(thing, h5py.Dataset):
            datasets[path] = thing
        elif thing is not None:
            if depth == _MOST_DEPTH:
                raise BrokenEpisode(path, f"{where(thing)}: lies more than {_MOST_DEPTH} groups deep")
            datasets |= list_datasets(thing, path, depth + 1)
        if len(datasets) > _MOST_LEAVES:
            raise BrokenEpisode(path, f"{where(group)}: more than {_MOST_LEAVES:,} datasets")
    return datasets


class HdfColumn:
    """A dataset with rows, looked up in a group and checked once, unless its id is known already.

    Raises:
      BrokenEpisode: it is missing, not a dataset of numbers or texts, or stored in an unsupported way.

    Attributes:
      shape: of all rows; the first size is their number.
      dtype: of the values; object for text.
    """

    def __init__(self, group: h5py.Group, name: str, path: str, dataset: h5py.h5d.DatasetID | None = None) -> None:
        self.path, self._place = path, (group, name)
        try:
            thing = find_handle(group, name) if dataset is None else dataset
            if not isinstance(thing, h5py.h5d.DatasetID) or not thing.shape:
                raise self._broken(f"expected a dataset with rows, found {_kind(find(group, name))}")
            self._id, self.shape = thing, thing.shape
            stored = thing.dtype
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
        return _place(*self._place)

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.shape[1:], self.dtype)

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all; text as `bytes`. Raises `BrokenEpisode` if they cannot be read, or are too large."""
        stop = len(self) if stop is None else max(0, min(stop, len(self)))
        start = min(start, stop)
        try:
            self._check_size((stop - start) * self._row_bytes)
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
        """The byte in the group's file where rows begin that are stored there as they are in memory; None for all others.

        Such rows are read without libhdf5, which is faster. Values in chunks or in other files have no place in HDF5.
        """
        offset = self._id.get_offset()
        if offset is None or self._id.get_storage_size() < len(self) * self._row_bytes:
            return None
        if h5py.h5f.get_name(self._id) != _file_of(self._place[0]).name:  # a link led to another file
            return None
        return int(offset) if self._id.get_type().equal(_native(self.dtype.str)) else None

    def _check_storage(self) -> None:
        """Refuses values outside of the file, filters that are not installed, and chunks that libhdf5 would unpack into too much memory."""
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
        self._is_virtual = True
        # libhdf5 would open the other files itself, past the check of links; virtual ones may lead there by a detour.
        return all(
            part.file_name == "."
            and isinstance(source := find(root, part.dset_name), h5py.Dataset)
            and not (source.is_virtual or source.external)
            for part in parts
        )

    def _check_size(self, size: int) -> None:
        if size <= paths.FREE_BYTES:
            return
        is_stored = self._is_virtual or self._id.get_storage_size() > 0
        stored = h5py.h5i.get_file_id(self._id).get_filesize() if is_stored else 0
        try:
            paths.check_read(size, stored, _MOST_BYTES)
        except ValueError as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> BrokenEpisode:
        return BrokenEpisode(self.path, f"{self.where}: {why}")


def read_column(group: h5py.Group, name: str, path: str, rows: slice | None = None) -> Array:
    """Some rows of a dataset (a slice without a step), or all; text as `bytes`. Raises as `HdfColumn` and its `rows`."""
    column = HdfColumn(group, name, path)
    start, stop, _ = (rows or slice(None)).indices(len(column))
    return column.rows(start, stop)


def read_value(group: h5py.Group, name: str) -> Any:
    """A dataset without rows: a number or `bytes`; raises `BrokenEpisode` if it is missing, or something else."""
    thing, place = find(group, name), _place(group, name)
    try:
        if not isinstance(thing, h5py.Dataset) or thing.shape != ():
            raise BrokenEpisode(name, f"{place}: expected one value, found {_kind(thing)}")
        if h5py.check_string_dtype(thing.dtype) is None and thing.dtype.kind not in "biufcS":
            raise BrokenEpisode(name, f"{place}: holds {_content(thing.dtype)}; expected a number or a text")
        return thing[()]
    except ERRORS as error:
        raise BrokenEpisode(name, f"{place}: cannot be read: {line_of(error)}") from error


def read_attributes(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """The attributes of numbers or texts of a group, a dataset or the file; None for an empty one. Raises `SourceError`."""
    values: dict[str, Any] = {}
    try:
        count = h5py.h5a.get_num_attrs(thing.id)
        if count > _MOST_ATTRIBUTES:
            raise ValueError(f"{count:,} of them; expected at most {_MOST_ATTRIBUTES:,}")
        for number in range(count):
            attribute = h5py.h5a.open(thing.id, index=number)
            kind, shape = attribute.get_type(), attribute.shape
            if not _is_plain(kind):
                continue
            size = math.prod(shape or ()) * kind.get_size()
            if size > _MOST_ATTRIBUTE_BYTES:
                raise ValueError(f"one of {size:,} bytes; expected at most {_MOST_ATTRIBUTE_BYTES:,}")
            name = _decode(attribute.name)
            if shape is None:
                values[name] = None
            elif attribute.dtype.kind in "biufc":  # `thing.attrs` would open it again
                numbers = np.zeros(shape, attribute.dtype)
                attribute.read(numbers)
                values[name] = numbers[()]
            else:
                values[name] = thing.attrs[name]
    except ERRORS as error:
        raise SourceError(f"{where(thing)}: its attributes cannot be read: {line_of(error)}") from error
    return values


def _is_plain(kind: Any) -> bool:
    """Whether values are numbers or texts. libhdf5 2.0 crashes on other types in a damaged file."""
    if isinstance(kind, h5py.h5t.TypeArrayID):
        return _is_plain(kind.get_super())
    plain = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeStringID, h5py.h5t.TypeEnumID)
    return isinstance(kind, plain) or kind.dtype.kind == "c"


class _Group(h5py.Group):  # type: ignore[misc]
    def __init__(self, identifier: Any, file: _File) -> None:
        super().__init__(identifier)
        self.of = file


@dataclass
class _File:
    """An open file, and the files that its external links lead to, which stay open until it is closed."""

    path: Path
    name: bytes
    folder: Path
    bytes: _Bytes
    closing: ExitStack
    linked: dict[Path, _Group] = field(default_factory=dict)
    root: Any = None

    def forget(self) -> None:
        """Lets go of its groups, which know it: else they wait for the garbage collector, perhaps until the program has ended, when h5py crashes."""
        self.root = None
        self.linked.clear()


def _file_of(group: Any) -> _File:
    return group.of  # type: ignore[no-any-return]


def _place(group: h5py.Group, name: str) -> str:
    return f"{where(group).rstrip('/')}/{name}"


def _open(path: Path, folder: Path, closing: ExitStack) -> _Group:
    try:
        data = closing.enter_context(_Bytes(path))
        root = h5py.h5g.open(closing.enter_context(h5py.File(data, "r")).id, b"/")
    except ERRORS as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else line_of(error)
        raise SourceError(f"{path}: cannot be read as HDF5: {why}") from error
    file = _File(path, h5py.h5f.get_name(root), folder, data, closing)
    file.root = _Group(root, file)
    closing.callback(file.forget)
    return file.root


def _object(group: h5py.Group, name: str) -> Any:
    """The group, dataset id or unfollowed link of that name; None for any other object."""
    try:
        encoded = name.encode("utf-8", "surrogateescape")
        try:
            kind = group.id.links.get_info(encoded).type
        except ERRORS:  # asked first, `exists` would cost as much again
            if group.id.links.exists(encoded):
                raise
            return None
        if kind != h5py.h5l.TYPE_HARD:
            target = group.id.links.get_val(encoded)
            if kind == h5py.h5l.TYPE_SOFT:
                return h5py.SoftLink(_decode(target))
            return h5py.ExternalLink(*map(_decode, target)) if kind == h5py.h5l.TYPE_EXTERNAL else None
        thing = h5py.h5o.open(group.id, encoded)
    except ERRORS as error:
        raise BrokenEpisode("", f"{_place(group, name)}: cannot be read: {line_of(error)}") from error
    if isinstance(thing, h5py.h5d.DatasetID):
        return thing
    return _Group(thing, _file_of(group)) if isinstance(thing, h5py.h5g.GroupID) else None


def _linked(group: h5py.Group, link: h5py.ExternalLink) -> _Group:
    """The root of the file that an external link leads to, which is opened once for a pass."""
    file = _file_of(group)
    try:
        folder, path = file.folder.resolve(), (file.path.parent / link.filename).resolve()
        inside = path.is_relative_to(folder)
    except ERRORS as error:
        raise BrokenEpisode("", f"{where(group)}: a link to {link.filename!r}: {line_of(error)}") from error
    if not inside and not may_lead_to(file.path, path):
        raise BrokenEpisode(
            "",
            f"{where(group)}: a link to {path}, which is not in {folder}; not followed; if you trust it, add {FOLLOW_LINKS} behind the name",
        )
    if path not in file.linked:
        try:
            file.linked[path] = _open(path, folder, file.closing)
        except SourceError as error:
            raise BrokenEpisode("", f"{where(group)}: a link to {link.filename!r}: {error}") from error
    return file.linked[path]


class _Bytes(io.RawIOBase):
    """A file's bytes for libhdf5, without endless heaps. libhdf5 walks the objects of a global heap (texts of free length) by their stored sizes,
    and loops forever at a size of 0, as in a file with a block that was never written.

    Source of the layout: HDF5 File Format Specification 3.0, III.E "Disk Format: Level 1E - Global Heap".
    """

    _HEAP = b"GCOL\1\0\0\0"
    _OBJECT = struct.Struct("<HHIQ")
    _SEARCHED_BYTES = 1 << 20
    """Most bytes of a read of metadata (H5F_ACCUM_MAX_SIZE in H5Faccum.c); longer reads are of values."""

    def __init__(self, path: Path) -> None:
        self._path, self._sound_heaps = path, set[int]()
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("not a regular file")
        self._values: Any = path.open("rb", buffering=0)
        self._file: Any = path.open_without_threads() if isinstance(path, BucketPath) else self._values
        self.seek, self.tell = self._file.seek, self._file.tell  # type: ignore[method-assign]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        super().close()
        # Absent where the file could not be opened; Python closes such an object, too.
        for name in ("_file", "_values"):
            if name in vars(self):
                vars(self)[name].close()

    def stamp(self) -> Stamp:
        return paths.stamp_of(self._file)

    def __repr__(self) -> str:
        """h5py shows this as the file's name, so it must be ASCII."""
        return quote(str(self._path), safe="/\\:.,;=+-_~@#()[]{} !&'", errors="surrogateescape")

    def readinto(self, buffer: Any) -> int:
        """Fills the whole buffer; raises `OSError` if the file ends too early, or a heap in it has no end."""
        view, start = memoryview(buffer).cast("B"), self.tell()
        _fill(self._file, view, start)
        # Heaps are looked for in each piece of metadata: where they lie is known to libhdf5 alone, which is about to walk them.
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
            self._values.seek(offset)
            _fill(self._values, memoryview(byte_view(values)), offset)

    def _check_heap(self, start: int) -> None:
        if start in self._sound_heaps:
            return
        self.seek(start)
        header = self._file.read(16)
        size = int.from_bytes(header[8:], "little")
        data, at = header + self._file.read(max(0, min(size, self.stamp()[0] - start) - 16)), 16
        while at + self._OBJECT.size <= len(data):
            index, _, _, length = self._OBJECT.unpack_from(data, at)
            step = 16 + (length + 7) // 8 * 8 if index else length
            if step < 16 or step > size - at:
                raise OSError(f"the heap of texts at byte {start:,} is damaged at byte {start + at:,}")
            at += step
        self._sound_heaps.add(start)


def _fill(file: Any, view: memoryview, start: int) -> None:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise OSError(f"the file ends at byte {start + done:,}; expected {len(view) - done:,} more")
        done += count


def _decode(name: str | bytes) -> str:
    """A name in a file as text; bytes that are not UTF-8 survive a round trip."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


@cache
def _native(dtype: str) -> Any:
    """The file datatype that h5py writes for a numpy dtype."""
    return h5py.h5t.py_create(np.dtype(dtype))


def _kind(thing: Any) -> str:
    if thing is None:
        return "nothing"
    shape = f" of shape {thing.shape}" if isinstance(thing, h5py.Dataset) else ""
    return f"a {type(thing).__name__.lower().strip('_')}{shape}"


def _content(dtype: np.dtype[Any]) -> str:
    if h5py.check_vlen_dtype(dtype) is not None:
        return "arrays of lengths that differ"
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    if dtype.names:
        return f"a compound of {', '.join(dtype.names)}"
    return "opaque bytes" if dtype.kind == "V" else f"values of dtype {dtype}"


class Output:
    """A new file for HDF5 to write, where errors of the disk are raised by Python, and not within HDF5.

    HDF5 writes most of a file when it is closed. A write that fails there leaves objects that cannot be closed: h5py prints a traceback for each
    of them, and the process crashes when they are collected (observed with HDF5 1.14.6). So HDF5 writes to this object, which stores an error
    until `check` raises it, and keeps later data in memory. Use `with Output(path) as output, h5py.File(output, "w") as file`. An existing file is
    replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._path = path
        self._error: OSError | KeyboardInterrupt | None = None
        self._holding = ExitStack()
        self._in_memory: list[tuple[int, bytes]] = []
        self._end = self._at = 0

    def __enter__(self) -> Output:
        self._holding.enter_context(held_interrupts())
        return self

    def __exit__(self, *_: object) -> None:
        self._holding.close()
        self._file.close()
        self.check()

    def check(self) -> None:
        """Raises a stored error or interrupt. Call it often: data that HDF5 writes after an error is kept in memory."""
        raise_lost_interrupt()
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, os.strerror(self._error.errno or 0), str(self._path)) from self._error
        if self._error is not None:
            raise self._error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        """Writes all of the data, after an error to memory."""
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
        """HDF5 calls `readinto`; h5py recognises a file object by this method."""
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(buffer)])

    def readinto(self, buffer: Any) -> int:
        """Reads the written data, and zeros elsewhere."""
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
        self._end = size
        if self._error is None:
            try:
                self._file.truncate(size)
            except OSError as error:
                self._error = error
        return size

    def flush(self) -> None:
        """Nothing is buffered."""
