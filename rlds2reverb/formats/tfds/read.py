"""TFDS datasets by name or by directory, read from their files with numpy and protobuf.

Where a named dataset lies:

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
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import xxhash

from rlds2reverb.episode import Episode, KnownEpisode, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.files import read_object
from rlds2reverb.formats.source import ENDLESS, IsKnown, Source, check_shard, read_ahead
from rlds2reverb.formats.tfds.example import EpisodeFeatures
from rlds2reverb.formats.tfds.info import EXPECTED, FEATURES_FILE, INFO_FILE, DatasetInfo, read_info
from rlds2reverb.formats.tfds.records import ARRAY_RECORD, SKIP, check_format
from rlds2reverb.formats.tfds.splits import CYCLE, FILE_ORDER, DatasetName, Record, Request, Selection, parts_of
from rlds2reverb.identity import content_name
from rlds2reverb.images import NotReadHere
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, map_with_path
from rlds2reverb.text import counted

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
    """Folders that the running program added to TFDS; TFDS is not imported for this."""
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
    """Versions that have a folder; incomplete ones have other names."""
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
    """Why a dataset is not found, as the beginning of a sentence."""
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


# TFDS datasets by name or by directory, read from their files with numpy and protobuf.
#
# `tfds:NAME[/CONFIG][:VERSION][@SPLIT]` reads a dataset that TFDS has prepared; `tfds:/path/to/version_dir[@SPLIT]` reads
# a directory with a `dataset_info.json`. SPLIT is any TFDS split (`train`, `train[:10%]`, `train+test`), `train` by default.
# Options stand behind a "?"; see `splits.Request`.
#
# Episodes, their rows and their order are those that TFDS gives. They are named by the bytes of their records (`identity`), so other shards, a
# slice and a later, larger version of the dataset give the same episode the same name. Messages have TFDS's own example id.
#
# A dataset may come from anywhere: none of its code is imported. A feature that cannot be read here goes through TFDS, where
# that is installed (`by_tensorflow`).

_MOST_COUNTED_BYTES = 16 << 20
"""Of files that are read once more to count the steps of their episodes; some hundredths of a second."""

_AROUND_IT = (
    '; a split such as train[:5]+train[6:] leaves it out, and TFDS may read it: write "?reader=tfds" behind the name'
)

_by_tensorflow = Lazily("rlds2reverb.formats.tfds.by_tensorflow:open_by_tensorflow")


def open_tfds(text: str, name_for_people: str = "") -> Source:
    """Opens the part of a source name after "tfds:".

    Args:
      text: "NAME[/CONFIG][:VERSION][@SPLIT][?OPTIONS]" or "/path[@SPLIT][?OPTIONS]".
      name_for_people: what messages and reports call it; by default "tfds:" and the text.

    Raises:
      SourceError: no such dataset, version or split here, a file of it is missing or damaged, it is not in RLDS form, or a
        feature can be read by TFDS only, and that is not installed.
    """
    people = name_for_people or f"tfds:{text}"
    request = Request.parse(text, people)
    directory = _directory(request)
    try:
        return _open_files(directory, request, people)
    except NotReadHere as reason:
        with needing(f"{reason}. So TFDS has to read it, which", "tfds", SourceError):
            return _by_tensorflow(directory, request, people)  # type: ignore[no-any-return]


class TfdsSource(Source):
    """Episodes of a version directory, read from its files.

    Args:
      selection: which records.
      features: how they become episodes.
      dataset: its full name; for messages, with a record's name behind it.
      name: of the source; for messages.
      numbers: which episodes of the selection, by their place in its order.
    """

    def __init__(
        self, selection: Selection, features: EpisodeFeatures, dataset: str, name: str, numbers: range | None = None
    ) -> None:
        count = sum(part.take for part in selection.parts)
        may_lose = selection.lost_records == SKIP
        self._selection, self._features, self._dataset = selection, features, dataset
        self._numbers = range(ENDLESS if may_lose else count) if numbers is None else numbers
        self._encoded: dict[str, ImageSpec] = {}
        self.name = name
        self.lost: dict[Path, int] = {}
        """Files that have fewer records than the dataset says, as far as they were read, and how many fewer."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """That files have fewer records than the dataset says, as far as they were read."""
        if not self.lost:
            return ()
        text = (
            f"{counted(len(self.lost), 'file')} with fewer records than {INFO_FILE} says, which are skipped, as asked; the "
            f"first is {min(self.lost)}; prepare the dataset again as tfrecord to have them"
        )
        return (Notice("lost_records", text, sum(self.lost.values())),)

    @property
    def episode_count(self) -> int | None:
        """How many there are; None where records may be lost."""
        return None if self._selection.lost_records == SKIP else len(self._numbers)

    def episode_lengths(self) -> Sequence[int] | None:
        """As the features say; else counted, where the files are small. None where a record cannot be read, which the episodes tell."""
        if self.episode_count is None or self._features.steps_length is not None:
            return None if self.episode_count is None else [self._features.steps_length or 0] * len(self._numbers)
        return self._counted

    @cached_property
    def _counted(self) -> list[int] | None:
        """Rows of each episode, from its record; None where the files are large."""
        lengths: list[int] = []
        try:
            if self._selection.file_bytes > _MOST_COUNTED_BYTES:
                return None
            for number, record in enumerate(self._records(self._numbers), self._numbers.start):
                if number in self._numbers:
                    length = self._features.length_of(record.data, record.where)
                    if length is None:
                        return None
                    lengths.append(length)
        except SourceError:
            return None
        return lengths

    def spec(self) -> Nest:
        """The steps' spec, from features.json; nothing else is read."""
        return map_with_path(self._step_leaf, self._features.steps_spec)

    def metadata_spec(self) -> Nest:
        """What an episode has beside its steps: a nest of `ArraySpec`."""
        return self._features.metadata_spec

    def images(self) -> dict[str, ImageSpec]:
        """The Image and Video features of its steps that are decoded, by path."""
        return {path: _image(leaf) for path, leaf in self._features.images.items()}

    def encoded(self, paths: Collection[str]) -> TfdsSource:
        """The same episodes with the bytes of these images' files."""
        kept = {path: image for path, image in self.images().items() if path in paths}
        source = TfdsSource(
            self._selection, self._features.encoded(list(kept)), self._dataset, self.name, self._numbers
        )
        source._encoded = {**self._encoded, **kept}
        return source

    def shard(self, index: int, count: int) -> TfdsSource:
        """Every `count`-th episode; also of a shard."""
        check_shard(index, count)
        if count == 1:
            return self
        return self._of(self._numbers[index::count], f"{self.name}[{index}/{count}]")

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        """See `Source.read`; the records of other episodes are jumped over."""
        return read_ahead(self._episodes(self._numbers[start:stop], is_known), _size)

    def _of(self, numbers: range, name: str) -> TfdsSource:
        part = TfdsSource(self._selection, self._features, self._dataset, name, numbers)
        part._encoded = self._encoded
        return part

    def _episodes(self, numbers: range, is_known: IsKnown | None) -> Generator[Episode | KnownEpisode, None, None]:
        number = 0 if self._selection.lost_records == SKIP else numbers.start
        try:
            for record in self._records(numbers):
                if number in numbers:
                    name = content_name(xxhash.xxh3_128_hexdigest(record.data))
                    if is_known is not None and is_known(name):
                        yield KnownEpisode(name)
                    else:
                        columns, metadata = self._features.read(record.data, record.where)
                        yield Episode(columns, metadata, name, where=f"{self._dataset}#{record.name}")
                number += 1
        except SourceError as error:
            hint = _AROUND_IT if isinstance(error, NotReadHere) else ""
            raise SourceError(f"{self.name}, episode {number}: cannot be read: {error}{hint}") from error

    def _records(self, numbers: range) -> Iterator[Record]:
        """The records of the episodes, and those between them."""
        if not numbers:
            return iter(())
        if self._selection.lost_records == SKIP:  # nobody knows before which they are
            return self._selection.records(self._lose)
        return self._selection.records_between(numbers[0], numbers[-1] + 1)

    def _step_leaf(self, path: str, leaf: ArraySpec) -> ArraySpec:
        return ArraySpec.of_images(self._encoded[path], leaf.shape) if path in self._encoded else leaf

    def _lose(self, path: Path, records: int) -> None:
        self.lost[path] = records


def _size(episode: Episode | KnownEpisode) -> int:
    return 0 if isinstance(episode, KnownEpisode) else episode.nbytes


def _image(leaf: ArraySpec) -> ImageSpec:
    """One image of a column's, of which a step may have several."""
    height, width, channels = leaf.shape[-3:]
    return ImageSpec((height, width, channels), leaf.dtype)


def directory_of(text: str) -> Path:
    """The version directory of the dataset named after "tfds:".

    Raises:
      SourceError: there is none.
    """
    return _directory(Request.parse(text, f"tfds:{text}"))


def _directory(request: Request) -> Path:
    if isinstance(request.dataset, str):
        return version_directory(local_path(request.dataset))
    return find(request.dataset, data_folders())


def _open_files(directory: Path, request: Request, people: str) -> TfdsSource:
    if request.through_tfds:
        raise NotReadHere(f"{people}: reader=tfds is asked for")
    info = read_info(directory)
    if info.has_features:
        raise NotReadHere(f"{directory / INFO_FILE}: describes the features itself, beside {FEATURES_FILE}")
    path = directory / FEATURES_FILE
    features = EpisodeFeatures.from_json(read_object(path, EXPECTED), str(path))
    check_format(info.file_format, people)
    with _of_split(info, request, people):
        parts = parts_of(request.split, info.splits, request.even)
        if not parts:
            raise SourceError("it has no episodes")
    selection = Selection(directory, info.file_format, parts, _cycle(info, request), request.lost_records)
    selection.check_files()
    return TfdsSource(selection, features, info.full_name, people)


def _cycle(info: DatasetInfo, request: Request) -> int:
    """How many files are interleaved. TFDS reads array_record without tf.data, and file by file."""
    in_file_order = request.order == FILE_ORDER or info.is_ordered or info.file_format == ARRAY_RECORD
    return 1 if in_file_order else CYCLE


@contextmanager
def _of_split(info: DatasetInfo, request: Request, people: str) -> Iterator[None]:
    """Errors inside say of which split they are, and which splits there are."""
    try:
        yield
    except SourceError as error:
        there = ", ".join(sorted(info.splits)) or "none"
        raise SourceError(f'{people}: split "{request.split}" cannot be read: {error}; there are: {there}') from error
