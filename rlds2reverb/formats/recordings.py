"""The base of most formats: `Recordings` gives episodes by number, `RecordedSource` makes a source of them, with the options that choose episodes."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import xxhash

from rlds2reverb.episode import Array, Episode, KnownEpisode, NamelessColumn, Notice, content_digest, content_name
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.buckets import canonical, path_of
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.options import Parse, one_of, read_options, split_options, unescape_text, whole_number
from rlds2reverb.formats.source import ENDLESS, About, IsKnown, Source, check_shard, columns_of, read_ahead
from rlds2reverb.specs import ImageSpec, Nest, nested
from rlds2reverb.text import counted

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Recording:
    """An episode as it was recorded, in RLDS' alignment (`episode`).

    Attributes:
      columns: path -> [T, ...], or a function that decodes them: it is called at most once, before the next episode is requested, and only if
        the episode is wanted. What the format does not record (reward, discount, is_terminal) is left out: conventions fill it.
      made_up: path -> [T, ...], further columns that the format promises and the data lack. They are no part of the name.
      metadata: of the whole episode, by path; text as `bytes`.
      name: the dataset's own, for messages; "" for the number.
      faults: (path of a column, or "" for the episode; why it cannot be read, and in which file). An episode with faults is a bad one.
      content: its name by its stored content (`identity`), where decoding may give other values elsewhere, or costs much; "" for one that
        is named by its columns.
    """

    columns: Mapping[str, Array] | Callable[[], Mapping[str, Array]]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    faults: tuple[tuple[str, str], ...] = ()
    content: str = ""
    made_up: Mapping[str, Array] = field(default_factory=dict)

    def decode(self) -> Mapping[str, Array]:
        """The columns. Raises `BrokenEpisode` if they cannot be decoded."""
        return self.columns() if callable(self.columns) else self.columns


class BrokenEpisode(Exception):
    """One episode cannot be read, while the rest may be. It becomes an episode with a fault, and the policy of bad episodes decides on it.

    Attributes:
      path: the column's, "" for the whole episode.
      why: which file, what was expected, and what was found.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why


@contextmanager
def refuse_broken() -> Iterator[None]:
    """For what all episodes share: a `BrokenEpisode` inside becomes a `SourceError`."""
    try:
        yield
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken


class Recordings(ABC):
    """The episodes of a dataset, numbered from 0.

    Episodes are named by their content (`identity`): by `Recording.content`, or by the columns where that is "". The names here, of the dataset
    and of each recording, are for messages only. A format implements `spec` and `read`, and overrides what else it knows.

    Attributes:
      name: for messages.
    """

    name: str

    @property
    def count(self) -> int | None:
        """The number of episodes; None where it is unknown without reading them."""
        return None

    @property
    def has_random_access(self) -> bool:
        """Whether `read` does not read the episodes between those that are wanted."""
        return self.count is not None

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices on the data as a whole: how the format's last steps were read, what its producers did to it."""
        return ()

    @property
    def about(self) -> About:
        """What the dataset says of itself as a whole. Raises `SourceError` if that cannot be read."""
        return About()

    def choose(self, numbers: Sequence[int] | None) -> None:  # noqa: B027  # most formats need not know
        """Called once, before `spec` and `read`, with the chosen episodes, or None for all. A spec that no file declares is made of these (`agreement`).

        Raises:
          SourceError: as `spec`.
        """

    @abstractmethod
    def spec(self) -> Nest:
        """The steps' spec: a nest of `ArraySpec` without the time axis, or path -> `ArraySpec`.

        Raises:
          SourceError: it is unknown.
        """

    def metadata_spec(self) -> Nest:
        return {}

    @abstractmethod
    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers.

        Args:
          numbers: ascending. Those that turn out not to exist are left out where `count` is None.

        Raises:
          SourceError: nothing more can be read.
        """

    def metadata_of(self, number: int) -> Mapping[str, Any] | None:
        """The metadata of one episode, by path; None where they are unknown without reading its steps."""
        return None

    def length_of(self, number: int) -> int | None:
        """The rows of one episode, by the metadata; None where these do not say it."""
        return None

    def images(self) -> Mapping[str, ImageSpec]:
        """Path -> spec of the decoded image, of the images whose JPEG or PNG files can be returned."""
        return {}

    def frames(self) -> Mapping[str, ImageSpec]:
        """Path -> spec of the decoded image, of the columns whose rows can be `LazyImage`s."""
        return {}

    def encoded(self, paths: Collection[str]) -> Recordings:
        """The same recordings with these of `images` and `frames` as the files' bytes; `spec` has `ArraySpec.of_images` for them."""
        raise SourceError(f"{self.name}: no image's files can be read here, asked for {', '.join(paths)}")

    def without(self, paths: Collection[str]) -> Recordings:
        """The same recordings, which need not read these step columns, nor check them; what they give of them is dropped, in `spec`, too.

        A format overrides it where it can save work. `Recording.content` must not depend on these columns.
        """
        return self


def read_each(
    read_one: Callable[[int], Recording],
    numbers: Sequence[int],
    name_of: Callable[[int], str] = str,
    metadata_of: Callable[[int], Mapping[str, Any]] = lambda _: {},
) -> Iterator[Recording]:
    """Reads one after the other; a `BrokenEpisode` becomes an episode with that fault, this name and these metadata."""
    for number in numbers:
        try:
            yield read_one(number)
        except BrokenEpisode as broken:
            yield Recording({}, metadata_of(number), name_of(number), ((broken.path, broken.why),))


class RecordedSource(Source):
    """Episodes of recordings: shards, choices, names, prefetch; the same for all formats.

    Args:
      recordings: of all episodes.
      numbers: of the chosen episodes, ascending; all by default.
      files: of the dataset, which must stay the same while it is read.
      dataset: the name that its episodes have as their dataset; by default where the files lie.
    """

    def __init__(
        self,
        recordings: Recordings,
        numbers: Sequence[int] | None = None,
        files: DatasetFiles | None = None,
        dataset: str = "",
    ) -> None:
        count = recordings.count
        self.name, self._recordings, self._files = recordings.name, recordings, files or DatasetFiles()
        self._numbers = range(ENDLESS if count is None else count) if numbers is None else numbers
        self._dataset = dataset or ";".join(self._files.pinned)
        self._lacking: frozenset[str] = frozenset()
        """Columns that are left out."""

    def _copy_with(self, **attributes: Any) -> RecordedSource:
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    @property
    def is_at_hand(self) -> bool:
        return True

    @property
    def episode_count(self) -> int | None:
        is_open = self._recordings.count is None and isinstance(self._numbers, range)
        return None if is_open else len(self._numbers)

    def episode_lengths(self) -> Sequence[int] | None:
        """By the format's metadata; None where these do not say that of every episode."""
        recordings = self._recordings
        if self.episode_count is None:
            return None
        lengths = [length for number in self._numbers if (length := recordings.length_of(number)) is not None]
        return lengths if len(lengths) == len(self._numbers) else None

    @property
    def has_random_access(self) -> bool:
        return self._recordings.has_random_access

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        recorded = [self._numbers[number] for number in numbers]
        episodes = cast("Generator[Episode, None, None]", self._episodes(recorded, None, is_whole=False))
        read = read_ahead(episodes, decoded_bytes, self._files.check_recent)
        return ((number, episode) for episode, number in zip(read, numbers))  # in this order `read` comes to its end

    def check_files(self) -> None:
        self._files.check()

    @property
    def notices(self) -> tuple[Notice, ...]:
        return (*self._recordings.notices, *self._files.notices)

    @property
    def about(self) -> About:
        return self._recordings.about

    def spec(self) -> Nest:
        return nested(self._kept(columns_of(self._recordings.spec(), self.name)))

    def metadata_spec(self) -> Nest:
        return self._recordings.metadata_spec()

    def metadata_of(self, number: int) -> Mapping[str, Any] | None:
        return self._recordings.metadata_of(self._numbers[number])

    def images(self) -> Mapping[str, ImageSpec]:
        return self._kept(self._recordings.images())

    def frames(self) -> Mapping[str, ImageSpec]:
        return self._kept(self._recordings.frames())

    def encoded(self, paths: Collection[str]) -> RecordedSource:
        return self._copy_with(_recordings=self._recordings.encoded(paths).without(self._lacking))

    def without(self, paths: Collection[str]) -> RecordedSource:
        if not paths:
            return self
        lacking = self._lacking.union(paths)
        return self._copy_with(_recordings=self._recordings.without(lacking), _lacking=lacking)

    def _kept(self, columns: Mapping[str, T]) -> dict[str, T]:
        return {path: column for path, column in columns.items() if path not in self._lacking}

    def pick(self, numbers: Sequence[int]) -> RecordedSource:
        return self._copy_with(_numbers=[self._numbers[number] for number in numbers])

    def shard(self, index: int, count: int) -> RecordedSource:
        check_shard(index, count)
        if count == 1:
            return self
        return self._copy_with(_numbers=self._numbers[index::count], name=f"{self.name}[{index}/{count}]")

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        numbers = self._numbers[start:stop]
        is_whole = stop is None or stop >= len(self._numbers)
        return read_ahead(self._episodes(numbers, is_known, is_whole), decoded_bytes, self._files.check_recent)

    def _episodes(
        self, numbers: Sequence[int], is_known: IsKnown | None, is_whole: bool
    ) -> Generator[Episode | KnownEpisode, None, None]:
        """The episodes of these numbers; `is_whole` says whether the last one of the source is among them."""
        with self._files.reading(is_whole):
            yield from self._read(numbers, is_known)

    def _read(self, numbers: Sequence[int], is_known: IsKnown | None) -> Iterator[Episode | KnownEpisode]:
        # The recordings stand first, so that their generator comes to its end, where it closes and checks its files.
        for recording, number in zip(self._recordings.read(numbers), numbers):
            where = f"{self._recordings.name}#{recording.name or number}"
            if self._lacking and not callable(recording.columns):
                recording = replace(recording, columns=self._kept(recording.columns))
            name = recording.content
            if not name:
                name, recording = _name_by_rows(recording, where)
            if is_known is not None and is_known(name):
                yield KnownEpisode(name)
            else:
                try:
                    columns, faults = self._kept({**recording.decode(), **recording.made_up}), recording.faults
                except BrokenEpisode as broken:
                    columns, faults = {}, ((broken.path, broken.why),)
                if faults:
                    self._files.check_fault()
                yield Episode(columns, recording.metadata, name, faults, where, self._dataset)


def _name_by_rows(recording: Recording, where: str) -> tuple[str, Recording]:
    """The name of a recording by its rows, and the recording; of one that cannot be read, by its place and the reason.

    Rows with objects that are no text have no bytes to name them by: such a recording is returned as one that cannot be read, named by
    its other columns and the reason, which are the same wherever the dataset lies.
    """
    columns = recording.decode()
    if recording.faults and not columns:
        return _name_by_text(repr((where, recording.faults))), recording
    try:
        return content_name(content_digest(columns)), recording
    except NamelessColumn as nameless:
        named_columns = {path: column for path, column in columns.items() if column.dtype != object}
        faults = (*recording.faults, (nameless.path, nameless.why))
        name = _name_by_text(repr((content_digest(named_columns), faults)))
        return name, replace(recording, columns={}, faults=faults)


def _name_by_text(text: str) -> str:
    return content_name(xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass")))


def decoded_bytes(episode: Episode | KnownEpisode) -> int:
    return 0 if isinstance(episode, KnownEpisode) else episode.nbytes


# Which episodes of a dataset: the options that every format with numbered episodes has.
#
# | option | values | meaning |
# | --- | --- | --- |
# | `episodes` | `A:B`, `A:`, `:B`, `N`; negative numbers count from the end | by number |
# | `sample` | `N` | N of them, drawn without replacement by `seed` |
# | `split` | `N+M+...` | parts of N, M, ... episodes of one permutation that `seed` draws; `part` says which, from 0 |
# | `part` | `K` | of `split` |
# | `seed` | `S` | of `sample` and `split`; 0 by default |
# | `where` | `KEY=VALUE`, `KEY>VALUE`, `KEY<VALUE` | those whose metadata say so |
#
# They apply in this order: `where`, `episodes`, then `sample` or `split`. Episodes always come in the order of the dataset.
#
# `sample` and `split` draw the episodes that Minari's `sample_episodes` and `split_dataset` draw with that seed.

_SLICE = re.compile(r"(?P<start>-?\d{1,18})?:(?P<stop>-?\d{1,18})?|(?P<number>\d{1,18})", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_WHERE = re.compile(r"(?P<key>[^<>=]+)(?P<sign>[<>=])(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Where:
    key: str
    sign: str
    value: str

    def holds(self, recorded: Any) -> bool:
        """Whether a value satisfies it: as numbers where both are, else as text."""
        text = recorded.decode(errors="replace") if isinstance(recorded, bytes) else str(recorded)
        left, right = _number(text), _number(self.value)
        if left is None or right is None:
            return self.sign == "=" and text == self.value
        return {"=": left == right, "<": left < right, ">": left > right}[self.sign]


@dataclass(frozen=True)
class EpisodeChoice:
    """Parsed options; see the table above."""

    episodes: slice | None = None
    sample: int | None = None
    split: tuple[int, ...] | None = None
    part: int | None = None
    seed: int | None = None
    where: Where | None = None

    @staticmethod
    def take_from(options: dict[str, Any]) -> EpisodeChoice:
        return EpisodeChoice(**{key: options.pop(key) for key in CHOICES if key in options})

    def numbers(self, recordings: Recordings) -> Sequence[int] | None:
        """The numbers of the chosen episodes, ascending; None for all.

        Raises:
          SourceError: none is chosen, there are fewer than requested, or the number of episodes or the metadata are unknown.
        """
        if self == EpisodeChoice():
            return None
        name, count = recordings.name, recordings.count
        if self.sample is not None and self.split is not None:
            raise SourceError(f"{name}: sample and split do not go together")
        if self.part is not None and self.split is None:
            raise SourceError(f"{name}: part goes with split only")
        if self.seed is not None and self.sample is None and self.split is None:
            raise SourceError(f"{name}: seed goes with sample or split only")
        if count is None and self.needs_count:
            raise SourceError(
                f"{name}: the number of episodes is unknown without reading them; choose by episodes=A:B, without negative numbers"
            )
        chosen: Sequence[int] = range(ENDLESS if count is None else count)
        if self.where is not None:
            chosen = _satisfying(recordings, self.where)
        episodes = self.episodes
        if episodes is not None:  # as in Python it may reach beyond the end, but one episode must be there
            there, chosen = len(chosen), chosen[episodes]
            start, stop = episodes.start, episodes.stop
            if not chosen and start is not None and stop == start + 1 and start >= there:
                raise SourceError(f"{name}: episodes={start}: there are {there:,}, numbered from 0")
        rng = np.random.default_rng(self.seed or 0)
        drawn: Any = None  # places in `chosen`
        if self.sample is not None:  # as `MinariDataset.sample_episodes` draws after `set_seed`
            if self.sample > len(chosen):
                raise SourceError(f"{name}: a sample of {self.sample:,} episodes: there are {len(chosen):,}")
            drawn = rng.choice(len(chosen), self.sample, replace=False)
        elif self.split is not None:  # as `minari.split_dataset`
            part, written = self.part or 0, "+".join(map(str, self.split))
            if part >= len(self.split):
                raise SourceError(
                    f"{name}: part {part} of split {written}: it has {len(self.split)} parts, numbered from 0"
                )
            if sum(self.split) > len(chosen):
                raise SourceError(f"{name}: split {written}: {sum(self.split):,} episodes; there are {len(chosen):,}")
            first = sum(self.split[:part])
            drawn = rng.permutation(len(chosen))[first : first + self.split[part]]
        if drawn is not None:
            chosen = tuple(chosen[int(place)] for place in sorted(drawn))
        if not chosen:
            few = "it has too few" if count is None else f"there are {counted(count, 'episode')}"
            raise SourceError(f"{name}: no episode is chosen; {few}")
        return chosen

    @property
    def needs_count(self) -> bool:
        """Whether the number of episodes must be known to choose."""
        ends = (self.episodes.start or 0, self.episodes.stop or 0) if self.episodes else (0, 0)
        return (self.sample, self.split, self.where) != (None, None, None) or min(ends) < 0


def _satisfying(recordings: Recordings, where: Where) -> Sequence[int]:
    of_each = [recordings.metadata_of(number) for number in range(recordings.count or 0)]
    readable = {number: metadata for number, metadata in enumerate(of_each) if metadata is not None}
    if of_each and not readable:
        raise SourceError(f"{recordings.name}: where: its episodes have no metadata that is known before they are read")
    having = {number: metadata[where.key] for number, metadata in readable.items() if where.key in metadata}
    if readable and not having:
        there = sorted({key for metadata in readable.values() for key in metadata})
        raise SourceError(
            f'{recordings.name}: where: no episode has metadata "{where.key}"; there are: {", ".join(there)}'
        )
    return tuple(number for number, recorded in having.items() if where.holds(recorded))


def _number(text: str) -> int | float | None:
    """A text as a number (a whole one stays exact); None if it is no number."""
    try:
        return int(text) if _WHOLE.fullmatch(text) else float(text)
    except ValueError:
        return None


def _parse_episodes(text: str) -> slice:
    match = _SLICE.fullmatch(text)
    if match is None:
        raise ValueError("expected A:B, A:, :B or a number")
    if match["number"]:
        return slice(int(match["number"]), int(match["number"]) + 1)
    return slice(*(int(match[end]) if match[end] else None for end in ("start", "stop")))


def _parse_where(text: str) -> Where:
    match = _WHERE.fullmatch(text)
    if match is None:
        raise ValueError("expected KEY=VALUE, KEY<VALUE or KEY>VALUE")
    if match["sign"] != "=" and _number(match["value"]) is None:
        raise ValueError(f"expected a number behind {match['sign']}")
    return Where(match["key"], match["sign"], match["value"])


CHOICES: dict[str, Parse] = {
    "episodes": _parse_episodes,
    "sample": whole_number,
    "split": lambda text: tuple(map(whole_number, text.split("+"))),
    "part": whole_number,
    "seed": whole_number,
    "where": _parse_where,
}
"""The options, and how each is read."""

LINKS: dict[str, Parse] = {"links": one_of(inside=False, follow=True)}
"""The option of every format with files: whether links out of the dataset's folder are followed."""


# Names: `SCHEME:PATH[?OPTIONS]`.


_SIGNS_OF_SEVERAL = "*?[;"  # in a place that may stand for several files


@dataclass(frozen=True)
class SourceRequest:
    """A parsed source name.

    Attributes:
      name: all of it, for messages.
      place: the text before the options, as it is written.
      options: the format's own options that are given, by name.
      choice: which episodes.
      files: of the dataset; a format pins the place of its data there before it reads any of it.
    """

    name: str
    place: str
    options: dict[str, Any]
    choice: EpisodeChoice
    files: DatasetFiles = field(default_factory=DatasetFiles)

    @property
    def path(self) -> Path:
        """The place as a path; "~" is the home folder."""
        return path_of(self.text)

    @property
    def text(self) -> str:
        return unescape_text(self.place)

    def rename_options(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The options, some by other names: option -> name."""
        return {names.get(option, option): value for option, value in self.options.items()}

    def make_source(self, recordings: Recordings, dataset: str = "") -> RecordedSource:
        """The chosen episodes of recordings, of the dataset at the place by default. Raises `SourceError` if they have none."""
        numbers = self.choice.numbers(recordings)
        recordings.choose(numbers)
        return RecordedSource(recordings, numbers, self.files, dataset or self._place_of_files())

    def _place_of_files(self) -> str:
        pinned = self.files.pinned
        if not pinned:
            return self.text
        if len(pinned) == 1 and not any(sign in self.text for sign in _SIGNS_OF_SEVERAL):
            return pinned[0]
        # Paths as written, not the files found: new files may fit a pattern later, and it is the same dataset.
        return ";".join(canonical(path_of(part.strip())) for part in self.text.split(";"))


def parse_source_name(scheme: str, text: str, known: Mapping[str, Parse]) -> SourceRequest:
    """Parses a source name: a format's scheme, and the text after its ":", with the format's own options, `CHOICES` and `LINKS`.

    Raises:
      SourceError: nothing is named, an option is unknown, given twice, or its value makes no sense.
    """
    name = f"{scheme}:{text}"
    place, written = split_options(text)
    if not place:
        raise SourceError(f'"{name}": names nothing; expected a path or a name behind "{scheme}:"')
    options = read_options(name, written, {**known, **CHOICES, **LINKS})
    choice, follow_links = EpisodeChoice.take_from(options), options.pop("links", False)
    return SourceRequest(name, place, options, choice, DatasetFiles(follow_links))
