"""The base of most formats: `Recordings` gives episodes by number, `RecordedSource` makes a source of them, with the options that choose episodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from rlds2reverb.episode import Array, Episode, KnownEpisode, Notice, content_digest
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.options import Parse, parted, read_options, unescaped, whole_number
from rlds2reverb.formats.source import ENDLESS, IsKnown, Source, check_shard, columns_of, read_ahead
from rlds2reverb.identity import content_name
from rlds2reverb.specs import ImageSpec, Nest, nested
from rlds2reverb.text import counted


@dataclass(frozen=True, eq=False)
class Recording:
    """An episode as it was recorded, in RLDS' alignment (`episodes`).

    Attributes:
      columns: path -> [T, ...], or what decodes them: it is called at most once, before the next episode is asked for, and not at all where
        nobody wants the episode. What the format does not record (reward, discount, is_terminal) is left out: conventions fill it.
      metadata: what is known of the whole episode, by path; text as `bytes`.
      name: what the dataset calls it; for messages; "" for the number.
      faults: (path of a column, or "" for the episode; why it cannot be read, and in which file). An episode with faults is a bad one.
      content: its name by what is stored of it (`identity`), where decoding may give other values elsewhere, or costs much; "" for one that
        is named by its columns.
    """

    columns: Mapping[str, Array] | Callable[[], Mapping[str, Array]]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    faults: tuple[tuple[str, str], ...] = ()
    content: str = ""

    def decoded(self) -> Mapping[str, Array]:
        """The columns.

        Raises:
          BrokenEpisode: they cannot be decoded.
        """
        return self.columns() if callable(self.columns) else self.columns


class BrokenEpisode(Exception):
    """One episode cannot be read; the others may be. It becomes an episode with a fault, and goes by the policy of bad episodes.

    Attributes:
      path: the column's, "" for the whole episode.
      why: which file, what was expected, and what was found.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why


class Recordings:
    """The episodes of a dataset, numbered from 0.

    Episodes are named by their content (`identity`): by `Recording.content`, or by the columns where that is "". The names here, of the dataset
    and of each recording, are for messages only. A format implements `spec` and `read`, and overrides what else it can tell.

    Attributes:
      name: what people call it; for messages.
    """

    name: str

    @property
    def count(self) -> int | None:
        """How many episodes there are; None where only reading tells."""
        return None

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is to be said of the data as a whole: how the format's last steps were read, what its producers did to it."""
        return ()

    def spec(self) -> Nest:
        """The steps' spec: a nest of `ArraySpec` without the time axis, or path -> `ArraySpec`.

        Raises:
          SourceError: it cannot be told.
        """
        raise NotImplementedError

    def metadata_spec(self) -> Nest:
        """The spec of what `Recording.metadata` holds."""
        return {}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers.

        Args:
          numbers: ascending. Those that turn out not to exist are left out where `count` is None.

        Raises:
          SourceError: nothing more can be read.
        """
        raise NotImplementedError

    def metadata_of(self, number: int) -> Mapping[str, Any] | None:
        """The metadata of one episode, by path; None where only reading its steps tells."""
        return None

    def length_of(self, number: int) -> int | None:
        """Rows that `Recording.columns` of one episode have when it is as the metadata tell; None where they do not."""
        return None

    def images(self) -> Mapping[str, ImageSpec]:
        """Path -> what it decodes to, of the images whose JPEG or PNG files can be given as they are."""
        return {}

    def encoded(self, paths: Collection[str]) -> Recordings:
        """The same recordings with these of `images` as the files' bytes; `spec` has `ArraySpec.of_images` for them."""
        raise NotImplementedError


def each(
    recordings: Any,
    numbers: Sequence[int],
    name_of: Callable[[int], str] = str,
    metadata_of: Callable[[int], Mapping[str, Any]] | None = None,
) -> Iterator[Recording]:
    """Reads one after the other by `recordings.one(number)`; what raises `BrokenEpisode` becomes an episode with that fault.

    Args:
      recordings: has `one`.
      numbers: which.
      name_of: the name of an episode that cannot be read; the same as if it could.
      metadata_of: what is known of one all the same.
    """
    for number in numbers:
        try:
            yield recordings.one(number)
        except BrokenEpisode as broken:
            known = metadata_of(number) if metadata_of is not None else {}
            yield Recording({}, known, name_of(number), ((broken.path, broken.why),))


# The source that a format's recordings make: shards, choices, names, reading ahead; the same for all of them.


class RecordedSource(Source):
    """Episodes of recordings.

    Args:
      recordings: what is read.
      numbers: which episodes, ascending; all by default.
      name: for messages; the recordings' by default.
    """

    def __init__(self, recordings: Recordings, numbers: Sequence[int] | None = None, name: str = "") -> None:
        count = recordings.count
        self._recordings = recordings
        self._numbers = range(ENDLESS if count is None else count) if numbers is None else numbers
        self.name = name or recordings.name

    @property
    def episode_count(self) -> int | None:
        """How many there are; None where only reading tells."""
        is_open = self._recordings.count is None and isinstance(self._numbers, range)
        return None if is_open else len(self._numbers)

    def episode_lengths(self) -> Sequence[int] | None:
        """As the format's metadata tell; None where they do not, of one episode at least."""
        recordings = self._recordings
        if self.episode_count is None:
            return None
        lengths = [length for number in self._numbers if (length := recordings.length_of(number)) is not None]
        return lengths if len(lengths) == len(self._numbers) else None

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The recordings'."""
        return self._recordings.notices

    def spec(self) -> Nest:
        """The steps' spec, dicts within dicts."""
        return nested(columns_of(self._recordings.spec(), self.name))

    def metadata_spec(self) -> Nest:
        """That of the episodes' metadata."""
        return self._recordings.metadata_spec()

    def images(self) -> Mapping[str, ImageSpec]:
        return self._recordings.images()

    def encoded(self, paths: Collection[str]) -> RecordedSource:
        return RecordedSource(self._recordings.encoded(paths), self._numbers, self.name)

    def shard(self, index: int, count: int) -> RecordedSource:
        """Every `count`-th episode; also of a shard."""
        check_shard(index, count)
        if count == 1:
            return self
        return RecordedSource(self._recordings, self._numbers[index::count], f"{self.name}[{index}/{count}]")

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        """See `Source.read`; no others are read."""
        return read_ahead(self._episodes(self._numbers[start:stop], is_known), _size)

    def _episodes(
        self, numbers: Sequence[int], is_known: IsKnown | None
    ) -> Generator[Episode | KnownEpisode, None, None]:
        for number, recording in zip(numbers, self._recordings.read(numbers)):
            where = f"{self._recordings.name}#{recording.name or number}"
            name = recording.content or _named_by_rows(recording, where)
            if is_known is not None and is_known(name):
                yield KnownEpisode(name)
            else:
                try:
                    columns, faults = recording.decoded(), recording.faults
                except BrokenEpisode as broken:
                    columns, faults = {}, ((broken.path, broken.why),)
                yield Episode(columns, recording.metadata, name, faults, where)


def _named_by_rows(recording: Recording, where: str) -> str:
    """The name of a recording whose rows are all that is stored of it; of one that cannot be read, by where it is and why."""
    columns = recording.decoded()
    if columns or not recording.faults:
        with suppress(TypeError):  # a column of objects, which validation refuses
            return content_name(content_digest(columns))
    return content_name(xxhash.xxh3_128_hexdigest(repr((where, recording.faults)).encode("utf-8", "surrogatepass")))


def _size(episode: Episode | KnownEpisode) -> int:
    return 0 if isinstance(episode, KnownEpisode) else episode.nbytes


# Which episodes of a dataset: the options that every format with numbered episodes has.
#
# | option | values | meaning |
# | --- | --- | --- |
# | `episodes` | `A:B`, `A:`, `:B`, `N`; negative numbers count from the end | by number |
# | `sample` | `N` | so many of them, drawn without replacement by `seed` |
# | `split` | `N+M+...` | parts of so many episodes of one permutation that `seed` draws; `part` says which, from 0 |
# | `part` | `K` | of `split` |
# | `seed` | `S` | of `sample` and `split`; 0 by default |
# | `where` | `KEY=VALUE`, `KEY>VALUE`, `KEY<VALUE` | those whose metadata say so |
#
# They are taken in this order: `where`, `episodes`, then `sample` or `split`. Episodes always come in the order of the dataset.
#
# `sample` and `split` draw the episodes that Minari's `sample_episodes` and `split_dataset` draw with that seed.

_SLICE = re.compile(r"(?P<start>-?\d{1,18})?:(?P<stop>-?\d{1,18})?|(?P<one>\d{1,18})", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_WHERE = re.compile(r"(?P<key>[^<>=]+)(?P<sign>[<>=])(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Where:
    """A condition on an episode's metadata."""

    key: str
    sign: str
    value: str

    def holds(self, found: Any) -> bool:
        """Whether a value satisfies it: as numbers where both are, else as text."""
        text = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        one, other = _number(text), _number(self.value)
        if one is None or other is None:
            return self.sign == "=" and text == self.value
        return {"=": one == other, "<": one < other, ">": one > other}[self.sign]


@dataclass(frozen=True)
class Choice:
    """Parsed options; see the module's table."""

    episodes: slice | None = None
    sample: int | None = None
    split: tuple[int, ...] | None = None
    part: int | None = None
    seed: int | None = None
    where: Where | None = None

    @staticmethod
    def taken_from(options: dict[str, Any]) -> Choice:
        """The choice that options make; takes them out of there."""
        return Choice(**{key: options.pop(key) for key in CHOICES if key in options})

    def numbers(self, recordings: Recordings) -> Sequence[int] | None:
        """The numbers of the episodes that are chosen, ascending; None for all.

        Raises:
          SourceError: none is chosen, more are asked for than there are, or what only reading tells would have to be known.
        """
        if self == Choice():
            return None
        found = self._found(recordings)
        if not found:
            raise SourceError(f"{recordings.name}: no episode is chosen; {_there_are(recordings)}")
        return found

    def _found(self, recordings: Recordings) -> Sequence[int]:
        name, count = recordings.name, recordings.count
        self._check(name)
        if count is None and not self._only_by_number:
            raise SourceError(
                f"{name}: only reading tells how many episodes there are; choose by episodes=A:B, without negative numbers"
            )
        found: Sequence[int] = range(ENDLESS if count is None else count)
        if self.where is not None:
            found = self._satisfying(recordings, self.where)
        if self.episodes is not None:
            found = _sliced(name, found, self.episodes)
        if self.sample is not None:
            return self._drawn(name, found, self.sample)
        if self.split is not None:
            return self._part(name, found, self.split)
        return found

    def _check(self, name: str) -> None:
        """Checks that the options can be combined."""
        if self.sample is not None and self.split is not None:
            raise SourceError(f"{name}: sample and split do not go together")
        if self.part is not None and self.split is None:
            raise SourceError(f"{name}: part goes with split only")
        if self.seed is not None and self.sample is None and self.split is None:
            raise SourceError(f"{name}: seed goes with sample or split only")

    @property
    def needs_count(self) -> bool:
        """Whether it makes sense only where it is known how many episodes there are."""
        return self != Choice() and not self._only_by_number

    @property
    def _only_by_number(self) -> bool:
        ends = (self.episodes.start or 0, self.episodes.stop or 0) if self.episodes else (0, 0)
        return self.sample is None and self.split is None and self.where is None and min(ends) >= 0

    def _drawn(self, name: str, found: Sequence[int], size: int) -> Sequence[int]:
        """So many, as `MinariDataset.sample_episodes` draws them after `set_seed`; in the order of the dataset."""
        if size > len(found):
            raise SourceError(f"{name}: a sample of {size:,} episodes: there are {len(found):,}")
        drawn = np.random.default_rng(self.seed or 0).choice(len(found), size, replace=False)
        return tuple(found[int(at)] for at in sorted(drawn))

    def _part(self, name: str, found: Sequence[int], sizes: tuple[int, ...]) -> Sequence[int]:
        """One part, as `minari.split_dataset` makes them; in the order of the dataset."""
        part, written = self.part or 0, "+".join(map(str, sizes))
        if part >= len(sizes):
            raise SourceError(f"{name}: part {part} of split {written}: it has {len(sizes)} parts, numbered from 0")
        if sum(sizes) > len(found):
            raise SourceError(f"{name}: split {written}: {sum(sizes):,} episodes; there are {len(found):,}")
        order = np.random.default_rng(self.seed or 0).permutation(len(found))
        start = sum(sizes[:part])
        return tuple(found[int(at)] for at in sorted(order[start : start + sizes[part]]))

    def _satisfying(self, recordings: Recordings, where: Where) -> Sequence[int]:
        told = [recordings.metadata_of(number) for number in range(recordings.count or 0)]
        known = {number: metadata for number, metadata in enumerate(told) if metadata is not None}
        if told and not known:
            raise SourceError(
                f"{recordings.name}: where: its episodes have no metadata that is known before they are read"
            )
        if known and not any(where.key in metadata for metadata in known.values()):
            there = sorted({key for metadata in known.values() for key in metadata})
            raise SourceError(
                f'{recordings.name}: where: no episode has metadata "{where.key}"; there are: {", ".join(there)}'
            )
        return tuple(
            number for number, metadata in known.items() if where.key in metadata and where.holds(metadata[where.key])
        )


def _there_are(recordings: Recordings) -> str:
    return "it has too few" if recordings.count is None else f"there are {counted(recordings.count, 'episode')}"


def _sliced(name: str, found: Sequence[int], wanted: slice) -> Sequence[int]:
    """Those of a slice; as in Python it may reach beyond the end, but one episode must be there."""
    sliced = found[wanted]
    if not sliced and wanted.start is not None and wanted.stop == wanted.start + 1 and wanted.start >= len(found):
        raise SourceError(f"{name}: episodes={wanted.start}: there are {len(found):,}, numbered from 0")
    return sliced


def _number(text: str) -> int | float | None:
    """A text as a number (a whole one stays exact); None if it is no number."""
    try:
        return int(text) if _WHOLE.fullmatch(text) else float(text)
    except ValueError:
        return None


def _episodes(text: str) -> slice:
    found = _SLICE.fullmatch(text)
    if found is None:
        raise ValueError("expected A:B, A:, :B or a number")
    if found["one"]:
        return slice(int(found["one"]), int(found["one"]) + 1)
    return slice(*(int(found[end]) if found[end] else None for end in ("start", "stop")))


def _split(text: str) -> tuple[int, ...]:
    return tuple(map(whole_number, text.split("+")))


def _where(text: str) -> Where:
    found = _WHERE.fullmatch(text)
    if found is None:
        raise ValueError("expected KEY=VALUE, KEY<VALUE or KEY>VALUE")
    if found["sign"] != "=" and _number(found["value"]) is None:
        raise ValueError(f"expected a number behind {found['sign']}")
    return Where(found["key"], found["sign"], found["value"])


CHOICES: dict[str, Parse] = {
    "episodes": _episodes,
    "sample": whole_number,
    "split": _split,
    "part": whole_number,
    "seed": whole_number,
    "where": _where,
}
"""The options, and how each is read."""


# Parses the text after a format's name, `PATH[?OPTIONS]`; the same for all formats with numbered episodes.


@dataclass(frozen=True)
class Asked:
    """A source's name, read.

    Attributes:
      name: all of it, for messages.
      place: what stands before the options, as it is written.
      options: the format's own options that are given, by name.
      choice: which episodes.
    """

    name: str
    place: str
    options: dict[str, Any]
    choice: Choice

    @property
    def path(self) -> Path:
        """The place as a path; "~" is the home folder."""
        return Path(self.text).expanduser()

    @property
    def text(self) -> str:
        """The place as it is meant."""
        return unescaped(self.place)

    def renamed(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The options, some by other names: option -> name."""
        return {names.get(option, option): value for option, value in self.options.items()}

    def source_of(self, recordings: Recordings) -> RecordedSource:
        """The chosen episodes of recordings.

        Raises:
          SourceError: they have no such episodes.
        """
        return RecordedSource(recordings, self.choice.numbers(recordings))


def asked(scheme: str, text: str, known: Mapping[str, Parse]) -> Asked:
    """Takes a name apart.

    Args:
      scheme: the format's name.
      text: the text after its ":".
      known: the format's own options, and how each is read; `CHOICES` are added.

    Raises:
      SourceError: nothing is named, an option is unknown, given twice, or its value makes no sense.
    """
    name = f"{scheme}:{text}"
    place, written = parted(text)
    if not place:
        raise SourceError(f'"{name}": names nothing; expected a path or a name behind "{scheme}:"')
    options = read_options(name, written, {**known, **CHOICES})
    choice = Choice.taken_from(options)
    return Asked(name, place, options, choice)
