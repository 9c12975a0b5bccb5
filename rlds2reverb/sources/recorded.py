"""The source that a format's recordings make: shards, choices, names, reading ahead; the same for all of them."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress

import xxhash

from rlds2reverb.episodes import Episode, KnownEpisode, content_digest
from rlds2reverb.identity import content_name
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings
from rlds2reverb.remarks import Remark
from rlds2reverb.sources.base import ENDLESS, IsKnown, Source, check_shard, columns_of
from rlds2reverb.sources.read_ahead import read_ahead
from rlds2reverb.specs import Nest


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
    def remarks(self) -> tuple[Remark, ...]:
        """The recordings'."""
        return self._recordings.remarks

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
