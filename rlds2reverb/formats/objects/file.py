"""An object as a file, which is read by ranges and ahead; and copies of objects on this machine.

Ranges have 1 to 4 MiB, and several are requested at once where a file is read from front to end. All open files share the bounds of what is kept and what is requested ahead.
"""

from __future__ import annotations

import atexit
import io
import os
import posixpath
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import xxhash

from rlds2reverb.formats.lru import LRU

BLOCK = 1 << 20
_MOST_RUN = 4  # blocks of one request
_BLOCKS = 64  # that all open files together keep, and as many that they read ahead; a few for each if there are many
_open_files: set[int] = set()

Fetch = Callable[[int, int], memoryview]
"""Asks for the bytes of an object from a start to a stop; raises `StorageError`."""


@dataclass(frozen=True)
class Entry:
    """An object: its size in bytes, the second of its last change, and its ETag, "" where the service gives none.

    `blob` tells the contents of a file on the hub from others, where there is no time of a change; `sha256` is the digest of a large one's.
    """

    size: int
    seconds: int
    etag: str
    blob: str = ""
    sha256: str = ""

    @property
    def match(self) -> str:
        """The ETag, where it is one of the object's bytes; "" for a weak one, as web servers give them, which tells of the same meaning."""
        return "" if self.etag.startswith("W/") else self.etag

    def is_other(self, now: Entry) -> bool:
        """Whether an object is no longer the one of this entry."""
        if self.etag and now.etag:
            return (self.size, self.etag) != (now.size, now.etag)
        return (self.size, self.seconds) != (now.size, now.seconds)

    def stat(self) -> os.stat_result:
        """A file's status. The digits below a second are a digest of the ETag or blob, since buckets say seconds only."""
        digest = xxhash.xxh3_64_intdigest((self.etag or self.blob).encode())
        times = {"st_mtime_ns": self.seconds * 10**9 + digest % 10**9}
        return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, self.size, 0, self.seconds, 0), times)


class ObjectFile(io.RawIOBase):
    """An object, or the bytes of it from `start` to `stop`, open for reading by one thread at a time. With `has_threads`, others fetch.

    Blocks of 1 MiB are kept, the latest used. Where they are asked for one after the other, the next ones are requested ahead, up to four
    in a request. Nothing outside of `start` and `stop` is requested.
    """

    def __init__(self, name: str, entry: Entry, fetch: Fetch, start: int = 0, stop: int | None = None) -> None:
        self.name, self.entry, self._fetch = name, entry, fetch
        self._start = min(start, entry.size)  # byte of the object that is byte 0 here
        self._size = max(0, (entry.size if stop is None else min(stop, entry.size)) - self._start)
        self._at = 0
        self._held = LRU[int, memoryview](2 * _MOST_RUN)
        self._requests: dict[int, tuple[Future[memoryview], int]] = {}  # block -> request, and its first block
        self._latest, self._run, self._next = -2, 1, -1
        self.has_threads = True
        _open_files.add(id(self))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(buffer).cast("B")
        size = min(len(view), max(0, self._size - self._at))
        done = 0
        while done < size:
            number, within = divmod(self._at, BLOCK)
            data = self._block(number)
            count = min(len(data) - within, size - done)
            view[done : done + count] = data[within : within + count]
            done += count
            self._at += count
        return done

    def readall(self) -> bytes:
        room = bytearray(max(0, self._size - self._at))
        self.readinto(room)
        return bytes(room)

    def stat(self) -> os.stat_result:
        """The status of the object as it was opened."""
        return self.entry.stat()

    def close(self) -> None:
        _open_files.discard(id(self))
        for request, _ in self._requests.values():
            request.cancel()
        self._requests.clear()
        self._held.clear()
        super().close()

    def _block(self, number: int) -> memoryview:
        is_next = number == self._latest + 1
        if number not in self._held and number not in self._requests:
            if self._size <= _MOST_RUN * BLOCK:  # one request brings all of it
                self._request(0, _MOST_RUN)
            else:
                # Runs grow while blocks follow each other: a reader that jumps asks for single ones.
                self._run = min(2 * self._run, _MOST_RUN) if is_next else 1
                self._request(number, self._run)
        if is_next and self.has_threads:
            # The file is read from front to end: the blocks after this one are requested, too.
            ahead = max(_MOST_RUN, min(4 * _MOST_RUN, _BLOCKS // max(1, len(_open_files))))
            while number < self._next <= number + ahead and self._next * BLOCK < self._size:
                self._run = min(2 * self._run, _MOST_RUN)
                self._request(self._next, self._run)
        block = self._held.get(number, partial(self._receive, number))
        self._latest = number
        return block

    def _request(self, first: int, blocks: int) -> None:
        last = min(first + blocks, -(-self._size // BLOCK))
        start, stop = first * BLOCK, min(last * BLOCK, self._size)
        fetch = partial(self._fetch, self._start + start, self._start + stop)
        request: Future[memoryview]
        if self.has_threads:
            request = pool().submit(fetch)
        else:
            request = Future()
            request.set_result(fetch())
        for number in range(first, last):
            self._requests[number] = request, first
        self._next = last

    def _receive(self, number: int) -> memoryview:
        """The block, once its request is answered; keeps the others that came with it."""
        request, first = self._requests[number]
        try:
            data = request.result()
        finally:  # a request that failed is forgotten, too: the next read asks again
            blocks = [block for block, (answered_by, _) in self._requests.items() if answered_by is request]
            for block in blocks:
                del self._requests[block]
        self._held.most = max(2 * _MOST_RUN, min(8 * _MOST_RUN, _BLOCKS // max(1, len(_open_files))))
        came = {block: data[(block - first) * BLOCK : (block - first + 1) * BLOCK] for block in blocks}
        for block in blocks:
            if block != number:
                self._held.put(block, came[block])
        return came[number]


_MOST_REQUESTS = 16


@cache
def pool() -> ThreadPoolExecutor:
    """The threads that ask for ranges and listings. They wait most of the time, so there are more of them than processors."""
    return ThreadPoolExecutor(_MOST_REQUESTS, thread_name_prefix="bucket")


def forget() -> None:
    """Begins with new threads, and counts open files anew."""
    pool.cache_clear()
    _open_files.clear()


class Copies:
    """Copies on this machine, for libraries that take nothing but a file's name; they go when the process ends."""

    def __init__(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._folder: Path | None = None
        self._paths: dict[tuple[str, Entry], Path] = {}

    def copy(self, file: ObjectFile) -> Path:
        """The copy of an object, made once in a process. Closes the file."""

        def write(out: IO[bytes]) -> None:
            source: Any = file  # all that is asked of it is `read`
            shutil.copyfileobj(source, out, _MOST_RUN * BLOCK)

        with file:
            return self.keep(file.name, file.entry, write)

    def keep(self, name: str, entry: Entry, write: Callable[[IO[bytes]], None]) -> Path:
        """The copy of an object, which `write` makes if this process has none."""
        with self._lock:
            copy = self._paths.get((name, entry))
            if copy is not None:
                return copy
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="rlds2reverb-copies-"))
                atexit.register(self.remove)
            copy = self._folder / f"{len(self._paths)}-{posixpath.basename(name)}"
            try:
                with copy.open("wb") as out:
                    write(out)
            except BaseException:
                copy.unlink(missing_ok=True)
                raise
            self._paths[name, entry] = copy
            return copy

    def remove(self) -> None:
        if self._folder is not None and os.getpid() == self._process:  # a forked process has the copies of its parent
            shutil.rmtree(self._folder, ignore_errors=True)


copies = Copies()
