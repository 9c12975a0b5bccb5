"""What is counted of a dataset: ranges of its columns, and how its episodes end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    columns_under,
    repeats_row_before,
)
from rlds2reverb.formats.last_step import last_row_is_added
from rlds2reverb.numbers.columns import ColumnStatistics
from rlds2reverb.plain import Count, members, printed
from rlds2reverb.text import Remedy, Spelling, by_name


@printed("*")
@dataclass(frozen=True)
class Statistics:
    """Minimum, median, mean and maximum of some numbers.

    Attributes:
      min, median, mean, max: over those that are finite; None where there are none.
    """

    min: float | None = None
    median: float | None = None
    mean: float | None = None
    max: float | None = None

    def items(self) -> list[tuple[str, float | None]]:
        """Names and numbers, of these four."""
        return [(field.name, getattr(self, field.name)) for field in fields(Statistics)]

    @staticmethod
    def of(values: Sequence[float]) -> Statistics | None:
        """The statistics of finite numbers; None when there are none."""
        if not len(values):
            return None
        array = np.sort(np.asarray(values, np.float64))  # np.median would load masked arrays (numpy 2)
        median = array[(len(array) - 1) // 2] / 2 + array[len(array) // 2] / 2
        return Statistics(float(array.min()), float(median), float(array.mean()), float(array.max()))


@printed("*")
@dataclass(frozen=True)
class Returns(Statistics):
    """Sums of the rewards of episodes.

    Attributes:
      not_finite: returns that are NaN or infinite, and left out.
    """

    not_finite: Count = 0

    @staticmethod
    def of(values: Sequence[float]) -> Returns | None:
        """The statistics of returns; None when there are none."""
        finite = [value for value in values if math.isfinite(value)]
        statistics = Statistics.of(finite) or Statistics()
        return Returns(**vars(statistics), not_finite=len(values) - len(finite)) if values else None


def meaningful_columns(episode: Episode, is_before_gap: bool = False) -> dict[str, Array]:
    """An episode's columns; action, reward and discount without a last row that was added for the last observation.

    `is_before_gap`: filters took out the rows behind the last one, which was recorded then, whatever is in it.
    """
    if len(episode) < 2 or is_before_gap or not last_row_is_added(episode):
        return dict(episode.columns)
    return {
        path: column[:-1] if path.partition("/")[0] in (ACTION, REWARD, DISCOUNT) else column
        for path, column in episode.columns.items()
    }


def last_row_is_repeated(episode: Episode, is_before_gap: bool = False) -> bool:
    """Whether the last row has nothing of its own: it was added, and its observation is the one before it to the byte.

    So readers make it where none was recorded, as of LeRobot's episodes, which end with their last action. `is_before_gap` as of `meaningful_columns`.
    """
    if is_before_gap:
        return False
    observations = columns_under(episode.columns, OBSERVATION).values()
    is_same = len(episode) > 1 and repeats_row_before(observations, len(episode) - 1)
    return is_same and bool(observations) and last_row_is_added(episode)


_MOST_DIMENSIONS = 32


@printed("min=minimum", "max=maximum", "mean", "not_finite", "dimensions")
@dataclass
class Range:
    """What the values of one column span, over all steps.

    Attributes:
      minimum, maximum: over finite values; None for text and for a column without any.
      not_finite: values that are NaN or infinite, and left out.
      lows, highs: the same of each dimension of a vector of 2 to 32 values, an infinity where one has no finite value; else ().
    """

    minimum: float | None = None
    maximum: float | None = None
    total: float = 0.0
    finite: int = 0
    not_finite: Count = 0
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """Mean of the finite values."""
        return self.total / self.finite if self.finite else None

    @property
    def dimensions(self) -> list[list[float | None]]:
        """[minimum, maximum] of each dimension of a vector of 2 to 32 values, null where it has no finite value; [] for other columns."""
        return [
            [extreme if math.isfinite(extreme) else None for extreme in span] for span in zip(self.lows, self.highs)
        ]

    def add(self, column: Array) -> None:
        """Adds [T, ...] values; text, complex and empty columns are skipped."""
        if column.dtype.kind in "OSUc" or not column.size:
            return
        values = column.astype(np.float64)
        is_finite = np.isfinite(values)
        finite = values[is_finite]
        if values.ndim == 2 and 2 <= values.shape[1] <= _MOST_DIMENSIONS:
            lows = values.min(0, initial=math.inf, where=is_finite)
            highs = values.max(0, initial=-math.inf, where=is_finite)
            self._widen(tuple(lows.tolist()), tuple(highs.tolist()))
        self.not_finite += values.size - finite.size
        if finite.size:
            low, high = float(finite.min()), float(finite.max())
            self.minimum = low if self.minimum is None else min(self.minimum, low)
            self.maximum = high if self.maximum is None else max(self.maximum, high)
            self.total += float(finite.sum())
            self.finite += finite.size

    def add_range(self, other: Range) -> None:
        self.minimum = min((low for low in (self.minimum, other.minimum) if low is not None), default=None)
        self.maximum = max((high for high in (self.maximum, other.maximum) if high is not None), default=None)
        self.total += other.total
        self.finite += other.finite
        self.not_finite += other.not_finite
        if other.lows:
            self._widen(other.lows, other.highs)

    @staticmethod
    def of(column: ColumnStatistics) -> Range:
        """The range of values whose statistics are known."""
        count = int(column.count.sum())
        span = Range(not_finite=int(column.not_finite.sum()))
        if count:
            is_there = column.count > 0
            span.minimum, span.maximum = float(np.nanmin(column.min)), float(np.nanmax(column.max))
            span.total, span.finite = float((column.mean * column.count)[is_there].sum()), count
        if (
            not column.is_image
            and len(column.shape) == 1
            and 2 <= column.mean.size <= _MOST_DIMENSIONS
            and count + span.not_finite
        ):
            span.lows = tuple(np.where(column.count > 0, column.min, math.inf).tolist())
            span.highs = tuple(np.where(column.count > 0, column.max, -math.inf).tolist())
        return span

    def _widen(self, lows: tuple[float, ...], highs: tuple[float, ...]) -> None:
        self.lows = tuple(map(min, self.lows, lows)) if self.lows else lows
        self.highs = tuple(map(max, self.highs, highs)) if self.highs else highs

    def as_dict(self) -> dict[str, Any]:
        return members(self)


_SHIFT, _TRANSITION = ("last_reward", "shift"), ("terminal_discount", "transition")
_OPEN_X = "last row real, discount always 1, all terminal: as Open X-Embodiment sets (rlds_dataset_builder)"
_SHIFTED = Remedy(f"{_OPEN_X}; {{}} and {{}} let learners see the end", (_SHIFT, _TRANSITION))
_NOT_SHIFTED = Remedy(f"{_OPEN_X}; {{}} lets learners see the end", (_TRANSITION,))
_REAL = "last row real, so no observation follows its action, and learners do not see it"
_ADDED = "last row added for the last observation, as RLDS has it"
_D4RL = "discount 0 in it even where truncated: as TFDS' d4rl_* sets"
_D4RL_WITHOUT_NEXT = (
    "last row added where terminal, real where truncated: as TFDS' d4rl_* sets of files without next_observations"
)
_REWARDED_LAST = Remedy(
    "a reward in the last row only, where learners do not look; {} moves it one step back", (_SHIFT,)
)
_ENV_LOGGER = "not all marked is_last: as EnvLogger leaves episodes that were cut off"
_MIXED = "some have a last row that was added, some a real one"
_NONE_TERMINAL = "none terminal, though discounts of 0 lead into some ends"


@printed("*", "style")
@dataclass
class Ends:
    """How episodes of two steps and more end, counted.

    Attributes:
      episodes: all of them.
      terminal: episodes that end terminal.
      added: episodes whose last row holds no transition: its action and reward are 0.
      unmarked: episodes whose last row is not marked is_last.
      zero_discount: episodes that do not end terminal, and have discount 0 in the last row.
      cut_by_discount: episodes that do not end terminal, and have discount 0 in the row before the last.
      always_one: episodes with discount 1 in every row.
      rewarded_first: episodes with a reward other than 0 in the first row, which last_reward=shift would drop.
      rewarded_last: episodes with a reward other than 0 in the last row and in no other.
    """

    episodes: int = 0
    terminal: int = 0
    added: int = 0
    unmarked: int = 0
    zero_discount: int = 0
    cut_by_discount: int = 0
    always_one: int = 0
    rewarded_first: int = 0
    rewarded_last: int = 0

    @property
    def truncated(self) -> int:
        """Number of episodes that do not end terminal."""
        return self.episodes - self.terminal

    @property
    def real(self) -> int:
        """Number of episodes whose last row holds an action or a reward."""
        return self.episodes - self.added

    @property
    def style(self) -> str:
        """What they have in common, and who writes so; "" without episodes."""
        return self.describe(by_name)

    def describe(self, spelling: Spelling) -> str:
        """The style, with its options as `spelling` writes them."""
        traits = self._traits() if self.episodes else ()
        return "; ".join(trait if isinstance(trait, str) else trait.render(spelling) for trait in traits)

    def add(self, episode: Episode) -> None:
        """Adds an episode with absent fields filled in. One that is too short, or whose flags cannot be read, is skipped."""
        rows, columns = len(episode), episode.columns
        flags = [columns.get(path) for path in (IS_LAST, IS_TERMINAL)]
        if rows < 2 or any(flag is None or flag.shape != (rows,) or flag.dtype != bool for flag in flags):
            return
        is_terminal = bool(columns[IS_TERMINAL][-1])
        discount, reward = (_numbers(columns.get(path), rows) for path in (DISCOUNT, REWARD))
        self.episodes += 1
        self.terminal += is_terminal
        self.added += last_row_is_added(episode)
        self.unmarked += not columns[IS_LAST][-1]
        if discount is not None:
            self.zero_discount += not is_terminal and bool(discount[-1] == 0)
            self.cut_by_discount += not is_terminal and bool(discount[-2] == 0)
            self.always_one += bool(np.all(discount == 1))
        if reward is not None:
            self.rewarded_first += bool(reward[0] != 0)
            self.rewarded_last += bool(reward[-1] != 0) and not np.any(reward[:-1])

    def add_ends(self, other: Ends) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def as_dict(self) -> dict[str, Any]:
        return members(self)

    def _traits(self) -> Iterator[str | Remedy]:
        if self.real == self.terminal == self.always_one == self.episodes:
            yield _NOT_SHIFTED if self.rewarded_first else _SHIFTED
        elif self.real == self.episodes:
            yield _REAL
        elif self.added == self.episodes:
            yield _ADDED
        elif self.added == self.terminal and self.real == self.truncated:
            yield _D4RL_WITHOUT_NEXT
        else:
            yield _MIXED
        if self.added == self.episodes and 0 < self.truncated == self.zero_discount:
            yield _D4RL
        if self.rewarded_last == self.episodes and self.terminal < self.episodes:
            yield _REWARDED_LAST
        if self.unmarked:
            yield _ENV_LOGGER
        if self.cut_by_discount and not self.terminal:
            yield _NONE_TERMINAL


def _numbers(column: Array | None, rows: int) -> Array | None:
    """A column with one real number per step; None for anything else."""
    return column if column is not None and column.shape == (rows,) and column.dtype.kind in "fiu" else None
