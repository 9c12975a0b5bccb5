"""TFDS datasets by name or by directory, read from their files with numpy and protobuf.

`tfds:NAME[/CONFIG][:VERSION][@SPLIT][?OPTIONS]` reads a dataset that TFDS has prepared, `tfds:/path[@SPLIT][?OPTIONS]` a version
directory. SPLIT is any TFDS split (`train`, `train[:10%]`, `train+test`), `train` by default. OPTIONS are `key=value`, separated by commas:

| option | values | meaning |
| --- | --- | --- |
| `order` | `tfds` (default), `file` | the order of episodes: as TFDS interleaves the files, or file by file |
| `lost_records` | `refuse` (default), `skip` | what to do when a parquet file has fewer records than the dataset says |
| `reader` | `files` (default), `tfds` | who reads: this package from the files, where it can; or TFDS |
| `even` | `INDEXofCOUNT` | one of `tfds.even_splits(SPLIT, COUNT)`, numbered from 0 |
| `drop_remainder` | `no` (default), `yes` | of `even`: make all parts equally long, and leave out what is over |
| `links` | `inside` (default), `follow` | whether links to files outside of the version directory are followed |

A split ends a path only when no separator follows its "@", and options only when none follows their "?"; a sign that is part of the path
is written as in `formats.options`.

Episodes, their rows and their order are those that TFDS gives. They are named by the bytes of their records (`identity`), so other shards,
a slice and a later, larger version of the dataset give the same episode the same name. Messages have TFDS's own example id.

A dataset may come from anywhere: none of its code is imported. A feature that cannot be read here goes through TFDS, where that is
installed (`by_tensorflow`).
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import xxhash

from rlds2reverb.episode import Episode, KnownEpisode, Notice, content_name
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.files import read_object
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.options import Parse, escape_text, is_url, one_of, read_options, split_options, unescape_text
from rlds2reverb.formats.recordings import LINKS, decoded_bytes
from rlds2reverb.formats.source import About, IsKnown, Source, check_shard, read_ahead
from rlds2reverb.formats.tfds import bundled_path
from rlds2reverb.formats.tfds.columns import EpisodeFeatures
from rlds2reverb.formats.tfds.info import (
    ARRAY_RECORD,
    EXPECTED,
    FEATURES_FILE,
    INFO_FILE,
    PARQUET,
    VERSION,
    read_about,
    read_info,
)
from rlds2reverb.formats.tfds.missing import check_shards
from rlds2reverb.formats.tfds.records import check_format
from rlds2reverb.formats.tfds.selection import CYCLE, Record, Selection
from rlds2reverb.formats.tfds.splits import EvenPart, parts_of
from rlds2reverb.images import NotReadHere
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, map_with_path
from rlds2reverb.text import counted, did_you_mean

# What a name asks for.

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


# Opening and reading.

_MOST_COUNTED_BYTES = 16 << 20
"""Most bytes of files that are read once more to count the steps of their episodes; takes some hundredths of a second."""

_AROUND_IT = (
    '; a split such as train[:5]+train[6:] leaves it out, and TFDS may read it: write "?reader=tfds" behind the name'
)

_by_tensorflow = Lazily("rlds2reverb.formats.tfds.by_tensorflow:open_by_tensorflow")


def open_tfds(text: str, name: str = "") -> Source:
    """Opens the part of a source name after "tfds:"; `name` is what messages and reports call it, by default "tfds:" and the text.

    Raises:
      SourceError: no such dataset, version or split here, a file of it is missing or damaged, it is not in RLDS form, or a
        feature can be read by TFDS only, and that is not installed.
    """
    name = name or f"tfds:{text}"
    request = Request.parse(text, name)
    files = DatasetFiles(request.follow_links)
    directory = files.pin(_directory(request), is_deep=False)
    try:
        return _open_files(directory, files, request, name)
    except NotReadHere as reason:
        with needing(f"{reason}. So TFDS has to read it, which", "tfds", SourceError):
            return _by_tensorflow(directory, files, request, name)  # type: ignore[no-any-return]


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
    return open_tfds(f"{escape_text(path)}{text.removeprefix(dataset)}", f"bundled:{text}")


def directory_of(text: str) -> Path:
    """The version directory of the dataset named after "tfds:". Raises `SourceError` if there is none."""
    return _directory(Request.parse(text))


def _directory(request: Request) -> Path:
    if isinstance(request.dataset, str):
        return version_directory(path_of(request.dataset))
    return find(request.dataset, data_folders())


def selection_of(source: Source) -> Selection:
    """The records that a source reads from TFDS' files. Raises `SourceError` for one that reads others."""
    if not isinstance(source, TfdsSource):
        raise SourceError(f"{source.name}: only TFRecord shards need an index; expected tfds:NAME or tfds:/path")
    return source.selection


def _open_files(directory: Path, files: DatasetFiles, request: Request, name: str) -> TfdsSource:
    if request.through_tfds:
        raise NotReadHere(f"{name}: reader=tfds is given")
    info = read_info(directory)
    if info.has_features:
        raise NotReadHere(f"{directory / INFO_FILE}: describes the features itself, beside {FEATURES_FILE}")
    path = directory / FEATURES_FILE
    features = EpisodeFeatures.from_json(read_object(path, EXPECTED), str(path))
    check_format(info.file_format, name)
    try:
        parts = parts_of(request.split, info.splits, request.even)
        if not parts:
            raise SourceError("it has no episodes")  # noqa: TRY301 - named below as the rest
    except SourceError as error:
        there = ", ".join(sorted(info.splits)) or "none"
        raise SourceError(
            f'{name}: split "{request.split}" cannot be read: {error}; there are: {there}{did_you_mean(request.split, info.splits)}'
        ) from error
    # TFDS reads array_record without tf.data, and file by file.
    in_file_order = request.order == FILE_ORDER or info.is_ordered or info.file_format == ARRAY_RECORD
    selection = Selection(directory, info.file_format, parts, 1 if in_file_order else CYCLE)
    files.restrict([directory / INFO_FILE, path, *(directory / file for file in selection.lengths)])
    check_shards(directory, selection.lengths, info.splits)
    lost: Mapping[Path, int] = {}
    if request.lost_records and info.file_format == PARQUET:
        selection, lost = selection.without_lost()
    return TfdsSource(
        selection=selection,
        features=features,
        dataset=info.full_name,
        name=name,
        numbers=range(selection.count),
        lost=lost,
        files=files,
    )


@dataclass(kw_only=True, eq=False)
class TfdsSource(Source):
    """Episodes of a version directory, read from its files.

    Attributes:
      dataset: its full name; for messages, with a record's name behind it.
      numbers: which episodes of the selection, by their place in its order.
      lost: files with fewer records than the dataset says, and the number of missing ones.
      as_files: path -> image, of the columns that `features` keeps as the bytes of their files.
      files: of the dataset, which must stay the same while it is read.
    """

    selection: Selection
    features: EpisodeFeatures
    dataset: str
    name: str
    numbers: range
    lost: Mapping[Path, int]
    files: DatasetFiles
    as_files: Mapping[str, ImageSpec] = field(default_factory=dict)

    @property
    def about(self) -> About:
        return read_about(self.selection.directory)

    @property
    def notices(self) -> tuple[Notice, ...]:
        if not self.lost:
            return self.files.notices
        text = (
            f"{counted(len(self.lost), 'file')} with fewer records than {INFO_FILE} says, which are skipped, as asked; the "
            f"first is {min(self.lost)}; prepare the dataset again as tfrecord to have them"
        )
        return (Notice("lost_records", text, sum(self.lost.values())), *self.files.notices)

    def check_files(self) -> None:
        self.files.check()

    @property
    def is_at_hand(self) -> bool:
        return True

    @property
    def episode_count(self) -> int:
        return len(self.numbers)

    def episode_lengths(self) -> Sequence[int] | None:
        """Steps of every episode, from the features, or counted where the files are small. None where a record cannot be read; reading the episodes raises its error."""
        return self._lengths

    @cached_property
    def _lengths(self) -> list[int] | None:
        if self.features.steps_length is not None:
            return [self.features.steps_length] * len(self.numbers)
        try:
            if self.selection.file_bytes > _MOST_COUNTED_BYTES:
                return None
            lengths = [
                self.features.length_of(record.data, record.where)
                for number, record in enumerate(self._records(self.numbers), self.numbers.start)
                if number in self.numbers
            ]
        except SourceError:
            return None
        known_lengths = [length for length in lengths if length is not None]
        return known_lengths if len(known_lengths) == len(lengths) else None

    def count_lengths(self) -> Sequence[int]:
        """Counts the steps of every episode; the counts are kept in the cache, beside the index of records."""
        if (lengths := self.episode_lengths()) is not None:
            return lengths
        rows = self.selection.rows(lambda record: self.features.length_of(record.data, record.where))
        if rows is None:
            return super().count_lengths()
        counted_rows: list[int] = rows[self.numbers.start : self.numbers.stop : self.numbers.step].tolist()
        return counted_rows

    @property
    def has_random_access(self) -> bool:
        return True

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        own, which = self.numbers, deque[int]()
        places = [own[number] for number in numbers]

        def episodes() -> Generator[Episode, None, None]:
            decoded = ""
            with self.files.reading(is_whole=False):
                try:
                    for number, record in self.selection.at(places):
                        decoded = f", episode {number}"
                        which.append(own.index(number))
                        yield self._episode(record, content_name(xxhash.xxh3_128_hexdigest(record.data)))
                        decoded = ""
                except SourceError as error:
                    raise self._unreadable(error, decoded) from error

        if not places:
            return iter(())
        ahead = read_ahead(episodes(), decoded_bytes, self.files.check_recent)
        return ((which.popleft(), episode) for episode in ahead)

    def spec(self) -> Nest:
        def leaf_of(path: str, leaf: ArraySpec) -> ArraySpec:
            return ArraySpec.of_images(self.as_files[path], leaf.shape) if path in self.as_files else leaf

        return map_with_path(leaf_of, self.features.steps_spec)

    def metadata_spec(self) -> Nest:
        return self.features.metadata_spec

    def images(self) -> dict[str, ImageSpec]:
        """The Image and Video features of its steps that are decoded, by path; a step may have several images of one."""
        return {
            path: ImageSpec((leaf.shape[-3], leaf.shape[-2], leaf.shape[-1]), leaf.dtype)
            for path, leaf in self.features.images.items()
        }

    def encoded(self, paths: Collection[str]) -> TfdsSource:
        images = {path: image for path, image in self.images().items() if path in paths}
        return replace(self, features=self.features.encoded(list(images)), as_files={**self.as_files, **images})

    def without(self, paths: Collection[str]) -> TfdsSource:
        """The same source; episodes keep their names, for a record is read as a whole."""
        return replace(self, features=self.features.without(paths)) if paths else self

    def shard(self, index: int, count: int) -> TfdsSource:
        check_shard(index, count)
        if count == 1:
            return self
        return replace(self, name=f"{self.name}[{index}/{count}]", numbers=self.numbers[index::count])

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        is_whole = stop is None or stop >= len(self.numbers)
        episodes = self._episodes(self.numbers[start:stop], is_known, is_whole)
        return read_ahead(episodes, decoded_bytes, self.files.check_recent)

    def _episodes(
        self, numbers: range, is_known: IsKnown | None, is_whole: bool
    ) -> Generator[Episode | KnownEpisode, None, None]:
        number = numbers.start
        with self.files.reading(is_whole):
            try:
                for record in self._records(numbers):
                    if number in numbers:
                        name = content_name(xxhash.xxh3_128_hexdigest(record.data))
                        if is_known is not None and is_known(name):
                            yield KnownEpisode(name)
                        else:
                            yield self._episode(record, name)
                    number += 1
            except SourceError as error:
                raise self._unreadable(error, f", episode {number}") from error

    def _episode(self, record: Record, name: str) -> Episode:
        columns, metadata = self.features.read(record.data, record.where)
        where = f"{self.dataset}#{record.name}"
        return Episode(columns, metadata, name, where=where, dataset=self.selection.dataset_of(record.name))

    def _unreadable(self, error: SourceError, episode: str) -> SourceError:
        hint = _AROUND_IT if isinstance(error, NotReadHere) else ""
        return SourceError(f"{self.name}{episode}: cannot be read: {error}{hint}")

    def _records(self, numbers: range) -> Iterator[Record]:
        return self.selection.records(numbers.start, numbers[-1] + 1 if numbers else 0)
