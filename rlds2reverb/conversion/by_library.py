"""What a destination's own library reads of a dataset that is written: in a process of its own, for some libraries die of files that they cannot read.

The process runs this module, and writes pickled episodes to its standard output: columns as its `read_back` gives them, or the text of an
error.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Generator, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConversionError
from rlds2reverb.formats.registry import DESTINATIONS, LibraryReader
from rlds2reverb.text import shortened

_MISSING, _FAILED = "missing", "failed"
_LONGEST_WAIT = 600.0
"""Seconds for a library's start and an episode; some read a file that they do not understand for ever."""


def reader_of(name: str) -> LibraryReader | None:
    """The reader of a destination's own library, if that is installed in a version that knows what is written; else None."""
    entry = DESTINATIONS.find(name)
    reader = None if entry is None else entry[1].library
    if reader is None or any(find_spec(module) is None for module in reader.modules):
        return None
    try:
        return reader if _numbers(version(reader.package)) >= reader.oldest else None
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:3]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def version_of(reader: LibraryReader) -> str:
    """What messages call it: "minari 0.5.4"."""
    return f"{reader.package} {version(reader.package)}"


def read_back(reader: LibraryReader, path: Path) -> Generator[Mapping[str, Array], None, None]:
    """The columns of every episode, as the library reads them; see `differs`.

    Raises:
      ImportError: the library cannot be imported, or lacks a program that it needs.
      ConversionError: it cannot read the dataset, its process died of it, or gave no episode in `_LONGEST_WAIT`.
    """
    command = [
        sys.executable,
        "-m",
        __name__,
        f"{reader.read_back.__module__}:{reader.read_back.__qualname__}",
        str(path.absolute()),
    ]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **_QUIET}
    with (
        TemporaryFile() as said,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=variables
        ) as process,
    ):
        try:
            while (message := _receive(reader, process)) is not None:
                kind, value = message
                if kind == _MISSING:
                    raise ImportError(value)
                if kind == _FAILED:
                    raise ConversionError(f"{version_of(reader)} cannot read it: {value}")
                yield value
            if code := process.wait():
                said.seek(max(0, said.seek(0, os.SEEK_END) - 2000))
                text = " ".join(said.read().decode(errors="replace").split())
                raise ConversionError(
                    f"{version_of(reader)} cannot read it: its process ended with {code}: {shortened(text)}"
                )
        finally:
            process.kill()


def _receive(reader: LibraryReader, process: subprocess.Popen[bytes]) -> tuple[str, Any] | None:
    """The next message of the process; None after the last."""
    assert process.stdout is not None
    watch = Timer(_LONGEST_WAIT, process.kill)
    watch.start()
    try:
        message: tuple[str, Any] = pickle.load(process.stdout)  # by our own process
    except (EOFError, pickle.UnpicklingError):  # the latter of a process that died within an episode
        if watch.finished.is_set():
            raise ConversionError(f"{version_of(reader)} read no episode of it in {_LONGEST_WAIT:.0f} s") from None
        return None
    finally:
        watch.cancel()
    return message


_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def differs(column: Array, read: Array, is_last_known: bool = True) -> bool:
    """Whether a library's rows, or their number, differ from those of a column [T, ...].

    It gives T rows, or T - 1 where the last one belongs to no step of its own: TFDS always gives T; Minari T of observations, infos
    and ends, and T - 1 of actions and rewards; TorchRL and il-representations T of what each step has after it, too, and T - 1 of all
    else; LeRobot T with last_step=keep, and T - 1 without, except of ends. Libraries have some dtypes only, and numbers as [1]:
    then the values count. Of the same dtype every bit does.

    Args:
      is_last_known: False where the last row is reported to be another; then the rows before it count.
    """
    if len(read) not in (len(column), len(column) - 1):
        return True
    compared = min(len(read), len(column) if is_last_known else len(column) - 1)
    rows, read_back = column[:compared], read[:compared]
    if rows.size != read_back.size:
        return True
    read_back = read_back.reshape(rows.shape)
    if rows.dtype.kind == "O" or read_back.dtype.kind == "O":
        return bool(rows.tolist() != read_back.tolist())
    if rows.dtype == read_back.dtype:
        return bool(rows.tobytes() != read_back.tobytes())
    return not np.array_equal(rows, read_back, equal_nan=rows.dtype.kind in "fc" and read_back.dtype.kind in "fc")


def _send(where: str, path: str) -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print
    for kind, value in _read(where, path):
        pickle.dump((kind, value), out, pickle.HIGHEST_PROTOCOL)
        out.flush()


def _read(where: str, path: str) -> Iterator[tuple[str, Any]]:
    warnings.simplefilter("ignore")
    try:
        for columns in resolve_name(where)(Path(path)):
            yield "columns", columns
    except ImportError as error:
        yield _MISSING, str(error)
    except Exception as error:
        yield _FAILED, f"{type(error).__name__}: {shortened(' '.join(str(error).split()))}"


if __name__ == "__main__":
    _send(*sys.argv[1:])
