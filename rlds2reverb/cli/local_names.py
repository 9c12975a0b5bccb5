"""Names of datasets on this machine, by what lies in folders. Nothing of a dataset is read but its list of splits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rlds2reverb.datasets import BUNDLED, bundled_path
from rlds2reverb.readers.minari.places import datasets_root
from rlds2reverb.sources.registry import SOURCES
from rlds2reverb.tfds_files.locate import data_folders

MOST = 1000
"""Names are given at most; a folder of a million files must not keep a shell waiting."""

_DEPTH = 4
"""Folders below the root in which Minari's ids are looked for: namespaces, and the dataset."""


def names(scheme: str, begun: str) -> Iterator[str]:
    """Names behind a scheme: of datasets that are here, or paths.

    Args:
      scheme: of a source.
      begun: what stands behind the colon so far.
    """
    is_path = begun.startswith(("/", ".", "~"))
    if scheme == "bundled":
        yield from BUNDLED
    elif scheme == "minari" and not is_path:
        yield from islice(_ids(datasets_root(), "", _DEPTH), MOST)
    elif scheme == "tfds" and not is_path:
        yield from islice((one for folder in data_folders() for one in _prepared(folder)), MOST)
    elif is_path or SOURCES.named(f"{scheme}:") is not None:
        yield from paths(begun)


def splits(scheme: str, name: str) -> Iterator[str]:
    """Splits of a dataset, as its dataset_info.json tells them."""
    place = SOURCES.named(f"{scheme}:")
    if scheme == "bundled":
        folder = bundled_path(name)
    elif place is not None and place.place is not None:
        folder = place.place(name)
    else:
        return
    told = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
    yield from (str(one["name"]) for one in told["splits"])


def paths(begun: str) -> Iterator[str]:
    """Paths that begin so; folders end in "/"."""
    folder, slash, last = begun.rpartition("/")
    typed = f"{folder}{slash}"
    for entry in islice(_entries(Path(typed or ".").expanduser()), MOST):
        if entry.name.startswith(last) and (last.startswith(".") or not entry.name.startswith(".")):
            yield f"{typed}{entry.name}{'/' if entry.is_dir() else ''}"


def _ids(folder: Path, before: str, depth: int) -> Iterator[str]:
    """Ids of Minari's datasets below a folder."""
    for entry in _entries(folder):
        if not entry.is_dir(follow_symlinks=False):
            continue
        name = f"{before}{entry.name}"
        if Path(entry.path, "data").is_dir():
            yield name
        elif depth > 1:
            yield from _ids(Path(entry.path), f"{name}/", depth - 1)


def _prepared(folder: Path) -> Iterator[str]:
    """Names of the datasets in a data folder of TFDS: NAME, or NAME/CONFIG."""
    for dataset in _folders(folder):
        inner = [*_folders(Path(dataset.path))]
        if any(_is_version(one) for one in inner):
            yield dataset.name
        for config in inner:
            if not _is_version(config) and any(map(_is_version, _folders(Path(config.path)))):
                yield f"{dataset.name}/{config.name}"


def _is_version(entry: os.DirEntry[str]) -> bool:
    return Path(entry.path, "dataset_info.json").is_file()


def _folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in _entries(folder) if entry.is_dir())


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """By name; none of a folder that cannot be listed."""
    try:
        with os.scandir(folder) as found:
            return sorted(islice(found, 100 * MOST), key=lambda entry: entry.name)
    except OSError:
        return []
