"""Names of TFDS datasets: what `tfds:NAME[/CONFIG][:VERSION][@SPLIT][?OPTIONS]` asks for, and where a named dataset lies. The options are
listed in `read`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.files import read_object
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.options import Parse, is_url, one_of, read_options, split_options, unescape_text
from rlds2reverb.formats.recordings import LINKS
from rlds2reverb.formats.tfds.info import EXPECTED, FEATURES_FILE, INFO_FILE, VERSION
from rlds2reverb.formats.tfds.splits import EvenPart
from rlds2reverb.text import did_you_mean

TFDS_ORDER, FILE_ORDER = "tfds", "file"

_SYNTAX = "tfds:NAME[/CONFIG][:VERSION][@SPLIT] or tfds:/path[@SPLIT]"
_NAME = re.compile(
    r"(?:(?P<namespace>[\w\-]+):)?(?P<name>[a-zA-Z]\w*)"
    r"(?:/(?P<config>[\w+\-.]+))?"
    r"(?::(?P<version>(?:\d+|\*)(?:\.(?:\d+|\*)){2}))?"
    r"(?:/(?P<arguments>(?:\w+=[^,]+,?)+))?"
)
_DIRECTORY = re.compile(r"[/~\\]|\.\.?[/\\]|[a-zA-Z]:[/\\]|\w+://")
"""How a directory begins, on Linux, on Windows and in a cloud."""
_SPLIT = re.compile(r"(?P<dataset>.*)@(?P<split>[^/\\]*)", re.DOTALL)
_EVEN = re.compile(r"(?P<index>\d{1,9})of(?P<count>\d{1,9})", re.ASCII)


def _parse_even(text: str) -> EvenPart:
    match = _EVEN.fullmatch(text)
    if match is None or not int(match["index"]) < int(match["count"]):
        raise ValueError("expected INDEXofCOUNT with 0 <= INDEX < COUNT, such as 0of4")
    return EvenPart(int(match["index"]), int(match["count"]))


_OPTIONS: dict[str, Parse] = {
    "order": one_of(tfds=TFDS_ORDER, file=FILE_ORDER),
    "lost_records": one_of(refuse=False, skip=True),
    "reader": one_of(files=False, tfds=True),
    "even": _parse_even,
    "drop_remainder": one_of(yes=True, no=False),
    **LINKS,
}


@dataclass(frozen=True)
class DatasetName:
    """A dataset as TFDS names it: in snake case, "" for no config; "1.2.3", with "*" for any number, or "" for the newest version."""

    name: str
    config: str = ""
    version: str = ""

    def __str__(self) -> str:
        return self.name + (f"/{self.config}" if self.config else "") + (f":{self.version}" if self.version else "")

    @staticmethod
    def parse(text: str) -> DatasetName:
        """Parses "NAME[/CONFIG][:VERSION]"; a name in camel case becomes one in snake case.

        Raises:
          SourceError: it is no such name, has a namespace, or has arguments for a builder's code.
        """
        parts = _NAME.fullmatch(text)
        if parts is None:
            raise SourceError(
                f'tfds:{text}: cannot be opened: "{text}" is no name of a dataset; expected {_SYNTAX}, '
                "where VERSION is three numbers, each of which may be *"
            )
        if parts["namespace"]:
            raise SourceError(
                f'tfds:{text}: "{parts["namespace"]}" is a namespace, and datasets of a namespace come with code to run, '
                "which is not accepted; prepare it first (`tfds build`), and name its directory: tfds:/path/to/version_dir"
            )
        if parts["arguments"]:
            raise SourceError(
                f'tfds:{text}: the arguments "{parts["arguments"]}" are for the code that prepares a dataset, and only '
                "its files are read; choose among them by tfds:NAME/CONFIG:VERSION or tfds:/path/to/version_dir"
            )
        return DatasetName(in_snake_case(parts["name"]), parts["config"] or "", parts["version"] or "")


def in_snake_case(name: str) -> str:
    """A name in camel case as TFDS writes it in files: "MyRobot2Data" -> "my_robot2_data"."""
    apart = re.sub("(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub("([a-z0-9])([A-Z])", r"\1_\2", apart).lower()


@dataclass(frozen=True)
class Request:
    """A parsed source name.

    Attributes:
      dataset: a name, or the text of a directory.
      split: as TFDS writes splits.
      order: `TFDS_ORDER` or `FILE_ORDER`.
      lost_records: whether to read what is left of a Parquet file with fewer records than the dataset says.
      through_tfds: whether TFDS reads it even where it can be read from the files.
      even: which even part of the split; None for the whole.
      follow_links: whether links may lead out of the version directory.
    """

    dataset: DatasetName | str
    split: str = "train"
    order: str = TFDS_ORDER
    lost_records: bool = False
    through_tfds: bool = False
    even: EvenPart | None = None
    follow_links: bool = False

    @staticmethod
    def parse(text: str, name: str = "") -> Request:
        """Parses the text after "tfds:"; `name` is what messages call it, by default "tfds:" and the text.

        Raises:
          SourceError: there is no dataset, its name is not valid, or an option is unknown; the message says what there is.
        """
        name = name or f"tfds:{text}"
        name_text, option_text = split_options(text)
        parts = _SPLIT.fullmatch(name_text)
        dataset, split = (parts["dataset"], parts["split"]) if parts else (name_text, "")
        if not dataset:
            raise SourceError(f'"{name}": expected {_SYNTAX}')
        options = read_options(name, option_text, _OPTIONS)
        drop = options.pop("drop_remainder", None)
        if drop is not None:
            if "even" not in options:
                raise SourceError(f'"{name}": drop_remainder goes with even=INDEXofCOUNT only')
            options["even"] = replace(options["even"], drop_remainder=drop)
        fields = {"reader": "through_tfds", "links": "follow_links"}
        options = {fields.get(option, option): value for option, value in options.items()}
        dataset = unescape_text(dataset)
        # An existing folder counts only if it is written as a path: else "cartpole" would change its meaning with the current folder.
        is_directory = _DIRECTORY.match(dataset) or (not _NAME.fullmatch(dataset) and os.path.isdir(dataset))  # noqa: PTH112 - of no path too long, either
        return Request(dataset if is_directory else DatasetName.parse(dataset), split or "train", **options)


# Where a named dataset lies.
#
# A data folder has DATASET[/CONFIG]/VERSION/ with dataset_info.json and features.json in it. TFDS has one data folder,
# `TFDS_DATA_DIR` or ~/tensorflow_datasets, and a program may add more (`tfds.core.add_data_dir`). `RLDS2REVERB_DATA_DIRS`
# adds more here, separated as in PATH.
#
# Rules of tensorflow-datasets 4.9.10, core/read_only_builder.py, for a dataset whose code is not loaded: of several
# versions the highest is taken, number by number; without a config, the one that DATASET/.config/metadata.json names; a
# dataset in two data folders is an error.

DATA_DIR = "TFDS_DATA_DIR"
MORE_DATA_DIRS = "RLDS2REVERB_DATA_DIRS"

_USUAL_FOLDER = "~/tensorflow_datasets"
_TFDS_DATA_DIRS = "tensorflow_datasets.core.utils.file_utils"
_HOW_TO_CONTINUE = "prepare it first (`tfds build`), or name its directory: tfds:/path/to/version_dir"
_MOST_LISTED = 10

Version = tuple[int, ...]


def data_folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The data folders, each once, in the order of their names; those that the program added to TFDS are among them. Raises `SourceError`
    for one that makes no path.
    """
    # A cloud's "gs://x" is one part, also where ":" separates.
    more = re.split(re.escape(os.pathsep) + "(?!//)", environment.get(MORE_DATA_DIRS, ""))
    added = getattr(sys.modules.get(_TFDS_DATA_DIRS), "_REGISTERED_DATA_DIRS", ())  # without importing TFDS
    named = [environment.get(DATA_DIR, _USUAL_FOLDER), *filter(None, more), *map(os.fspath, added)]
    return sorted(set(map(path_of, named)))


def find(name: DatasetName, folders: list[Path]) -> Path:
    """The version directory of a dataset in the data folders.

    Raises:
      SourceError: it is in none of them, or in more than one; the message says what there is.
    """
    places = [place for folder in folders if (place := _find_in(folder, name)) is not None]
    if len(places) > 1:
        listed = ", ".join(map(str, places))
        raise SourceError(f"tfds:{name}: cannot be opened: it is in several data folders: {listed}; name one of them")
    if places:
        return places[0]
    looked = ", ".join(map(str, folders))
    here = Path(name.name, name.config)
    how = f"for the folder here write tfds:./{here}" if not name.version and here.is_dir() else _HOW_TO_CONTINUE
    raise SourceError(
        f"tfds:{name}: cannot be opened: {_why_not_found(name, folders)} in {looked}; {how}{_suggest(name, folders)}"
    )


def _suggest(name: DatasetName, folders: list[Path]) -> str:
    """A dataset of this machine whose name is nearly the same; "" for none."""
    here = [folder for folder in folders if not is_url(str(folder)) and folder.is_dir()]
    if any((folder / name.name).is_dir() for folder in here):
        return ""
    return did_you_mean(name.name, sorted({path.name for folder in here for path in folder.iterdir() if path.is_dir()}))


def version_directory(directory: Path) -> Path:
    """The directory itself. Raises `SourceError` for the folder of a dataset or a config, which has versions."""
    if not _has(directory, INFO_FILE) and (versions := _versions(directory)):
        raise SourceError(
            f"{directory}: expected a version directory with {INFO_FILE}, and this one has versions; "
            f"name one: {_list_first(map(_version_text, sorted(versions)))}"
        )
    return directory


def _find_in(folder: Path, name: DatasetName) -> Path | None:
    dataset = folder / name.name
    is_exact = VERSION.fullmatch(name.version) is not None
    if is_exact and _is_prepared(place := dataset / name.config / name.version):
        return place
    config = name.config or _default_config(dataset)
    if is_exact:
        place = dataset / config / name.version
    else:
        versions = [version for version in _versions(dataset / config) if _fits(version, name.version)]
        if not versions:
            return None
        place = dataset / config / _version_text(max(versions))
    return place if _is_prepared(place) else None


def _is_prepared(place: Path) -> bool:
    try:
        return _has(place, FEATURES_FILE)
    except OSError:
        return False


def _has(folder: Path, file: str) -> bool:
    return (
        folder.is_dir() and (folder / file).exists()
    )  # of a bucket one listing, which answers all that is asked of the folder next


def _default_config(dataset: Path) -> str:
    path = dataset / ".config" / "metadata.json"
    if not path.exists():
        return ""
    name = read_object(path, "the name of the default config").get("default_config_name") or ""
    if not isinstance(name, str) or Path(name).name != name:
        raise SourceError(f"{path}: default_config_name: expected the name of a config; name it: tfds:NAME/CONFIG")
    return name


def _versions(folder: Path) -> list[Version]:
    """Versions that have a folder; incomplete ones have other names."""
    try:
        return [
            tuple(map(int, numbers.groups()))
            for path in folder.iterdir()
            if (numbers := VERSION.fullmatch(path.name)) and path.is_dir()
        ]
    except OSError:
        return []


def _version_text(version: Version) -> str:
    return ".".join(map(str, version))


def _fits(version: Version, pattern: str) -> bool:
    return not pattern or all(part in ("*", str(number)) for part, number in zip(pattern.split("."), version))


def _why_not_found(name: DatasetName, folders: list[Path]) -> str:
    datasets = [folder / name.name for folder in folders if (folder / name.name).is_dir()]
    if not datasets:
        return "there is no such dataset"
    config = name.config or next(filter(None, map(_default_config, datasets)), "")
    versions = sorted(version for dataset in datasets for version in _versions(dataset / config))
    if versions:
        unreadable = [version for version in versions if _fits(version, name.version)]
        if not unreadable:
            return f"there is no such version (there are: {_list_first(map(_version_text, versions))})"
        return f"{_version_text(unreadable[-1])} has no {FEATURES_FILE} (expected {EXPECTED})"
    if any(map(_versions, datasets)):
        return "there is no such config (the dataset has none)"
    configs = sorted({path.name for dataset in datasets for path in dataset.iterdir() if _versions(path)})
    if configs:
        return (
            f"{'there is no such config' if config else 'a config must be named'} (there are: {_list_first(configs)})"
        )
    return "there is a folder of that name without any version"


def _list_first(names: Iterable[str]) -> str:
    first = list(islice(names, _MOST_LISTED + 1))
    return ", ".join(first[:_MOST_LISTED]) + (", ..." if len(first) > _MOST_LISTED else "")
