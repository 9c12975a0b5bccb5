"""What every source offers, and what all of them share: shards, the first episodes, specs in which each column has its own name.

What only some offer has a protocol of its own: `KeepsImages`, `TellsMetadata`, `TellsRemarks`, `Skips`. A source around another one hands on all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from rlds2reverb.episodes import IS_FIRST, IS_LAST, Episode, is_under
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
        """Every `count`-th episode, starting with number `index`, under the names that they have in the whole.

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


@runtime_checkable
class Skips(Protocol):
    """A source that can pass over its first episodes without making anything of them. Offering it is optional."""

    def without_first(self, count: int) -> Iterable[Episode]:
        """The episodes after the first `count`, under the names that they have in the whole."""


def without_first(source: Source, count: int) -> Iterable[Episode]:
    """The episodes after the first `count`: passed over where the source can do that, else read and dropped."""
    if not count:
        return source
    return source.without_first(count) if isinstance(source, Skips) else islice(source, count, None)


@runtime_checkable
class Ends(Protocol):
    """A source that can end early, and then reads nothing ahead that nobody asks for. Offering it is optional."""

    def between(self, start: int, stop: int) -> Iterable[Episode]:
        """The episodes from number `start` to number `stop`, which is left out, under the names that they have in the whole."""


def between(source: Source, start: int, stop: int) -> Iterable[Episode]:
    """The episodes from one number to another, which is left out."""
    if isinstance(source, Ends):
        return source.between(start, stop)
    return islice(without_first(source, start), max(0, stop - start))


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
        return islice(iter(self._source), self._count)

    def images(self) -> Mapping[str, ImageSpec]:
        """The source's; {} when it can keep none."""
        return kept_images(self._source)

    def encoded(self, paths: Collection[str]) -> FirstEpisodes:
        """The same episodes of the source with these columns encoded."""
        return FirstEpisodes(with_encoded(self._source, list(paths)), self._count)

    def shard(self, index: int, count: int) -> FirstEpisodes:
        """Every `count`-th of them."""
        return FirstEpisodes(self._source.shard(index, count), len(range(index, self._count, count)))

    def without_first(self, count: int) -> Iterator[Episode]:
        """Those of them after the first `count`."""
        return self.between(count, self._count)

    def between(self, start: int, stop: int) -> Iterator[Episode]:
        """Those of them from number `start` to number `stop`, which is left out."""
        return iter(between(self._source, start, min(stop, self._count)))


def first_episodes(source: Source, count: int | None) -> Source:
    """At most so many episodes from the start of a source; the source itself when the count is None."""
    return source if count is None else FirstEpisodes(source, count)


def spec_of(episode: Episode) -> Nest:
    """The step spec of one episode.

    Raises:
      SourceError: a column has the name of a group of columns ("a" beside "a/b").
    """
    return nested({path: column_spec(column) for path, column in episode.columns.items()})
