"""The places of Minari's datasets, and their metadata: `metadata.json`, or before 0.5 the attributes of the main file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError, StorageError
from rlds2reverb.files import read_object
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.minari.remote import (
    DOWNLOAD,
    MAIN_FILE,
    METADATA_FILE,
    MINARIS_REMOTE,
    NEVER,
    REMOTE_VARIABLE,
    download,
    newest_of,
    remote_folder,
    split_full_name,
)
from rlds2reverb.formats.minari.spaces import Leaf, describe_space, parse_space
from rlds2reverb.text import shortened

ROOT_VARIABLE = "MINARI_DATASETS_PATH"
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


def data_folder(text: str, remote: str | None = None, *, fetches: bool = True) -> Path:
    """The folder `data` of a dataset, by its id, its full name, the path of its folder, or that of its folder `data`.

    An id is looked for on this machine first, then at the remote place. One without a version is the newest that is there. What may be
    an id and a path is refused where it leads to two datasets.

    Args:
      text: the id, full name or path.
      remote: where an id is looked for that is not here: see `remote_folder`; `DOWNLOAD` downloads it from `$MINARI_REMOTE`, else from
        Minari's own; `NEVER` looks nowhere. None for `$MINARI_REMOTE`, without which there is none.
      fetches: whether `DOWNLOAD` downloads; else the folder is where the dataset will be.

    Raises:
      SourceError: there is no dataset; the message has similar ids.
      StorageError: a remote place does not answer.
    """
    if remote not in (None, DOWNLOAD, NEVER):
        remote_folder(str(remote), "checked")  # refuses nonsense, also where the dataset is here
    full_name = split_full_name(text)
    if full_name is not None and (remote is not None or not text.startswith(("gs://", "s3://"))):
        return _of_full_name(text, *full_name, remote, fetches)
    if is_id(text):
        return _of_id(text, remote, fetches)
    if not text:
        raise SourceError(f"expected the id of a Minari dataset or a path{_describe_place(datasets_root())}")
    path = path_of(text)
    if (folder := _data_in(path)) is not None:
        return folder
    raise SourceError(
        f"{path}: no Minari dataset: expected {METADATA_FILE} or {MAIN_FILE} there or in data/{_describe_place(path)}{_hint_at_id(text)}"
    )


def _data_in(path: Path) -> Path | None:
    """The folder with the data, of a dataset's folder or of that folder itself; None if there is no dataset."""
    return next((folder for folder in (path / "data", path) if _is_data(folder)), None)


def _hint_at_id(text: str) -> str:
    name = text.removeprefix("./").strip("/")
    is_here = is_id(name) and _is_data(datasets_root() / name / "data")
    return f"; the dataset of that id is in {datasets_root()}: write {name}" if is_here else ""


def _of_full_name(text: str, remote: str, name: str, option: str | None, fetches: bool) -> Path:
    if option not in (None, DOWNLOAD):
        raise SourceError(f"{text}: says where it lies, and so does the option remote={option}; leave one of them out")
    if option == DOWNLOAD and name:
        return _of_id(name, remote, fetches, downloads=True)
    folder = _remote_data(remote, name) if name else None
    if folder is None:
        raise SourceError(
            f"{text}: no Minari dataset is there{_describe_remote(remote, name)}; rlds2reverb inspect minari:{remote}/ lists what is"
        )
    return folder


def _of_id(name: str, option: str | None, fetches: bool, downloads: bool = False) -> Path:
    """As `data_folder`, of an id; with `downloads`, `option` is the place that it is downloaded from."""
    root = datasets_root()
    downloads = downloads or option == DOWNLOAD
    chosen = None if option in (DOWNLOAD, NEVER) else option
    remote = chosen or os.environ.get(REMOTE_VARIABLE) or (MINARIS_REMOTE if downloads else None)
    if option == NEVER:
        remote = None
    folder = root / name / "data"
    if not _is_data(folder) and (newest := _newest_below(root, name)) is not None:
        folder = root / newest / "data"
    beside = _data_in(Path(name))
    if _is_data(folder):
        if beside is not None and not beside.samefile(folder):
            raise SourceError(
                f'"{name}" names two datasets: write ./{name} for the folder here, or {folder.parent} for the dataset of this id'
            )
        return folder
    if folder.is_dir():
        raise SourceError(f"{folder}: expected {METADATA_FILE} or {MAIN_FILE}{_describe_place(folder)}")
    # A network is not asked for what may be meant as a path.
    may_be_path = option is None and Path(name).is_dir()
    try:
        far = None if remote is None or may_be_path else _remote_data(remote, name)
    except StorageError as error:
        raise StorageError(
            f'no Minari dataset "{name}" in {root}, so {remote} was asked: {error}. remote={NEVER} behind the name asks none'
        ) from error
    if far is not None and remote is not None:
        if not downloads:
            return far
        far_id = f"{name.rpartition('/')[0]}/{far.parent.name}".lstrip("/")
        here = root / far_id / "data"
        if fetches and not _is_data(here):
            download(far.parent, far_id, root, partial(_check_download, far_id))
            _download_parts(here, remote)
        return here
    near = _similar_ids(name, list(_ids(root)))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if Path(name).is_dir():
        hint += f"; to read the folder {name}, write ./{name}"
    if (root / name).is_dir():
        hint += f"; it is a namespace: rlds2reverb inspect minari:{name}/ lists what is in it"
    where = f"${ROOT_VARIABLE}" if ROOT_VARIABLE in os.environ else "$" + ROOT_VARIABLE + " is not set"
    if remote is not None and may_be_path:
        hint += f"; to look for it at {remote}, write {remote}/{name}"
    elif remote is not None:
        where += f"), nor at {remote} (${REMOTE_VARIABLE}, or the option remote"
        hint += _describe_remote(remote, name)
    elif not near and option != NEVER:
        hint += f"; to read it where Minari has it, add ?remote={MINARIS_REMOTE}, or set ${REMOTE_VARIABLE}; to download it, add ?remote={DOWNLOAD}"
    raise SourceError(f'no Minari dataset "{name}" in {root} ({where}){hint}')


def _newest_below(root: Path, name: str) -> str | None:
    """The id of the newest version here, of an id without one."""
    above = (root / name).parent
    if not above.is_dir():
        return None
    return newest_of(name, [path.name for path in above.iterdir() if _is_data(path / "data")])


def _remote_data(remote: str, name: str) -> Path | None:
    """The folder `data` of a dataset at a remote place, of the newest version where the id has none; None if there is none."""
    folder = remote_folder(remote, name)
    if (data := _data_in(folder)) is not None:
        return data
    if remote.startswith("hf:") and "/" not in name:  # its folder is a repository: what is beside it are others
        return None
    try:
        newest = newest_of(name, [path.name for path in folder.parent.iterdir()])
    except FileNotFoundError:
        return None
    return None if newest is None else _data_in(remote_folder(remote, newest))


def _describe_remote(remote: str, name: str) -> str:
    """The end of a message: what is beside the folder that a remote place lacks."""
    if not name or (remote.startswith("hf:") and "/" not in name):
        return ""
    folder = remote_folder(remote, name)
    try:
        names = sorted(path.name for path in folder.parent.iterdir())
    except (FileNotFoundError, StorageError):
        return ""
    near = get_close_matches(folder.name, names, _MOST_NEAR)
    return f"; beside it there is {', '.join(near)}" if near else ""


def _check_download(name: str, folder: Path) -> None:
    """Refuses a download that is no dataset, is damaged, or says another id than it was asked for by: Minari would not list it."""
    facts = read_facts(folder / "data")
    said = plain_value(facts.metadata.get("dataset_id"))
    if said != name:
        raise SourceError(
            f"{name}: the dataset that was downloaded says that its id is {shortened(repr(said))}, and Minari finds no dataset under another; "
            "download it by that id, or read it where it lies"
        )
    if facts.format == HDF5:
        with hdf5.open_file(folder / "data" / MAIN_FILE):  # refuses one that is cut off
            pass


def _download_parts(folder: Path, remote: str) -> None:
    """Downloads the datasets of which one before Minari 0.5 is combined: its files are links to theirs."""
    if (folder / METADATA_FILE).is_file():
        return
    for name in plain_value(read_facts(folder).metadata.get("combined_datasets")) or ():
        _of_id(name, remote, True, downloads=True)


def list_ids(root: Path) -> list[str]:
    """The ids of the datasets below a folder of this machine, sorted; a search of 20,000 folders."""
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
        facts = {name: plain_value(value) for name, value in self.metadata.items() if name not in SAID_ANEW}
        return facts | {name: people_of(facts[name]) for name in PEOPLE if isinstance(facts.get(name), str)}

    @property
    def own(self) -> dict[str, Any]:
        """What a copy says anew; spaces as Gymnasium prints them."""
        facts = {name: plain_value(self.metadata[name]) for name in SAID_ANEW if name in self.metadata}
        return facts | {name: describe_space(facts[name]) for name in _SPACES if facts.get(name) is not None}


PEOPLE = ("author", "author_email")
"""Facts that are sets in Minari 0.5, stored as lists; before, one text."""
_SPACES = ("observation_space", "action_space")


def people_of(text: str) -> list[str]:
    """The people whom a text names, with ";" between them, as Minari 0.4 joined the authors of combined datasets; [] for none."""
    return [name for part in text.split(";") if (name := part.strip())]


def plain_value(value: Any) -> Any:
    """A value of metadata, which HDF5 may have given, as JSON has it."""
    if isinstance(value, (np.generic, np.ndarray)):
        return plain_value(value.tolist())
    if isinstance(value, list):
        return [plain_value(below) for below in value]
    if isinstance(value, complex):  # JSON has none
        return str(value)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def read_facts(folder: Path) -> MinariFacts:
    """The description in a folder `data`; raises `SourceError` if it is missing or makes no sense."""
    metadata, where = read_metadata(folder)
    kind = metadata.get("data_format", HDF5)
    if kind not in _FORMATS:
        raise SourceError(f"{where}: data_format {shortened(repr(kind))}; expected one of {', '.join(_FORMATS)}")
    observation, action = (
        parse_space(metadata[name], f"{where}: {name}") if metadata.get(name) is not None else None for name in _SPACES
    )
    return MinariFacts(folder, kind, metadata, observation, action)


def read_metadata(folder: Path) -> tuple[dict[str, Any], Path]:
    """What a dataset with the folder `data` says of itself, and the file that says it. Raises `SourceError`."""
    file = folder / METADATA_FILE
    if file.is_file():
        return read_json(file), file
    # Before 0.5 the metadata were attributes of the main file; Minari 0.5 itself refuses such datasets.
    file = folder / MAIN_FILE
    with hdf5.open_file(file) as main:
        metadata = hdf5.read_attributes(main)
    if "total_episodes" not in metadata:
        raise SourceError(
            f"{file}: no attribute total_episodes, and no {METADATA_FILE} beside it; expected a dataset of Minari"
        )
    return {**metadata, "data_format": HDF5}, file


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object, which may hold `Infinity`; raises `SourceError` if the file cannot be read or holds none."""
    return read_object(file, "a file of a dataset of Minari", _MOST_BYTES)
