"""Several sources as one, mixed episode by episode.

Which part gives the next episode is a function of the seed, the weights and the numbers of episodes:

| | one pass | of a nominal length |
| --- | --- | --- |
| ends | when every part is at its end | after so many episodes |
| a part at its end | is not drawn again | begins again |
| equal weights draw as | `numpy.random.default_rng(seed).random()` among the parts that are left | il-representations' InterleavedDataset: `RandomState(seed).choice(parts)` |

Source of the latter: `InterleavedDataset` in il_representations/data/read_dataset.py.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from rlds2reverb import hooks
from rlds2reverb.episode import (
    ACTION,
    OBSERVATION,
    Array,
    Episode,
    KnownEpisode,
    Notice,
    content_digest,
    content_name,
    is_content,
    note,
    rows_and_signs,
)
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.last_step import LAST_STEP
from rlds2reverb.formats.options import Parse, add_option, is_mixture_file, read_options, some_text, whole_number, words
from rlds2reverb.formats.source import (
    About,
    Finding,
    IsKnown,
    LeftOut,
    Source,
    Tally,
    add_left_out,
    as_source,
    checked_spec,
    columns_of,
    metadata_spec_of,
    unless_known,
)
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, differences, flatten, nested
from rlds2reverb.text import shortened


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


def _picker(draw: Draw) -> Callable[[Sequence[int]], int]:
    """A function that draws one of the parts that are left."""
    if draw.length is None:
        uniform = np.random.default_rng(draw.seed)

        def weighted(left: Sequence[int]) -> int:
            sums = np.cumsum([draw.weights[part] for part in left])
            at = int(np.searchsorted(sums, uniform.random() * sums[-1], side="right"))
            return left[min(at, len(left) - 1)]

        return weighted

    rng = np.random.RandomState(draw.seed)
    shares = None if len(set(draw.weights)) == 1 else np.asarray(draw.weights) / sum(draw.weights)
    return lambda left: int(rng.choice(len(left), p=shares))


class Drawing:
    """The draws of one reading of so many parts; `number` is the number of episodes that were drawn."""

    def __init__(self, draw: Draw, parts: int) -> None:
        self._draw, self._pick = draw, _picker(draw)
        self._left = list(range(parts))
        self.number = 0

    def part(self) -> int | None:
        """The part that gives the next episode; None at the end."""
        if not self._left or self.number == self._draw.length:
            return None
        return self._pick(self._left)

    def is_over(self, part: int) -> None:
        """The part has no further episode, and is not drawn again."""
        self._left.remove(part)

    def pass_over(self, counts: Sequence[int], first: int) -> list[int]:
        """Makes the draws of the first episodes, and returns the number of those of each part, which has `counts`."""
        drawn = [0] * len(counts)
        while self.number < first and (part := self.part()) is not None:
            if self._draw.length is None and drawn[part] == counts[part]:
                self.is_over(part)
            else:
                drawn[part] += 1
                self.number += 1
        return drawn


EQUAL, COMMON = "equal", "common"
COLUMNS = (EQUAL, COMMON)


def check_names(names: Sequence[str]) -> None:
    """Raises `SourceError` if a source is named twice."""
    for name in names:
        if names.count(name) > 1:
            raise SourceError(f"mix: {name} is there twice; give it a greater weight")


def _checked_weights(weights: Sequence[float], parts: int) -> tuple[float, ...]:
    try:
        chosen = tuple(map(float, weights))
    except (TypeError, ValueError, OverflowError):  # no numbers, or whole ones of more than 308 digits
        chosen = ()
    # Draws divide by the sum, so that has to be finite, too.
    if len(chosen) != parts or not all(weight > 0 for weight in chosen) or not math.isfinite(sum(chosen)):
        raise ConfigError(
            f"mix: weights {shortened(', '.join(map(str, weights)))}: expected {parts} positive numbers with a finite sum, one for each part"
        )
    return chosen


class Cursor:
    """Reads a part after its first `skipped` episodes; begins again at its end, if it may."""

    def __init__(self, part: Source, skipped: int, begins_again: bool) -> None:
        self._part, self._begins_again, self._passes = part, begins_again, 1
        if begins_again and skipped and part.episode_count:
            self._passes += skipped // part.episode_count
            skipped %= part.episode_count
        self._episodes = part.episodes(skipped)

    def next(self) -> Episode | None:
        """The next episode; None at the end. Raises `SourceError` if it has none at all, and should begin again."""
        episode = next(self._episodes, None)
        if episode is None and self._begins_again:
            self._passes += 1
            self._episodes = iter(self._part)
            episode = next(self._episodes, None)
            if episode is None:
                raise SourceError(
                    f"{self._part.name}: has no episode, so a mix of a nominal length cannot continue with it"
                )
        return episode if episode is None or self._passes == 1 else replace(episode, id=f"{episode.id}|{self._passes}")


class MixedSource(Source):
    """The episodes of several sources.

    Episodes keep the names that they have in their parts, unless columns are left out, so what was pushed from a part alone is not stored
    again, and an episode that two parts have is there twice. The runs of an episode that a filter cut keep its name and their rows also then, so
    that their gaps are known, with the sign `|common=` behind them. One that a nominal length repeats has the number of the pass behind its name.

    Args:
      sources: the parts.
      weights: of the draws, one for each part; equal by default.
      seed: of the draws.
      length: number of episodes, parts beginning again at their ends; None for every episode of every part once.
      columns: "equal": parts whose steps differ are refused; "common": only their observations and actions have to agree, and of the
        remaining columns steps have those that are the same in all parts.

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
        self._parts = parts = tuple(map(as_source, sources))
        if not parts:
            raise ConfigError("mix: no parts")
        chosen = (1.0,) * len(parts) if weights is None else _checked_weights(weights, len(parts))
        if not 0 <= seed < 1 << 32:
            raise ConfigError(f"mix: seed {seed}: expected 0 to {(1 << 32) - 1:,}")
        if length is not None and length < 1:
            raise ConfigError(f"mix: length {length}: expected at least 1")
        if columns not in COLUMNS:
            raise ConfigError(f'mix: columns "{columns}": expected one of {", ".join(COLUMNS)}')
        check_names([part.name for part in parts if sum(part is other for other in parts) > 1])
        self._weights, self._seed, self._length, self._columns = chosen, seed, length, columns
        self.name = f"mix of {', '.join(part.name for part in self._parts)}"
        self._readings = [tuple(Tally(part.name) for part in self._parts)]

    @property
    def parts(self) -> tuple[Source, ...]:
        """The sources that are mixed, in order; each can be read alone."""
        return self._parts

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """What each part has given, in the last reading of the mix or of what `encoded` and `without` made of it; also in another process (`add`)."""
        return self._readings[-1]

    def add(self, tallies: Sequence[Tally]) -> None:
        """Adds what the parts gave in another process, which read some of the mix."""
        for mine, theirs in zip(self.tallies, tallies):
            mine.episodes += theirs.episodes
            mine.steps += theirs.steps

    @property
    def order(self) -> str:
        """Decides the order of the parts' episodes, and their number."""
        return str(self._draw)

    @property
    def is_at_hand(self) -> bool:
        return all(part.is_at_hand for part in self._parts)

    @property
    def episode_count(self) -> int | None:
        if self._length is not None:
            return self._length
        counts = self._counts
        return None if counts is None else sum(counts)

    @property
    def filtered(self) -> Mapping[str, LeftOut]:
        return add_left_out(part.filtered for part in self._parts)

    @property
    def findings(self) -> tuple[Finding[Any], ...]:
        return tuple(finding for part in self._parts for finding in part.findings)

    def check_files(self) -> None:
        for part in self._parts:
            part.check_files()

    def spec(self) -> Nest:
        """The spec that the parts share. Raises `SourceError`, which names every difference, where they differ."""
        return nested(self._common) if self._left_out else self._specs[0]

    def metadata_spec(self) -> Nest:
        """The features that all parts have alike."""
        return nested(self._features)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The parts', with their names; and the columns that are left out."""
        notices = [
            replace(notice, text=f"{part.name}: {notice.text}") for part in self._read for notice in part.notices
        ]
        if self._columns == COMMON and self._left_out:
            text = f"left out, for not all parts have them alike: {', '.join(self._left_out)}"
            notices.append(note("not_common", text, len(self._left_out)))
        return tuple(notices)

    @property
    def about(self) -> About:
        """What all parts say alike."""
        first, *others = (part.about for part in self._parts)
        names = dict.fromkeys(name for about in (first, *others) for name in (*about.facts, *about.unequal))
        shared = {
            name: value
            for name, value in first.facts.items()
            if all(about.system == first.system and about.facts.get(name) == value for about in others)
        }
        spaces = {
            path: space
            for path, space in first.spaces.items()
            if all(about.spaces.get(path) == space for about in others)
        }
        return About(first.system, shared, tuple(name for name in names if name not in shared), spaces)

    def images(self) -> Mapping[str, ImageSpec]:
        """The image columns that all parts can keep encoded, and that decode to the same."""
        first, *others = (part.images() for part in self._parts)
        return {path: image for path, image in first.items() if all(images.get(path) == image for images in others)}

    def encoded(self, paths: Collection[str]) -> MixedSource:
        return self._with_parts([part.encoded(paths) for part in self._parts])

    def without(self, paths: Collection[str]) -> MixedSource:
        return self._with_parts([part.without(paths) for part in self._parts])

    def _with_parts(self, parts: Sequence[Source]) -> MixedSource:
        """The same draws over other parts, such as these parts with encoded images."""
        mix = MixedSource(parts, self._weights, self._seed, length=self._length, columns=self._columns)
        mix._readings = self._readings
        return mix

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        """See `Source.read`; parts that know their number of episodes skip theirs. Parts do not know which episodes are known.

        A shard reads the whole mix, for its order is that of one reading.
        """
        return unless_known(islice(self._episodes(start), None if stop is None else max(0, stop - start)), is_known)

    def _episodes(self, first: int) -> Iterator[Episode]:
        """The episodes from this number on; those before it are read where parts do not know their number of episodes."""
        self.spec()  # refuses parts that differ, before an episode is read
        drawing = Drawing(self._draw, len(self._parts))
        if self._counts is None:
            return self._draw_episodes(drawing, [0] * len(self._parts), first)
        return self._draw_episodes(drawing, drawing.pass_over(self._counts, first), 0)

    def _draw_episodes(self, drawing: Drawing, skipped: Sequence[int], unread: int) -> Iterator[Episode]:
        """The episodes that are still to be drawn, after the first ones of each part are `skipped`; the next `unread` are drawn, but left out."""
        tallies = tuple(Tally(part.name) for part in self._parts)
        self._readings[:] = [tallies]
        cursors = [Cursor(part, count, self._length is not None) for part, count in zip(self._read, skipped)]
        while (part := drawing.part()) is not None:
            episode = cursors[part].next()
            if episode is None:
                drawing.is_over(part)
                continue
            drawing.number += 1
            if drawing.number <= unread:
                continue
            tallies[part].episodes += 1
            tallies[part].steps += len(episode)
            yield self._only_common(episode, part)

    def _only_common(self, episode: Episode, part: int) -> Episode:
        columns, metadata = episode.columns, episode.metadata
        if self._left_out:
            columns = {path: column for path, column in columns.items() if path not in self._left_out}
        if set(metadata) - set(self._features):
            metadata = {name: value for name, value in metadata.items() if name in self._features}
        if columns is episode.columns and metadata is episode.metadata:
            return episode
        name = self._name_of_common(episode, columns, part) if self._left_out else episode.id
        return replace(episode, columns=columns, metadata=metadata, id=name)

    def _name_of_common(self, episode: Episode, columns: Mapping[str, Array], part: int) -> str:
        if not is_content(episode.id):
            return episode.id
        rows, signs = rows_and_signs(episode.id)
        if not rows:
            return f"{content_name(content_digest(columns))}{signs}"
        # A run keeps the name of its episode and its place there, by which gaps, `choose` and its other runs know it: what is not read of the
        # episode cannot be digested. So its name says which columns are left, unless these are all.
        return f"{episode.id.removesuffix(signs)}{self._signs[part]}{signs}"

    @cached_property
    def _draw(self) -> Draw:
        return Draw(self._weights, self._seed, self._length)

    @cached_property
    def _counts(self) -> list[int] | None:
        counts = [part.episode_count for part in self._parts]
        return None if None in counts else [count or 0 for count in counts]

    @cached_property
    def _specs(self) -> list[Nest]:
        specs = [checked_spec(part) for part in self._parts]
        odd = [
            f"{part.name}: {line.replace('items have', 'expected').replace('table has', 'found')}"
            for part, spec in zip(self._parts[1:], specs[1:])
            for line in differences(specs[0], spec)
            if self._columns == EQUAL or line.startswith((OBSERVATION, ACTION))
        ]
        if odd:
            raise SourceError(
                f"{self.name}: steps differ from those of {self._parts[0].name}: {'; '.join(odd)}. Mix what is alike; "
                'other columns than observations and actions can be left out with columns="common" (--columns common; columns: common in a mixture file)'
            )
        return specs

    @cached_property
    def _common(self) -> dict[str, ArraySpec]:
        first, *others = map(flatten, self._specs)
        return {path: leaf for path, leaf in first.items() if all(_alike(leaf, spec.get(path)) for spec in others)}

    @cached_property
    def _left_out(self) -> tuple[str, ...]:
        all_paths = {path for spec in self._specs for path in flatten(spec)}
        return tuple(sorted(all_paths - set(self._common)))

    @cached_property
    def _signs(self) -> Sequence[str]:
        """Behind the names of runs of each part; "" for a part that no column is left out of."""
        digest = hashlib.sha256("\n".join(sorted(self._common)).encode()).hexdigest()[:12]
        return [f"|common={digest}" if flatten(spec).keys() - self._common.keys() else "" for spec in self._specs]

    @cached_property
    def _read(self) -> Sequence[Source]:
        """The parts without the columns that are left out. They are named by what is left (`_only_common`), as they would be after reading."""
        return [part.without(self._left_out) for part in self._parts] if self._columns == COMMON else self._parts

    @cached_property
    def _features(self) -> dict[str, ArraySpec]:
        first, *others = (columns_of(metadata_spec_of(part), part.name) for part in self._parts)
        return {
            name: leaf for name, leaf in first.items() if all(_alike(leaf, features.get(name)) for features in others)
        }


def _alike(leaf: ArraySpec, other: ArraySpec | None) -> bool:
    return other is not None and leaf == other and leaf.image == other.image


# A mix by name: `mix:SOURCE|SOURCE...[|?OPTIONS]`, such as `mix:d4rl:a.hdf5|d4rl:b.hdf5?episodes=:9|?weights=2+1,seed=3`.
#
# | option | values | meaning |
# | --- | --- | --- |
# | `weights` | `2+1+...` | of the draws; equal by default |
# | `seed` | `S` | of the draws; 0 by default |
# | `length` | `N` | so many episodes, parts beginning again at their ends, in place of one pass |
# | `columns` | `equal` (default), `common` | whether parts may have other columns, which are left out |
# | `last_step` | as of a dataset's name | of every part that does not say it itself |
#
# `mix:FILE.yaml[?OPTIONS]` is a mixture file, which `rlds2reverb.prepare.mixture` reads.
#
# Names of parts cannot hold a "|". The mix's options stand behind the last "|" and begin with "?".

SEPARATOR = "|"


def weights_of(text: str, separator: str = "+") -> tuple[float, ...]:
    """Raises `ValueError` if these are no numbers."""
    try:
        weights = tuple(map(float, text.split(separator)))
    except ValueError as error:
        raise ValueError(f"expected numbers, such as 2{separator}1") from error
    return weights


class MixOf:
    """A mix of sources by their names, opened anew in each process: an open source may hold what cannot be sent, or much.

    Args:
      names: of the parts.
      open_part: opens one, here; elsewhere `open_source` does.
      options: further ones of `MixedSource`.
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
        return () if self._opened is None else self._opened.tallies

    def add(self, tallies: Sequence[Tally]) -> None:
        if self._opened is not None:
            self._opened.add(tallies)


OPTIONS: dict[str, Parse] = {
    "weights": weights_of,
    "seed": whole_number,
    "length": whole_number,
    "columns": words(*COLUMNS),
    LAST_STEP: some_text,
}
"""The options of a mix, and how each is read."""


_MOST_DEPTH = 16
"""Most mixes within one another, each of which is opened by the one around it."""

_depth: ContextVar[int] = ContextVar("depth", default=0)


def open_mix(text: str) -> MixedSource:
    """Opens the sources named after "mix:", or those of a mixture file.

    Raises:
      SourceError: a part is named twice or cannot be opened, an option makes no sense, or mixes stand too deep within one another.
    """
    depth = _depth.get()
    if depth == _MOST_DEPTH:
        raise SourceError(
            f"mix:{shortened(text)}: expected at most {_MOST_DEPTH} mixes within one another; name their parts in fewer"
        )
    token = _depth.set(depth + 1)
    try:
        return _open_parts(text)
    finally:
        _depth.reset(token)


def _open_parts(text: str) -> MixedSource:
    if is_mixture_file(f"mix:{text}"):
        mixed: MixedSource = hooks.open_mixture(f"mix:{text}")
        return mixed
    *names, last = text.split(SEPARATOR)
    options: dict[str, Any] = {}
    if last.startswith("?"):
        options = read_options(f"mix:{text}", last[1:], OPTIONS)
    else:
        names.append(last)
    if not all(names) or not names:
        raise SourceError(f'"mix:{text}": expected mix:SOURCE|SOURCE, and options as in mix:SOURCE|SOURCE|?weights=2+1')
    if (last_step := options.pop(LAST_STEP, None)) is not None:
        names = [add_option(name, f"{LAST_STEP}={last_step}") for name in names]
    try:
        return MixOf(names, **options).open()
    except ConfigError as error:
        raise SourceError(str(error)) from error


@dataclass(frozen=True)
class NamedSource:
    """A source as workers get it: by its name, which each opens anew, or, where it has none, as an object that can be pickled.

    Attributes:
      source: its name, a mix by names, or an object that `open_source` takes.
      limit: most episodes; None for all.
    """

    source: Any
    limit: int | None = None

    def open(self) -> Source:
        """Raises `SourceError` as `open_source`."""
        source = self.source.open() if isinstance(self.source, MixOf) else open_source(self.source)
        return source.first(self.limit)

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """The tallies of a mix; () for any other source."""
        return self.source.tallies if isinstance(self.source, (MixOf, MixedSource)) else ()

    def add(self, tallies: Sequence[Tally]) -> None:
        if isinstance(self.source, (MixOf, MixedSource)):
            self.source.add(tallies)
