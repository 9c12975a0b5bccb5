"""Files of a run: checked first, read within bounds, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlds2reverb.errors import ConfigError, SourceError, WriteError
from rlds2reverb.text import shortened


def check_regular(path: Path) -> os.stat_result:
    """The `stat` of a regular file. A pipe or a device is not opened: that may wait for ever, or never end.

    Raises:
      SourceError: it is something else, such as a pipe, a device, a socket or a folder.
      OSError: there is none.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{path}: cannot be read: not a regular file")
    return status


def can_be_written(path: Path) -> bool:
    """Whether a file can be written, or created in its folder. Creates none."""
    place = path if path.exists() else path.parent
    return not path.is_dir() and place.exists() and os.access(place, os.W_OK)


def can_be_replaced(path: Path) -> bool:
    """Whether a file can be put there, in place of a file or of nothing, but of no device and no pipe. Creates none."""
    return can_be_written(path) and (not path.exists() or path.is_file())


def check_can_be_replaced(path: Path, name: object, error: type[ConfigError] | type[WriteError] = WriteError) -> None:
    """Refuses a place where `whole_or_none` can put no file: called before the work that would be lost at its end.

    Args:
      name: of the file, in the message, such as "--html page.html".

    Raises:
      error: no file can be put there.
    """
    # The unfinished file lies beside the target of a link, in a folder that may be closed where the file itself is open.
    if can_be_replaced(path) and can_be_replaced(unfinished_file(path)):
        return
    if path.is_dir():
        reason = "it is a folder"
    elif path.exists() and not path.is_file():
        reason = "it is a device or a pipe"
    elif path.exists() and not can_be_written(path):
        reason = "the file there is write-protected"
    else:
        reason = "its folder is not there, or cannot be written"
    raise error(f"{name}: no file can be written there: {reason}; name another file")


@contextmanager
def writing(name: object, way_out: str) -> Iterator[None]:
    """Turns the system's error into ours when a file cannot be written.

    Args:
      name: of the file, in the message.
      way_out: what is lost, and how to go on.

    Raises:
      WriteError: it cannot be written.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise write_error(name, error, way_out) from error


def write_error(name: object, error: OSError, way_out: str) -> WriteError:
    """The error for a file that cannot be written; see `writing`."""
    reason = " ".join(str(error).split()) if error.errno is None else os.strerror(error.errno)
    return WriteError(f"{name}: cannot be written: {reason}; {way_out}", error.errno)


def append_whole(path: Path, text: str, name: object, way_out: str) -> None:
    """Appends text to a file, all of it or nothing: a full disk leaves no line that is cut short.

    Raises:
      WriteError: it cannot be written; see `writing` for `name` and `way_out`.
    """
    data = text.encode()
    with writing(name, way_out), path.open("ab", buffering=0) as file:
        status = os.fstat(file.fileno())
        written = 0
        try:
            while written < len(data):
                written += file.write(data[written:])
        except OSError:
            # Only if no other process has appended meanwhile.
            if stat.S_ISREG(status.st_mode) and os.fstat(file.fileno()).st_size == status.st_size + written:
                with suppress(OSError):
                    file.truncate(status.st_size)
            raise


MOST_BYTES = 16 << 20
"""Most bytes of a JSON file, unless a format says otherwise. Those of large robot datasets have some hundred kilobytes."""


def read_object(path: Path, expected: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Args:
      expected: what was expected if it is missing; the end of a sentence.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path}: not a regular file")
        if status.st_size > most:
            raise SourceError(f"{path}: has {status.st_size:,} bytes; expected at most {most:,}")
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}; expected {expected}") from error
    except ValueError as error:  # a NUL in the path
        raise SourceError(f"{str(path)!r}: no path: {error}") from error
    return parsed_object(path, data)


def parsed_object(path: Path, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON: {shortened(' '.join(str(error).split()))}") from error
    if not isinstance(document, dict):
        raise SourceError(f"{path}: expected a JSON object, found {shortened(json.dumps(document))}")
    return document


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yields the path to write a file to; then it gets the name `path`, once it is on disk, and replaces a file of that name.

    After an error, or a kill, the unfinished file stays; the next one is written over it.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    yield unfinished
    sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)


@contextmanager
def whole_or_none(path: Path) -> Iterator[Path]:
    """As `whole`, where several processes may write to one name at once: the last one's file stays.

    Each has an unfinished file of its own. After an error it is removed, after a kill it stays. A link stays, and its target is
    replaced.
    """
    unfinished, target = unfinished_file(path), Path(os.path.realpath(path))
    try:
        yield unfinished
        sync(unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(target.parent)


def unfinished_file(path: Path) -> Path:
    """The unfinished file of `whole_or_none` in this process."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.{os.getpid()}.unfinished")


def write_whole(path: Path, data: bytes) -> None:
    with whole(path) as unfinished:
        unfinished.write_bytes(data)


def write_json(path: Path, value: Mapping[str, Any], **style: Any) -> None:
    """Writes a JSON object, whole or not at all; `style` is of `json.dumps`."""
    write_whole(path, json.dumps(value, **style).encode())


def remove_whole(folder: Path) -> None:
    """Removes a folder: after a kill all of it is there, or nothing under its name; called again, it removes the rest."""
    leaving = folder.with_name(f"{folder.name}-done")
    if leaving.exists():
        shutil.rmtree(leaving)
    if folder.exists():
        folder.rename(leaving)
        shutil.rmtree(leaving)


def cache_folder(name: str) -> Path:
    """A folder for what can be made again, or is on its way: `RLDS2REVERB_CACHE`, or `rlds2reverb` in `XDG_CACHE_HOME` (~/.cache). It need not exist.

    Raises:
      ConfigError: none is set, and there is no home folder.
    """
    try:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlds2reverb"
        return Path(os.environ.get("RLDS2REVERB_CACHE") or usual).expanduser() / name
    except RuntimeError as error:
        raise ConfigError(f"no folder for a cache: {error}; set RLDS2REVERB_CACHE") from error


def sync(path: Path) -> None:
    """Puts a file on disk, or a folder's list of names where the system lets a program do that."""
    if path.is_dir():
        if os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY)
    else:
        descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_BUFFER_BYTES = 1 << 20


def at_end(path: Path, size: int) -> Any:
    """A file to append to, cut to its first `size` bytes, as a saved state says; a new one where there is none and `size` is 0.

    Raises:
      OSError: it has fewer bytes, or the disk.
    """
    there = path.stat().st_size if path.exists() else 0
    if there < size:
        raise lost(path, size)
    file = path.open("r+b" if path.exists() else "w+b", buffering=_BUFFER_BYTES)
    file.truncate(size)
    file.seek(size)
    return file


def put(file: Any) -> None:
    """Puts an open file on disk."""
    file.flush()
    os.fsync(file.fileno())


def lost(path: Path, size: int) -> OSError:
    """The error for a file that has lost bytes which were on disk."""
    return OSError(
        f"{path}: has fewer than the {size:,} bytes that were on disk; begin anew with restart=True (--restart)"
    )


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of linux/fcntl.h and linux/fs.h


def exchange_names(path: Path, other: Path) -> bool:
    """Exchanges two files or folders of one file system at once, so that there is one of either name at any time.

    Returns False, and changes nothing, where the system cannot: only Linux can (renameat2), and not on every file system.
    """
    import ctypes  # for this alone

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # another libc, or Windows
        return False
    failed: int = rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return failed == 0
