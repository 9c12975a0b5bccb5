"""The source that a format's recordings make: shards, choices, names, reading ahead; the same for all of them."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.recordings import ENDLESS, HoldsImages, Recordings
from rlds2reverb.remarks import Remark
from rlds2reverb.sources.base import check_shard, columns_of
from rlds2reverb.sources.read_ahead import read_ahead
from rlds2reverb.specs import Nest


class RecordedSource:
    """Episodes of recordings, named by their fingerprint and their name or number.

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
        """Those whose files' bytes the recordings can give; {} when they can give none."""
        return self._recordings.images() if isinstance(self._recordings, HoldsImages) else {}

    def encoded(self, paths: Collection[str]) -> RecordedSource:
        """The same episodes with the bytes of these images' files."""
        if not isinstance(self._recordings, HoldsImages):
            raise SourceError(f"{self.name}: encoded: its files hold no JPEG or PNG images")
        return RecordedSource(self._recordings.encoded(paths), self._numbers, self.name)

    def __iter__(self) -> Iterator[Episode]:
        return read_ahead(self._episodes(), lambda episode: episode.nbytes)

    def shard(self, index: int, count: int) -> RecordedSource:
        """Every `count`-th episode, named as in the whole; also of a shard."""
        check_shard(index, count)
        if count == 1:
            return self
        return RecordedSource(self._recordings, self._numbers[index::count], f"{self.name}[{index}/{count}]")

    def without_first(self, count: int) -> RecordedSource:
        """The episodes after the first `count`, named as in the whole; those before them are not made."""
        return RecordedSource(self._recordings, self._numbers[count:], self.name)

    def between(self, start: int, stop: int) -> RecordedSource:
        """The episodes from number `start` to number `stop`, which is left out, named as in the whole; no others are made."""
        return RecordedSource(self._recordings, self._numbers[start:stop], self.name)

    def _episodes(self) -> Generator[Episode, None, None]:
        for number, recording in zip(self._numbers, self._recordings.read(self._numbers)):
            name = recording.name or str(number)
            yield Episode(
                recording.columns, recording.metadata, f"{self._recordings.fingerprint}#{name}", recording.faults
            )
