"""The interface of every source: episodes by number, and their description; slices, and checks of specs.

The functions here check a source's description; they read no more than its first episode.
"""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar, cast

from rlds2reverb.episode import IS_FIRST, IS_LAST, Episode, KnownEpisode, Notice, is_under, metadata_specs
from rlds2reverb.errors import SourceError, SpecError
from rlds2reverb.plain import Count, printed
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, column_spec, flatten, nested
from rlds2reverb.text import counted

ENDLESS = 1 << 62  # larger than any dataset's number of episodes

T = TypeVar("T")

IsKnown = Callable[[str], bool]
"""Whether the reader already knows the episode of this name, so that it need not be decoded."""

ALL = "all"
"""In place of paths: every image column."""


@dataclass(frozen=True)
class About:
    """What a dataset says of itself as a whole: its authors, its environment, its licence.

    Attributes:
      system: the scheme of the format whose words the names are, such as "minari"; "" where the dataset says nothing.
      facts: name -> plain value, for JSON. Without what the name or the episodes of a copy say anew, such as the number of steps.
      unequal: names of facts that the parts of a mix say differently, or that only some of them say.
      spaces: path of a step column -> its space of Gymnasium, as Minari writes it in JSON, where the dataset declares one. It says more than a
        spec: which numbers are a MultiDiscrete, which characters a text may have.
      own: name -> plain value of what a copy says anew, such as its id, its version, its number of episodes. It is only shown.
    """

    system: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    unequal: tuple[str, ...] = ()
    spaces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        system: str,
        facts: Mapping[str, Any],
        spaces: Mapping[str, Mapping[str, Any]] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> About:
        """Keeps what says something: no None, and no empty text, list or object."""

        def keep_said(facts: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in facts.items() if value is not None and value not in ("", [], {})}

        return cls(system, keep_said(facts), spaces=spaces or {}, own=keep_said(own or {}))

    @property
    def said(self) -> dict[str, Any]:
        """All that the dataset says of itself; first what a copy says anew: its name, version and counts."""
        return {**self.own, **self.facts}


@dataclass
class Tally:
    """The amount that was read from one part of a mix.

    Attributes:
      name: the part's.
      episodes, steps: numbers read, bad episodes included; steps are rows.
    """

    name: str
    episodes: int = 0
    steps: int = 0


@printed("episodes", "steps", "emptied")
@dataclass
class LeftOut:
    """What a rule takes out of a source.

    Attributes:
      episodes: left out as a whole by it.
      steps: rows left out, those of whole episodes included.
      emptied: episodes that kept no row, of which it took the last one; they are no part of `episodes`.
    """

    episodes: Count = 0
    steps: Count = 0
    emptied: Count = 0

    def __str__(self) -> str:
        emptied = f", and all rows of {self.emptied:,} more" if self.emptied else ""
        return f"{counted(self.episodes, 'episode')}{emptied} ({counted(self.steps, 'step')})"


def add_left_out(parts: Iterable[Mapping[str, LeftOut]]) -> dict[str, LeftOut]:
    """What the rules of several sources take out in all."""
    whole: dict[str, LeftOut] = {}
    for part in parts:
        for rule, counts in part.items():
            before = whole.get(rule, LeftOut())
            whole[rule] = LeftOut(
                before.episodes + counts.episodes, before.steps + counts.steps, before.emptied + counts.emptied
            )
    return whole


class FindingStore(Protocol):
    """What was found out, by `Finding.key`: in this process, and in the one that started it."""

    found: dict[Hashable, Any]
    known: Mapping[Hashable, Any]


class Finding(ABC, Generic[T]):
    """What only reading a source shows, such as the episodes that a filter leaves. It is found out once, for all processes that open the source."""

    def __init__(self, store: FindingStore) -> None:
        self._stores = [store]

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal where the same is found out."""

    @abstractmethod
    def find(self) -> T:
        """Finds it out; raises `SourceError`."""

    def check(self) -> None:
        """Raises if what is known cannot be that of this process."""

    @cached_property
    def value(self) -> T:
        for store in self._stores:
            if self.key in store.known:
                self.check()
                known: T = store.known[self.key]
                return known
        value = self.find()
        for store in self._stores:
            store.found[self.key] = value
        return value

    def share_with(self, store: FindingStore) -> None:
        """Has what is found out go into this store, too, and what is known there count."""
        self._stores.append(store)
        if "value" in vars(self):
            store.found[self.key] = self.value


class Source(ABC):
    """A dataset as episodes. Iterating twice reads it twice, in the same order.

    A format implements `spec`, and `read` or `__iter__`; it overrides what else it knows. `open_source` wraps every
    object that has `spec` and `__iter__` as a source.

    Attributes:
      name: for messages.
    """

    name: str = "source"

    @abstractmethod
    def spec(self) -> Nest:
        """The steps' spec: a nest of `ArraySpec` without the time axis.

        Raises:
          SourceError: the dataset is empty or cannot be read, so there is nothing to derive it from.
        """

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        """Episodes by number. A format that can seek skips those outside the range; else they are read and dropped.

        Args:
          start, stop: numbers in the order of the source; `stop` is exclusive, None is the end.
          is_known: called once with the name of each episode, in order, perhaps on another thread. A known episode is
            replaced by a `KnownEpisode`; a source that can name an episode before decoding does not decode it.

        Raises:
          SourceError: the data cannot be read; the message names the episode.
        """
        return unless_known(islice(iter(self), start, stop), is_known)

    def __iter__(self) -> Iterator[Episode]:
        """Reads all episodes; raises as `read`."""
        return self.episodes()

    def episodes(self, start: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """As `read`, with no episode known."""
        return cast("Iterator[Episode]", self.read(start, stop))

    @property
    def episode_count(self) -> int | None:
        """The number of episodes; None if it is unknown without reading them."""
        return None

    def known_count(self) -> int:
        """The number of episodes, which workers divide among themselves.

        Raises:
          SourceError: the number is unknown without reading the episodes.
        """
        count = self.episode_count
        if count is None:
            raise SourceError(
                f"{self.name}: the number of its episodes is unknown without reading them, so they cannot be divided among workers (--workers, --ray); leave them out"
            )
        return count

    def episode_lengths(self) -> Sequence[int] | None:
        """Rows of each episode, in order; None if they are unknown without reading the episodes.

        Raises:
          SourceError: the description of the episodes cannot be read.
        """
        return None

    def count_lengths(self) -> Sequence[int]:
        """As `episode_lengths`; where they are unknown, the episodes are read once. A format that can keep what it counted does so.

        Raises:
          SourceError: the data cannot be read.
        """
        lengths = self.episode_lengths()
        return [len(episode) for episode in self.episodes()] if lengths is None else lengths

    @property
    def has_random_access(self) -> bool:
        """Whether `at` reads episodes by their numbers without those between them; the number of episodes is known then."""
        return False

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        """Reads single episodes; only of a source that `has_random_access`.

        Args:
          numbers: in the order of the source, ascending, each once. All of them exist.

        Returns:
          each episode with its number, in the order in which they are read fastest.

        Raises:
          SourceError: as `read`.
        """
        raise NotImplementedError

    @property
    def is_at_hand(self) -> bool:
        """Whether the next episode never waits for a program that makes it: all are in memory or in files.

        A push checks and encodes short episodes of such a source together; those of any other one by one, as they come.
        """
        return False

    @property
    def is_live(self) -> bool:
        """Whether reading it again gives other episodes, as an environment does that is no function of a seed."""
        return False

    @property
    def other_episodes_hint(self) -> str:
        """What to do where reading it again gave other episodes against what it says; a sentence, or "" where nothing is known."""
        return ""

    def metadata_spec(self) -> Nest:
        """The spec of an episode's metadata: a nest of `ArraySpec`, or path -> `ArraySpec`; by default that of the first episode.

        Raises:
          SourceError: as `spec`; or there is no episode.
        """
        first = next(iter(self), None)
        if first is None:
            raise SourceError(f"{self.name}: no episode, so its metadata is not known")
        return metadata_specs(first)

    def metadata_of(self, number: int) -> Mapping[str, Any] | None:
        """Everything that the format keeps of an episode's metadata; None if it is unknown without reading the episode.

        It may have features that `metadata_spec` and `Episode.metadata` lack, because other episodes do not have them.
        """
        return None

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices so far on the data as a whole, such as files that lost records; reading may add more."""
        return ()

    @property
    def about(self) -> About:
        """What the dataset says of itself as a whole, whichever of its episodes are chosen and whatever becomes of their columns.

        Raises:
          SourceError: the dataset's description cannot be read.
        """
        return About()

    def images(self) -> Mapping[str, ImageSpec]:
        """Path -> spec of the decoded image, for every step column whose JPEG or PNG files can be returned.

        Raises:
          SourceError: the dataset's description cannot be read.
        """
        return {}

    def frames(self) -> Mapping[str, ImageSpec]:
        """Path -> spec of the decoded image, for every step column whose rows can be `LazyImage`s, such as frames of videos. Raises as `images`."""
        return {}

    def encoded(self, paths: Collection[str]) -> Source:
        """The same source with these paths of `images()` or `frames()` as columns of the files' bytes; episodes keep their names.

        For formats to implement; call `with_encoded`, which checks the paths. Its spec has `ArraySpec.of_images` for them.
        """
        raise NotImplementedError

    def with_encoded(self, encoded: Sequence[str], with_frames: bool = False) -> Source:
        """The source with some of its image columns as the files' own bytes.

        Args:
          encoded: paths of image columns, or of nests of them; or "all". If empty, returns the source itself.
          with_frames: also of `frames()`, for who decodes in this process what comes.

        Raises:
          SourceError: the source cannot return the bytes of its files, or a path is no image column; the message lists
            them.
        """
        if not encoded:
            return self
        images = {**self.images(), **self.frames()} if with_frames else self.images()
        if not images:
            raise SourceError(
                f"{self.name}: encoded: has no step columns whose JPEG or PNG files can be kept as they are; "
                "those of a TFDS dataset's Image features can. Leave encoded (--encoded) out"
            )
        for prefix in encoded:
            if prefix != ALL and not any(is_under(path, prefix) for path in images):
                raise SourceError(
                    f'{self.name}: encoded "{prefix}": expected image columns, which are {", ".join(images)}; or "{ALL}"'
                )
        return self.encoded(
            [path for path in images if ALL in encoded or any(is_under(path, prefix) for prefix in encoded)]
        )

    def without(self, paths: Collection[str]) -> Source:
        """The same source without these step columns; its spec and its episodes lack them. Paths that it does not have are ignored.

        What is left out is not checked. A format that can also does not fetch, read or decode it; by default, it is dropped after
        reading. An episode that a format names by its columns is named by those that are left (docs/exactly_once.md).
        """
        return Without(self, paths) if paths else self

    def check_files(self) -> None:  # noqa: B027  # most sources have no files that could change
        """Compares all files of the dataset with those that were opened, for whoever had its episodes read elsewhere, by workers.

        Raises:
          SourceError: one has changed, or is gone.
        """

    @property
    def left_out(self) -> tuple[str, ...]:
        """Paths of step columns that a transform leaves out."""
        return ()

    @property
    def encodes(self) -> Mapping[str, bool]:
        """Path -> whether they are made of other files, for image columns whose files are made while reading (`Transform.encode`)."""
        return {}

    def recorded_paths(self, path: str) -> tuple[str, ...]:
        """The dataset's own names of the columns that a step column is taken from: its own, unless a transform renamed it or chooses among several."""
        return (path,)

    def path_to_encode(self, path: str) -> str:
        """The name by which a transform encodes or resizes a step column: the one before it renames any."""
        return path

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """The amounts that the last reading read from each part of a mix; () for any other source."""
        return ()

    @property
    def findings(self) -> tuple[Finding[Any], ...]:
        """What reading it finds out before its first episode is there; () for most sources."""
        return ()

    @property
    def filtered(self) -> Mapping[str, LeftOut]:
        """What rules take out of a filtered source: rule -> counts; {} before it was first read or counted, and for any other source."""
        return {}

    def pick(self, numbers: Sequence[int]) -> Source:
        """The episodes of these numbers, ascending, each once. The rest are not decoded where the format can tell their names before."""
        return Picked(self, numbers)

    def shard(self, index: int, count: int) -> Source:
        """Every `count`-th episode, starting with number `index`.

        An empty shard, too, has the spec of the whole source. A shard can be sharded again.

        Raises:
          SourceError: not 0 <= index < count.
        """
        check_shard(index, count)
        return self if count == 1 else Slice(self, range(index, ENDLESS, count), f"{self.name}[{index}/{count}]")

    def first(self, count: int | None) -> Source:
        """The first `count` episodes; the source itself if `count` is None."""
        return self if count is None else Slice(self, range(count), f"{self.name}, first {count:,}")

    def slice(self, start: int, stop: int | None = None) -> Source:
        """The episodes from number `start` to `stop` (exclusive); None is the end."""
        return Slice(self, range(start, ENDLESS if stop is None else stop))


class Wrapper(Source):
    """A source that wraps another one, and has its description, and its name by default."""

    def __init__(self, source: Source, name: str = "") -> None:
        self._source = source
        self.name = name or source.name

    def spec(self) -> Nest:
        return self._source.spec()

    @property
    def episode_count(self) -> int | None:
        return self._source.episode_count

    def episode_lengths(self) -> Sequence[int] | None:
        return self._source.episode_lengths()

    def count_lengths(self) -> Sequence[int]:
        return self._source.count_lengths()

    @property
    def has_random_access(self) -> bool:
        return self._source.has_random_access

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return self._source.at(numbers)

    def metadata_spec(self) -> Nest:
        return self._source.metadata_spec()

    @property
    def is_at_hand(self) -> bool:
        return self._source.is_at_hand

    def check_files(self) -> None:
        self._source.check_files()

    @property
    def other_episodes_hint(self) -> str:
        return self._source.other_episodes_hint

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._source.notices

    @property
    def about(self) -> About:
        return self._source.about

    def images(self) -> Mapping[str, ImageSpec]:
        return self._source.images()

    def frames(self) -> Mapping[str, ImageSpec]:
        return self._source.frames()

    @property
    def left_out(self) -> tuple[str, ...]:
        return self._source.left_out

    @property
    def encodes(self) -> Mapping[str, bool]:
        return self._source.encodes

    def recorded_paths(self, path: str) -> tuple[str, ...]:
        return self._source.recorded_paths(path)

    def path_to_encode(self, path: str) -> str:
        return self._source.path_to_encode(path)

    @property
    def tallies(self) -> tuple[Tally, ...]:
        return self._source.tallies

    @property
    def findings(self) -> tuple[Finding[Any], ...]:
        return self._source.findings

    @property
    def filtered(self) -> Mapping[str, LeftOut]:
        return self._source.filtered


class Slice(Wrapper):
    """Some episodes of a source, by their `numbers` in its order, named as in the whole."""

    def __init__(self, source: Source, numbers: range, name: str = "") -> None:
        super().__init__(source, name)
        self._numbers = numbers

    @property
    def episode_count(self) -> int | None:
        whole = self._source.episode_count
        return None if whole is None else len(self._of(whole))

    def episode_lengths(self) -> Sequence[int] | None:
        whole = self._source.episode_lengths()
        return None if whole is None else [whole[number] for number in self._of(len(whole))]

    def count_lengths(self) -> Sequence[int]:
        return Source.count_lengths(self)  # of these episodes only

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        own = self._numbers
        own_numbers = [own[number] for number in numbers]
        return ((own.index(number), episode) for number, episode in self._source.at(own_numbers))

    def encoded(self, paths: Collection[str]) -> Slice:
        return Slice(self._source.encoded(paths), self._numbers, self.name)

    def without(self, paths: Collection[str]) -> Slice:
        return Slice(self._source.without(paths), self._numbers, self.name)

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        numbers = self._numbers[start:stop]
        if not numbers:
            return iter(())
        if numbers.step == 1:
            return self._source.read(numbers.start, numbers.stop, is_known)
        place = itertools.count()

        def is_left_out(name: str) -> bool:
            is_between = next(place) % numbers.step != 0
            return is_between or (is_known is not None and is_known(name))

        every = self._source.read(numbers.start, numbers.stop, is_left_out)  # so that those between are not decoded
        return islice(every, 0, None, numbers.step)

    def shard(self, index: int, count: int) -> Source:
        check_shard(index, count)
        return self if count == 1 else Slice(self._source, self._numbers[index::count], f"{self.name}[{index}/{count}]")

    def _of(self, whole: int) -> range:
        """The selected numbers below `whole`, the source's number of episodes."""
        numbers = self._numbers
        return range(numbers.start, min(numbers.stop, max(whole, numbers.start)), numbers.step)


class Picked(Wrapper):
    """Single episodes of a source, by their `numbers` in its order, ascending."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        super().__init__(source)
        self._numbers = numbers

    @property
    def episode_count(self) -> int | None:
        return len(self._numbers)

    def episode_lengths(self) -> Sequence[int] | None:
        whole = self._source.episode_lengths()
        return None if whole is None else [whole[number] for number in self._numbers]

    def count_lengths(self) -> Sequence[int]:
        whole = self._source.count_lengths()
        return [whole[number] for number in self._numbers]

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        place_of = {self._numbers[place]: place for place in numbers}
        return ((place_of[number], episode) for number, episode in self._source.at([*place_of]))

    def encoded(self, paths: Collection[str]) -> Picked:
        return Picked(self._source.encoded(paths), self._numbers)

    def without(self, paths: Collection[str]) -> Picked:
        return Picked(self._source.without(paths), self._numbers)

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        numbers = self._numbers[start:stop]
        if not len(numbers):
            return
        first, end = int(numbers[0]), int(numbers[-1]) + 1
        if end - first == len(numbers):
            yield from self._source.read(first, end, is_known)
            return
        wanted = frozenset(map(int, numbers))
        place = itertools.count(first)

        def is_left_out(name: str) -> bool:
            return next(place) not in wanted or (is_known is not None and is_known(name))

        # As known episodes, those between are not decoded.
        for number, episode in enumerate(self._source.read(first, end, is_left_out), first):
            if number in wanted:
                yield episode


class Without(Wrapper):
    """A source without some step columns, which are dropped after reading. Episodes keep their names."""

    def __init__(self, source: Source, paths: Collection[str]) -> None:
        super().__init__(source)
        self._paths = frozenset(paths)

    def spec(self) -> Nest:
        columns: dict[str, ArraySpec] = columns_of(self._source.spec(), self.name)
        return nested({path: leaf for path, leaf in columns.items() if path not in self._paths})

    def images(self) -> Mapping[str, ImageSpec]:
        return {path: image for path, image in self._source.images().items() if path not in self._paths}

    def frames(self) -> Mapping[str, ImageSpec]:
        return {path: image for path, image in self._source.frames().items() if path not in self._paths}

    def encoded(self, paths: Collection[str]) -> Without:
        return Without(self._source.encoded(paths), self._paths)

    def without(self, paths: Collection[str]) -> Source:
        return Without(self._source, self._paths.union(paths))

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        episodes = self._source.read(start, stop, is_known)
        return (episode if isinstance(episode, KnownEpisode) else self._fewer(episode) for episode in episodes)

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return ((number, self._fewer(episode)) for number, episode in self._source.at(numbers))

    def _fewer(self, episode: Episode) -> Episode:
        columns = {path: column for path, column in episode.columns.items() if path not in self._paths}
        faults = tuple(fault for fault in episode.faults if fault[0] not in self._paths or not columns)
        return replace(episode, columns=columns, faults=faults)


class Adapted(Source):
    """An object as a source. It has `spec` and `__iter__`, and may have `name`, `episode_count`, `shard`, `metadata_spec` and `notices`."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self.name = getattr(thing, "name", type(thing).__name__)

    def spec(self) -> Nest:
        return self._thing.spec()

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._thing)

    @property
    def episode_count(self) -> int | None:
        return getattr(self._thing, "episode_count", None)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(getattr(self._thing, "notices", ()))

    def metadata_spec(self) -> Nest:
        return self._thing.metadata_spec() if hasattr(self._thing, "metadata_spec") else super().metadata_spec()

    def shard(self, index: int, count: int) -> Source:
        return (
            as_source(self._thing.shard(index, count)) if hasattr(self._thing, "shard") else super().shard(index, count)
        )


def as_source(thing: Any) -> Source:
    return thing if isinstance(thing, Source) else Adapted(thing)


def unless_known(
    episodes: Iterable[Episode | KnownEpisode], is_known: IsKnown | None
) -> Iterator[Episode | KnownEpisode]:
    """Replaces each known episode by a `KnownEpisode`; for a source that names an episode only after decoding it."""
    if is_known is None:
        return iter(episodes)
    return (KnownEpisode(episode.id) if is_known(episode.id) else episode for episode in episodes)


def columns_of(nest: Nest, name: str) -> dict[str, Any]:
    """Leaf path -> leaf of a dataset's spec or data; see `specs.flatten`.

    Raises:
      SourceError: two leaves have the same path; the message calls the dataset `name`.
    """
    try:
        return flatten(nest)
    except SpecError as error:
        raise SourceError(f"{name}: {error}; rename it in the dataset") from error


def checked_spec(source: Source) -> Nest:
    """A source's spec, in which every column has a name of its own.

    Raises:
      SourceError: there is no spec, or two columns have the same path.
    """
    spec = source.spec()
    columns_of(spec, source.name)
    return spec


def check_steps(source: Source, spec: Nest) -> None:
    """Raises `SourceError` for steps that are not RLDS steps: they lack is_first or is_last."""
    missing = [name for name in (IS_FIRST, IS_LAST) if name not in spec]
    if missing:
        raise SourceError(f"{source.name}: not RLDS: steps lack {' and '.join(missing)}; found {sorted(spec)}")


def metadata_spec_of(source: Source) -> Nest:
    """The spec of the episodes' metadata, as nested dicts.

    Raises:
      SourceError: the spec is unknown and there is no readable episode to derive it from; or two features have the same
        path.
    """
    return nested(columns_of(source.metadata_spec(), source.name))


def check_shard(index: int, count: int) -> None:
    """Raises `SourceError` unless 0 <= index < count."""
    if not 0 <= index < count:
        raise SourceError(f"shard {index} of {count}: expected 0 <= index < count")


def spec_of(episode: Episode) -> Nest:
    """The step spec of one episode.

    Raises:
      SourceError: a column has the name of a group of columns ("a" beside "a/b").
    """
    return nested({path: column_spec(column) for path, column in episode.columns.items()})


# Prefetch: a thread of its own reads a little ahead of the consumer.
#
# Items are passed in batches, because passing one costs as much as reading a short episode. A batch is full with a
# megabyte or with its limit of items. The first batch holds one item, so that it arrives at once; the limit doubles
# with each batch. One batch waits while the next is being filled, so at most two large items are read ahead.

_FULL_BYTES = 1 << 20
_MOST_ITEMS = 32


def read_ahead(
    items: Generator[T, None, None], size_of: Callable[[T], int], check: Callable[[], None] = lambda: None
) -> Iterator[T]:
    """The same items, read by a thread.

    The thread begins with the first item that is requested. It ends with the items, and when this iterator is closed or
    dropped; then `items` is closed, too, before `close` returns. The end of the program waits for the item at hand, for some seconds. An
    error of `items` is raised after the items before it.

    Args:
      items: used by the thread only.
      size_of: bytes of an item.
      check: is called after items were read and before they are given on; its error ends the items instead of them.
    """
    shelf: _Shelf[list[T]] = _Shelf()
    thread = threading.Thread(
        target=_read, args=(items, size_of, shelf, check), name="rlds2reverb-read-ahead", daemon=True
    )
    thread.start()
    _reading[thread] = shelf
    try:
        batch = shelf.take()
        _end_first()
        while batch is not None:
            yield from batch
            batch = shelf.take()
    finally:
        _reading.pop(thread, None)
        if not sys.is_finalizing():  # no other thread runs then, and joining one would wait for ever
            shelf.close()
            if thread is not threading.current_thread():  # which is where the garbage collector may run
                thread.join()


_reading: dict[threading.Thread, _Shelf[Any]] = {}
_LAST_SECONDS = 5.0


def _end_reading() -> None:
    """Ends the threads of iterators that the program still holds when it ends.

    Python stops such a thread within a call of h5py, say, which has taken h5py's lock: whoever then lets go of a file waits for ever.
    """
    reading = dict(_reading)
    for shelf in reading.values():
        shelf.close()
    end = time.monotonic() + _LAST_SECONDS
    for thread in reading:
        thread.join(max(0.0, end - time.monotonic()))


def _end_first() -> None:
    """Has `_end_reading` come before what libraries have registered that the first item has loaded: h5py takes its converters away at the end."""
    atexit.unregister(_end_reading)
    atexit.register(_end_reading)


class _Shelf(Generic[T]):
    """A slot for one object, between the producing thread and the consumer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thing: T | None = None
        self._error: BaseException | None = None
        self._is_ended = self._is_closed = False

    def put(self, thing: T) -> bool:
        """Waits until the slot is empty; returns False if the consumer has closed it."""
        with self._changed:
            self._changed.wait_for(lambda: self._thing is None or self._is_closed)
            self._thing = thing
            self._changed.notify_all()
            return not self._is_closed

    def end(self, error: BaseException | None) -> None:
        """Ends the stream, with an error if one is given; the consumer gets it after the last object."""
        with self._changed:
            self._error, self._is_ended = error, True
            self._changed.notify_all()

    def take(self) -> T | None:
        """Waits for an object; returns None at the end, or raises the producer's error."""
        with self._changed:
            self._changed.wait_for(lambda: self._thing is not None or self._is_ended)
            thing, self._thing = self._thing, None
            self._changed.notify_all()
            if thing is None and self._error is not None:
                raise self._error
            return thing

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _read(
    items: Generator[T, None, None], size_of: Callable[[T], int], shelf: _Shelf[list[T]], check: Callable[[], None]
) -> None:
    batch: list[T] = []
    most, size = 1, 0  # items, bytes
    failure: BaseException | None = None
    try:
        with closing(items):
            for item in items:
                if shelf.is_closed:
                    return
                batch.append(item)
                size += size_of(item)
                if len(batch) >= most or size >= _FULL_BYTES:
                    full, batch, most, size = batch, [], min(2 * most, _MOST_ITEMS), 0
                    check()
                    if not shelf.put(full):
                        return
    except BaseException as error:
        failure = error
    if batch:
        try:
            check()
        except Exception as error:
            failure, batch = error, []
    if batch:
        shelf.put(batch)
    shelf.end(failure)
