"""Several sources as one, mixed episode by episode.

Which part gives the next episode is a function of the seed, the weights and the numbers of episodes:

| | one pass | of a nominal length |
| --- | --- | --- |
| ends | when every part is at its end | after so many episodes |
| a part at its end | is drawn no more | begins again |
| equal weights draw as | `numpy.random.default_rng(seed).random()` among the parts that are left | il-representations' InterleavedDataset: `RandomState(seed).choice(parts)` |

Source of the latter: `InterleavedDataset` in il_representations/data/read_dataset.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from rlds2reverb.episode import ACTION, OBSERVATION, Episode, KnownEpisode, Notice, content_digest, note
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.options import Parse, read_options, whole_number, words
from rlds2reverb.formats.source import (
    IsKnown,
    Source,
    Tally,
    as_source,
    checked_spec,
    columns_of,
    metadata_spec_of,
    unless_known,
)
from rlds2reverb.identity import content_name, is_content
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, differences, flatten, nested


@dataclass(frozen=True)
class Draw:
    """How parts are drawn.

    Attributes:
      weights: of the parts, positive.
      seed: of the draws.
      length: the nominal one; None for one pass.
    """

    weights: tuple[float, ...]
    seed: int = 0
    length: int | None = None

    def picker(self) -> Callable[[Sequence[int]], int]:
        """Makes the draws, each among the parts that are given."""
        return _weighted(self.weights, self.seed) if self.length is None else _as_interleaved(self.weights, self.seed)


def _weighted(weights: Sequence[float], seed: int) -> Callable[[Sequence[int]], int]:
    rng = np.random.default_rng(seed)

    def pick(left: Sequence[int]) -> int:
        sums = np.cumsum([weights[part] for part in left])
        at = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
        return left[min(at, len(left) - 1)]

    return pick


def _as_interleaved(weights: Sequence[float], seed: int) -> Callable[[Sequence[int]], int]:
    rng = np.random.RandomState(seed)
    shares = None if len(set(weights)) == 1 else np.asarray(weights) / sum(weights)

    def pick(left: Sequence[int]) -> int:
        return int(rng.choice(len(left), p=shares))

    return pick


class Drawing:
    """The draws of one reading.

    Args:
      draw: how they are made.
      parts: how many there are.

    Attributes:
      number: how many episodes were given.
    """

    def __init__(self, draw: Draw, parts: int) -> None:
        self._draw, self._pick = draw, draw.picker()
        self._left = list(range(parts))
        self.number = 0

    def part(self) -> int | None:
        """The part that is to give the next episode; None at the end."""
        if not self._left or self.number == self._draw.length:
            return None
        return self._pick(self._left)

    def is_over(self, part: int) -> None:
        """It has none, and is drawn no more."""
        self._left.remove(part)

    def pass_over(self, counts: Sequence[int], first: int) -> list[int]:
        """Makes the draws of the first so many episodes; how many of them each part gives, which has `counts`."""
        given = [0] * len(counts)
        while self.number < first and (part := self.part()) is not None:
            if self._draw.length is None and given[part] == counts[part]:
                self.is_over(part)
            else:
                given[part] += 1
                self.number += 1
        return given


# The parts of a mix: what each has given, where it is read, and what a mix is refused for.

EQUAL, COMMON = "equal", "common"
COLUMNS = (EQUAL, COMMON)


class Cursor:
    """Where a part is read; begins again at its end, if it may."""

    def __init__(self, part: Source, given: int, begins_again: bool) -> None:
        self._part, self._begins_again, self._passes = part, begins_again, 1
        if begins_again and given and part.episode_count:
            self._passes += given // part.episode_count
            given %= part.episode_count
        self._episodes = part.episodes(given)

    def next(self) -> Episode | None:
        """The next episode; None at the end.

        Raises:
          SourceError: it has none at all, and should begin again.
        """
        episode = next(self._episodes, None)
        if episode is None and self._begins_again:
            self._passes += 1
            self._episodes = iter(self._part)
            episode = next(self._episodes, None)
            if episode is None:
                raise SourceError(
                    f"{self._part.name}: has no episode, so a mix of a nominal length cannot go on with it"
                )
        return episode if episode is None or self._passes == 1 else replace(episode, id=f"{episode.id}|{self._passes}")


def check_names(names: Sequence[str]) -> None:
    """Refuses a source that is named twice.

    Raises:
      SourceError: says which.
    """
    for name in names:
        if names.count(name) > 1:
            raise SourceError(f"mix: {name} is there twice; give it a greater weight")


def check(parts: Sequence[Source], weights: Sequence[float], seed: int, length: int | None, columns: str) -> None:
    """Refuses a mix without sense.

    Raises:
      ConfigError: no parts, or an option out of its range.
      SourceError: two parts are one and the same source.
    """
    if not parts:
        raise ConfigError("mix: no parts")
    if len(weights) != len(parts) or not all(weight > 0 and math.isfinite(weight) for weight in weights):
        raise ConfigError(
            f"mix: weights {', '.join(map(str, weights))}: expected {len(parts)} positive numbers, one for each part"
        )
    if not 0 <= seed < 1 << 32:
        raise ConfigError(f"mix: seed {seed}: expected 0 to {(1 << 32) - 1:,}")
    if length is not None and length < 1:
        raise ConfigError(f"mix: length {length}: expected at least 1")
    if columns not in COLUMNS:
        raise ConfigError(f'mix: columns "{columns}": expected one of {", ".join(COLUMNS)}')
    check_names(
        [part.name for at, part in enumerate(parts) if any(part is one for one in (*parts[:at], *parts[at + 1 :]))]
    )


# Several sources as one, mixed episode by episode; in the order of a `Draw`.
#
# Episodes keep the names that they have in their parts, unless columns are left out, so what was pushed from a part alone is not stored again, and an episode that two parts
# have is there twice. One that a nominal length asks for once more has the number of the pass behind its name.


class MixedSource(Source):
    """The episodes of several sources.

    Args:
      sources: the parts, two or more.
      weights: of the draws, one for each part; equal by default.
      seed: of the draws.
      length: how many episodes there are, parts beginning again at their ends; None for every episode of every part once.
      columns: "equal": parts whose steps differ are refused; "common": only their observations and actions have to agree, and of the
        other columns steps have those that are the same in all parts.

    Raises:
      ConfigError: no parts, weights that are not as many positive numbers, or another option out of its range.
      SourceError: two parts are one and the same source.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float] | None = None,
        seed: int = 0,
        *,
        length: int | None = None,
        columns: str = EQUAL,
    ) -> None:
        self._parts = tuple(map(as_source, sources))
        chosen = tuple(1.0 for _ in sources) if weights is None else tuple(map(float, weights))
        check(self._parts, chosen, seed, length, columns)
        self._draw, self._columns = Draw(chosen, seed, length), columns
        self.name = f"mix of {', '.join(part.name for part in self._parts)}"
        self._readings = [tuple(Tally(part.name) for part in self._parts)]

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """What each part has given, in the last reading of the mix or of what `encoded` made of it; also where others read it (`add`)."""
        return self._readings[-1]

    def add(self, tallies: Sequence[Tally]) -> None:
        """Takes in what the parts gave in another process, which read some of the mix."""
        for mine, theirs in zip(self.tallies, tallies):
            mine.episodes += theirs.episodes
            mine.steps += theirs.steps

    @property
    def order(self) -> str:
        """What decides in which order the parts' episodes come, and how many."""
        return str(self._draw)

    @property
    def episode_count(self) -> int | None:
        """How many there are; None where a part does not know."""
        if self._draw.length is not None:
            return self._draw.length
        counts = self._counts
        return None if counts is None else sum(counts)

    def spec(self) -> Nest:
        """That of the parts.

        Raises:
          SourceError: parts differ; names every difference.
        """
        return nested(self._common) if self._left_out else self._specs[0]

    def metadata_spec(self) -> Nest:
        """The features that all parts have alike."""
        return nested(self._features)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The parts', with their names; and what is left out."""
        found = [replace(remark, text=f"{part.name}: {remark.text}") for part in self._parts for remark in part.notices]
        if self._columns == COMMON and self._left_out:
            text = f"left out, for not all parts have them alike: {', '.join(self._left_out)}"
            found.append(note("not_common", text, len(self._left_out)))
        return tuple(found)

    def images(self) -> Mapping[str, ImageSpec]:
        """Those that all parts can keep, and that decode to the same."""
        first, *others = (part.images() for part in self._parts)
        return {path: image for path, image in first.items() if all(one.get(path) == image for one in others)}

    def encoded(self, paths: Collection[str]) -> MixedSource:
        """The same mix with these images as their files' bytes."""
        made = MixedSource(
            [part.encoded(paths) for part in self._parts],
            self._draw.weights,
            self._draw.seed,
            length=self._draw.length,
            columns=self._columns,
        )
        made._readings = self._readings
        return made

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        """See `Source.read`; parts that know how many they have jump over theirs. Parts are read apart, so no part is asked what is known.

        A shard reads the whole mix, for its order is that of one reading.
        """
        return unless_known(islice(self._episodes(start), None if stop is None else max(0, stop - start)), is_known)

    def _episodes(self, count: int) -> Iterator[Episode]:
        """The episodes after the first `count`."""
        self.spec()
        drawing, counts = Drawing(self._draw, len(self._parts)), self._counts
        if count and counts is None:
            return self._read_over(self._mixed(drawing, [0] * len(self._parts)), count)
        return self._mixed(drawing, drawing.pass_over(counts or [0] * len(self._parts), count))

    def _mixed(self, drawing: Drawing, given: Sequence[int]) -> Iterator[Episode]:
        """The episodes that are still to be drawn, when the parts gave so many."""
        tallies = tuple(Tally(part.name) for part in self._parts)
        self._readings[:] = [tallies]
        cursors = [Cursor(part, skipped, self._draw.length is not None) for part, skipped in zip(self._parts, given)]
        while (part := drawing.part()) is not None:
            episode = cursors[part].next()
            if episode is None:
                drawing.is_over(part)
                continue
            drawing.number += 1
            tallies[part].episodes += 1
            tallies[part].steps += len(episode)
            yield self._only_common(episode)

    def _read_over(self, episodes: Iterator[Episode], count: int) -> Iterator[Episode]:
        """The episodes after the first `count`, which nobody gets and which count for no part."""
        for _ in islice(episodes, count):
            pass
        for tally in self.tallies:
            tally.episodes = tally.steps = 0
        yield from episodes

    def _only_common(self, episode: Episode) -> Episode:
        columns, metadata = episode.columns, episode.metadata
        if self._left_out:
            columns = {path: column for path, column in columns.items() if path not in self._left_out}
        if set(metadata) - set(self._features):
            metadata = {name: value for name, value in metadata.items() if name in self._features}
        if columns is episode.columns and metadata is episode.metadata:
            return episode
        name = episode.id
        if self._left_out and is_content(name):
            _, sign, number = name.partition("|")  # of the pass
            name = f"{content_name(content_digest(columns))}{sign}{number}"
        return replace(episode, columns=columns, metadata=metadata, id=name)

    @cached_property
    def _counts(self) -> list[int] | None:
        counts = [part.episode_count for part in self._parts]
        return None if None in counts else [count or 0 for count in counts]

    @cached_property
    def _specs(self) -> list[Nest]:
        specs = [checked_spec(part) for part in self._parts]
        odd = [
            f"{part.name}: {line}"
            for part, spec in zip(self._parts[1:], specs[1:])
            for line in _named_differences(specs[0], spec)
            if self._columns == EQUAL or line.startswith((OBSERVATION, ACTION))
        ]
        if odd:
            raise SourceError(
                f"{self.name}: the steps of {self._parts[0].name} and of the others differ: {'; '.join(odd)}. Mix what is alike; "
                'other columns than observations and actions can be left out with columns="common" (--columns common)'
            )
        return specs

    @cached_property
    def _common(self) -> dict[str, ArraySpec]:
        first, *others = map(flatten, self._specs)
        return {path: leaf for path, leaf in first.items() if all(_alike(leaf, one.get(path)) for one in others)}

    @cached_property
    def _left_out(self) -> tuple[str, ...]:
        every = {path for spec in self._specs for path in flatten(spec)}
        return tuple(sorted(every - set(self._common)))

    @cached_property
    def _features(self) -> dict[str, ArraySpec]:
        first, *others = (columns_of(metadata_spec_of(part), part.name) for part in self._parts)
        return {name: leaf for name, leaf in first.items() if all(_alike(leaf, one.get(name)) for one in others)}


def _alike(one: ArraySpec, other: ArraySpec | None) -> bool:
    return other is not None and one == other and one.image == other.image


def _named_differences(first: Nest, other: Nest) -> list[str]:
    """One line for each leaf that differs; `first` is the expected spec."""
    return [line.replace("items have", "expected").replace("table has", "found") for line in differences(first, other)]


# A mix by name: `mix:SOURCE|SOURCE...[|?OPTIONS]`, such as `mix:d4rl:a.hdf5|d4rl:b.hdf5?episodes=:9|?weights=2+1,seed=3`.
#
# | option | values | meaning |
# | --- | --- | --- |
# | `weights` | `2+1+...` | of the draws; equal by default |
# | `seed` | `S` | of the draws; 0 by default |
# | `length` | `N` | so many episodes, parts beginning again at their ends, in place of one pass |
# | `columns` | `equal` (default), `common` | whether parts may have other columns, which are left out |
#
# Names of parts cannot hold a "|". Those options go with the mix which stand behind the last "|" and begin with "?".

SEPARATOR = "|"


def weights_of(text: str, separator: str = "+") -> tuple[float, ...]:
    """Reads weights.

    Raises:
      ValueError: no positive numbers.
    """
    try:
        found = tuple(map(float, text.split(separator)))
    except ValueError as error:
        raise ValueError(f"expected numbers, such as 2{separator}1") from error
    return found


class MixOf:
    """A mix of sources by their names, opened anew where it is sent to: a source that is open may hold what cannot be sent, or much.

    Args:
      names: of the parts.
      open_part: opens one, here; elsewhere `open_source` does.
      options: the others of `MixedSource`.
    """

    def __init__(self, names: Sequence[str], open_part: Callable[[str], Source] = open_source, **options: Any) -> None:
        self._names, self._open_part, self._options = tuple(names), open_part, options
        self._opened: MixedSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_names": self._names, "_open_part": open_source, "_options": self._options, "_opened": None}

    def open(self) -> MixedSource:
        """Opens the parts.

        Raises:
          SourceError: a part is named twice, or cannot be opened.
          ConfigError: an option makes no sense.
        """
        check_names(self._names)
        self._opened = MixedSource([self._open_part(name) for name in self._names], **self._options)
        return self._opened

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """See `MixedSource.tallies`; of what was opened last."""
        return () if self._opened is None else self._opened.tallies

    def add(self, tallies: Sequence[Tally]) -> None:
        """See `MixedSource.add`."""
        if self._opened is not None:
            self._opened.add(tallies)


OPTIONS: dict[str, Parse] = {
    "weights": weights_of,
    "seed": whole_number,
    "length": whole_number,
    "columns": words(*COLUMNS),
}
"""The options of a mix, and how each is read."""


def open_mix(text: str) -> MixedSource:
    """Opens the sources named after "mix:".

    Raises:
      SourceError: a part is named twice or cannot be opened, or an option makes no sense.
    """
    *names, last = text.split(SEPARATOR)
    options: dict[str, Any] = {}
    if last.startswith("?"):
        options = read_options(f"mix:{text}", last[1:], OPTIONS)
    else:
        names.append(last)
    if not all(names) or not names:
        raise SourceError(f'"mix:{text}": expected mix:SOURCE|SOURCE, and options as in mix:SOURCE|SOURCE|?weights=2+1')
    check_names(names)
    try:
        return MixedSource([open_source(name) for name in names], **options)
    except ConfigError as error:
        raise SourceError(str(error)) from error


@dataclass(frozen=True)
class NamedSource:
    """A source as workers get it: by its name, which each opens anew, or, where it has none, as an object that can be pickled.

    Attributes:
      source: its name, a mix by names, or an object that `open_source` takes.
      limit: at most so many episodes; None for all.
    """

    source: Any
    limit: int | None = None

    def open(self) -> Source:
        """Opens it.

        Raises:
          SourceError: as `open_source`.
        """
        source = self.source.open() if isinstance(self.source, MixOf) else open_source(self.source)
        return source.first(self.limit)

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """What each part of a mix has given, in its last reading here; () for any other source, and for a mix by name."""
        return self.source.tallies if isinstance(self.source, (MixOf, MixedSource)) else ()

    def add(self, tallies: Sequence[Tally]) -> None:
        """Takes in what the parts of a mix gave in another process."""
        if isinstance(self.source, (MixOf, MixedSource)):
            self.source.add(tallies)
