"""Where the files of a named dataset are: data folders, configs, versions.

A data folder has DATASET[/CONFIG]/VERSION/ with dataset_info.json and features.json in it. TFDS has one data folder,
`TFDS_DATA_DIR` or ~/tensorflow_datasets, and a program may add others (`tfds.core.add_data_dir`). `RLDS2REVERB_DATA_DIRS`
adds others here, separated as in PATH.

Rules of tensorflow-datasets 4.9.10, core/read_only_builder.py, for a dataset whose code is not loaded: of several
versions the highest is taken, number by number; without a config, the one that DATASET/.config/metadata.json names; a
dataset in two data folders is an error.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.json_files import read_object
from rlds2reverb.tfds_files.info import EXPECTED, FEATURES_FILE, INFO_FILE
from rlds2reverb.tfds_files.requests import DatasetName

DATA_DIR = "TFDS_DATA_DIR"
MORE_DATA_DIRS = "RLDS2REVERB_DATA_DIRS"

_USUAL_FOLDER = "~/tensorflow_datasets"
_WHERE_TFDS_KEEPS_THEM = "tensorflow_datasets.core.utils.file_utils"
_HOW_TO_GO_ON = "prepare it first (`tfds build`), or name its directory: tfds:/path/to/version_dir"
_NUMBER = r"(?:\d|[1-9]\d*)"
_VERSION = re.compile(rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})", re.ASCII)
_MOST_LISTED = 10

Version = tuple[int, ...]


def data_folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The data folders, each once, in the order of their names; those that the program added to TFDS are among them.

    Args:
      environment: variables; `TFDS_DATA_DIR` replaces the usual folder, `RLDS2REVERB_DATA_DIRS` adds others.

    Raises:
      SourceError: one is not on this machine.
    """
    named = [environment.get(DATA_DIR, _USUAL_FOLDER)]
    named += [folder for folder in _apart(environment.get(MORE_DATA_DIRS, "")) if folder]
    return sorted({local_path(folder) for folder in (*named, *_added_to_tfds())})


def _added_to_tfds() -> list[str]:
    """What a program that has loaded TFDS told it; TFDS is not loaded for it."""
    module = sys.modules.get(_WHERE_TFDS_KEEPS_THEM)
    return [os.fspath(folder) for folder in getattr(module, "_REGISTERED_DATA_DIRS", ())]


def local_path(text: str) -> Path:
    """A path on this machine, with "~" replaced.

    Raises:
      SourceError: it is in a cloud, or of an unknown user.
    """
    if is_remote(text):
        raise SourceError(
            f"{text}: only files on this machine are read; copy the version directory here and name it: "
            "tfds:/path/to/version_dir"
        )
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SourceError(f"{text}: {error}") from error


def is_remote(text: str) -> bool:
    """Whether a path is that of a bucket: gs://, s3://."""
    return "://" in text


def find(name: DatasetName, folders: list[Path]) -> Path:
    """The version directory of a dataset.

    Args:
      name: what is asked for.
      folders: data folders.

    Raises:
      SourceError: it is in none of them, or in more than one; says what there is.
    """
    found = [place for folder in folders if (place := _find_in(folder, name)) is not None]
    if len(found) > 1:
        places = ", ".join(map(str, found))
        raise SourceError(f"tfds:{name}: cannot be opened: it is in several data folders: {places}; name one of them")
    if found:
        return found[0]
    looked = ", ".join(map(str, folders))
    here = Path(name.name, name.config)
    how = f"for the folder here write tfds:./{here}" if not name.version and here.is_dir() else _HOW_TO_GO_ON
    raise SourceError(f"tfds:{name}: cannot be opened: {_what_there_is(name, folders)} in {looked}; {how}")


def version_directory(directory: Path) -> Path:
    """The directory itself.

    Raises:
      SourceError: it is that of a dataset or a config, and has versions.
    """
    if not (directory / INFO_FILE).exists() and (versions := _versions(directory)):
        raise SourceError(
            f"{directory}: expected a version directory with {INFO_FILE}, and this one has versions; "
            f"name one: {_listed([_written(version) for version in sorted(versions)])}"
        )
    return directory


def _apart(folders: str) -> list[str]:
    """The parts of a list as in PATH; a cloud's "gs://x" is one part, also where ":" separates."""
    return re.split(re.escape(os.pathsep) + "(?!//)", folders)


def _find_in(folder: Path, name: DatasetName) -> Path | None:
    dataset = folder / name.name
    is_exact = _VERSION.fullmatch(name.version) is not None
    if is_exact and _is_prepared(place := dataset / name.config / name.version):
        return place
    config = name.config or _default_config(dataset)
    if is_exact:
        place = dataset / config / name.version
    else:
        versions = [version for version in _versions(dataset / config) if _fits(version, name.version)]
        if not versions:
            return None
        place = dataset / config / _written(max(versions))
    return place if _is_prepared(place) else None


def _is_prepared(place: Path) -> bool:
    try:
        return (place / FEATURES_FILE).exists()
    except OSError:
        return False


def _default_config(dataset: Path) -> str:
    path = dataset / ".config" / "metadata.json"
    if not path.exists():
        return ""
    name = read_object(path, "the name of the default config").get("default_config_name") or ""
    if not isinstance(name, str) or Path(name).name != name:
        raise SourceError(f"{path}: default_config_name: expected the name of a config; name it: tfds:NAME/CONFIG")
    return name


def _versions(folder: Path) -> list[Version]:
    """Versions that have a directory; incomplete ones are called otherwise."""
    try:
        return [
            tuple(map(int, found.groups()))
            for path in folder.iterdir()
            if (found := _VERSION.fullmatch(path.name)) and path.is_dir()
        ]
    except OSError:
        return []


def _written(version: Version) -> str:
    return ".".join(map(str, version))


def _fits(version: Version, wanted: str) -> bool:
    parts = wanted.split(".") if wanted else ["*"] * len(version)
    return all(part in ("*", str(number)) for part, number in zip(parts, version))


def _what_there_is(name: DatasetName, folders: list[Path]) -> str:
    """What keeps a dataset from being found: the beginning of a sentence."""
    datasets = [folder / name.name for folder in folders if (folder / name.name).is_dir()]
    if not datasets:
        return "there is no such dataset"
    config = name.config or next(filter(None, map(_default_config, datasets)), "")
    versions = sorted(version for dataset in datasets for version in _versions(dataset / config))
    if versions:
        there = _listed([_written(version) for version in versions])
        unreadable = [version for version in versions if _fits(version, name.version)]
        if not unreadable:
            return f"there is no such version (there are: {there})"
        return f"{_written(unreadable[-1])} has no {FEATURES_FILE} (expected {EXPECTED})"
    if any(map(_versions, datasets)):
        return "there is no such config (the dataset has none)"
    configs = sorted({path.name for dataset in datasets for path in dataset.iterdir() if _versions(path)})
    if configs:
        return f"{'there is no such config' if config else 'a config must be named'} (there are: {_listed(configs)})"
    return "there is a folder of that name without any version"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")
