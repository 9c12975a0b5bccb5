"""Objects in buckets and on the Hugging Face hub: looked up, listed, and read by ranges; those in buckets are written and removed, too.

Ranges have 1 to 4 MiB, several at once where a file is read from front to end. An object is read as it was when it was opened: each range
is asked for with the ETag of then, and a revision on the hub is resolved to its commit once.

Credentials are those that the vendors' own tools use. Without any, requests are not signed, as public buckets allow it.
"""

from __future__ import annotations

import asyncio
import atexit
import configparser
import errno
import io
import os
import posixpath
import re
import shutil
import stat
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import xxhash

from rlds2reverb.errors import SourceError, StorageError
from rlds2reverb.extras import needing
from rlds2reverb.formats.block_cache import block_cache, version_of
from rlds2reverb.text import shortened

_Answer = TypeVar("_Answer")

# Buckets: what is in them, and ranges of their objects.


@dataclass(frozen=True)
class Entry:
    """An object: its size in bytes, the second of its last change, and its ETag, "" where the service gives none.

    `blob` tells the contents of a file on the hub from others, where there is no time of a change.
    """

    size: int
    seconds: int
    etag: str
    blob: str = ""

    def is_other(self, now: Entry) -> bool:
        """Whether an object is no longer the one of this entry."""
        if self.etag and now.etag:
            return (self.size, self.etag) != (now.size, now.etag)
        return (self.size, self.seconds) != (now.size, now.seconds)

    def stat(self) -> os.stat_result:
        """As of a file. The digits below a second are a digest of the ETag or blob, since buckets say seconds only."""
        digest = xxhash.xxh3_64_intdigest((self.etag or self.blob).encode())
        times = {"st_mtime_ns": self.seconds * 10**9 + digest % 10**9}
        return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, self.size, 0, self.seconds, 0), times)


@dataclass(frozen=True)
class _Listing:
    """What is directly in a folder, when it was listed (`time.monotonic`): all names, sorted, those of folders, and the objects."""

    at: float
    names: tuple[str, ...]
    folders: frozenset[str]
    objects: Mapping[str, Entry]


_FRESH_SECONDS = 5.0  # that a look-up or a listing is used again: readers ask several times for the same


@dataclass(frozen=True)
class Bounds:
    """The most that is taken of a listing: entries, and seconds for all its pages together."""

    entries: int = 1_000_000
    seconds: float = 300.0

    def counted(self, where: str, entries: Iterable[_Answer]) -> Iterator[_Answer]:
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
    """A bucket of `gs://` or `s3://`. Its methods may be called from several threads."""

    def __init__(self, scheme: str, name: str, bounds: Bounds = Bounds()) -> None:
        self._name, self._url, self._bounds = name, f"{scheme}://{name}", bounds
        self._service = " ".join(filter(None, map(os.environ.get, _SERVICES)))  # "" for the vendor's own
        self._ways = list(_WAYS[scheme](name))
        self._stores: dict[str, Any] = {}
        self._found: dict[str, _Way] = {}  # "read", "write" -> the first way that was not refused
        self._looked: dict[str, tuple[float, Entry | None]] = {}
        self._listings: dict[str, _Listing] = {}

    def entry(self, key: str) -> Entry | None:
        """An object; None if there is none of that name."""
        if not key:
            return None
        known = self._looked.get(key)
        if known is not None and time.monotonic() - known[0] < _FRESH_SECONDS:
            return known[1]
        above = self._listings.get(key.rpartition("/")[0])
        if above is not None and time.monotonic() - above.at < _FRESH_SECONDS:
            return None
        found = self._head(key)
        self._looked[key] = time.monotonic(), found
        return found

    def names(self, key: str) -> tuple[str, ...]:
        """The names of what is directly in a folder, sorted; () if there is no such folder."""
        return self._listing(key).names

    def is_folder(self, key: str) -> bool:
        above, _, name = key.rpartition("/")
        known = self._listings.get(above)
        if known is not None and time.monotonic() - known.at < _FRESH_SECONDS:
            return not key or name in known.folders
        return bool(self.names(key)) or not key

    def range(self, key: str, start: int, stop: int, entry: Entry) -> memoryview:
        """Bytes of an object as it was when it was found, from the cache where they are there.

        Args:
          start, stop: whole blocks of `_BLOCK` bytes, but for the last one of the object.

        Raises:
          StorageError: the object has changed, or the range cannot be read.
        """
        kept = block_cache()
        version = self._version(key, entry) if kept.is_on else ""
        if not version:
            return self._fetched(key, start, stop, entry)
        first, last = start // _BLOCK * _BLOCK, min(-(-stop // _BLOCK) * _BLOCK, entry.size)
        if (first, last) != (start, stop):  # whole blocks are kept
            return self.range(key, first, last, entry)[start - first : stop - first]
        blocks: dict[int, memoryview] = {}
        for at in range(start, stop, _BLOCK):
            block = kept.get(version, at // _BLOCK, min(_BLOCK, stop - at))
            if block is not None:
                blocks[at] = block
        missing = [at for at in range(start, stop, _BLOCK) if at not in blocks]
        if missing:
            first, last = missing[0], min(missing[-1] + _BLOCK, stop)
            data = self._fetched(key, first, last, entry)
            for at in missing:
                blocks[at] = data[at - first : at - first + _BLOCK]
                kept.put(version, at // _BLOCK, blocks[at])
            if (first, last) == (start, stop):
                return data
        return memoryview(b"".join(blocks[at] for at in sorted(blocks)))

    def _version(self, key: str, entry: Entry) -> str:
        """Names this version of an object among all services; "" if the service gives no ETag."""
        return version_of(f"{self._service}{self._url}/{key}", entry.etag, entry.size) if entry.etag else ""

    def _fetched(self, key: str, start: int, stop: int, entry: Entry) -> memoryview:
        options = {"range": (start, stop), **({"if_match": entry.etag} if entry.etag else {})}
        where = f"{self._url}/{key}"

        def get(store: Any) -> tuple[Any, memoryview]:
            found = _obstore().get(store, self._key(key), options=options)
            return found.meta, memoryview(found.bytes())

        changed = f"{where}: was written anew while it was read; open the source again"
        try:
            about, data = self._asked(where, get)
        except (_obstore().exceptions.PreconditionError, FileNotFoundError) as error:
            self.forget()
            is_gone = isinstance(error, FileNotFoundError)
            raise StorageError(
                f"{where}: is gone, and was there when the dataset was opened; open the source again"
                if is_gone
                else changed
            ) from error
        if about["size"] != entry.size or (entry.etag and about["e_tag"] and about["e_tag"] != entry.etag):
            self.forget()
            raise StorageError(changed)
        if len(data) != stop - start:
            raise StorageError(
                f"{where}: bytes {start:,} to {stop:,}: expected {stop - start:,} bytes, got {len(data):,}; the answer was cut off: try again"
            )
        return data

    def opened(self, key: str, entry: Entry, start: int = 0, stop: int | None = None) -> ObjectFile:
        """An object, or the bytes of it from `start` to `stop`."""
        return ObjectFile(f"{self._url}/{key}", self, key, entry, start, stop)

    def copy(self, file: ObjectFile) -> Path:
        """A copy on this machine, made once in a process.

        Raises:
          OSError: no room for it.
          StorageError: it cannot be read.
        """
        return _copies.made(file)

    def walk(self, key: str) -> dict[str, Entry]:
        """All objects below a folder, by their keys, sorted; asked for anew."""
        where = f"{self._url}/{key}"

        async def listed(store: Any) -> list[Mapping[str, Any]]:
            found: list[Mapping[str, Any]] = []
            async for page in _obstore().list(store, key or None):
                found += page
                if len(found) > self._bounds.entries:
                    raise self._bounds.exceeded(where)
            return found

        try:
            found = self._asked(where, self._within_time(where, listed))
        except FileNotFoundError:
            return {}
        return {one["path"]: _entry_of(one) for one in sorted(found, key=lambda one: str(one["path"]))}

    def list_entries(self, key: str, is_deep: bool) -> dict[str, Entry]:
        """The objects in a folder, or below it, by their whole names. For some seconds, look-ups in it ask for nothing.

        A listing of the folder alone that is at hand is used: whoever opens a dataset may have looked for it there.

        Raises:
          StorageError: it cannot be listed.
        """
        prefix, now = f"{key}/" if key else "", time.monotonic()
        if not is_deep:
            return {f"{self._url}/{prefix}{name}": entry for name, entry in self._listing(key).objects.items()}
        entries = {name: entry for name, entry in self.walk(key).items() if name.startswith(prefix)}
        # folder -> its objects by name, names of folders
        below: dict[str, tuple[dict[str, Entry], set[str]]] = {key: ({}, set())}
        for name, entry in entries.items():
            above, _, last = name.rpartition("/")
            below.setdefault(above, ({}, set()))[0][last] = entry
            while (
                len(above) > len(key)
                and above.rpartition("/")[2] not in below.setdefault(above.rpartition("/")[0], ({}, set()))[1]
            ):
                above, _, last = above.rpartition("/")
                below[above][1].add(last)
        self._looked |= {name: (now, entry) for name, entry in entries.items()}
        self._listings |= {
            name: _Listing(now, tuple(sorted({*objects, *folders})), frozenset(folders), objects)
            for name, (objects, folders) in below.items()
        }
        return {f"{self._url}/{name}": entry for name, entry in entries.items()}

    def upload(self, key: str, file: Path) -> Entry:
        """Puts a file there, whole or not at all: a large one by parts, which obstore 0.12 drops if one of them fails.

        Raises:
          OSError: the file cannot be read.
          StorageError: it cannot be written, or the file changed meanwhile.
        """
        size = file.stat().st_size
        part_bytes = max(_PART_BYTES, -(-size // _MOST_PARTS))

        with file.open("rb") as data:

            def put(store: Any) -> None:
                data.seek(0)
                _obstore().put(store, key, data, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE)

            try:
                self._asked(f"{self._url}/{key}", put, WRITE)
            finally:
                self.forget()
        found = self._head(key)
        if found is None or found.size != size:
            is_there = "nothing" if found is None else f"{found.size:,} bytes"
            raise StorageError(
                f"{self._url}/{key}: expected {size:,} bytes after writing them, found {is_there}; {file} or the object was changed "
                "meanwhile: try again"
            )
        return found

    def upload_bytes(self, key: str, data: bytes, is_new: bool = False) -> bool:
        """Puts bytes there, whole or not at all. With `is_new` only where there is no object of that name; False if there is one.

        Raises:
          StorageError: it cannot be written.
        """
        mode = "create" if is_new else "overwrite"

        def put(store: Any) -> bool:
            try:
                _obstore().put(store, key, data, mode=mode, use_multipart=False)
            except _obstore().exceptions.AlreadyExistsError:
                return False
            return True

        try:
            return self._asked(f"{self._url}/{key}", put, WRITE)
        finally:
            self.forget()

    def remove(self, key: str) -> None:
        """Removes an object; nothing happens if there is none."""
        with suppress(FileNotFoundError):
            self._asked(f"{self._url}/{key}", lambda store: _obstore().delete(store, key), WRITE)
        self.forget()

    def forget(self) -> None:
        """Forgets what was looked up: the next look asks anew."""
        self._looked.clear()
        self._listings.clear()

    def _key(self, key: str) -> str:
        return key

    def _head(self, key: str) -> Entry | None:
        try:
            found = self._asked(f"{self._url}/{key}", lambda store: _obstore().head(store, self._key(key)))
        except FileNotFoundError:
            return None
        return _entry_of(found)

    def _listing(self, key: str) -> _Listing:
        known = self._listings.get(key)
        if known is None or time.monotonic() - known.at > _FRESH_SECONDS:
            objects, folders = self._list(key)
            now, prefix = time.monotonic(), f"{key}/" if key else ""
            self._looked |= {f"{prefix}{name}": (now, entry) for name, entry in objects.items()}
            known = _Listing(now, tuple(sorted({*objects, *folders})), frozenset(folders), objects)
            self._listings[key] = known
        return known

    def _list(self, key: str) -> tuple[dict[str, Entry], list[str]]:
        where = f"{self._url}/{key}"

        async def listed(store: Any) -> Any:
            return await _obstore().list_with_delimiter_async(store, key or None)

        try:
            found = self._asked(where, self._within_time(where, listed))
        except FileNotFoundError:
            return {}, []
        if len(found["objects"]) + len(found["common_prefixes"]) > self._bounds.entries:
            raise self._bounds.exceeded(where)
        objects = {posixpath.basename(one["path"]): _entry_of(one) for one in found["objects"] if one["path"] != key}
        return objects, [posixpath.basename(prefix.rstrip("/")) for prefix in found["common_prefixes"]]

    def _within_time(self, where: str, ask: Callable[[Any], Coroutine[Any, Any, _Answer]]) -> Callable[[Any], _Answer]:
        """Asks for a listing; all attempts and pages of it together have the time of the bounds.

        Obstore ends an answer after two minutes, but not the number of its pages: only a coroutine of it can be stopped between them.
        """
        end = time.monotonic() + self._bounds.seconds

        async def within(store: Any) -> _Answer:
            asking = asyncio.ensure_future(ask(store))
            done, _ = await asyncio.wait([asking], timeout=max(0.0, end - time.monotonic()))
            if not done:
                asking.cancel()
                raise self._bounds.exceeded_time(where)
            return asking.result()

        def answer(store: Any) -> _Answer:  # on another thread: a notebook's own has a loop that runs
            return _pool().submit(lambda: asyncio.run(within(store))).result()

        return answer

    def _asked(self, where: str, ask: Callable[[Any], _Answer], to: str = "read") -> _Answer:
        """An answer of the first way that is not refused; then that way is kept, one to read and one to write.

        Raises:
          FileNotFoundError: there is no such object.
          StorageError: no answer, or a refusal.
        """
        failures = _obstore().exceptions
        refused: list[tuple[_Way, Exception]] = []
        for way in [self._found[to]] if to in self._found else self._ways:
            try:
                answer = _retried(partial(ask, self._store(way)))
            except (failures.NotFoundError, FileNotFoundError) as error:
                if "NoSuchBucket" in str(error):
                    raise StorageError(f"{where}: {_NO_BUCKET}") from error
                self._found[to] = way
                raise FileNotFoundError(errno.ENOENT, "No such object", where) from error
            except failures.PreconditionError:
                raise
            except failures.BaseError as error:
                if "NoSuchBucket" in str(error):
                    raise StorageError(f"{where}: {_NO_BUCKET}") from error
                refused.append((way, error))
            else:
                self._found[to] = way
                return answer
        raise StorageError(f"{where}: {_sentence(refused)}") from refused[0][1]

    def _store(self, way: _Way) -> Any:
        if way.what not in self._stores:
            self._stores[way.what] = way.make()
        return self._stores[way.what]


WRITE = "write"

_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000  # of an object; S3 takes 10,000
_PARTS_AT_ONCE = 8

_SERVICES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "HF_ENDPOINT")

_NO_BUCKET = "there is no such bucket; check its name, and the address of the service"


def _entry_of(about: Mapping[str, Any]) -> Entry:
    return Entry(int(about["size"]), int(about["last_modified"].timestamp()), about["e_tag"] or about["version"] or "")


class _Hub(Bucket):
    """A dataset on the Hugging Face hub, at the commit that its revision had when it was first asked for."""

    def __init__(self, scheme: str, name: str, bounds: Bounds = Bounds()) -> None:
        super().__init__(scheme, name, bounds)
        self._repo, _, revision = name.removeprefix("datasets/").partition("@")
        self._commit = _hub(
            self._url, bounds, lambda api: api.repo_info(self._repo, repo_type="dataset", revision=revision or None)
        ).sha

    def _version(self, key: str, entry: Entry) -> str:
        return version_of(f"{self._service}{self._url}/{key}", self._commit, entry.size)

    def walk(self, key: str) -> dict[str, Entry]:
        raise self._only_read()

    def upload(self, key: str, file: Path) -> Entry:
        raise self._only_read()

    def upload_bytes(self, key: str, data: bytes, is_new: bool = False) -> bool:
        raise self._only_read()

    def remove(self, key: str) -> None:
        raise self._only_read()

    def _only_read(self) -> StorageError:
        return StorageError(
            f"{self._url}: the hub is only read; write into a folder here, and upload that: hf upload {self._repo} FOLDER --repo-type dataset"
        )

    def _key(self, key: str) -> str:
        return f"datasets/{self._repo}/resolve/{self._commit}/{key}"

    def _head(self, key: str) -> Entry | None:
        where = f"{self._url}/{key}"
        found = _hub(
            where,
            self._bounds,
            lambda api: api.get_paths_info(self._repo, [key], repo_type="dataset", revision=self._commit),
        )
        return next((_entry_of_hub(where, about) for about in found if hasattr(about, "size")), None)

    def _list(self, key: str) -> tuple[dict[str, Entry], list[str]]:
        where = f"{self._url}/{key}"

        def listed(api: Any) -> list[Any]:
            tree = api.list_repo_tree(self._repo, key or None, repo_type="dataset", revision=self._commit)
            return list(self._bounds.counted(where, tree))

        try:
            found = _hub(where, self._bounds, listed)
        except FileNotFoundError:
            return {}, []
        objects = {
            posixpath.basename(about.path): _entry_of_hub(f"{self._url}/{about.path}", about)
            for about in found
            if hasattr(about, "size")
        }
        return objects, [posixpath.basename(about.path) for about in found if not hasattr(about, "size")]


def _entry_of_hub(where: str, about: Any) -> Entry:
    """Raises `StorageError` where the hub says no size."""
    if type(about.size) is not int or about.size < 0:
        raise StorageError(
            f"{where}: the hub says that its size is {shortened(repr(about.size))}; expected a whole number of bytes: check HF_ENDPOINT, and try again"
        )
    return Entry(about.size, 0, "", str(about.blob_id or ""))  # of a commit, so that it cannot change


def _hub(where: str, bounds: Bounds, ask: Callable[[Any], _Answer]) -> _Answer:
    """An answer of the hub, within the time of the bounds.

    Its library waits for each byte anew, and cannot be stopped. So it asks on a thread of its own, which is left alone when the time is over.
    """
    with needing("reading hf://", "cloud", SourceError):
        import huggingface_hub
        from huggingface_hub import errors
    try:
        return _on_a_thread(partial(ask, huggingface_hub.HfApi()), bounds.seconds, bounds.exceeded_time(where))
    except StorageError:
        raise
    except errors.EntryNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "No such file", where) from error
    except errors.GatedRepoError as error:
        raise StorageError(
            f"{where}: its owner lets only some users in; ask on its page, then log in: hf auth login"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise StorageError(
            f"{where}: there is no such dataset, or it is private; log in: hf auth login, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise StorageError(f"{where}: there is no such revision") from error
    except Exception as error:  # of the HTTP library, which differs between versions
        raise StorageError(
            f"{where}: the hub did not answer: {_said(error)}; check the network, and try again"
        ) from error


def _on_a_thread(ask: Callable[[], _Answer], seconds: float, too_late: StorageError) -> _Answer:
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="hub", daemon=True).start()
    if not wait([answer], seconds).done:
        raise too_late
    return answer.result()


_lock = threading.RLock()
_buckets: dict[tuple[str, str], Bucket] = {}


def bucket_of(scheme: str, name: str) -> Bucket:
    with _lock:
        found = _buckets.get((scheme, name))
        if found is None:
            found = _buckets[scheme, name] = (_Hub if scheme == "hf" else Bucket)(scheme, name)
    return found


def forget_looks(scheme: str, name: str) -> None:
    """Has the next looks into a bucket ask anew. A dataset on the hub stays at its commit."""
    with _lock:
        bucket = _buckets.get((scheme, name))
    if bucket is not None:
        bucket.forget()


# How requests are signed.


@dataclass(frozen=True)
class _Way:
    """One way to ask: `what` says whose credentials it uses; `is_signed` is False for none."""

    what: str
    make: Callable[[], Any]
    is_signed: bool = True


_RETRY = {
    "max_retries": 8,
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2},
    "retry_timeout": timedelta(seconds=90),
}
_NO_RETRY = {**_RETRY, "max_retries": 1, "retry_timeout": timedelta(seconds=5)}
_CLIENT = {"timeout": "120s", "connect_timeout": "10s"}


def _ways_of_s3(name: str) -> Iterator[_Way]:
    from_environment = any(
        os.environ.get(one)
        for one in (
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        )
    )
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    profile = {} if from_environment else _profile()
    settings: dict[str, Any] = {}
    if endpoint:
        settings["endpoint"] = endpoint
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or profile.get("region")
    settings["region"] = region or "us-east-1"
    client = {**_CLIENT, "allow_http": str(endpoint or "").startswith("http://")}

    def store(retry: Mapping[str, Any] = _RETRY, **more: Any) -> Any:
        return _obstore().store.S3Store(name, config=settings, client_options=client, retry_config=retry, **more)

    if from_environment:
        yield _Way("the credentials in the environment", store)
        return
    if (os.environ.get("AWS_PROFILE") or profile) and find_spec("boto3") is not None:

        def by_boto3() -> Any:
            from obstore.auth.boto3 import Boto3CredentialProvider

            return store(credential_provider=Boto3CredentialProvider())

        yield _Way("the profile of the AWS tools", by_boto3)
    elif "aws_access_key_id" in profile:
        keys = {
            key: profile[f"aws_{key}"]
            for key in ("access_key_id", "secret_access_key", "session_token")
            if f"aws_{key}" in profile
        }
        yield _Way("the profile in ~/.aws/credentials", partial(store, **keys))
    yield _Way("no credentials", lambda: store(skip_signature=True), is_signed=False)
    if not endpoint:
        yield _Way("the role of this machine", lambda: store(_NO_RETRY))


def _profile() -> dict[str, str]:
    """The settings of the chosen profile in the AWS tools' files; {} if there are none."""
    name = os.environ.get("AWS_PROFILE", "default")
    found: dict[str, str] = {}
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(Path(os.environ.get(variable) or usual).expanduser())
        except (OSError, RuntimeError, configparser.Error, UnicodeError):
            continue  # as if it were not there: the request will say what is missing
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found


def _ways_of_gs(name: str) -> Iterator[_Way]:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        base = emulator if "://" in emulator else f"http://{emulator}"
        key = f'{{"gcs_base_url": "{base.rstrip("/")}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}}'
        client = {**_CLIENT, "allow_http": base.startswith("http://")}
        yield _Way(
            "the emulator",
            lambda: _obstore().store.GCSStore(
                name, service_account_key=key, client_options=client, retry_config=_RETRY
            ),
        )
        return

    def store(retry: Mapping[str, Any] = _RETRY, **more: Any) -> Any:
        return _obstore().store.GCSStore(name, client_options=_CLIENT, retry_config=retry, **more)

    own = (
        Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
        / "application_default_credentials.json"
    )
    named = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
    if any(os.environ.get(one) for one in named) or own.exists():
        yield _Way("the application default credentials", store)
    yield _Way("no credentials", lambda: store(skip_signature=True), is_signed=False)
    yield _Way("the service account of this machine", lambda: store(_NO_RETRY))


def _ways_of_hf(_: str) -> Iterator[_Way]:
    def store() -> Any:
        with needing("reading hf://", "cloud", SourceError):
            import huggingface_hub
        base = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        token = huggingface_hub.get_token()
        headers = {"default_headers": {"authorization": f"Bearer {token}"}} if token else {}
        client = {**_CLIENT, "allow_http": base.startswith("http://"), **headers}
        return _obstore().store.HTTPStore.from_url(base, client_options=client, retry_config=_RETRY)

    yield _Way("the token of the hub", store)


_WAYS: dict[str, Callable[[str], Iterator[_Way]]] = {"s3": _ways_of_s3, "gs": _ways_of_gs, "hf": _ways_of_hf}


@cache
def _obstore() -> Any:
    with needing("reading from buckets", "cloud", SourceError):
        import obstore
        import obstore.exceptions
        import obstore.store
    return obstore


_PAUSES = (
    0.5,
    1.0,
    2.0,
    4.0,
)  # seconds, after an answer was cut off; obstore itself tries again before an answer begins
_PASSING = ("body", "connection closed", "incomplete", "timed out", "decoding")
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d")


def _retried(ask: Callable[[], _Answer]) -> _Answer:
    pauses = iter(_PAUSES)
    while True:
        try:
            return ask()
        except _obstore().exceptions.GenericError as error:
            pause = next(pauses, None)
            if pause is None or not _is_passing(error):
                raise
            time.sleep(pause)


def _is_passing(error: BaseException) -> bool:
    """Whether an answer was cut off, or the service was busy, so that the next one may be whole."""
    text = str(error).split("Debug source")[0].lower()
    return not _REFUSED.search(text) and ("status code: 429" in text or any(sign in text for sign in _PASSING))


def _sentence(refused: list[tuple[_Way, Exception]]) -> str:
    """Why a request failed in every way, and how to go on; without anything of a credential or a signature."""
    failures = _obstore().exceptions
    for way, error in refused:
        text = str(error).lower()
        if "expired" in text:
            return f"the request was refused: {way.what} expired; log in again"
        if "redirect" in text and "region" in text:
            return "the bucket is in another region; set AWS_REGION to its region"
    denied = [
        way
        for way, error in refused
        if isinstance(error, (failures.PermissionDeniedError, failures.UnauthenticatedError))
    ]
    if any(way.is_signed for way in denied):
        return f"access was refused with {denied[0].what}: they do not allow it, or there is no such bucket"
    if denied:
        return (
            "access was refused: it is not public, and no credentials were found; log in with the vendor's tool "
            "(aws configure, gcloud auth application-default login), or set the variables that it reads"
        )
    return f"no answer: {_said(refused[0][1])}; check the network and the address, and try again"


def _said(error: BaseException) -> str:
    """The heart of a library's message, on one line, without the query of an address, which may hold a signature."""
    text = re.sub(r"(https?://[^\s?()]*)\?\S*", r"\1", " ".join(str(error).split()))
    text = text.split("Debug source:")[0].strip()
    return text if len(text) <= 300 else f"{text[:300]}..."


# Files.

_BLOCK = 1 << 20
_MOST_RUN = 4  # blocks of one request
_BLOCKS = 64  # that all open files together keep, and as many that they read ahead; a few for each if there are many
_open_files: set[int] = set()


class ObjectFile(io.RawIOBase):
    """An object, or the bytes of it from `start` to `stop`, open for reading by one thread at a time. With `has_threads`, others fetch.

    Blocks of 1 MiB are kept, the latest used. Where they are asked for one after the other, the next ones are requested ahead, up to four
    in a request. Nothing outside of `start` and `stop` is requested.
    """

    def __init__(
        self, name: str, bucket: Bucket, key: str, entry: Entry, start: int = 0, stop: int | None = None
    ) -> None:
        self.name, self._bucket, self._key, self.entry = name, bucket, key, entry
        self._start = min(start, entry.size)  # byte of the object that is byte 0 here
        self._size = max(0, (entry.size if stop is None else min(stop, entry.size)) - self._start)
        self._at = 0
        self._held: OrderedDict[int, memoryview] = OrderedDict()
        self._asked: dict[int, tuple[Future[memoryview], int]] = {}  # block -> request, and its first block
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
            number, within = divmod(self._at, _BLOCK)
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
        """Of the object as it was opened."""
        return self.entry.stat()

    def close(self) -> None:
        _open_files.discard(id(self))
        for request, _ in self._asked.values():
            request.cancel()
        self._asked.clear()
        self._held.clear()
        super().close()

    def _block(self, number: int) -> memoryview:
        is_next = number == self._latest + 1
        if number not in self._held and number not in self._asked:
            if self._size <= _MOST_RUN * _BLOCK:
                self._request(0, _MOST_RUN)
            else:
                self._run = min(2 * self._run, _MOST_RUN) if is_next else 1
                self._request(number, self._run)
        if is_next and self.has_threads:
            self._read_ahead(number)
        if number not in self._held:
            self._receive(number)
        self._held.move_to_end(number)
        self._latest = number
        return self._held[number]

    def _read_ahead(self, number: int) -> None:
        """Requests the blocks after one that follows the last, where the file is read from front to end."""
        ahead = max(_MOST_RUN, min(4 * _MOST_RUN, _BLOCKS // max(1, len(_open_files))))
        while number < self._next <= number + ahead and self._next * _BLOCK < self._size:
            self._run = min(2 * self._run, _MOST_RUN)
            self._request(self._next, self._run)

    def _request(self, first: int, blocks: int) -> None:
        last = min(first + blocks, -(-self._size // _BLOCK))
        start, stop = first * _BLOCK, min(last * _BLOCK, self._size)
        fetch = partial(self._bucket.range, self._key, self._start + start, self._start + stop, self.entry)
        request = _pool().submit(fetch) if self.has_threads else _done(fetch())
        for number in range(first, last):
            self._asked[number] = request, first
        self._next = last

    def _receive(self, number: int) -> None:
        request, first = self._asked[number]
        try:
            data = request.result()
        finally:
            same = [one for one, (other, _) in self._asked.items() if other is request]
            for one in same:
                del self._asked[one]
        for one in same:
            start = (one - first) * _BLOCK
            self._held[one] = data[start : start + _BLOCK]
        self._held.move_to_end(number)
        while len(self._held) > max(2 * _MOST_RUN, min(8 * _MOST_RUN, _BLOCKS // max(1, len(_open_files)))):
            del self._held[next(iter(self._held))]


def _done(data: memoryview) -> Future[memoryview]:
    made: Future[memoryview] = Future()
    made.set_result(data)
    return made


_MOST_REQUESTS = 16
_executor: ThreadPoolExecutor | None = None


def _pool() -> ThreadPoolExecutor:
    global _executor
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(_MOST_REQUESTS, thread_name_prefix="bucket")
        return _executor


# Copies on this machine, for libraries that take nothing but a file's name.


class _Copies:
    def __init__(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._folder: Path | None = None
        self._made: dict[tuple[str, Entry], Path] = {}

    def made(self, file: ObjectFile) -> Path:
        entry = file.entry
        with self._lock, file:
            copy = self._made.get((file.name, entry))
            if copy is not None:
                return copy
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="rlds2reverb-copies-"))
                atexit.register(self.remove)
            copy = self._folder / f"{len(self._made)}-{posixpath.basename(file.name)}"
            try:
                with copy.open("wb") as out:
                    shutil.copyfileobj(cast("IO[bytes]", file), out, _MOST_RUN * _BLOCK)
            except BaseException:
                copy.unlink(missing_ok=True)
                raise
            self._made[file.name, entry] = copy
            return copy

    def remove(self) -> None:
        if self._folder is not None and os.getpid() == self._process:  # a forked process has the copies of its parent
            shutil.rmtree(self._folder, ignore_errors=True)


_copies = _Copies()


def forget() -> None:
    """Looks up everything anew, credentials too; in a forked process, where connections and threads are those of its parent."""
    global _executor, _lock
    _executor, _lock = None, threading.RLock()
    _buckets.clear()
    _open_files.clear()


_at_fork: Any = getattr(os, "register_at_fork", None)  # Windows has none
if _at_fork is not None:
    _at_fork(after_in_child=forget)
