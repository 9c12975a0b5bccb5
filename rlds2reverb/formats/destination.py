"""What a format that is written offers: a `Destination`, and the `Sink` that takes its episodes. `rlds2reverb.conversion` does the rest.

A dataset is written into a folder beside the final one, which gets its name when all is done. So nobody finds half a dataset. Now and
then the sink tells a state, all before which is on disk; a conversion that is begun again goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2reverb.episode import IS_TERMINAL, Array, Episode, is_under
from rlds2reverb.formats.rows import flags
from rlds2reverb.specs import ArraySpec, ImageSpec

State = dict[str, Any]
"""Plain values, for JSON."""


ALL_ROWS, LAST_ROW, NO_ROWS = "all", "last", "none"
"""What a loss is of: see `Loss.rows`."""


@dataclass(frozen=True)
class Loss:
    """Something that the format cannot hold.

    Attributes:
      code: which kind; the same word in docs/convert.md.
      text: what is lost or changed, and how to have it otherwise; one line.
      path: the step column, or a group of them ("observation"); a feature of the episode as "metadata/NAME"; None for the whole, of
        which every column is compared all the same.
      rows: of which rows of the column: `ALL_ROWS`; `LAST_ROW` where all others come back as they are; `NO_ROWS` where all do, but mean
        something else to the format's own system. Only what is told is not compared.
    """

    code: str
    text: str
    path: str | None = None
    rows: str = ALL_ROWS


@dataclass(frozen=True)
class Content:
    """What is converted.

    Attributes:
      source: as people call it.
      columns: path -> spec of a step's value: what was recorded. is_first and is_last are among them; is_terminal, reward and discount
        need not be (`conventions.fill_absent`).
      metadata: path -> spec of an episode's feature.
    """

    source: str
    columns: Mapping[str, ArraySpec]
    metadata: Mapping[str, ArraySpec]


Encode = Callable[[Episode], Any]
"""See `Destination.encoder`.

Raises:
  ConversionError: the format cannot hold the episode.
"""


def unchanged(episode: Episode) -> Episode:
    """The encoder of formats all of whose work depends on the episodes before."""
    return episode


class Sink(Protocol):
    """Takes episodes, in order. Used by one thread."""

    def write(self, encoded: Any) -> Sequence[Loss]:
        """Takes what `Destination.encoder` made of an episode; what of this one is lost that `Destination.losses` could not know.

        Raises:
          OSError: the disk.
        """

    def sync(self) -> State:
        """Puts all that was taken on disk; what `Destination.sink` needs to go on behind it."""

    def finish(self) -> None:
        """Completes the dataset, after the last episode and `sync`. It may be cut off, and is then called again on a sink with that state."""

    def close(self) -> None:
        """Lets go of files, complete or not. May be called twice."""


class Destination(Protocol):
    """A dataset to be."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def path(self) -> Path:
        """The folder or the file that there will be."""

    def source(self, path: Path) -> str:
        """The name by which `open_source` reads what was written, while it is at `path`: the folder `work`, or the file in it."""

    @property
    def marks(self) -> Sequence[str]:
        """Patterns of the files in a folder that is such a dataset, the first one of a file that each has; "**" is any folders, or none.

        Only a folder without other files is replaced. () where the dataset is a file.
        """

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """The image columns that are kept as the bytes of their files; the others come decoded.

        Args:
          columns: path -> spec of every step column, with these images encoded.
          images: path -> what the source's files are; the format is known where the first episode tells it.

        Returns:
          Path -> what the format's own system decodes the files to.
        """

    def losses(self, content: Content) -> Sequence[Loss]:
        """What the format cannot hold of such a content, as far as the specs tell. Codes are keys of the module's `LOSSES`.

        Raises:
          ConfigError: it can hold nothing of it; says why.
        """

    @property
    def least_rows(self) -> int:
        """Of how many rows an episode must be that the format can hold; 2 where it has steps with an action only.

        The engine rejects shorter ones, under `single_step`, whatever is allowed; a sink sees none.
        """

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """is_first, is_last and is_terminal as reading gives them back: those that the format does not keep as they are, by path.

        Where they differ from the episode's, the engine tells the loss `flags`; unless the destination or the sink told one of that path.
        """

    def encoder(self, content: Content) -> Encode:
        """What makes of a valid episode, with the columns of the content, what `Sink.write` takes.

        It does all that does not depend on the episodes before, and may do so in another process: what it makes can be pickled.
        `unchanged` where there is nothing of the kind.
        """

    def sink(self, work: Path, content: Content, state: State | None) -> Sink:
        """Begins to write, or goes on.

        Args:
          work: a folder that exists; it, or the file of the same name in it, becomes `path`.
          content: what is to come.
          state: what `Sink.sync` told last; None for the beginning. What was written after it is to be cut off.
        """


# What was written and what reading gives, bit by bit.


def are_equal(one: Array, other: Array | None) -> bool:
    """Whether dtype, shape and every bit are the same, so that -0.0 is not 0.0, and a NaN is itself."""
    if other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind == "O":
        return bool(one.tolist() == other.tolist())
    return bool(one.tobytes() == other.tobytes())


def rows_that_differ(column: Array, given: Array) -> str | None:
    """What `Loss.rows` says of a column [T, ...], in place of which reading gives another; None where they are equal."""
    if are_equal(column, given):
        return None
    return LAST_ROW if are_equal(column[:-1], given[:-1]) else ALL_ROWS


# Flags that a format makes of an episode's length and end, where an episode may have others.

LOSSES = {
    "flags": "is_first, is_last or is_terminal of rows where the format cannot say it: it makes them of the length and the end",
}
"""Code -> what a destination that makes flags cannot hold."""


def made_flags(episode: Episode) -> dict[str, Array]:
    """The first row is_first, the last one is_last, and is_terminal where it was; is_terminal only where the episode has it."""
    terminal = episode.columns.get(IS_TERMINAL)
    return flags(len(episode), None if terminal is None else bool(terminal[-1]))


def odd_flags(destination: Destination, episode: Episode) -> tuple[str, ...]:
    """Paths of the flags that do not come back as they are written."""
    back: Mapping[str, Array] = destination.flags(episode)
    return tuple(
        path
        for path, column in back.items()
        if path in episode.columns and not np.array_equal(episode.columns[path], column)
    )


def lost_flags(odd: Sequence[str], told: Sequence[Loss]) -> Iterator[Loss]:
    """The losses of such flags, but those told already."""
    paths = [one.path for one in told if one.path is not None]
    for path in odd:
        if not any(is_under(path, one) for one in paths):
            yield Loss("flags", LOSSES["flags"], path)
