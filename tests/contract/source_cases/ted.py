"""TorchRL's buffers, in TED's own form."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rlds2reverb.formats import open_source
from tests.contract.source_cases.writing import written
from tests.support.formats import ted as ted_data


def write(folder: Path, options: str = "?layout=memmap") -> str:
    """Writes a small buffer into a folder; the name of the source."""
    return written(f"ted:{folder / 'buffer'}{options}")


def copies(form: str) -> Callable[[Path], str]:
    """What copies a buffer that TorchRL wrote in a form into a folder; it gives the name of the source."""
    return lambda folder: f"ted:{shutil.copytree(ted_data.folder(ted_data.VERSIONS[0]) / form, folder / form)}"


def opened(written: str = "", options: str = "") -> Any:
    return open_source(write(Path(mkdtemp()), written) + options)


WRITE: dict[str, Callable[[Path], str]] = {
    "memory-mapped": write,
    "H5": lambda folder: write(folder, "?layout=h5"),
    **{f"{form} of TorchRL": copies(f"ring_{form}") for form in ("memmap", "flat", "nested", "h5")},
}
SOURCES = {
    "memory-mapped": lambda: opened("?layout=memmap"),
    "H5": opened,
    "a part": lambda: opened(options="?episodes=1:"),
    "with next": lambda: opened("?layout=memmap", "?next=keep"),
}
PUSHED = ["memory-mapped", "H5"]
