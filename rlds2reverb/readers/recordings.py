"""What a format has to offer to become a source: episodes by number, each as RLDS columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlds2reverb.episodes import Array
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import Nest


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
    def remarks(self) -> tuple[Remark, ...]:
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
