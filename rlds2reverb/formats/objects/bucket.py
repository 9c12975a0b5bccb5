"""What is in a bucket, and ranges of its objects; objects are written whole, and removed.

A listing or a look-up is used again for some seconds: whoever opens a dataset asks several times for the same, and each request waits for the
service. `forget` ends that, before a name is opened and after something was written.
"""

from __future__ import annotations

import asyncio
import math
import os
import posixpath
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rlds2reverb.errors import StorageError
from rlds2reverb.formats.block_cache import block_cache, version_of
from rlds2reverb.formats.objects.access import SERVICES, WRITE, Access, obstore
from rlds2reverb.formats.objects.file import BLOCK, Entry, ObjectFile, pool

T = TypeVar("T")


_FRESH_SECONDS = 5.0  # that a look-up or a listing is used again
_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000  # of an object; S3 takes 10,000
_PARTS_AT_ONCE = 8


@dataclass(frozen=True)
class _Listing:
    """What is directly in a folder, when it was listed (`time.monotonic`): all names, sorted, those of folders, and the objects."""

    at: float
    names: tuple[str, ...]
    folders: frozenset[str]
    objects: Mapping[str, Entry]

    @staticmethod
    def of(objects: Mapping[str, Entry], folders: Collection[str], at: float | None = None) -> _Listing:
        return _Listing(
            time.monotonic() if at is None else at, tuple(sorted({*objects, *folders})), frozenset(folders), objects
        )


@dataclass(frozen=True)
class Bounds:
    """The most that is taken of a listing: entries, and seconds for all its pages together."""

    entries: int = 1_000_000
    seconds: float = 300.0

    def limit(self, where: str, entries: Iterable[T]) -> Iterator[T]:
        """The entries as they come. Raises `StorageError` for one more than the bound, or behind its time."""
        end = time.monotonic() + self.seconds
        for number, entry in enumerate(entries):
            if number >= self.entries:
                raise self.exceeded(where)
            if time.monotonic() > end:
                raise self.exceeded_time(where)
            yield entry

    def exceeded(self, where: str) -> StorageError:
        return StorageError(
            f"{where}: its listing has more than {self.entries:,} entries, the most that are taken; {_WAY_ON}"
        )

    def exceeded_time(self, where: str) -> StorageError:
        return StorageError(
            f"{where}: its listing did not end within {self.seconds:g} seconds, the most that is waited for; {_WAY_ON}"
        )


_WAY_ON = (
    "check the address of the service, and name a folder that holds the dataset alone, or copy that to this machine"
)


class Bucket:
    """A bucket of `gs://` or `s3://`. Its methods may be called from several threads.

    All raise `StorageError` where the service does not answer, or refuses.
    """

    has_listings = True

    def __init__(self, scheme: str, name: str, bounds: Bounds = Bounds()) -> None:
        self._url, self._bounds, self._access = f"{scheme}://{name}", bounds, Access(scheme, name)
        self._service = " ".join(filter(None, map(os.environ.get, SERVICES)))  # "" for the vendor's own
        self._looked: dict[str, tuple[float, Entry | None]] = {}
        self._listings: dict[str, _Listing] = {}

    def entry(self, key: str) -> Entry | None:
        """An object; None if there is none of that name."""
        if not key:
            return None
        at, entry = self._looked.get(key, (-math.inf, None))
        if time.monotonic() - at < _FRESH_SECONDS:
            return entry
        if self._fresh_listing(key.rpartition("/")[0]) is not None:
            return None  # its objects were looked up with it
        entry = self._head(key)
        self._looked[key] = time.monotonic(), entry
        return entry

    def names(self, key: str) -> tuple[str, ...]:
        """The names of what is directly in a folder, sorted; () if there is no such folder."""
        return self._listing(key).names

    def is_folder(self, key: str) -> bool:
        above, _, name = key.rpartition("/")
        listing = self._fresh_listing(above)
        if listing is not None:
            return not key or name in listing.folders
        return bool(self.names(key)) or not key

    def range(self, key: str, entry: Entry, start: int, stop: int) -> memoryview:
        """Bytes of an object as it was when it was found, from the cache where they are there.

        Args:
          start, stop: whole blocks of `BLOCK` bytes, but for the last one of the object.

        Raises:
          StorageError: the object has changed, or is gone.
        """
        cache = block_cache()
        version = self._version(key, entry) if cache.is_on else ""
        if not version:
            return self._fetch(key, entry, start, stop)
        first, last = start // BLOCK * BLOCK, min(-(-stop // BLOCK) * BLOCK, entry.size)
        if (first, last) != (start, stop):  # whole blocks are kept
            return self.range(key, entry, first, last)[start - first : stop - first]
        blocks: dict[int, memoryview] = {}
        for at in range(start, stop, BLOCK):
            block = cache.get(version, at // BLOCK, min(BLOCK, stop - at))
            if block is not None:
                blocks[at] = block
        missing = [at for at in range(start, stop, BLOCK) if at not in blocks]
        if missing:
            # One request from the first to the last, also over blocks in between that are kept: most of its time is the wait.
            first, last = missing[0], min(missing[-1] + BLOCK, stop)
            data = self._fetch(key, entry, first, last)
            for at in missing:
                blocks[at] = data[at - first : at - first + BLOCK]
                cache.put(version, at // BLOCK, blocks[at])
            if (first, last) == (start, stop):
                return data
        return memoryview(b"".join(blocks[at] for at in sorted(blocks)))

    def _version(self, key: str, entry: Entry) -> str:
        """Names this version of an object among all services; "" if the service gives no ETag of its bytes."""
        return version_of(f"{self._service}{self._url}/{key}", entry.match, entry.size) if entry.match else ""

    def _fetch(self, key: str, entry: Entry, start: int, stop: int) -> memoryview:
        options = {"range": (start, stop), **({"if_match": entry.match} if entry.match else {})}
        where = f"{self._url}/{key}"

        def get(store: Any) -> tuple[Any, memoryview]:
            answer = obstore().get(store, self._key(key), options=options)
            return answer.meta, memoryview(answer.bytes())

        try:
            about, data = self._access.ask(where, get)
        except obstore().exceptions.PreconditionError as error:
            raise self._changed(where) from error
        except FileNotFoundError as error:
            raise self._gone(where) from error
        if self._is_other(entry, about):
            raise self._changed(where)
        if len(data) != stop - start:
            raise StorageError(
                f"{where}: bytes {start:,} to {stop:,}: expected {stop - start:,} bytes, got {len(data):,}; the answer was cut off: try again"
            )
        return data

    def _is_other(self, entry: Entry, about: Mapping[str, Any]) -> bool:
        """Whether an answer is of another object; where there is no ETag, as on the hub, the size is compared at least."""
        return bool(about["size"] != entry.size or (entry.etag and about["e_tag"] and about["e_tag"] != entry.etag))

    def _changed(self, where: str) -> StorageError:
        self.forget()
        return StorageError(f"{where}: was written anew while it was read; open the source again")

    def _gone(self, where: str) -> StorageError:
        self.forget()
        return StorageError(f"{where}: is gone, and was there when the dataset was opened; open the source again")

    def open_object(self, key: str, entry: Entry, start: int = 0, stop: int | None = None) -> ObjectFile:
        """Opens an object, or the bytes of it from `start` to `stop`."""
        return ObjectFile(f"{self._url}/{key}", entry, partial(self.range, key, entry), start, stop)

    def walk(self, key: str) -> dict[str, Entry]:
        """All objects below a folder, by their keys, sorted; asked for anew."""
        where = f"{self._url}/{key}"

        async def list_pages(store: Any) -> list[Mapping[str, Any]]:
            objects: list[Mapping[str, Any]] = []
            async for page in obstore().list(store, key or None):
                objects += page
                if len(objects) > self._bounds.entries:
                    raise self._bounds.exceeded(where)
            return objects

        try:
            objects = self._access.ask(where, self._within_time(where, list_pages))
        except FileNotFoundError:
            return {}
        return {about["path"]: read_entry(about) for about in sorted(objects, key=lambda about: str(about["path"]))}

    def list_entries(self, key: str, is_deep: bool) -> dict[str, Entry]:
        """The objects in a folder, or below it, by their whole names. For some seconds, look-ups in it ask for nothing.

        A listing of the folder alone that is at hand is used: whoever opens a dataset may have looked for it there.
        """
        prefix = f"{key}/" if key else ""
        if not is_deep:
            return {f"{self._url}/{prefix}{name}": entry for name, entry in self._listing(key).objects.items()}
        entries = {name: entry for name, entry in self.walk(key).items() if name.startswith(prefix)}
        objects: dict[str, dict[str, Entry]] = defaultdict(dict)  # folder -> the objects in it, by name
        folders: dict[str, set[str]] = defaultdict(set)  # folder -> the names of those in it
        for name, entry in entries.items():
            folder, _, last = name.rpartition("/")
            objects[folder][last] = entry
            while len(folder) > len(key):
                folder, _, last = folder.rpartition("/")
                if last in folders[folder]:
                    break
                folders[folder].add(last)
        now = time.monotonic()
        self._looked |= {name: (now, entry) for name, entry in entries.items()}
        self._listings |= {
            folder: _Listing.of(objects.get(folder, {}), folders.get(folder, ()), now)
            for folder in {key, *objects, *folders}
        }
        return {f"{self._url}/{name}": entry for name, entry in entries.items()}

    def upload(self, key: str, file: Path) -> Entry:
        """Puts a file there, whole or not at all: a large one by parts, which obstore 0.12 drops if one of them fails.

        Raises:
          OSError: the file cannot be read.
          StorageError: the file or the object changed meanwhile.
        """
        size = file.stat().st_size
        part_bytes = max(_PART_BYTES, -(-size // _MOST_PARTS))

        with file.open("rb") as data:

            def put(store: Any) -> None:
                data.seek(0)
                obstore().put(store, key, data, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE)

            try:
                self._access.ask(f"{self._url}/{key}", put, WRITE)
            finally:
                self.forget()
        entry = self._head(key)
        if entry is None or entry.size != size:
            is_there = "nothing" if entry is None else f"{entry.size:,} bytes"
            raise StorageError(
                f"{self._url}/{key}: expected {size:,} bytes after writing them, found {is_there}; {file} or the object was changed "
                "meanwhile: try again"
            )
        return entry

    def upload_bytes(self, key: str, data: bytes, is_new: bool = False) -> bool:
        """Puts bytes there, whole or not at all. With `is_new` only where there is no object of that name; False if there is one."""
        mode = "create" if is_new else "overwrite"

        def put(store: Any) -> bool:
            try:
                obstore().put(store, key, data, mode=mode, use_multipart=False)
            except obstore().exceptions.AlreadyExistsError:
                return False
            return True

        try:
            return self._access.ask(f"{self._url}/{key}", put, WRITE)
        finally:
            self.forget()

    def remove(self, key: str) -> None:
        """Removes an object; nothing happens if there is none."""
        with suppress(FileNotFoundError):
            self._access.ask(f"{self._url}/{key}", lambda store: obstore().delete(store, key), WRITE)
        self.forget()

    def forget(self) -> None:
        """Forgets what was looked up: the next look asks anew."""
        self._looked.clear()
        self._listings.clear()

    def _key(self, key: str) -> str:
        return key

    def _head(self, key: str) -> Entry | None:
        try:
            return read_entry(
                self._access.ask(f"{self._url}/{key}", lambda store: obstore().head(store, self._key(key)))
            )
        except FileNotFoundError:
            return None

    def _fresh_listing(self, key: str) -> _Listing | None:
        listing = self._listings.get(key)
        return listing if listing is not None and time.monotonic() - listing.at < _FRESH_SECONDS else None

    def _listing(self, key: str) -> _Listing:
        listing = self._fresh_listing(key)
        if listing is None:
            listing = _Listing.of(*self._list(key))
            prefix = f"{key}/" if key else ""
            # Before the listing: a thread that finds it takes an object that was not looked up as none.
            self._looked |= {f"{prefix}{name}": (listing.at, entry) for name, entry in listing.objects.items()}
            self._listings[key] = listing
        return listing

    def _list(self, key: str) -> tuple[dict[str, Entry], list[str]]:
        where = f"{self._url}/{key}"

        async def list_folder(store: Any) -> Any:
            return await obstore().list_with_delimiter_async(store, key or None)

        try:
            page = self._access.ask(where, self._within_time(where, list_folder))
        except FileNotFoundError:
            return {}, []
        if len(page["objects"]) + len(page["common_prefixes"]) > self._bounds.entries:
            raise self._bounds.exceeded(where)
        # The path of an empty object "folder/", which consoles write to show a folder, is the folder's own.
        objects = {
            posixpath.basename(about["path"]): read_entry(about) for about in page["objects"] if about["path"] != key
        }
        return objects, [posixpath.basename(prefix.rstrip("/")) for prefix in page["common_prefixes"]]

    def _within_time(self, where: str, ask: Callable[[Any], Coroutine[Any, Any, T]]) -> Callable[[Any], T]:
        """Asks for a listing; all attempts and pages of it together have the time of the bounds.

        Obstore ends an answer after two minutes, but not the number of its pages: only a coroutine of it can be stopped between them.
        """
        end = time.monotonic() + self._bounds.seconds

        async def within(store: Any) -> T:
            asking = asyncio.ensure_future(ask(store))
            done, _ = await asyncio.wait([asking], timeout=max(0.0, end - time.monotonic()))
            if not done:
                asking.cancel()
                raise self._bounds.exceeded_time(where)
            return asking.result()

        def answer(store: Any) -> T:  # on another thread: a notebook's own has a loop that runs
            return pool().submit(lambda: asyncio.run(within(store))).result()

        return answer


def read_entry(about: Mapping[str, Any]) -> Entry:
    """What obstore says of an object."""
    return Entry(int(about["size"]), int(about["last_modified"].timestamp()), about["e_tag"] or about["version"] or "")
