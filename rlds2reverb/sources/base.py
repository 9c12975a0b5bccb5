"""What every source offers, and what all of them share: shards, the first episodes, specs in which each column has its own name.

What only some offer has a protocol of its own: `KeepsImages`, `TellsMetadata`, `TellsRemarks`, `TellsLengths`, `Reads`. A source around another one hands on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, cast, runtime_checkable

from rlds2reverb.episodes import IS_FIRST, IS_LAST, Episode, KnownEpisode, is_under
from rlds2reverb.errors import SourceError, SpecError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.metadata import metadata_specs
from rlds2reverb.readers.nests import nested
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import Nest, column_spec, flatten


class Source(Protocol):
    """A dataset as episodes. Iterating twice reads it twice, in the same order."""

    @property
    def name(self) -> str:
        """What people call it; for messages."""

    @property
    def episode_count(self) -> int | None:
        """How many episodes it has, or None when unknown."""

    def spec(self) -> Nest:
        """The steps' spec: a nest of `ArraySpec` without the time axis.

        Raises:
          SourceError: the dataset is empty or cannot be read, so there is nothing to derive it from.
        """

    def __iter__(self) -> Iterator[Episode]:
        """Reads the episodes.

        Raises:
          SourceError: the data cannot be read; says at which episode.
        """

    def shard(self, index: int, count: int) -> Source:
        """Every `count`-th episode, starting with number `index`.

        A shard has the spec of the whole, also when no episode is left for it, and can be sharded again.

        Raises:
          SourceError: not 0 <= index < count.
        """


@runtime_checkable
class TellsMetadata(Protocol):
    """A source that knows the metadata of its episodes before it reads one."""

    def metadata_spec(self) -> Nest:
        """The spec of an episode's metadata: a nest of `ArraySpec`, or path -> `ArraySpec`.

        Raises:
          SourceError: as `Source.spec`.
        """


@runtime_checkable
class TellsRemarks(Protocol):
    """A source that knows something of its data as a whole: files that lost records, say. Offering it is optional."""

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What it knows by now; more, perhaps, once it has been read.

        Whoever reads the source asks before the first episode and after the last; `inspect`, `validate` and the report of a push tell them.
        """


def remarks_of(source: object) -> tuple[Remark, ...]:
    """What a source tells of its data as a whole; () for one that tells nothing."""
    return tuple(source.remarks) if isinstance(source, TellsRemarks) else ()


@runtime_checkable
class TellsLengths(Protocol):
    """A source that knows how long its episodes are before it reads one. Offering it is optional."""

    def episode_lengths(self) -> Sequence[int] | None:
        """Rows of each episode, in the order in which they come; None where only reading tells.

        Raises:
          SourceError: what tells of the episodes cannot be read.
        """


def episode_lengths_of(source: object) -> Sequence[int] | None:
    """Rows of each episode of a source, None where only reading tells; raises as `TellsLengths.episode_lengths`."""
    return source.episode_lengths() if isinstance(source, TellsLengths) else None


def known_count(source: Source) -> int:
    """How many episodes a source has, which workers share out.

    Raises:
      SourceError: only reading tells.
    """
    count = source.episode_count
    if count is None:
        raise SourceError(
            f"{source.name}: only reading tells how many episodes it has, so it cannot be divided among workers (--workers, --ray); leave them out"
        )
    return count


@runtime_checkable
class KeepsImages(Source, Protocol):
    """A source whose files hold images as JPEG or PNG, and that can hand these bytes out as they are."""

    def images(self) -> Mapping[str, ImageSpec]:
        """Path -> what it decodes to, of every step column whose files' bytes the source can keep; {} when it has none.

        Raises:
          SourceError: the dataset's description cannot be read.
        """

    def encoded(self, paths: Collection[str]) -> Source:
        """The same source with these image columns as columns of text, a file's bytes per image; episodes keep their names.

        Args:
          paths: of `images()`.

        Its spec has `ArraySpec.of_images` for them.
        """


IsKnown = Callable[[str], bool]
"""Whether whoever reads a source knows the episode of a name already, and wants nothing made of it."""


@runtime_checkable
class Reads(Protocol):
    """A source that can begin at any episode, end at any, and name an episode before it makes anything of it. Offering it is optional."""

    def read_range(self, start: int, stop: int | None, is_known: IsKnown) -> Iterator[Episode | KnownEpisode]:
        """The episodes from number `start` to number `stop`, which is left out; to the end for None. See `read`."""


def read(
    source: Source, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
) -> Iterator[Episode | KnownEpisode]:
    """Episodes of a source, by number. Those outside the range are jumped over where the source can do that, else read and dropped.

    Args:
      source: any.
      start, stop: numbers, in the order of the source; `stop` is left out, None is the end.
      is_known: asked with the name of each episode, once and in their order, perhaps from another thread. In place of one that is known
        comes a `KnownEpisode`; a source that `Reads` does not decode it.

    Raises:
      SourceError: the data cannot be read.
    """
    if isinstance(source, Reads):
        return source.read_range(start, stop, _knows_nothing if is_known is None else is_known)
    episodes = islice(iter(source), start, stop)
    return episodes if is_known is None else unless_known(episodes, is_known)


def unless_known(episodes: Iterable[Episode | KnownEpisode], is_known: IsKnown) -> Iterator[Episode | KnownEpisode]:
    """The episodes, and a `KnownEpisode` in place of each that is known; for a source that makes them first."""
    return (KnownEpisode(one.id) if is_known(one.id) else one for one in episodes)


def episodes_of(source: Source, start: int = 0, stop: int | None = None) -> Iterator[Episode]:
    """As `read`, where no episode is known."""
    return cast("Iterator[Episode]", read(source, start, stop))


def _knows_nothing(_: str) -> bool:
    return False


ALL = "all"
"""In place of paths: every image column."""


def kept_images(source: Source) -> Mapping[str, ImageSpec]:
    """The images that a source can keep encoded; {} when it can keep none, or has none.

    Raises:
      SourceError: as `KeepsImages.images`.
    """
    return source.images() if isinstance(source, KeepsImages) else {}


def with_encoded(source: Source, encoded: Sequence[str]) -> Source:
    """A source with some of its image columns as the files' own bytes.

    Args:
      source: any.
      encoded: paths of image columns, or of nests of them; or "all". Without any, the source is as it was.

    Raises:
      SourceError: the source cannot hand out the bytes of its files, or a path leads to no image column; says which there are.
    """
    if not encoded:
        return source
    images = kept_images(source)
    if not images:
        raise SourceError(
            f"{source.name}: encoded: has no step columns whose JPEG or PNG files can be kept as they are; "
            "those of a TFDS dataset's Image features can. Leave encoded (--encoded) out"
        )
    kept = [path for path in images if ALL in encoded or any(is_under(path, one) for one in encoded)]
    for one in encoded:
        if one != ALL and not any(is_under(path, one) for path in images):
            raise SourceError(
                f'{source.name}: encoded "{one}": expected image columns, which are {", ".join(images)}; or "{ALL}"'
            )
    assert isinstance(source, KeepsImages)  # it told its images
    return source.encoded(kept)


def columns_of(nest: Nest, name: str) -> dict[str, Any]:
    """Leaf path -> leaf of what a dataset has or says of itself; see `specs.flatten`.

    Raises:
      SourceError: two leaves have the same path; `name` is what the message calls the dataset.
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
    """Refuses steps that cannot be RLDS'.

    Raises:
      SourceError: they lack is_first or is_last.
    """
    missing = [name for name in (IS_FIRST, IS_LAST) if name not in spec]
    if missing:
        raise SourceError(f"{source.name}: not RLDS: steps lack {' and '.join(missing)}; found {sorted(spec)}")


def metadata_spec_of(source: Source) -> Nest:
    """The spec of what the dataset says of whole episodes, dicts within dicts: the source's own `metadata_spec()`, or else that of its first episode.

    Raises:
      SourceError: the source cannot tell, and has no episode to look at or cannot be read; or two features have the same path.
    """
    if isinstance(source, TellsMetadata):
        return nested(columns_of(source.metadata_spec(), source.name))
    first = next(iter(source), None)
    if first is None:
        raise SourceError(f"{source.name}: no episode, so its metadata is not known")
    return nested(metadata_specs(first))


def check_shard(index: int, count: int) -> None:
    """Raises `SourceError` unless 0 <= index < count."""
    if not 0 <= index < count:
        raise SourceError(f"shard {index} of {count}: expected 0 <= index < count")


class FirstEpisodes:
    """The episodes at the start of a source, named as in the whole; see `first_episodes`."""

    def __init__(self, source: Source, count: int) -> None:
        self._source, self._count = source, count
        self.name = f"{source.name}, first {count:,}"

    @property
    def episode_count(self) -> int | None:
        """How many of them there are, or None where the source's number is not known."""
        known = self._source.episode_count
        return None if known is None else min(known, self._count)

    def episode_lengths(self) -> Sequence[int] | None:
        """The source's first ones."""
        known = episode_lengths_of(self._source)
        return None if known is None else known[: self._count]

    def spec(self) -> Nest:
        """The source's."""
        return self._source.spec()

    def metadata_spec(self) -> Nest:
        """The source's."""
        return metadata_spec_of(self._source)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The source's."""
        return remarks_of(self._source)

    def __iter__(self) -> Iterator[Episode]:
        return episodes_of(self)

    def images(self) -> Mapping[str, ImageSpec]:
        """The source's; {} when it can keep none."""
        return kept_images(self._source)

    def encoded(self, paths: Collection[str]) -> FirstEpisodes:
        """The same episodes of the source with these columns encoded."""
        return FirstEpisodes(with_encoded(self._source, list(paths)), self._count)

    def shard(self, index: int, count: int) -> FirstEpisodes:
        """Every `count`-th of them."""
        return FirstEpisodes(self._source.shard(index, count), len(range(index, self._count, count)))

    def read_range(self, start: int, stop: int | None, is_known: IsKnown) -> Iterator[Episode | KnownEpisode]:
        """See `base.read`."""
        return read(self._source, start, self._count if stop is None else min(stop, self._count), is_known)


def first_episodes(source: Source, count: int | None) -> Source:
    """At most so many episodes from the start of a source; the source itself when the count is None."""
    return source if count is None else FirstEpisodes(source, count)


def spec_of(episode: Episode) -> Nest:
    """The step spec of one episode.

    Raises:
      SourceError: a column has the name of a group of columns ("a" beside "a/b").
    """
    return nested({path: column_spec(column) for path, column in episode.columns.items()})
