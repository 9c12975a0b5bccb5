"""Files that a run reads or writes: whether they can be, looked at before anything else is done, and errors that say which one failed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlds2reverb.errors import SourceError, WriteError


def check_regular(path: Path) -> os.stat_result:
    """What the system says of a regular file. A pipe or a device is not opened: that may wait for ever, or never end.

    Raises:
      SourceError: it is something else, such as a pipe, a device, a socket or a folder.
      OSError: there is none.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{path}: cannot be read: not a regular file")
    return found


def can_be_written(path: Path) -> bool:
    """Whether a file can be written, or could be made in its folder. Makes no file."""
    place = path if path.exists() else path.parent
    return not path.is_dir() and place.exists() and os.access(place, os.W_OK)


def can_be_replaced(path: Path) -> bool:
    """Whether a file can be put there, in place of a file or of nothing: no device and no pipe gives way. Makes no file."""
    return can_be_written(path) and (not path.exists() or path.is_file())


@contextmanager
def writing(name: object, way_out: str) -> Iterator[None]:
    """Makes an error of ours of what the system says when a file cannot be written.

    Args:
      name: of the file, as the message calls it.
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
    """What is said of a file that cannot be written; see `writing`."""
    reason = " ".join(str(error).split()) if error.errno is None else os.strerror(error.errno)
    return WriteError(f"{name}: cannot be written: {reason}; {way_out}", error.errno)


def append_whole(path: Path, text: str, name: object, way_out: str) -> None:
    """Appends text to a file, all of it or nothing: a full disk leaves no line that is cut short.

    Raises:
      WriteError: it cannot be written; see `writing` for `name` and `way_out`.
    """
    data = text.encode()
    with writing(name, way_out), path.open("ab", buffering=0) as file:
        found = os.fstat(file.fileno())
        written = 0
        try:
            while written < len(data):
                written += file.write(data[written:])
        except OSError:
            # Only where nobody else has appended meanwhile.
            if stat.S_ISREG(found.st_mode) and os.fstat(file.fileno()).st_size == found.st_size + written:
                with suppress(OSError):
                    file.truncate(found.st_size)
            raise
