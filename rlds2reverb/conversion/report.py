"""What a conversion did, and what it lost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from rlds2reverb.episode import Notice, is_under
from rlds2reverb.formats.destination import ALL_ROWS, LAST_ROW, NEAR_ROWS, NO_ROWS, Loss
from rlds2reverb.formats.source import LeftOut
from rlds2reverb.plain import members, printed
from rlds2reverb.text import as_html, counted


@printed("*", "episodes_rejected")
@dataclass(frozen=True)
class ConvertReport:
    """The account of a conversion, finished or stopped; over all its runs, where it was stopped and continued.

    `episodes_read == episodes_written + sum(rejected.values())` holds for a finished one.

    Attributes:
      source: the name of the dataset that was read.
      destination: the name of the one that was written.
      path: the folder or the file that was written.
      episodes_read, steps_read: read from the source.
      episodes_written, steps_written: of these, written.
      episodes_resumed: of those read, by runs before this one.
      rejected: code -> episodes rejected; each counts once, under its first problem.
      steps_rejected: steps of the rejected episodes.
      advice: code -> episodes written although a learner may misread them.
      repaired: code -> episodes mended before they were written.
      ends_mended: episodes whose last row was left out, or got the observation before it (`last_observation`).
      losses: what the destination's format cannot hold.
      notices: what the source says of the dataset as a whole.
      encoded: paths of image columns that were written as the bytes of their files.
      bytes: of the columns written, in memory.
      seconds: wall time of this run.
      verified: episodes that were read back and are as they should be; None where nothing was compared.
      verified_by: who read them: this package, and the destination's own library where it is installed.
      stopped: what ended the conversion, on one line; "" when it is finished.
      transform: what was done to the columns first: operation -> value, those that did something.
      filtered: rule -> what it took out of the source before it was read.
      episodes_kept: of those written, on disk for the next run of the same conversion; 0 for a finished one.
      workers: processes that read, judged and encoded episodes at a time, in this run; 0 for none but this one.
      parts_again: parts of the source that were begun anew because their workers were lost.
      psnr: path of an image column that was written as a video -> how near its frames are to the images, where they were compared.
    """

    source: str
    destination: str
    path: str = ""
    episodes_read: int = 0
    steps_read: int = 0
    episodes_written: int = 0
    steps_written: int = 0
    episodes_resumed: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    steps_rejected: int = 0
    advice: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    ends_mended: int = 0
    losses: tuple[Lost, ...] = ()
    notices: tuple[Notice, ...] = ()
    encoded: tuple[str, ...] = ()
    bytes: int = 0
    seconds: float = 0.0
    verified: int | None = None
    stopped: str = ""
    transform: Mapping[str, Any] = field(default_factory=dict)
    filtered: Mapping[str, LeftOut] = field(default_factory=dict)
    episodes_kept: int = 0
    workers: int = 0
    parts_again: int = 0
    verified_by: tuple[str, ...] = ()
    psnr: Mapping[str, Nearness] = field(default_factory=dict)

    _repr_html_ = as_html

    @property
    def episodes_rejected(self) -> int:
        """All rejected episodes."""
        return sum(self.rejected.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return members(self)


@printed("*")
@dataclass(frozen=True)
class Nearness:
    """How near frames are to the images that were written, as PSNR (peak signal-to-noise ratio); 100 where they are equal.

    Attributes:
      frames: the number of compared frames.
      mean: dB, of all frames together.
      least: dB, of the worst frame.
    """

    frames: int
    mean: float
    least: float


ALL = "all"
"""Stands for the codes of all losses."""

_MOST_SHOWN = 8
"""Paths on one line."""

Key = tuple[str, str | None, str]
"""Code, path and rows of a loss."""


@printed("*")
@dataclass(frozen=True)
class Lost:
    """A loss with its number of episodes.

    Attributes:
      code, text, path, rows: see `Loss`; the text is that of the first.
      episodes: how many have it; None if it applies to all episodes.
    """

    code: str
    text: str
    path: str | None = None
    episodes: int | None = None
    rows: str = ALL_ROWS


@dataclass
class Losses:
    """The losses of one conversion: predicted from the specs, and counted while episodes are written."""

    of_all: tuple[Loss, ...] = ()  # losses that follow from the specs
    texts: dict[Key, str] = field(default_factory=dict)  # the first text of each loss of single episodes
    # [start, stop) of the numbers of the written episodes that have the loss; ascending
    ranges: dict[Key, list[list[int]]] = field(default_factory=dict)

    def add(self, number: int, losses: Iterable[Loss]) -> None:
        """Adds the losses of a written episode; numbers must ascend."""
        for loss in losses:
            key = (loss.code, loss.path, loss.rows)
            self.texts.setdefault(key, loss.text)
            ranges = self.ranges.setdefault(key, [])
            if ranges and ranges[-1][1] >= number:
                ranges[-1][1] = number + 1
            else:
                ranges.append([number, number + 1])

    def counted(self) -> tuple[Lost, ...]:
        """All losses, with their number of episodes."""
        of_episodes = [
            Lost(code, text, path, sum(stop - start for start, stop in self.ranges[code, path, rows]), rows)
            for (code, path, rows), text in self.texts.items()
        ]
        return (*(Lost(loss.code, loss.text, loss.path, None, loss.rows) for loss in self.of_all), *of_episodes)

    def moved(self) -> dict[str, str]:
        """Path of a column -> the one by which it is read back."""
        return {loss.path: loss.now for loss in self.of_all if loss.path is not None and loss.now is not None}

    def near_paths(self) -> list[str]:
        """The image columns that are read back near to what they were."""
        return [loss.path for loss in self.of_all if loss.path is not None and loss.rows == NEAR_ROWS]

    def reported(self, number: int, with_meaning: bool = False) -> dict[str, str]:
        """Path of a column, or "metadata/NAME" -> affected rows, for the reported losses of a written episode.

        Args:
          number: of the episode.
          with_meaning: all rows also where only the format's own library reads other values, see `NO_ROWS`.
        """
        lost = [
            (loss.path, ALL_ROWS if with_meaning and loss.rows == NO_ROWS else loss.rows)
            for loss in self.of_all
            if loss.now is None
        ]
        for (_, path, rows), ranges in self.ranges.items():
            at = bisect_right(ranges, number, key=itemgetter(0)) - 1
            if at >= 0 and number < ranges[at][1]:
                lost.append((path, rows))
        lost = [(path, rows) for path, rows in lost if rows not in (NO_ROWS, NEAR_ROWS)]
        only_last = {path: rows for path, rows in lost if path is not None and rows == LAST_ROW}
        return {**only_last, **{path: rows for path, rows in lost if path is not None and rows != LAST_ROW}}

    def as_state(self) -> list[Any]:
        """The losses of single episodes, for JSON."""
        return [[*key, text, self.ranges[key]] for key, text in self.texts.items()]

    def restore(self, state: Sequence[Any]) -> None:
        for code, path, rows, text, ranges in state:
            self.texts[code, path, rows] = text
            self.ranges[code, path, rows] = ranges


def reported_rows(reported: Mapping[str, str], path: str) -> str | None:
    """The rows of a column or of a feature "metadata/NAME" with a reported loss; None if there is no loss."""
    lost = {rows for where, rows in reported.items() if is_under(path, where)}
    return next((rows for rows in (ALL_ROWS, LAST_ROW) if rows in lost), None)


def refuse_losses(losses: Iterable[Loss], allowed: Sequence[str]) -> list[Loss]:
    """The losses whose codes are not allowed; "all" allows every loss."""
    return [] if ALL in allowed else [loss for loss in losses if loss.code not in allowed]


def lines(losses: Iterable[Loss | Lost]) -> list[str]:
    """Lines `CODE: PATHS: TEXT`; a loss of several paths makes one line."""
    paths: dict[tuple[str, str], list[str]] = {}
    for loss in losses:
        episodes = loss.episodes if isinstance(loss, Lost) else None
        text = loss.text if episodes is None else f"{loss.text} ({counted(episodes, 'episode')})"
        paths.setdefault((loss.code, text), []).extend([] if loss.path is None else [loss.path or '""'])
    printed_lines = []
    for (code, text), every in paths.items():
        listed, more = ", ".join(every[:_MOST_SHOWN]), len(every) - _MOST_SHOWN
        listed += f" and {more:,} more" if more > 0 else ""
        printed_lines.append(f"{code}: {listed}: {text}" if every else f"{code}: {text}")
    return printed_lines
