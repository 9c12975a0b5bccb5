"""The datasets that ship inside the package, found by name.

Turns a dataset name into the directory of its files (RLDS episodes in the TFDS on-disk format).
Uses the standard library only; the files are written by `examples/record_datasets.py`.
"""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import Lazily
from rlds2reverb.formats.options import escaped

if TYPE_CHECKING:
    from rlds2reverb.formats.source import Source


BUNDLED: tuple[str, ...] = ("cartpole", "half_cheetah")

_VERSION = "1.0.0"


def bundled_path(name: str) -> pathlib.Path:
    """Return the version directory of a bundled dataset, ready for `tfds.builder_from_directory`.

    Args:
        name: one of `BUNDLED`.

    Raises:
        ValueError: if `name` is not in `BUNDLED`.
    """
    if name not in BUNDLED:
        raise ValueError(f'unknown bundled dataset: expected one of {", ".join(BUNDLED)}, got "{name}"')
    return pathlib.Path(__file__).parents[1] / "formats" / "datasets" / name / _VERSION


_open_tfds = Lazily("rlds2reverb.formats.tfds.read:open_tfds")  # so that a wrong name is told without numpy


def open_bundled(text: str) -> Source:
    """Opens the part of a source name after "bundled:", "NAME[@SPLIT][?OPTIONS]".

    Raises:
      SourceError: no such dataset or split, or an unknown option.
    """
    dataset = re.split("[@?]", text, maxsplit=1)[0]
    try:
        path = bundled_path(dataset)
    except ValueError as error:
        raise SourceError(str(error)) from error
    return _open_tfds(f"{escaped(path)}{text.removeprefix(dataset)}", f"bundled:{text}")  # type: ignore[no-any-return]


__all__ = ["BUNDLED", "bundled_path"]
