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

import re
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import xxhash

from rlds2reverb.episode import Episode, KnownEpisode, Notice, content_name
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.files import read_object
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.options import escape_text
from rlds2reverb.formats.recordings import decoded_bytes
from rlds2reverb.formats.source import About, IsKnown, Source, check_shard, read_ahead
from rlds2reverb.formats.tfds import bundled_path
from rlds2reverb.formats.tfds.columns import EpisodeFeatures
from rlds2reverb.formats.tfds.info import (
    ARRAY_RECORD,
    EXPECTED,
    FEATURES_FILE,
    INFO_FILE,
    PARQUET,
    read_about,
    read_info,
)
from rlds2reverb.formats.tfds.missing import check_shards
from rlds2reverb.formats.tfds.names import FILE_ORDER, Request, data_folders, find, version_directory
from rlds2reverb.formats.tfds.records import check_format
from rlds2reverb.formats.tfds.selection import CYCLE, Record, Selection
from rlds2reverb.formats.tfds.splits import parts_of
from rlds2reverb.images import NotReadHere
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, map_with_path
from rlds2reverb.text import counted, did_you_mean

_MOST_COUNTED_BYTES = 16 << 20
"""Most bytes of files that are read once more to count the steps of their episodes; takes some hundredths of a second."""

_AROUND_IT = (
    '; a split such as train[:5]+train[6:] leaves it out, and TFDS may read it: write "?reader=tfds" behind the name'
)


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
            from rlds2reverb.formats.tfds.by_tensorflow import open_by_tensorflow

            return open_by_tensorflow(directory, files, request, name)


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
