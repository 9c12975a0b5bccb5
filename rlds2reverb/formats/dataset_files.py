"""The files of a dataset as they were when it was opened: their stamps, what may be opened of them, whether they are still the same.

A format pins the place of its data once (`DatasetFiles.pin`), and gets a path that is used as any other; so are all paths made of it. One
listing stamps every file: size, time of change and inode on a disk, size and ETag in a bucket. From then on

- an object is read as it was listed, by its ETag, however late it is opened;
- a file on a disk is compared with its stamp before the episodes that were read from it are given on (`check_recent`), and once more at the
  end of the reading (`reading`). Comparing names is enough: who writes a file, or puts another one in its place, changes what `stat` says;
- a link that leads out of the dataset's folder is refused, unless `links=follow` allows it;
- a git-lfs pointer is told as such.

Files that came later are no change, unless they were looked for. A dataset on the hub is read at one commit and cannot change.
"""

# Names are texts here: a dataset may have 100,000 files, and a `Path` of each costs more than its `stat`.

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from rlds2reverb.episode import Notice, note
from rlds2reverb.errors import SourceError, StorageError
from rlds2reverb.formats.buckets import BucketPath, canonical
from rlds2reverb.formats.paths import DatasetPath, RefusedFile, WrittenAnew, allowed

if TYPE_CHECKING:
    from rlds2reverb.formats.objects import Entry, ObjectFile

FOLLOW_LINKS = "links=follow"

_KEPT_RECENT = 32  # files that are compared with every batch although they were opened before it: TFDS interleaves 16
_FAULT_SHARE = 10  # times the time of a comparison until the next fault is worth one
_LISTED_AT_ONCE = 8  # folders of a bucket
_MOST_POINTER_BYTES = 1024
_POINTER = b"version https://git-lfs.github.com/spec/"
"""Source: docs/spec.md of git-lfs: a pointer is a text of less than 1,024 bytes, whose first line is this with a version."""


class _Stamp(NamedTuple):
    size: int
    changed: int  # nanoseconds, as `inode_changed`
    inode: int
    inode_changed: int

    @staticmethod
    def of(status: os.stat_result) -> _Stamp:
        return _Stamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)

    def is_other(self, status: os.stat_result) -> bool:
        """Whether a file is no longer the one of this stamp.

        An inode alone says nothing: gcsfuse and its like give one file several. Its time alone says nothing, either: a chmod or a hard link
        changes it. Both change where another file with the same size and time took the name, as tar and rsync put it there.
        """
        if status.st_size != self.size or status.st_mtime_ns != self.changed:
            return True
        return status.st_ino != self.inode and status.st_ctime_ns != self.inode_changed


class DatasetFiles:
    """The files of one dataset. May be used by several readings at once.

    Args:
      follow_links: whether links may lead out of the dataset's folder.
    """

    def __init__(self, follow_links: bool = False) -> None:
        self._links = _Links(follow_links)
        self._disk, self._buckets = _Disk(self._links), _Buckets(self._links)
        self._classes: dict[type, type] = {}
        self._pinned: dict[str, None] = {}
        self._next_fault = 0.0  # `time.monotonic` from which on a fault is worth a comparison

    def pin(self, path: Path, within: Collection[str] = (), is_deep: bool = True, boundary: Path | None = None) -> Path:
        """Lists a file or a folder, and returns its path as one of this dataset.

        Args:
          within: of a folder, the files and folders in it that belong to the dataset; () for all. Those whose names begin with "." never do.
          is_deep: whether folders in it belong to it, too.
          boundary: the folder out of which no link may lead; by default that of the path.

        Raises:
          SourceError, OSError: it cannot be listed.
          StorageError: the bucket does not answer.
        """
        if isinstance(path, BucketPath):
            self._buckets.list(path, within, is_deep)
        else:
            self._disk.list(path, within, is_deep, boundary)
        self._pinned[canonical(path)] = None
        # A path of a class whose paths know these files: paths made of it are of its class in every version of Python.
        base = _ObjectPath if isinstance(path, BucketPath) else _DiskPath
        files = self._buckets if isinstance(path, BucketPath) else self._disk
        if base not in self._classes:
            self._classes[base] = type(base.__name__, (base,), {"files": files})
        return cast("Path", self._classes[base](path))

    @property
    def pinned(self) -> tuple[str, ...]:
        """Where the files and folders lie that were given to `pin`, as `canonical` says it."""
        return tuple(self._pinned)

    def restrict(self, paths: Iterable[Path]) -> None:
        """Only these of the listed files belong to the dataset, and those that were opened already.

        Raises:
          SourceError: one of them is a link out of the dataset's folder.
        """
        paths = list(paths)
        self._disk.restrict([path for path in paths if not isinstance(path, BucketPath)])
        self._buckets.restrict([path for path in paths if isinstance(path, BucketPath)])

    def restrict_to_looked(self) -> None:
        """Only files that were looked at or opened belong to the dataset, of a format that looks at all of them when it is opened."""
        self.restrict([*map(Path, self._disk.looked), *map(BucketPath, self._buckets.looked)])

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Says that links were followed, and where they lead."""
        targets = self._links.followed
        if not targets:
            return ()
        first, more = next(iter(targets.items())), f", and {len(targets) - 1:,} more" if len(targets) > 1 else ""
        text = (
            f"links that lead out of the dataset's folder are followed ({FOLLOW_LINKS}): {first[0]} to {first[1]}{more}"
        )
        return (note("links_followed", text, len(targets)),)

    @contextmanager
    def reading(self, is_whole: bool) -> Generator[None, None, None]:
        """Around the reading of a range of episodes: compares at its end all files of the dataset, or those that the range used.

        An error inside is told as a change if the dataset has changed, whatever it was taken for.

        Raises:
          WrittenAnew: a file has changed, or is gone.
        """
        began = self._disk.begin()
        try:
            yield
        except (SourceError, StorageError) as error:
            try:
                self.check()
            except WrittenAnew as changed:
                raise changed from error
            except StorageError:  # the bucket does not answer, which the first error says
                pass
            raise
        if is_whole:
            self.check()
        else:
            self._disk.check_since(began)

    def check(self) -> None:
        """Raises `WrittenAnew` if any file of the dataset is no longer as it was listed, or, looked at later, as it was then."""
        self._disk.check_all()
        self._buckets.check_all()

    def check_fault(self) -> None:
        """As `check`, where an episode cannot be read: it may be that a file is gone. For many of them it is asked from time to time."""
        began = time.monotonic()
        if began >= self._next_fault:
            self.check()
            now = time.monotonic()
            self._next_fault = now + _FAULT_SHARE * (now - began)

    def __getstate__(self) -> dict[str, Any]:
        # A class made here cannot be pickled, and is made again where it is needed. Paths are sent as plain ones, so the process that gets
        # them compares stamps at the end of a reading only.
        return {**vars(self), "_classes": {}}

    def check_recent(self) -> None:
        """As `check`, for what was used since the last call. Objects in buckets need none: they are read by their ETags."""
        self._disk.check_recent()


def boundary_of(path: Path) -> Path:
    """The folder out of which no link of a dataset leads, those within its files included, unless `may_lead_to`."""
    return path.files.boundary(str(path)) if isinstance(path, _DiskPath) else path.parent


def may_lead_to(path: Path, target: Path) -> bool:
    """Whether a link within a file may lead to another one out of the dataset's folder; then it becomes a notice."""
    return isinstance(path, (_DiskPath, _ObjectPath)) and path.files.links.may_follow(str(path), str(target))


@dataclass
class _Links:
    """Links that lead out of the dataset's folder: link -> its target."""

    are_followed: bool
    followed: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def may_follow(self, name: str, target: str) -> bool:
        (self.followed if self.are_followed else self.refused)[name] = target
        return self.are_followed


# On a disk.


@dataclass
class _Root:
    """A place that was listed: its name, the name with links followed, and how far its links may lead."""

    name: str
    real: str
    boundary: Path


@dataclass
class _Disk:
    links: _Links
    _roots: list[_Root] = field(default_factory=list)
    _stamps: dict[str, _Stamp] = field(default_factory=dict)
    _missing: set[str] = field(default_factory=set)  # were looked at, and not there
    _late: set[str] = field(default_factory=set)  # stamped at the first look, as they were in no listing
    _aliases: dict[str, str] = field(default_factory=dict)  # other names -> those that were listed
    _checked: set[str] = field(default_factory=set)  # may be opened
    _used: dict[str, int] = field(default_factory=dict)  # -> clock of the last use
    _recent: dict[str, None] = field(default_factory=dict)  # a plain one: `list` of it is one step for other threads
    _clock: int = 0
    _opening: tuple[str, ...] | None = None  # used before the first reading: the description of the dataset

    def list(self, path: Path, within: Collection[str], is_deep: bool, boundary: Path | None) -> None:
        name = str(path)
        is_folder = path.is_dir()
        try:
            root = _Root(name, os.path.realpath(name), allowed(boundary or (path if is_folder else path.parent)))
        except (OSError, ValueError, RuntimeError) as error:
            raise SourceError(f"{path}: cannot be read: {error}") from error
        self._roots.append(root)
        if boundary is not None and not self._may_follow(name, root):
            raise self._refused(name)
        if not is_folder:
            self._stamp(name)
            return
        seen = {root.real}
        for part in within or ("",):
            below = str(path / part)
            if self._may_follow(below, root):  # else refused as soon as something of it is opened
                self._list(below, root, is_deep, seen)

    def _list(self, folder: str, root: _Root, is_deep: bool, seen: set[str]) -> None:
        try:
            entries = list(os.scandir(folder))
        except (NotADirectoryError, FileNotFoundError):  # a file among those `within`, or none of that name
            self._stamp(folder)
            return
        except (OSError, ValueError):  # said by whoever needs what is in it
            return
        above = "" if folder == os.curdir else os.path.join(folder, "")  # as pathlib writes what is in it
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = above + entry.name
            try:
                if entry.is_symlink() and not self._may_follow(name, root):
                    continue
                if entry.is_dir():
                    if is_deep and (not entry.is_symlink() or _is_new(name, seen)):
                        self._list(name, root, is_deep, seen)
                elif entry.is_file():
                    self._stamps[name] = _Stamp.of(entry.stat())
            except OSError:  # a circle of links, or gone since
                continue

    def _may_follow(self, name: str, root: _Root) -> bool:
        target = Path(os.path.realpath(name))
        return target.is_relative_to(root.boundary) or self.links.may_follow(name, str(target))

    def restrict(self, paths: Sequence[Path]) -> None:
        kept = set(map(str, paths))
        self._stamps = {name: stamp for name, stamp in self._stamps.items() if name in kept or name in self._checked}
        for name in kept:
            self._check_link(name)

    @property
    def looked(self) -> Collection[str]:
        return [name for name in self._used if name in self._stamps]

    def boundary(self, name: str) -> Path:
        return next((root.boundary for root in self._roots if _is_below(name, root.name)), Path(name).parent)

    # What is looked at and opened.

    def look(self, path: Path) -> None:
        """Notes that something depends on a file, or on there being none: it is compared later."""
        name = str(path)
        name = self._aliases.get(name, name)
        if name not in self._stamps:
            name = self._alias(name)
        self._used[name] = self._clock
        self._recent.pop(name, None)
        self._recent[name] = None

    def use(self, path: Path) -> None:
        """Before a file is opened.

        Raises:
          SourceError: it is a link that leads out of the dataset, or a git-lfs pointer.
        """
        self.look(path)
        name = str(path)
        if name not in self._checked:
            self._check_link(name)
            stamp = self._stamps.get(self._aliases.get(name, name))
            if stamp is not None and stamp.size < _MOST_POINTER_BYTES:
                with open(name, "rb", buffering=0) as file:
                    check_pointer(name, file.read(len(_POINTER)))
            self._checked.add(name)

    def _check_link(self, name: str) -> None:
        for root in self._roots:
            if not _is_below(name, root.name):
                continue
            if name not in self._stamps or name in self._late:  # those that were listed were checked then
                self._may_follow(name, root)
            if name in self.links.refused:
                raise self._refused(name)
            return
        # Below no place that was listed: another name of a file there, or a name that the dataset gives itself, such as a template of TFDS.
        target = Path(os.path.realpath(name))
        is_inside = any(target.is_relative_to(root.boundary) for root in self._roots)
        if self._roots and not is_inside and not self.links.may_follow(name, str(target)):
            raise RefusedFile(
                f"{name}: is out of the dataset's folder; copy the file there or, if you trust the dataset, add {FOLLOW_LINKS} behind the name"
            )

    def _refused(self, name: str) -> RefusedFile:
        return RefusedFile(
            f"{name}: a link that leads out of the dataset, to {self.links.refused[name]}; copy the file to where the link is or, if you trust "
            f"it, add {FOLLOW_LINKS} behind the name"
        )

    def _alias(self, name: str) -> str:
        """The name by which a file was listed, of one that is written in another way; that of now where it was not listed."""
        if name in self._used:
            return name
        real = os.path.realpath(name)
        for root in self._roots:
            listed = root.name + real[len(root.real) :] if _is_below(real, root.real) else name
            if listed in self._stamps and listed != name:
                self._aliases[name] = listed
                return listed
        self._late.add(name)
        self._stamp(name)
        return name

    def _stamp(self, name: str) -> None:
        try:
            status = os.stat(name)
        except (FileNotFoundError, NotADirectoryError):
            self._missing.add(name)
        except (OSError, ValueError):  # said by whoever opens it
            pass
        else:
            if stat.S_ISREG(status.st_mode):
                self._stamps[name] = _Stamp.of(status)

    # Whether they are the same.

    def begin(self) -> int:
        if self._opening is None:
            self._opening = tuple(self._used)
        self._clock += 1
        return self._clock

    def check_since(self, began: int) -> None:
        recent = [name for name, clock in list(self._used.items()) if clock >= began]
        self._check({*recent, *(self._opening or ())})

    def check_recent(self) -> None:
        self._check(list(self._recent))
        for name in list(self._recent)[:-_KEPT_RECENT]:
            self._recent.pop(name, None)

    def check_all(self) -> None:
        self._check([*self._stamps, *self._missing])

    def _check(self, names: Iterable[str]) -> None:
        for name in names:
            stamp = self._stamps.get(name)
            if stamp is None:  # a folder, or nothing
                if name in self._missing and os.path.isfile(name):
                    raise _new(name)
                continue
            try:
                is_other = stamp.is_other(os.stat(name))
            except (FileNotFoundError, NotADirectoryError):
                raise _gone(name) from None
            except OSError as error:
                raise SourceError(f"{name}: cannot be read: {error.strerror}") from error
            if is_other:
                raise _other(name)


def _is_new(name: str, seen: set[str]) -> bool:
    real = os.path.realpath(name)
    is_new = real not in seen
    seen.add(real)
    return is_new


def _is_below(name: str, folder: str) -> bool:
    if folder == os.curdir:
        return not os.path.isabs(name) and not name.startswith(os.pardir)
    return name == folder or name.startswith(os.path.join(folder, ""))


def check_pointer(where: object, start: bytes) -> None:
    """Raises `SourceError` where a file begins as a git-lfs pointer."""
    if start.startswith(_POINTER):
        raise RefusedFile(f"{where}: a git-lfs pointer, not the file itself; run `git lfs pull` in its folder")


def _other(name: object) -> WrittenAnew:
    return WrittenAnew(f"{name}: was written anew after the dataset was opened; open the source again")


def _gone(name: object) -> WrittenAnew:
    return WrittenAnew(f"{name}: is gone, and was there when the dataset was opened; open the source again")


def _new(name: object) -> WrittenAnew:
    return WrittenAnew(f"{name}: is there, and was not when the dataset was opened; open the source again")


class _DiskPath(DatasetPath, type(Path())):  # type: ignore[misc]  # the class that Path has on this system
    files: ClassVar[_Disk]

    def use(self) -> None:
        self.files.use(self)

    def stat(self, **how: Any) -> os.stat_result:
        self.files.look(self)
        return cast("os.stat_result", super().stat(**how))

    def open(self, *how: Any, **more: Any) -> IO[Any]:
        self.files.use(self)
        return cast("IO[Any]", super().open(*how, **more))

    def __reduce__(self) -> tuple[Any, ...]:
        return Path, (str(self),)


# In buckets.


@dataclass
class _Buckets:
    links: _Links
    _roots: list[tuple[BucketPath, tuple[str, ...], bool]] = field(default_factory=list)
    _entries: dict[str, Entry] = field(default_factory=dict)  # by the whole name
    looked: set[str] = field(default_factory=set)
    _opened: set[str] = field(default_factory=set)
    _missing: set[str] = field(default_factory=set)  # were looked at, and not there

    def list(self, path: BucketPath, within: Collection[str], is_deep: bool) -> None:
        if path.scheme == "hf":
            return
        if not path.bucket.has_listings:
            self.entry_of(path)
            return
        is_likely_object = not path.suffix[1:].isdigit() and path.suffix != ""  # the folder of a version ends in digits
        if is_likely_object and self.entry_of(path) is not None:
            return
        listed = self._listed(path, tuple(within), is_deep)
        if listed:
            self._roots.append((path, tuple(within), is_deep))
            self._entries |= listed
        elif not is_likely_object:
            self.entry_of(path)

    def restrict(self, paths: Sequence[Path]) -> None:
        kept = {str(path.resolve()) for path in paths}
        self._entries = {name: entry for name, entry in self._entries.items() if name in kept or name in self._opened}

    def open(self, path: BucketPath) -> None:
        self._opened.add(str(path.resolve()))

    def entry_of(self, path: BucketPath) -> Entry | None:
        """An object as it was listed, or at the first look."""
        name = str(path.resolve())
        entry = self._entries.get(name)
        if entry is None:
            entry = path.entry_now()
            if entry is None:
                self._missing.add(name)
            elif path.scheme != "hf":
                self._entries[name] = entry
        if entry is not None:
            self.looked.add(name)
        return entry

    def check_all(self) -> None:
        """Asks for the listings anew, and for what was in none of them. Then nothing of it is remembered: the next opening asks as well."""
        try:
            self._check_all()
        finally:
            for bucket in {path.bucket for path, _, _ in self._roots} | {
                BucketPath(name).bucket for name in self._entries
            }:
                bucket.forget()

    def _check_all(self) -> None:
        now: dict[str, Entry] = {}
        for path, within, is_deep in self._roots:
            path.bucket.forget()
            now |= self._listed(path, within, is_deep)
        folders: dict[BucketPath, list[BucketPath]] = {}
        for name in self._entries.keys() - now.keys():
            path = BucketPath(name)
            folders.setdefault(path.parent, []).append(path)
        for folder, paths in folders.items():
            folder.bucket.forget()
            if not folder.bucket.has_listings:
                with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
                    entries = zip(map(str, paths), pool.map(_ObjectPath.entry_now, paths))
                    now |= {name: entry for name, entry in entries if entry is not None}
            elif len(paths) > 1:
                now |= self._listed(folder, (), is_deep=False)
            elif (entry := paths[0].entry_now()) is not None:
                now[str(paths[0])] = entry
        for name in self._missing & now.keys():
            raise _new(name)
        for name, entry in self._entries.items():
            if name not in now:
                raise _gone(name)
            if entry.is_other(now[name]):
                raise _other(name)

    def _listed(self, path: BucketPath, within: Sequence[str], is_deep: bool) -> dict[str, Entry]:
        def list_part(part: str) -> dict[str, Entry]:
            return path.bucket.list_entries((path / part if part else path).key, is_deep)

        if len(within) < 2:
            return list_part("".join(within))
        with ThreadPoolExecutor(min(len(within), _LISTED_AT_ONCE)) as pool:  # each is a request that waits
            return {name: entry for listed in pool.map(list_part, within) for name, entry in listed.items()}


class _ObjectPath(BucketPath):
    files: ClassVar[_Buckets]

    def entry(self) -> Entry | None:
        return self.files.entry_of(self)

    def object_file(self, start: int = 0, stop: int | None = None) -> ObjectFile:
        raw = super().object_file(start, stop)
        self.files.open(self)
        if start == 0 and raw.stat().st_size < _MOST_POINTER_BYTES:
            head = raw.read(len(_POINTER)) or b""
            raw.seek(0)  # its only block is held now, so that nothing is asked for twice
            check_pointer(self, head)
        return raw

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketPath, (str(self),)
