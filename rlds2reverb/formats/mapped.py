"""Episodes that a function of the user's makes of those of a source (`Mapped`), where declared operations (`transform`) do not suffice.

The function gets an episode as it is recorded and filtered, and returns one. It is imported by its name, so workers run it, and it is part of
the item keys by its name and a digest of its source text. Episodes keep their names, so one that a ledger has is neither decoded nor mapped. The
spec is that of the first episode that the function makes without an error.

An episode that the function fails for, or makes no episode of, has the reason among its faults; validation refuses it as any other bad one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from rlds2reverb.episode import Episode, KnownEpisode, metadata_specs
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.functions import code_digest, import_function, name_of_function
from rlds2reverb.formats.source import IsKnown, Source, Wrapper, columns_of, spec_of
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, flatten, nested, shape_fits
from rlds2reverb.text import shortened

_MAP = "map (--map)"
_MOST_TRIED = 16  # episodes, until the function makes one of which the spec is


@dataclass(frozen=True)
class MapFunction:
    """A function, episode -> episode.

    Attributes:
      name: "module:function".
      code: digest of its source text.
    """

    name: str
    code: str

    @staticmethod
    def of(function: object) -> MapFunction:
        """A function, or its name; raises ConfigError if it cannot be imported by a name."""
        name = function if isinstance(function, str) else name_of_function(function, _MAP)
        return MapFunction(name, code_digest(import_function(name, _MAP)))

    @property
    def label(self) -> str:
        """Part of the item keys."""
        return f"{self.name}@{self.code}"

    def check(self) -> None:
        """Raises ConfigError where the name is another function than where the work was started."""
        code = code_digest(import_function(self.name, _MAP))
        if code != self.code:
            raise ConfigError(
                f"{_MAP} {self.name}: is another function here than where the work was started: its code has the digest {code}, "
                f"expected {self.code}; every machine needs the same module"
            )

    def apply(self, episode: Episode) -> Episode:
        """The episode that the function makes, under the name of the one that it got; with a fault if it makes none."""
        if episode.faults:
            return episode
        try:
            mapped_episode = import_function(self.name, _MAP)(episode)
        except Exception as error:
            return _failed(episode, f"{_MAP} {self.name}: {type(error).__name__}: {error}")
        if not isinstance(mapped_episode, Episode):
            return _failed(episode, f"{_MAP} {self.name}: expected an Episode, got {shortened(repr(mapped_episode))}")
        return replace(mapped_episode, id=episode.id, where=episode.where, dataset=episode.dataset)


def _failed(episode: Episode, why: str) -> Episode:
    return replace(episode, columns={}, faults=(("", why),))


class Mapped(Wrapper):
    """The episodes that a function makes of those of a source."""

    def __init__(self, source: Source, function: MapFunction) -> None:
        super().__init__(source)
        self._function = function

    @cached_property
    def _example(self) -> Episode:
        """The first episode that is made. Raises `SourceError` if none of the first is."""
        self._function.check()
        why = "has no episodes"
        for episode in islice(self.episodes(), _MOST_TRIED):
            if not episode.faults:
                return episode
            why = f"no episode could be made of the first: {episode.faults[0][1]}"
        raise SourceError(f"{self.name}: {why}")

    def spec(self) -> Nest:
        recorded: dict[str, ArraySpec] = columns_of(self._source.spec(), self.name)
        columns: dict[str, ArraySpec] = flatten(spec_of(self._example))
        # What the function leaves alone stays as the dataset says it, such as a text or a shape that is free.
        is_left = {path: path in recorded and _is_like(leaf, recorded[path]) for path, leaf in columns.items()}
        return nested({path: recorded[path] if is_left[path] else leaf for path, leaf in columns.items()})

    def metadata_spec(self) -> Nest:
        return dict(metadata_specs(self._example))

    def images(self) -> Mapping[str, ImageSpec]:
        return {}  # asked for above the function, files would reach it in place of pixels

    def frames(self) -> Mapping[str, ImageSpec]:
        return {}

    def episode_lengths(self) -> Sequence[int] | None:
        return None  # the function may change them

    def count_lengths(self) -> Sequence[int]:
        return Source.count_lengths(self)

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        episodes = self._source.read(start, stop, is_known)
        return (episode if isinstance(episode, KnownEpisode) else self._function.apply(episode) for episode in episodes)

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return ((number, self._function.apply(episode)) for number, episode in self._source.at(numbers))


def _is_like(leaf: ArraySpec, recorded: ArraySpec) -> bool:
    return leaf.dtype == recorded.dtype and shape_fits(leaf.shape, recorded.shape)


def mapped(source: Source, function: MapFunction | None) -> Source:
    """The episodes that a function makes of those of a source; the source itself for None."""
    return source if function is None else Mapped(source, function)
