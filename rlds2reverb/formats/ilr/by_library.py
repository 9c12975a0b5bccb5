"""What webdataset, by which il-representations reads, reads of a shard that is written."""

from __future__ import annotations

import io
import pickle
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

from rlds2reverb.episode import Array
from rlds2reverb.formats.ilr.keys import DONES, FRAME, TERMINALS, column_of, is_observation, next_of
from rlds2reverb.formats.ilr.write import ARCHIVE

_SUFFIX = ".pickle"


def read_back(path: Path) -> Iterator[dict[str, Array]]:
    """The columns of every trajectory of a folder with one archive, or of an archive.

    Raises:
      ImportError: webdataset unpacks zstd by the program of that name, which is not there.
    """
    archive = path / ARCHIVE if path.is_dir() else path
    url = str(archive)
    if archive.suffix == ".zst":
        if shutil.which("zstd") is None:
            raise ImportError("the program zstd is not there")
        url = f"pipe:zstd -dcq '{archive}'"
    steps: list[dict[str, Any]] = []
    for sample in webdataset.WebDataset(url, shardshuffle=False):
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
