"""robomimic's files."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import h5py

from rlds2reverb.formats import open_source
from tests.support.formats.robomimic import demonstrations, write_file


def write(folder: Path) -> str:
    """Writes a small file into a folder; the name of the source."""
    with h5py.File(folder / "data.hdf5", "w") as file:
        write_file(file, demonstrations((3, 2, 4, 2, 3)))
        file["mask/valid"] = [b"demo_1", b"demo_3"]
    return f"robomimic:{folder / 'data.hdf5'}"


def opened(options: str = "") -> Any:
    return open_source(write(Path(mkdtemp())) + options)


SOURCES = {
    "as it is": opened,
    "masked": lambda: opened("?filter=valid"),
    "with ends": lambda: opened("?done_means=terminal,last_step=mark"),
    "after": lambda: opened("?align=after"),
}
PUSHED = ["as it is"]
