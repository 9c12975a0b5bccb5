"""Minari's remote places, where datasets lie that are not on this machine: their names, what is there, and downloads.

| Minari's word | a dataset lies in |
| --- | --- |
| `hf://ORGANISATION` | `hf://datasets/ORGANISATION/ID`: the first part of the id is the name of the hub's dataset |
| `gcp://BUCKET`, here also `gs://` and `s3://` | `gs://BUCKET/ID`, `s3://BUCKET/ID` |

Source: minari/storage/remotes and minari/storage/hosting.py of Minari 0.5.4, which knows `hf` and `gcp`.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from rlds2reverb.errors import SourceError
from rlds2reverb.files import at_end, put, sync, write_json, write_whole
from rlds2reverb.formats.buckets import BucketPath, path_of
from rlds2reverb.formats.objects.file import Entry
from rlds2reverb.locks import lock_file
from rlds2reverb.text import shortened, size

REMOTE_VARIABLE = "MINARI_REMOTE"
MINARIS_REMOTE = "hf://farama-minari"
"""Where Minari 0.5.4 itself looks without the variable; here nothing is read from a network that was not asked for."""

DOWNLOAD, NEVER = "download", "never"
"""Values of the option `remote` that name no place: what is not on this machine is downloaded, or is not looked for elsewhere."""

METADATA_FILE = "metadata.json"
MAIN_FILE = "main_data.hdf5"
NAMESPACE_FILE = "namespace_metadata.json"

_STORES = {"gcp": "gs", "gs": "gs", "s3": "s3"}  # Minari's word for a store -> the scheme here


def remote_folder(remote: str, name: str = "") -> Path:
    """The folder of a dataset at a remote place, as Minari writes such places: gcp://BUCKET or hf://ORGANISATION.

    In a bucket an id is the path of the folder; on the hub its first part is a repository of datasets.

    Args:
      remote: the value of `MINARI_REMOTE`, or of the option `remote`.
      name: the dataset's id; "" for the whole place, which only a bucket has.

    Raises:
      SourceError: the place is written in another way.
    """
    scheme, separator, place = remote.partition("://")
    place = place.rstrip("/")
    if scheme == "hf" and separator and name and place and "/" not in place:
        return path_of(f"hf://datasets/{place}/{name}")
    if scheme in _STORES and separator and place:
        return path_of(f"{_STORES[scheme]}://{place}/{name}".rstrip("/"))
    raise SourceError(
        f"remote place {shortened(remote)!r}: expected gcp://BUCKET, s3://BUCKET or hf://ORGANISATION, such as {MINARIS_REMOTE}; "
        f"the option remote may also be {DOWNLOAD} or {NEVER}"
    )


def split_full_name(text: str) -> tuple[str, str] | None:
    """Splits a dataset's full name, as `minari download` takes it, into the remote place and the id, "" for the whole place; None for other texts.

    >>> split_full_name("hf://farama-minari/D4RL/door/human-v2")
    ('hf://farama-minari', 'D4RL/door/human-v2')
    >>> split_full_name("hf://datasets/farama-minari/D4RL"), split_full_name("/a/path")
    (None, None)
    """
    scheme, separator, rest = text.partition("://")
    place, _, name = rest.strip("/").partition("/")
    if not separator or not place or scheme not in ("hf", *_STORES) or (scheme == "hf" and place == "datasets"):
        return None
    return f"{scheme}://{place}", name


def list_remote(remote: str, prefix: str = "") -> dict[str, int]:
    """The ids of the datasets at a remote place -> the bytes of their files, sorted by id.

    Args:
      remote: as of `remote_folder`.
      prefix: the ids' beginning, "" for all. A namespace ends in "/".

    Raises:
      SourceError: the place is written in another way.
      StorageError: it does not answer.
    """
    scheme, _, place = remote.partition("://")
    if scheme != "hf":
        folder = remote_folder(remote)
        return _ids_in(folder, prefix)
    remote_folder(remote, "x")  # refuses another way of writing
    from rlds2reverb.formats.objects.hub import list_repositories

    repositories = [name.rpartition("/")[2] for name in list_repositories(place.rstrip("/"))]
    first, slash, _ = prefix.partition("/")
    chosen = [name for name in repositories if (name == first if slash else name.startswith(first))]
    with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
        parts = pool.map(lambda name: _ids_in(remote_folder(remote, name), "", f"{name}/"), chosen)
        ids = {name: count for part in parts for name, count in part.items() if name.startswith(prefix)}
    return dict(sorted(ids.items()))


_LISTED_AT_ONCE = 10
_DATA_FILE = re.compile(rf"(?:(.*)/)?data/(?:{re.escape(METADATA_FILE)}|{re.escape(MAIN_FILE)})")


def _ids_in(folder: Path, prefix: str, above: str = "") -> dict[str, int]:
    """Ids -> bytes, of the datasets below a folder, which stands for `above` in ids: one listing of all that is there."""
    files = _files_below(folder / prefix.rpartition("/")[0] if prefix else folder, folder)
    ids: dict[str, int] = {}
    for name in files:
        if match := _DATA_FILE.fullmatch(name):
            ids[match[1] or ""] = 0
    for name, entry in files.items():
        parts = name.split("/")
        for count in range(len(parts)):
            if (dataset := "/".join(parts[:count])) in ids:
                ids[dataset] += entry.size
                break
    named = {f"{above}{name}".rstrip("/"): count for name, count in ids.items()}
    return dict(sorted((name, count) for name, count in named.items() if name and name.startswith(prefix)))


def _files_below(folder: Path, top: Path) -> dict[str, Entry]:
    """Path below `top` -> entry, of all files in a folder of a bucket."""
    if not isinstance(folder, BucketPath):
        raise SourceError(f"{folder}: expected a place in a bucket or on the hub")
    entries = folder.bucket.list_entries(folder.key, True)
    skipped = len(str(top)) + 1
    return {name[skipped:]: entry for name, entry in entries.items()}


def download(folder: Path, name: str, root: Path, check: Callable[[Path], None]) -> None:
    """Downloads a dataset into the folder of all datasets, where it appears whole or not at all.

    A download that was stopped goes on in the middle of a file if the remote still has the same files; another process that wants the same
    dataset waits. As Minari does, it also takes what the namespaces around the dataset say of themselves.

    Args:
      folder: of the dataset, at the remote place.
      name: its id.
      root: the folder of all datasets on this machine.
      check: is called with the folder of the whole download before it gets its name, and raises what is wrong with it.

    Raises:
      SourceError: it cannot be written, has other contents than the remote says, or does not fit on the disk.
      StorageError: the remote does not answer.
    """
    target = root / name
    if isinstance(root, BucketPath):
        raise SourceError(
            f"{root}: nothing is downloaded into a bucket; without remote=download {folder} is read where it lies"
        )
    work = target.with_name(f".{target.name}.downloading")
    try:
        while not target.exists():
            work.mkdir(parents=True, exist_ok=True)
            with lock_file(work / "lock") as is_ours:
                if is_ours and not target.exists():
                    _fill(folder, work, check)
                    _take_namespaces(folder, name, root)
                    (work / _WHOLE).rename(target)
                    sync(target.parent)
            if target.exists():
                shutil.rmtree(work, ignore_errors=True)  # a process that has waited may do it, too
            else:  # another process downloads it
                time.sleep(_WAIT_SECONDS)
    except OSError as error:
        reason = error.strerror or error
        raise SourceError(f"{target}: cannot be downloaded: {reason}; the same command goes on") from error


_WHOLE, _FILES = "dataset", "files.json"
_WAIT_SECONDS = 0.2
_AT_ONCE = 4  # files; each is asked for by several ranges at once
_BLOCK_BYTES = 4 << 20
_SYNC_BYTES = 64 << 20
"""After so many bytes a file is put on disk. A download goes on from there: what was written later may be lost with the machine's power."""


def _fill(folder: Path, work: Path, check: Callable[[Path], None]) -> None:
    """Fills `work/dataset` with the files of a remote folder."""
    entries = {name: entry for name, entry in _files_below(folder, folder).items() if name}
    if any(part in ("", ".", "..") for name in entries for part in name.split("/")):
        raise SourceError(f"{folder}: a file there has a name that no file here can have")
    whole, listed = work / _WHOLE, work / _FILES
    versions = {
        name: [entry.size, entry.etag or entry.blob or str(entry.seconds)] for name, entry in sorted(entries.items())
    }
    try:
        is_same = json.loads(listed.read_bytes()) == versions
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir(exist_ok=True)
        write_json(listed, versions)
    missing = {name: entry for name, entry in entries.items() if not (whole / name).exists()}
    needed = sum(entry.size - _size_of(_unfinished(whole / name)) for name, entry in missing.items())
    if needed > (free := shutil.disk_usage(work).free):
        raise SourceError(
            f"{folder}: {size(needed)} are missing here, and {work} has room for {size(free)}; make room, and the same command goes on"
        )
    stop = Event()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        copies = [pool.submit(_copy, folder / name, entry, whole / name, stop) for name, entry in missing.items()]
        try:
            for copy in copies:
                copy.result()
        except BaseException:  # an interrupt, too, does not wait for a large file
            stop.set()
            for copy in copies:
                copy.cancel()
            raise
    try:
        check(whole)
    except SourceError:
        shutil.rmtree(work, ignore_errors=True)  # what is whole and wrong is not taken again
        raise


def _unfinished(file: Path) -> Path:
    return file.with_name(f".{file.name}.unfinished")


def _size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _copy(path: Path, entry: Entry, to: Path, stop: Event) -> None:
    """Copies an object, from where an earlier copy ended; the file gets its name when it is whole and on disk."""
    to.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(to)
    done = _size_of(unfinished)
    if done > entry.size:
        unfinished.unlink()
        done = 0
    done = max(0, done - 1) // _SYNC_BYTES * _SYNC_BYTES
    digest = hashlib.sha256()
    if entry.sha256 and done:
        with unfinished.open("rb") as earlier:
            for _ in range(done // _BLOCK_BYTES):
                digest.update(earlier.read(_BLOCK_BYTES))
    assert isinstance(path, BucketPath)  # `_files_below` has looked
    with path.bucket.open_object(path.key, entry, done) as source, at_end(unfinished, done) as file:
        while not stop.is_set() and (block := source.read(_BLOCK_BYTES)):
            digest.update(block)
            file.write(block)
            done += len(block)
            if done % _SYNC_BYTES == 0:
                put(file)
        put(file)
    if stop.is_set():
        return
    if done != entry.size or (entry.sha256 and digest.hexdigest() != entry.sha256):
        unfinished.unlink()
        raise SourceError(
            f"{path}: came with {done:,} bytes and another SHA-256 than {posixpath.dirname(str(path))} says; the same command begins this file anew"
        )
    unfinished.replace(to)
    sync(to.parent)


def _take_namespaces(folder: Path, name: str, root: Path) -> None:
    """Copies what the namespaces around a dataset say of themselves, where nothing is here."""
    parts = name.split("/")
    for count in range(1, len(parts)):
        above = folder
        for _ in parts[count:]:
            above = above.parent
        here = root.joinpath(*parts[:count]) / NAMESPACE_FILE
        if not here.exists() and (above / NAMESPACE_FILE).is_file():
            write_whole(here, (above / NAMESPACE_FILE).read_bytes())


def version_behind(name: str, folder: str) -> str:
    """The version, such as "-v2", that the name of a dataset's folder has behind an id without one; else "".

    >>> version_behind("door/human", "human-v2"), version_behind("door/human-v2", "human-v2"), version_behind("door/human", "expert-v2")
    ('-v2', '', '')
    """
    match = re.fullmatch(rf"{re.escape(name.rpartition('/')[2])}(-v\d+)", folder, re.ASCII)
    return match[1] if match is not None else ""


def newest_of(name: str, folders: Iterable[str]) -> str | None:
    """The id of the newest version, among names of folders, of an id without a version; None if it has one, or there is none."""
    if re.search(r"-v\d+$", name, re.ASCII):
        return None
    versions = filter(None, (version_behind(name, folder) for folder in folders))
    newest = max(versions, key=lambda version: int(version[2:]), default=None)
    return None if newest is None else f"{name}{newest}"
