"""Columns -> the file that TorchRL's H5StorageCheckpointer writes of a full buffer: a group for each trajectory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from rlds2reverb.destinations.hdf5_files import Output
from rlds2reverb.destinations.ted.spool import Growing
from rlds2reverb.episodes import Array


def write_h5(path: Path, columns: Mapping[str, tuple[Path, Growing]], lengths: Array, compression: str | None) -> None:
    """Writes the file.

    Args:
      path: of the file; one that is there is replaced.
      columns: key -> a file of raw rows, and what they are.
      lengths: [episodes] steps of each.
      compression: of h5py's `create_dataset`.

    Raises:
      OSError: the disk.
    """
    width = math.ceil(math.log10(len(lengths)))
    steps = int(lengths.sum())
    with Output(path) as output, h5py.File(output, "w") as file:
        rows = {name: _mapped(raw, column, steps, len(lengths)) for name, (raw, column) in columns.items()}
        stops = np.cumsum(lengths)
        for number, length in enumerate(lengths.tolist()):
            group = file.create_group(f"traj_{number:0{width}d}")
            start = int(stops[number]) - length
            for name, (_, column) in columns.items():
                more = (number, number + 1) if column.has_ends else (0, 0)
                values = rows[name][start + more[0] : start + length + more[1]]
                group.create_dataset(name, data=values, compression=compression)
                output.check()
        for name, value in (
            ("is_full", True),
            ("shift", steps),
            ("_storage_shape", np.array([steps])),
            ("_len", steps),
        ):
            file.create_dataset(name, data=value)


def _mapped(path: Path, column: Growing, steps: int, episodes: int) -> Array:
    shape = (column.rows(episodes, steps), *column.row)
    if not column.row_bytes:
        return np.empty(shape, column.dtype)
    return np.memmap(path, column.dtype.newbyteorder("<"), "r", shape=shape)
