"""Datasets elsewhere, as paths: `gs://BUCKET/...`, `s3://BUCKET/...`, `hf://datasets/ORG/NAME[@REVISION]/...`, `https://HOST/FILE`.

A reader gets its path from `path_of` and uses it as any `pathlib.Path`. Libraries that open files themselves get `for_library`, those that
need a name on this machine's disk `local_copy`. How buckets are asked: `rlds2reverb.formats.objects`, which is imported for the first path
in a bucket.

What is missing raises `FileNotFoundError`, as on a disk. Anything else raises `StorageError`, which no reader takes for damage: a network
that fails must not make an episode broken.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import re
import stat
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, cast

from rlds2reverb.errors import SourceError, StorageError
from rlds2reverb.formats.options import URL
from rlds2reverb.formats.paths import DatasetPath

if TYPE_CHECKING:
    from rlds2reverb.formats.objects import Bucket, Entry, ObjectFile

SCHEMES = ("gs", "s3", "hf", "https", "http")
_EXPECTED = {  # scheme -> what has to stand there at least
    "hf": "hf://datasets/ORG/NAME",
    **{scheme: f"{scheme}://HOST/FILE, without a user" for scheme in ("https", "http")},
}


def path_of(text: str) -> Path:
    """The path that a text names, in a bucket or on this machine, where "~" is the home folder. Of a bucket, earlier looks are forgotten.

    Raises:
      SourceError: the scheme is unknown, the bucket has no name, or there is no user of that name.
    """
    match = URL.match(text)
    if match is None:
        try:
            return Path(text).expanduser()
        except RuntimeError as error:
            raise SourceError(f"{text}: {error}") from error
    if match[1] not in SCHEMES:
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise SourceError(f"{text}: unknown scheme; expected {schemes}, or a path on this machine")
    path = BucketPath(text)
    least = {"hf": 4, "https": 3, "http": 3}.get(match[1], 2)
    first = path.parts[1] if len(path.parts) > 1 else ""
    is_wrong = first != "datasets" if match[1] == "hf" else match[1] in _EXPECTED and "@" in first
    if len(path.parts) < least or is_wrong:
        raise SourceError(f"{text}: expected {_EXPECTED.get(match[1], f'{match[1]}://BUCKET/FOLDER')}")
    if "rlds2reverb.formats.objects" in sys.modules:  # a name that is opened is looked up anew
        from rlds2reverb.formats.objects import forget_looks

        forget_looks(path.scheme, path.parts[1])
    return path


def canonical(path: Path) -> str:
    """One text for a place, however it is spelled: absolute, with links followed; of a bucket, the URL."""
    return str(path.resolve() if isinstance(path, BucketPath) else Path(str(path)).resolve())


def for_library(path: Path) -> Path | IO[bytes]:
    """What a library opens that takes a path or a file: the path itself on this machine, else an open file."""
    if isinstance(path, BucketPath):
        return path.open("rb")
    if isinstance(path, DatasetPath):
        path.use()
    return path


def local_copy(path: Path) -> Path:
    """The path itself; of an object a copy in a temporary folder, which goes when the process ends.

    Raises:
      OSError: there is none, or no room for it.
      SourceError: a dataset's file that may not be opened.
      StorageError: it cannot be read.
    """
    if isinstance(path, BucketPath):
        return path.copied()
    if isinstance(path, DatasetPath):
        path.use()
    return path


class BucketPath(type(Path())):  # type: ignore[misc]  # the class that Path has on this system
    """A path in a bucket: "s3://bucket/key". It has no links; ".." is taken out before an object is asked for.

    Looking and opening raise `StorageError` where the bucket does not answer, or refuses.
    """

    def __str__(self) -> str:
        parts = self.parts
        return f"{parts[0]}//{'/'.join(parts[1:])}" if self.is_absolute() else "/".join(parts)

    def is_absolute(self) -> bool:
        return bool(self.parts) and self.parts[0].removesuffix(":") in SCHEMES

    def absolute(self) -> BucketPath:
        return self

    def expanduser(self) -> BucketPath:
        return self

    def resolve(self, strict: bool = False) -> BucketPath:
        if ".." not in self.parts:
            return self
        return type(self)(self.parts[0], *posixpath.normpath("/" + "/".join(self.parts[1:])).split("/"))

    @property
    def scheme(self) -> str:
        return str(self.parts[0]).removesuffix(":")

    @property
    def bucket(self) -> Bucket:
        return self._place()[0]

    @property
    def key(self) -> str:
        """In the bucket; "" for the bucket itself."""
        return self._place()[1]

    def entry(self) -> Entry | None:
        """The object; None if there is none of that name."""
        return self.entry_now()

    def entry_now(self) -> Entry | None:
        """As `entry`, also of a path whose dataset says what it was at first."""
        bucket, key = self._place()
        return bucket.entry(key)

    def object_file(self, start: int = 0, stop: int | None = None) -> ObjectFile:
        """The object, or the bytes of it from `start` to `stop`, open without a buffer.

        Raises:
          FileNotFoundError: there is none.
        """
        bucket, key = self._place()
        entry = self.entry()
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "No such object", str(self))
        return bucket.open_object(key, entry, start, stop)

    def stat(self, **_: Any) -> os.stat_result:
        bucket, key = self._place()
        entry = self.entry()
        if entry is None and not bucket.is_folder(key):
            raise FileNotFoundError(errno.ENOENT, "No such object", str(self))
        return _FOLDER_STAT if entry is None else entry.stat()

    lstat = stat

    def exists(self, **_: Any) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, **_: Any) -> bool:
        return self.entry() is not None

    def is_dir(self, **_: Any) -> bool:
        bucket, key = self._place()
        return bucket.is_folder(key)

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Iterator[BucketPath]:
        bucket, key = self._place()
        names = bucket.names(key)
        if not names and not bucket.is_folder(key):
            raise FileNotFoundError(errno.ENOENT, "No such folder", str(self))
        return (self / name for name in names)

    def glob(self, pattern: str, **_: Any) -> Iterator[BucketPath]:
        return self._matching(tuple(part for part in pattern.split("/") if part not in ("", ".")))

    def rglob(self, pattern: str, **_: Any) -> Iterator[BucketPath]:
        return self.glob(f"**/{pattern}")

    def open_without_threads(self) -> IO[bytes]:
        """A file without a buffer that asks in the thread that reads.

        For reads within a lock that another thread may want: with h5py's lock held, a collection of garbage in a thread that fetches would
        wait for that lock, and the reader for it.
        """
        raw: Any = self.open("rb", 0)
        raw.has_threads = False
        return cast("IO[bytes]", raw)

    def open(self, mode: str = "r", buffering: int = -1, *texts: Any, **text: Any) -> IO[Any]:
        if set(mode) - set("rbt"):
            raise StorageError(f"{self}: an object is written whole; write a file on this machine, and upload it")
        raw: Any = self.object_file()
        if not buffering:
            return cast("IO[Any]", raw)
        buffered: Any = io.BufferedReader(raw, _BUFFER_BYTES if buffering < 0 else buffering)
        return cast("IO[Any]", buffered if "b" in mode else io.TextIOWrapper(buffered, *texts, **text))

    def open_part(self, start: int, stop: int, buffering: int) -> IO[bytes]:
        """The bytes from `start` to `stop` as a file, in which they begin at 0; no others are asked for."""
        raw: Any = self.object_file(start, stop)
        return io.BufferedReader(raw, buffering)

    def copied(self) -> Path:
        """See `local_copy`."""
        from rlds2reverb.formats.objects.file import copies

        return copies.copy(self.object_file())

    def read_bytes(self) -> bytes:
        with self.open("rb", 0) as file:
            return bytes(file.read())

    def read_text(self, *texts: Any, **text: Any) -> str:
        with self.open("r", -1, *texts, **text) as file:
            return str(file.read())

    def walk(self) -> list[BucketPath]:
        """The objects below, sorted; asked for anew."""
        bucket, key = self._place()
        skipped = len(key) + 1 if key else 0
        return [self / key_below[skipped:] for key_below in bucket.walk(key)]

    def upload(self, file: Path) -> None:
        """Puts a file of this machine there, whole or not at all.

        Raises:
          OSError: the file cannot be read.
          StorageError: it cannot be written, or the file changed meanwhile.
        """
        bucket, key = self._place()
        bucket.upload(key, file)

    def upload_bytes(self, data: bytes, is_new: bool = False) -> bool:
        """Puts bytes there, whole or not at all. With `is_new` only where there is no object; False if there is one.

        Raises:
          StorageError: it cannot be written.
        """
        bucket, key = self._place()
        return bucket.upload_bytes(key, data, is_new)

    def remove(self) -> None:
        """Removes the object; nothing happens if there is none."""
        bucket, key = self._place()
        bucket.remove(key)

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        raise StorageError(f"{self}: is in a bucket, where only whole objects are written")

    mkdir = unlink = rename = replace = touch = write_bytes = _refused

    def _place(self) -> tuple[Bucket, str]:
        """The bucket, and the key in it; "" for the bucket itself."""
        from rlds2reverb.formats.objects import bucket_of

        parts = self.resolve().parts
        if not self.is_absolute() or len(parts) < 2:
            raise FileNotFoundError(errno.ENOENT, "Not in a bucket", str(self))
        if parts[0] == "hf:":
            return bucket_of("hf", "/".join(parts[1:4])), "/".join(parts[4:])
        return bucket_of(parts[0][:-1], parts[1]), "/".join(parts[2:])

    def _matching(self, pattern: tuple[str, ...]) -> Iterator[BucketPath]:
        if not pattern:
            yield self
        elif pattern[0] == "**":
            yield from self._matching(pattern[1:])
            for below in self._listed():
                if below.is_dir():
                    yield from below._matching(pattern)
        elif not _WILD.search(pattern[0]):
            if (below := self / pattern[0]).exists():
                yield from below._matching(pattern[1:])
        else:
            for below in self._listed():
                if fnmatchcase(below.name, pattern[0]) and (len(pattern) == 1 or below.is_dir()):
                    yield from below._matching(pattern[1:])

    def _listed(self) -> list[BucketPath]:
        bucket, key = self._place()
        return [self / name for name in bucket.names(key)]


_WILD = re.compile(r"[*?\[]")
_BUFFER_BYTES = 1 << 18
_FOLDER_STAT = os.stat_result((stat.S_IFDIR | 0o555, 0, 0, 1, 0, 0, 0, 0, 0, 0), {"st_mtime_ns": 0})
