"""The interface of a format that can be written: a `Destination`, and the `Sink` that receives its episodes.

A dataset is written into a folder beside the final one, and renamed when it is complete; one in a bucket is uploaded then. So an incomplete
dataset is never visible.
From time to time `Sink.sync` puts everything on disk and returns a state; an interrupted conversion continues from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds2reverb.episode import IS_TERMINAL, Array, Episode, is_under
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.options import unescape_text
from rlds2reverb.formats.rows import flags
from rlds2reverb.formats.source import About
from rlds2reverb.specs import ArraySpec, ImageSpec

State = dict[str, Any]
"""Plain values, for JSON."""


def place_named(text: str) -> Path:
    """The path that a destination's name has, with its escapes, on this machine or in a bucket.

    Raises:
      ConfigError: there is no such user, the scheme is unknown, or it is `hf://` or `https://`, where nothing is written.
    """
    try:
        path = path_of(unescape_text(text))
    except SourceError as error:
        raise ConfigError(str(error)) from error
    if path.parts[:1] == ("hf:",):
        raise ConfigError(f"{path}: the hub is only read; convert into a folder here, and upload that: hf upload")
    if path.parts[:1] in (("https:",), ("http:",)):
        raise ConfigError(f"{path}: a web server is only read; convert into a folder here")
    return path


ALL_ROWS, LAST_ROW, NEAR_ROWS, NO_ROWS = "all", "last", "near", "none"
"""The rows that a loss affects: see `Loss.rows`."""


@dataclass(frozen=True)
class Loss:
    """Something that the format cannot hold.

    Attributes:
      code: the kind of loss, as in docs/convert.md.
      text: what is lost or changed, and how to avoid it; one line.
      path: the step column, or a group of them ("observation"); a feature of the episode as "metadata/NAME"; None for the whole, of
        which every column is compared all the same.
      rows: the affected rows of the column: `ALL_ROWS`; `LAST_ROW` if the rest is unchanged; `NEAR_ROWS` if images are
        compressed, and read back near to what they were; `NO_ROWS` if all values are unchanged but mean something else to the format's own
        system. Verification skips only the rows reported here, and measures how near images are.
      now: the path by which the column is read back, where only its name is another; then its values are compared there.
    """

    code: str
    text: str
    path: str | None = None
    rows: str = ALL_ROWS
    now: str | None = None


@dataclass(frozen=True)
class Content:
    """The content to be converted.

    Attributes:
      source: the source's name, for messages.
      columns: path -> spec of a step's value, as recorded. is_first and is_last are required; is_terminal, reward and
        discount may be absent (`conventions.fill_absent`).
      metadata: path -> spec of an episode's feature.
      about: what the source says of the dataset as a whole.
      episodes: as recorded, for what no spec says, such as their rate; reading them takes time.
    """

    source: str
    columns: Mapping[str, ArraySpec]
    metadata: Mapping[str, ArraySpec]
    about: About = About()
    episodes: Iterable[Episode] = ()


class UnfitEpisode(Exception):
    """The format cannot hold an episode, which no spec tells. It is rejected as `unfit`, and the policy of bad episodes decides how to go on.

    Attributes:
      path: the column's, "" for the whole episode.
      why: what the format holds, what came, and how to avoid it.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why


Encode = Callable[[Episode], Any]
"""See `Destination.encoder`.

Raises:
  UnfitEpisode: the format cannot hold the episode.
"""


def unchanged(episode: Episode) -> Episode:
    """The encoder of formats in which all work depends on the previous episodes."""
    return episode


class Sink(Protocol):
    """Takes episodes, in order. Used by one thread."""

    def write(self, encoded: Any) -> Sequence[Loss]:
        """Writes an encoded episode; returns its losses that `Destination.losses` could not know from the specs.

        Raises:
          OSError: the disk is full or fails.
        """

    def sync(self) -> State:
        """Puts all written episodes on disk; returns the state from which `Destination.sink` continues."""

    def finish(self) -> None:
        """Completes the dataset after the last `sync`. If interrupted, it is called again on a sink with that state."""

    def close(self) -> None:
        """Closes the files, complete or not. May be called twice."""


class Destination(Protocol):
    """A dataset that is to be written.

    Attributes:
      name: for messages.
      path: the final folder or file.
    """

    name: str
    path: Path

    def source(self, path: Path) -> str:
        """The name by which `open_source` reads the result at `path`: the folder `work`, or the file in it."""

    @property
    def marks(self) -> Sequence[str]:
        """File patterns of a dataset folder. Every dataset has a file of the first; "**" matches any folders.

        Only a folder without other files is replaced. () if the dataset is a single file.
        """

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """The image columns that are kept as the bytes of their files; all further image columns are decoded.

        Args:
          columns: path -> spec of every step column, with these images encoded.
          images: path -> spec of the source's image files; their format is set if it is known from the first episode.

        Returns:
          Path -> spec of what the format's own system decodes the files to; by default, none are kept.
        """
        return {}

    def losses(self, content: Content) -> Sequence[Loss]:
        """The losses that follow from the specs of the content. Codes are keys of `Format.losses`.

        Raises:
          ConfigError: the format can hold no episode of it; the message says why.
        """

    def kept_facts(self, content: Content) -> Collection[str]:
        """Names of the facts of `content.about` that are written, or that an option of the destination says otherwise.

        The conversion reports all others as the loss `dataset_metadata`; by default, none are written.
        """
        return ()

    @property
    def least_rows(self) -> int:
        """The least number of rows of an episode that the format can hold; 2 if every step needs an action.

        Shorter ones are bad (`single_step`), whatever `allow` says; a sink never gets them.
        """

    def flags(self, episode: Episode) -> Mapping[str, Array]:
        """Path -> values after reading back, of those flags (is_first, is_last, is_terminal) that are not kept.

        If they differ from the episode's, the conversion reports the loss `flags`, unless a loss of that path is
        already reported by the destination or the sink.
        """

    def encoder(self, content: Content) -> Encode:
        """A function from a valid episode with the columns of the content to the argument of `Sink.write`.

        It does all work that does not depend on previous episodes. It may run in another process, so its result can be
        pickled.
        `unchanged` by default, where there is no such work.
        """
        return unchanged

    def sink(self, work: Path, content: Content, state: State | None) -> Sink:
        """Begins or continues to write.

        Args:
          work: a folder that exists; it, or the file of the same name in it, becomes `path`.
          content: the content of the whole conversion.
          state: the result of the last `Sink.sync`; None at the beginning. The sink discards what was written after it.
        """


# Comparison of written and read columns, bit by bit.


def are_equal(column: Array, other: Array | None) -> bool:
    """Whether dtype, shape and every bit are the same, so that -0.0 is not 0.0, and a NaN is itself."""
    if other is None or column.dtype != other.dtype or column.shape != other.shape:
        return False
    if column.dtype.kind == "O":
        return bool(column.tolist() == other.tolist())
    return bool(column.tobytes() == other.tobytes())


def rows_that_differ(column: Array, read_back: Array) -> str | None:
    """The value of `Loss.rows` for a column [T, ...] that is read back as `given`; None if they are equal."""
    if are_equal(column, read_back):
        return None
    return LAST_ROW if are_equal(column[:-1], read_back[:-1]) else ALL_ROWS


# Flags that a format derives from an episode's length and end; the episode's own flags may differ.

LOSSES = {
    "flags": "is_first, is_last or is_terminal of rows where the format cannot say it: it makes them of the length and the end"
}
"""Code -> what a destination that derives flags cannot hold."""


def made_flags(episode: Episode) -> dict[str, Array]:
    """is_first on the first row, is_last on the last, and the last row's is_terminal if the episode has one."""
    terminal = episode.columns.get(IS_TERMINAL)
    return flags(len(episode), None if terminal is None else bool(terminal[-1]))


def odd_flags(destination: Destination, episode: Episode) -> tuple[str, ...]:
    """Paths of the flags that differ after reading back."""
    back: Mapping[str, Array] = destination.flags(episode)
    return tuple(
        path
        for path, column in back.items()
        if path in episode.columns and not np.array_equal(episode.columns[path], column)
    )


def lost_flags(odd: Sequence[str], reported: Sequence[Loss]) -> Iterator[Loss]:
    """The losses of such flags, without those already reported."""
    reported_paths = [loss.path for loss in reported if loss.path is not None]
    for path in odd:
        if not any(is_under(path, reported_path) for reported_path in reported_paths):
            yield Loss("flags", LOSSES["flags"], path)
