"""Several sources as one, mixed episode by episode; see `mixing` for the order.

Episodes keep the names that they have in their parts, unless columns are left out, so what was pushed from a part alone is not stored again, and an episode that two parts
have is there twice. One that a nominal length asks for once more has the number of the pass behind its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice

from rlds2reverb.episodes import ACTION, OBSERVATION, Episode, KnownEpisode, content_digest
from rlds2reverb.errors import SourceError
from rlds2reverb.identity import content_name, is_content
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.readers.nests import nested
from rlds2reverb.remarks import Remark, note
from rlds2reverb.sources.base import (
    IsKnown,
    Source,
    Tally,
    as_source,
    checked_spec,
    columns_of,
    metadata_spec_of,
    unless_known,
)
from rlds2reverb.sources.mix_parts import COMMON, EQUAL, Cursor, check
from rlds2reverb.sources.mixing import Draw, Drawing
from rlds2reverb.specs import ArraySpec, Nest, differences, flatten


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
    def remarks(self) -> tuple[Remark, ...]:
        """The parts', with their names; and what is left out."""
        found = [replace(remark, text=f"{part.name}: {remark.text}") for part in self._parts for remark in part.remarks]
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
    """One line for each leaf; the first part is what is wanted."""
    return [line.replace("items have", "expected").replace("table has", "found") for line in differences(first, other)]
