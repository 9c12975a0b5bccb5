"""Where Minari's datasets lie, and what each says of itself: `metadata.json`, or before 0.5 the attributes of its main file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.files import read_object
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.minari.spaces import Leaf, parse_space
from rlds2reverb.formats.paths import check_link
from rlds2reverb.text import shortened

ROOT_VARIABLE = "MINARI_DATASETS_PATH"
METADATA_FILE = "metadata.json"
MAIN_FILE = "main_data.hdf5"

_ID = re.compile(r"[\w-][\w:.-]*(/[\w-][\w:.-]*)*")
_MOST_FOLDERS = 20_000
_MOST_DEEP = 8
_MOST_NEAR = 3


def is_id(text: str) -> bool:
    """Whether it is written as an id; anything else is a path."""
    return _ID.fullmatch(text) is not None


def datasets_root() -> Path:
    """The folder of all datasets, as Minari finds it."""
    told = os.environ.get(ROOT_VARIABLE)
    return Path(told) if told is not None else Path.home() / ".minari" / "datasets"


def data_folder(text: str) -> Path:
    """The folder `data` of a dataset.

    Args:
      text: an id, or a path: of the dataset's folder, or of its folder `data`.

    Raises:
      SourceError: there is no dataset; names those whose ids are like it.
    """
    if is_id(text):
        return _of_id(text)
    if not text:
        raise SourceError(f"expected the id of a Minari dataset or a path{_told(datasets_root())}")
    path = Path(text).expanduser()
    for folder in (path / "data", path):
        if _is_data(folder):
            return folder
    raise SourceError(
        f"{path}: no Minari dataset: expected {METADATA_FILE} or {MAIN_FILE} there or in data/{_told(path)}"
    )


def checked(folder: Path, path: Path, follow_links: bool) -> Path:
    """A path in a dataset's folder.

    Args:
      folder: its folder `data`.
      path: the path.
      follow_links: whether it may lead out of the dataset's folder.

    Raises:
      SourceError: it leads there, and may not.
    """
    if not follow_links:
        try:
            check_link(folder.parent, path)
        except SourceError as error:
            raise SourceError(f"{error}; or, if you trust it, add links=follow behind the name") from error
    return path


def _of_id(name: str) -> Path:
    root = datasets_root()
    folder = root / name / "data"
    if _is_data(folder):
        return folder
    if folder.is_dir():
        raise SourceError(f"{folder}: expected {METADATA_FILE} or {MAIN_FILE}{_told(folder)}")
    near = _near(name, list(_ids(root)))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if Path(name).is_dir():
        hint += f"; to read the folder {name}, write ./{name}"
    where = f"${ROOT_VARIABLE}" if ROOT_VARIABLE in os.environ else "$" + ROOT_VARIABLE + " is not set"
    raise SourceError(f'no Minari dataset "{name}" in {root} ({where}){hint}')


def _is_data(folder: Path) -> bool:
    return (folder / METADATA_FILE).is_file() or (folder / MAIN_FILE).is_file()


def _told(path: Path) -> str:
    if not path.exists():
        return "; there is no such folder"
    if not path.is_dir():
        return "; it is no folder"
    below = list(_ids(path))[:_MOST_NEAR]
    return f"; below it are the datasets {', '.join(below)}" if below else "; found neither"


def _near(name: str, known: list[str]) -> list[str]:
    """Similar ids: similar in spelling, or the same name in another version or namespace."""
    plain = {one.lower(): one for one in known}
    last = {one.lower().rsplit("/", 1)[-1]: one for one in known}
    found = [plain[one] for one in get_close_matches(name.lower(), plain, _MOST_NEAR)]
    found += [last[one] for one in get_close_matches(name.lower().rsplit("/", 1)[-1], last, 1)]
    return list(dict.fromkeys(found))[:_MOST_NEAR]


def _ids(root: Path) -> Iterator[str]:
    """The ids of the datasets below a folder. A folder with a subfolder `data` is a dataset; it is not searched."""
    waiting = [(root, 0)]
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        folder, depth = waiting.pop()
        try:
            if folder != root and (folder / "data").is_dir():
                yield folder.relative_to(root).as_posix()
            elif depth < _MOST_DEEP:
                below = sorted(one for one in folder.iterdir() if not one.name.startswith(".") and one.is_dir())
                waiting += [(one, depth + 1) for one in reversed(below)]
        except OSError:  # a folder that may not be read has no datasets for us
            continue


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
