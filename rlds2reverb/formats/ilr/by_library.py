"""What webdataset, by which il-representations reads, reads of a shard that is written; and NumPy or pickle of a dict."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from webdataset.tariterators import group_by_keys, tar_file_expander

from rlds2reverb.episode import Array
from rlds2reverb.formats.ilr.keys import DONES, FRAME, TERMINALS, column_of, is_observation, next_of
from rlds2reverb.formats.ilr.write import ARRAYS

_SUFFIX = ".pickle"


def read_back(path: Path) -> Iterator[dict[str, Array]]:
    """The columns of every trajectory of a folder of archives, or of an archive.

    Raises:
      ImportError: zstd is unpacked by the program of that name, as webdataset does it, and that is not there.
      ValueError: it cannot be unpacked.
    """
    if path.name.endswith(ARRAYS):
        yield from _read_arrays(path)
        return
    for archive in sorted(path.glob("*.tar.zst")) if path.is_dir() else (path,):
        yield from _read_archive(archive)


def _read_arrays(path: Path) -> Iterator[dict[str, Array]]:
    if path.suffix == ".npz":
        with np.load(
            path, allow_pickle=True
        ) as file:  # as `load_dataset_atari` does it; the file is this package's own
            arrays = dict(file)
    else:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            arrays = _Numbers(stream).load()
    steps = [dict(zip(arrays, row)) for row in zip(*arrays.values())]
    start = 0
    for stop in (np.flatnonzero(arrays[DONES]) + 1).tolist():
        yield _columns(steps[start:stop])
        start = stop


def _read_archive(path: Path) -> Iterator[dict[str, Array]]:
    steps: list[dict[str, Any]] = []
    with _unpacked(path) as stream:
        for sample in group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}])):
            if f"{FRAME}{_SUFFIX}" not in sample:
                continue  # the description
            steps.append(
                {
                    key.removesuffix(_SUFFIX): _Numbers(io.BytesIO(value)).load()
                    for key, value in sample.items()
                    if key.endswith(_SUFFIX)
                }
            )
            if steps[-1][DONES]:
                yield _columns(steps)
                steps = []


@contextmanager
def _unpacked(archive: Path) -> Iterator[IO[bytes]]:
    """The tar file. It is not named to webdataset: that takes braces in a name as several files, and gives a command with it to a shell."""
    if archive.suffix != ".zst":
        with archive.open("rb") as file:
            yield file
        return
    program = shutil.which("zstd")
    if program is None:
        raise ImportError("the program zstd is not there")
    command = [program, "-dcq", "--", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout
        process.stdout.read()
        if code := process.wait():
            raise ValueError(f"zstd ended with {code}")


class _Numbers(pickle.Unpickler):
    """Unpickles what is written into steps: numbers and texts, and no other classes than numpy's."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"{module}.{name} in a step")
        return super().find_class(module, name)


def _columns(steps: list[dict[str, Any]]) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for key in steps[0]:
        column = column_of(key)
        if column is None or key in (DONES, FRAME, TERMINALS):
            continue
        values = [step[key] for step in steps]
        if is_observation(key):
            values.append(steps[-1][next_of(key)])
        columns |= _leaves(column, values)
    return columns


def _leaves(path: str, values: list[Any]) -> dict[str, Array]:
    first = values[0]
    if isinstance(first, Mapping):
        return {
            name: leaf
            for key in first
            for name, leaf in _leaves(f"{path}/{key}", [value[key] for value in values]).items()
        }
    if isinstance(first, (bytes, str)):
        return {path: np.array([value.encode() if isinstance(value, str) else value for value in values], object)}
    return {path: np.stack(values)}
