"""What a dataset says of itself: `metadata.json` from Minari 0.5 on, the attributes of the main file before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.json_files import read_object
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.minari.places import MAIN_FILE, METADATA_FILE, checked
from rlds2reverb.readers.minari.spaces import Leaf, parse_space
from rlds2reverb.wording import shortened

HDF5, ARROW, PARQUET = "hdf5", "arrow", "parquet"

_FORMATS = (HDF5, ARROW, PARQUET)
_MOST_BYTES = 1 << 28
"""Of a file of metadata: the bounds of a Box of images are in it, number by number."""


@dataclass(frozen=True)
class Facts:
    """What is known of a dataset before an episode is read.

    Attributes:
      folder: the folder `data`.
      format: one of "hdf5", "arrow", "parquet".
      told: the metadata; of an old dataset, the attributes.
      observation, action: the leaves of the spaces; None where the dataset has no spaces, as before Minari 0.4.
      follow_links: whether links may lead out of the dataset's folder.
    """

    folder: Path
    format: str
    told: Mapping[str, Any]
    observation: tuple[Leaf, ...] | None
    action: tuple[Leaf, ...] | None
    follow_links: bool = False

    @property
    def episodes(self) -> int | None:
        """How many episodes it says that it has."""
        told = self.told.get("total_episodes")
        return int(told) if isinstance(told, (int, np.integer)) else None

    def checked(self, path: Path) -> Path:
        """A path of the dataset; raises `SourceError` where it leads out of its folder, and may not."""
        return checked(self.folder, path, self.follow_links)


def read_facts(folder: Path, follow_links: bool = False) -> Facts:
    """The facts of a folder `data`.

    Args:
      folder: it.
      follow_links: whether links may lead out of the dataset's folder.

    Raises:
      SourceError: there are none, or they make no sense.
    """
    file = checked(folder, folder / METADATA_FILE, follow_links)
    if file.is_file():
        told, where = read_json(file), str(file)
        kind = told.get("data_format", HDF5)
        if kind not in _FORMATS:
            raise SourceError(f"{file}: data_format {shortened(repr(kind))}; expected one of {', '.join(_FORMATS)}")
    else:
        where, kind = str(folder / MAIN_FILE), HDF5
        with hdf5.opened(checked(folder, folder / MAIN_FILE, follow_links)) as main:
            told = hdf5.attributes(main)
        if "total_episodes" not in told:
            raise SourceError(
                f"{where}: no attribute total_episodes, and no {METADATA_FILE} beside it; expected a dataset of Minari"
            )
    observation, action = (_space(told, name, where) for name in ("observation_space", "action_space"))
    return Facts(folder, kind, told, observation, action, follow_links)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; it may hold `Infinity`.

    Raises:
      SourceError: it cannot be read, or is none.
    """
    return read_object(file, "a file of a dataset of Minari", _MOST_BYTES)


def _space(told: Mapping[str, Any], name: str, where: str) -> tuple[Leaf, ...] | None:
    return parse_space(told[name], f"{where}: {name}") if told.get(name) is not None else None
