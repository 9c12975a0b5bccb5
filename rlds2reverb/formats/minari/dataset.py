"""The places of Minari's datasets, and their metadata: `metadata.json`, or before 0.5 the attributes of the main file."""

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
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.minari.spaces import Leaf, describe_space, parse_space
from rlds2reverb.text import shortened

ROOT_VARIABLE = "MINARI_DATASETS_PATH"
REMOTE_VARIABLE = "MINARI_REMOTE"
MINARIS_REMOTE = "hf://farama-minari"
"""Where Minari 0.5.4 itself looks without the variable; here nothing is read from a network that was not asked for."""

_STORES = {"gcp": "gs", "gs": "gs", "s3": "s3"}  # Minari's word for a store -> the scheme here
METADATA_FILE = "metadata.json"
MAIN_FILE = "main_data.hdf5"

SAID_ANEW = (
    "dataset_id", "dataset_name", "total_episodes", "total_steps", "data_format", "observation_space", "action_space", "dataset_size",
    "jpeg_encoding", "minari_version"
)  # fmt: skip
"""Metadata that follow from the episodes, the columns or the name of a dataset."""

_ID = re.compile(r"[\w-][\w:.-]*(/[\w-][\w:.-]*)*")
_MOST_FOLDERS = 20_000
_MOST_DEEP = 8
_MOST_NEAR = 3


def is_id(text: str) -> bool:
    """Whether a text has the form of an id; any other is a path."""
    return _ID.fullmatch(text) is not None


def datasets_root() -> Path:
    """The folder of all datasets, which Minari finds by the same variable."""
    root = os.environ.get(ROOT_VARIABLE)
    return path_of(root) if root is not None else Path.home() / ".minari" / "datasets"


def remote_folder(remote: str, name: str = "") -> Path:
    """The folder of a dataset at a remote place, as Minari writes such places: gcp://BUCKET or hf://ORGANISATION.

    In a bucket an id is the path of the folder; on the hub its first part is a repository of datasets.

    Args:
      remote: the value of `MINARI_REMOTE`, or of the option `remote`.
      name: the dataset's id; "" for the whole place, which only a bucket has.

    Raises:
      SourceError: the place is written in another way.
    """
    scheme, separator, place = remote.partition("://")
    place = place.rstrip("/")
    if scheme == "hf" and separator and name and place and "/" not in place:
        return path_of(f"hf://datasets/{place}/{name}")
    if scheme in _STORES and separator and place:
        return path_of(f"{_STORES[scheme]}://{place}/{name}".rstrip("/"))
    raise SourceError(
        f"remote place {shortened(remote)!r}: expected gcp://BUCKET, s3://BUCKET or hf://ORGANISATION, such as {MINARIS_REMOTE}"
    )


def data_folder(text: str, remote: str | None = None) -> Path:
    """The folder `data` of a dataset, by its id, the path of its folder, or that of its folder `data`.

    An id is looked for on this machine first, then at the remote place.

    Args:
      text: the id or path.
      remote: see `remote_folder`; None for `$MINARI_REMOTE`, without which there is none.

    Raises:
      SourceError: there is no dataset; the message has similar ids.
    """
    if is_id(text):
        return _of_id(text, remote or os.environ.get(REMOTE_VARIABLE) or None)
    if not text:
        raise SourceError(f"expected the id of a Minari dataset or a path{_describe_place(datasets_root())}")
    path = path_of(text)
    for folder in (path / "data", path):
        if _is_data(folder):
            return folder
    raise SourceError(
        f"{path}: no Minari dataset: expected {METADATA_FILE} or {MAIN_FILE} there or in data/{_describe_place(path)}"
    )


def _of_id(name: str, remote: str | None) -> Path:
    root = datasets_root()
    folder = root / name / "data"
    if _is_data(folder):
        return folder
    if folder.is_dir():
        raise SourceError(f"{folder}: expected {METADATA_FILE} or {MAIN_FILE}{_describe_place(folder)}")
    if remote is not None and _is_data(far := remote_folder(remote, name) / "data"):
        return far
    near = _similar_ids(name, list(_ids(root)))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if Path(name).is_dir():
        hint += f"; to read the folder {name}, write ./{name}"
    where = f"${ROOT_VARIABLE}" if ROOT_VARIABLE in os.environ else "$" + ROOT_VARIABLE + " is not set"
    if remote is not None:
        where += f"), nor at {remote} (${REMOTE_VARIABLE}, or the option remote"
    elif not near:
        hint += f"; to read it where Minari has it, add ?remote={MINARIS_REMOTE}, or set ${REMOTE_VARIABLE}"
    raise SourceError(f'no Minari dataset "{name}" in {root} ({where}){hint}')


def list_ids(root: Path) -> list[str]:
    """The ids of the datasets below a folder, here or in a bucket, sorted; a search of 20,000 folders."""
    return sorted(_ids(root))


def _is_data(folder: Path) -> bool:
    return (folder / METADATA_FILE).is_file() or (folder / MAIN_FILE).is_file()


def _describe_place(path: Path) -> str:
    """The end of a message: what is there instead of a dataset."""
    if not path.exists():
        return "; there is no such folder"
    if not path.is_dir():
        return "; it is no folder"
    below = list(_ids(path))[:_MOST_NEAR]
    return f"; below it are the datasets {', '.join(below)}" if below else "; found neither"


def _similar_ids(name: str, ids: list[str]) -> list[str]:
    """Similar ids: similar in spelling, or the same name in another version or namespace."""
    by_id = {dataset_id.lower(): dataset_id for dataset_id in ids}
    by_last = {dataset_id.lower().rsplit("/", 1)[-1]: dataset_id for dataset_id in ids}
    similar = [by_id[match] for match in get_close_matches(name.lower(), by_id, _MOST_NEAR)]
    similar += [by_last[match] for match in get_close_matches(name.lower().rsplit("/", 1)[-1], by_last, 1)]
    return list(dict.fromkeys(similar))[:_MOST_NEAR]


def _ids(root: Path) -> Iterator[str]:
    """The ids of the datasets below a folder. A folder with a subfolder `data` is a dataset; it is not searched."""
    # Only for a message, so the search has bounds: the path may be the root of a disk.
    waiting = [(root, 0)]
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        folder, depth = waiting.pop()
        try:
            if folder != root and (folder / "data").is_dir():
                yield folder.relative_to(root).as_posix()
            elif depth < _MOST_DEEP:
                below = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())
                waiting += [(path, depth + 1) for path in reversed(below)]
        except OSError:  # a folder that may not be read has no datasets for us
            continue


HDF5, ARROW, PARQUET = "hdf5", "arrow", "parquet"

_FORMATS = (HDF5, ARROW, PARQUET)
_MOST_BYTES = 1 << 28  # of a file of metadata: the bounds of a Box of images are in it, number by number


@dataclass(frozen=True)
class MinariFacts:
    """The description of a dataset with the folder `data`: metadata (of an old dataset, the attributes), and the leaves of the spaces, which
    are None before Minari 0.4.
    """

    folder: Path
    format: str
    metadata: Mapping[str, Any]
    observation: tuple[Leaf, ...] | None
    action: tuple[Leaf, ...] | None

    @property
    def episodes(self) -> int | None:
        total = self.metadata.get("total_episodes")
        return int(total) if isinstance(total, (int, np.integer)) else None

    @property
    def about(self) -> dict[str, Any]:
        """What the metadata say, without what a copy says anew; values of HDF5 as JSON has them, and people as Minari 0.5 has them."""
        facts = {name: _plain(value) for name, value in self.metadata.items() if name not in SAID_ANEW}
        return facts | {name: people_of(facts[name]) for name in PEOPLE if isinstance(facts.get(name), str)}

    @property
    def own(self) -> dict[str, Any]:
        """What a copy says anew; spaces as Gymnasium prints them."""
        facts = {name: _plain(self.metadata[name]) for name in SAID_ANEW if name in self.metadata}
        return facts | {name: describe_space(facts[name]) for name in _SPACES if facts.get(name) is not None}


PEOPLE = ("author", "author_email")
"""Facts that are sets in Minari 0.5, stored as lists; before, one text."""
_SPACES = ("observation_space", "action_space")


def people_of(text: str) -> list[str]:
    """The people whom a text names, with ";" between them, as Minari 0.4 joined the authors of combined datasets; [] for none."""
    return [name for part in text.split(";") if (name := part.strip())]


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(below) for below in value]
    if isinstance(value, complex):  # JSON has none
        return str(value)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def read_facts(folder: Path) -> MinariFacts:
    """The description in a folder `data`; raises `SourceError` if it is missing or makes no sense."""
    file = folder / METADATA_FILE
    if file.is_file():
        metadata, where = read_json(file), str(file)
        kind = metadata.get("data_format", HDF5)
        if kind not in _FORMATS:
            raise SourceError(f"{file}: data_format {shortened(repr(kind))}; expected one of {', '.join(_FORMATS)}")
    else:
        # Before 0.5 the metadata were attributes of the main file; Minari 0.5 itself refuses such datasets.
        where, kind = str(folder / MAIN_FILE), HDF5
        with hdf5.open_file(folder / MAIN_FILE) as main:
            metadata = hdf5.read_attributes(main)
        if "total_episodes" not in metadata:
            raise SourceError(
                f"{where}: no attribute total_episodes, and no {METADATA_FILE} beside it; expected a dataset of Minari"
            )
    observation, action = (
        parse_space(metadata[name], f"{where}: {name}") if metadata.get(name) is not None else None
        for name in ("observation_space", "action_space")
    )
    return MinariFacts(folder, kind, metadata, observation, action)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object, which may hold `Infinity`; raises `SourceError` if the file cannot be read or holds none."""
    return read_object(file, "a file of a dataset of Minari", _MOST_BYTES)
