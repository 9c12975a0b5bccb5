"""Priorities that differ from item to item: another view's items, each with the priority of its step.

`Prioritized(two_step(), "td_error")` makes these items of an episode whose column td_error is 0.5 2 0 1:

| item | rows | priority |
| --- | --- | --- |
| 0 | r0 r1 | 0.5 |
| 1 | r1 r2 | 2 |
| 2 | r2 r3 | 0 |

An item's step is the one that its anchor stands at: a sequence, a slice or a whole episode has that of its first row, a
transition its own, a pair that of its target. A function may stand instead of a column's path; it gets all items of an episode
at once.

For tables that keep the best episodes there is `Prioritized(WholeEpisode(), by_return)`. Prioritized tables take priorities from
0 up only, and returns may be negative. So the priority is not the return, but grows with it:

| return | priority |
| --- | --- |
| 0 and more | 1 + return |
| below 0 | 1 / (1 - return) |

The order stays, so a heap keeps the same episodes. Returns whose difference a float64 cannot hold there (a relative 1e-16) may have
one priority. The return is the sum of the rewards of all steps but the last, which earns none, without discount.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> from rlds2reverb.views.slices import Slices
>>> episode = Episode({"observation": np.arange(4), "td_error": np.array([0.5, 2, 0, 1])}, {}, "e")
>>> Prioritized(Slices(length=3, per_episode=2), "td_error").cut(episode).priorities
array([0.5, 2. ])
>>> Prioritized(Slices(length=3, per_episode=2), lambda episode, steps: steps + 1).cut(episode).priorities
array([1., 2.])
>>> episode = Episode({"reward": np.array([1.0, 2.5, 99.0])}, {}, "e")
>>> by_return(episode, np.array([0])), return_of(by_return(episode, np.array([0])))
(array([4.5]), array([3.5]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import REWARD, Array, Episode, columns_under
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.views.base import (
    EXTRAS,
    BaseView,
    Extras,
    LeavesOut,
    NeedsRows,
    StreamView,
    Timed,
    View,
    Wanted,
    item_count_of,
    signature_of,
    spell_value,
    spell_view,
)

PriorityFunction = Callable[[Episode, Array], Any]
"""(episode, [n] int64 steps of its items, never falling) -> [n] priorities: finite numbers of at least 0."""


@dataclass(frozen=True)
class Prioritized:
    """Gives another view's items priorities of their own.

    The items are the other view's, and so is the label. Pushed again with other priorities, they keep their keys, and the
    server changes their priorities.

    Attributes:
      view: makes the items; a view whose items come from several episodes is refused.
      by: the path of a step column of one number per step, or a function as `PriorityFunction` says; it must depend on its
        arguments only, so that a push can be run again.

    Raises:
      ViewError: no such view, or `by` is neither a path nor a function.
    """

    view: View
    by: str | PriorityFunction

    def __post_init__(self) -> None:
        if not isinstance(self.view, View):
            raise ViewError(f"priority: expected a view to give priorities to, got {self.view!r}")
        if isinstance(self.view, StreamView):
            raise ViewError(
                f"{spell_view(self.view)}: priority: expected a number, got {self.by!r}: items hold steps of earlier episodes"
            )
        if not (isinstance(self.by, str) and self.by) and not callable(self.by):
            raise ViewError(
                f"{spell_view(self.view)}: priority: expected a column's path or a function, got {self.by!r}"
            )

    @property
    def extras(self) -> Wanted:
        """The other view's extras."""
        extras: Wanted = getattr(self.view, EXTRAS, Extras())
        return extras

    @property
    def label(self) -> str:
        return self.view.label

    def spell(self) -> str:
        """The other view's text, with the column as its priority; without it if a function gives the priorities."""
        column = spell_value(self.by, is_word=False)
        return self.view.spell(column) if isinstance(self.view, BaseView) and column else spell_view(self.view)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """The other view's signature.

        Raises:
          ViewError: the steps have no such column, or it does not hold one number per step; or as the view's own.
        """
        if isinstance(self.by, str):
            columns = flatten(step_spec)
            if self.by not in columns:
                raise self._lacks(columns)
            self._check_column(columns[self.by])
        return signature_of(self.view, step_spec, metadata_spec)

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """What the items are made of, and the column of their priorities."""
        read = self.view.reads(step_spec)
        return (*read, self.by) if isinstance(self.by, str) else read

    def left_out(self, step_spec: Nest) -> tuple[str, ...]:
        """What the other view leaves out."""
        return self.view.left_out(step_spec) if isinstance(self.view, LeavesOut) else ()

    @property
    def is_in_seconds(self) -> bool:
        return isinstance(self.view, Timed) and self.view.is_in_seconds

    def at_rate(self, fps: float) -> Prioritized:
        return replace(self, view=self.view.at_rate(fps)) if isinstance(self.view, Timed) else self

    def check_rows(self, rows: int) -> None:
        if isinstance(self.view, NeedsRows):
            self.view.check_rows(rows)

    def item_count(self, rows: int | None) -> int | None:
        return item_count_of(self.view, rows)

    def cut(self, episode: Episode) -> Cut:
        """The view's cut with other priorities.

        Raises:
          ViewError: a column as in `signature`; a function's result that is not [n]; a priority that is negative or not
            finite; or as the view's own.
        """
        cut = self.view.cut(episode)
        steps = np.maximum(cut.steps, 0)  # [n]; a row before the first counts as the first
        if len(steps) and steps.max() >= len(episode):
            raise ViewError(
                f"{spell_view(self.view)}: priority: expected items at steps 0 to {len(episode) - 1}, got {steps.min()} to {steps.max()}"
                "; a view that puts rows before an episode's must say so (Cut.origin)"
            )
        if not isinstance(self.by, str):
            priorities = self._compute(self.by, episode, steps)
        elif self.by not in episode.columns:
            raise self._lacks(episode.columns)
        else:
            column = episode.columns[self.by]
            self._check_column(ArraySpec(column.shape[1:], column.dtype))
            priorities = column[steps].astype(np.float64)
        wrong = ~(np.isfinite(priorities) & (priorities >= 0))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ViewError(
                f"{self._where}: step {steps[at]}: expected a finite number of at least 0, got {priorities[at]}"
                f" ({np.count_nonzero(wrong)} of {len(priorities)} items)"
            )
        return replace(cut, priorities=priorities)

    @property
    def _where(self) -> str:
        name = f'column "{self.by}"' if isinstance(self.by, str) else getattr(self.by, "__name__", repr(self.by))
        return f"{spell_view(self.view)}: priority by {name}"

    def _compute(self, by: PriorityFunction, episode: Episode, steps: Array) -> Array:
        try:
            priorities = np.asarray(by(episode, steps))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ViewError(f"{self._where}: {type(error).__name__}: {error}") from error
        if priorities.shape != steps.shape or not _is_number(priorities.dtype):
            raise ViewError(
                f"{self._where}: expected [{len(steps)}] numbers, one per item, got {priorities.dtype}{list(priorities.shape)}"
            )
        return priorities.astype(np.float64)

    def _check_column(self, leaf: ArraySpec) -> None:
        if leaf.shape != () or not _is_number(leaf.dtype):
            raise ViewError(f"{self._where}: expected one number per step, got {leaf}")

    def _lacks(self, columns: Iterable[str]) -> ViewError:
        return ViewError(f"{self._where}: expected a column of the steps, which have {sorted(columns)}")


def _is_number(dtype: np.dtype[Any]) -> bool:
    """Whether every value is a float64 up to rounding: integers and floats of any size, bfloat16 too."""
    return dtype != bool and np.can_cast(dtype, np.float64, "same_kind")


def by_return(episode: Episode, steps: Array) -> Array:
    """A `PriorityFunction`: every item of an episode gets what the episode's return comes to.

    Args:
      episode: with a column reward of one number per step.
      steps: [n], of its items.

    Returns:
      [n] float64, above 0; see above.

    Raises:
      LookupError: the steps have no reward.
      ValueError: a reward is not one number.
    """
    rewards = columns_under(episode.columns, REWARD)
    if not rewards:
        raise LookupError(f"the steps have no reward; found {sorted(episode.columns)}")
    if list(rewards) != [REWARD] or rewards[REWARD].ndim != 1:
        raise ValueError("reward is not one number per step; give a function of your own")
    total = float(rewards[REWARD][:-1].astype(np.float64).sum())
    return np.full(len(steps), 1 + total if total >= 0 else 1 / (1 - total))


def return_of(priority: npt.ArrayLike) -> Array:
    """The returns that such priorities stand for, as of `info.priority`; up to rounding."""
    priorities = np.asarray(priority, np.float64)
    # `where` computes both sides, and a priority of 0 stands for a return of minus infinity.
    with np.errstate(divide="ignore"):
        returns: Array = np.where(priorities >= 1, priorities - 1, 1 - 1 / priorities)
    return returns
