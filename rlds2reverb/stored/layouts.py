"""The columns of a table's items, and how their rows become steps.

| layout | its items | steps |
| --- | --- | --- |
| trajectories | TF-Agents' `Trajectory`: step_type, observation, action, ... | flags of step_type; rows of padding are left out |
| transitions | {observation, action, next: {observation, reward, ...}} | T items give T + 1 rows |
| stacks | {observation, action, reward, discount, next_observation}, observations of k frames or one | the same |
| rows | all columns read the same rows | columns as they are called; is_first and is_last are added where absent |

Other items hold what cannot be undone to steps: returns of several steps, goals, puzzles, chosen columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    columns_below,
    columns_under,
    is_under,
)
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rows import flags, steps
from rlds2reverb.specs import ArraySpec, Nest, nested
from rlds2reverb.views.base import EXTRAS
from rlds2reverb.views.frame_stack import NEXT_OBSERVATION
from rlds2reverb.views.trajectory import FIRST, LAST, NEXT_STEP_TYPE, STEP_TYPE

Columns = Mapping[str, Array]
Leaves = Mapping[str, ArraySpec]

FLAG = ArraySpec((), np.dtype(bool))


@dataclass(frozen=True)
class Reads:
    """The rows that items of a table read.

    Attributes:
      leaves: path -> spec of one row, in the order of the items' columns.
      shifts, lengths: of each column, as in `Index`.
    """

    leaves: Leaves
    shifts: Sequence[int]
    lengths: Sequence[int]

    def offsets(self, names: Sequence[str]) -> set[tuple[int, int]]:
        """The distinct shifts and lengths of the columns under some names."""
        return {
            (shift, length)
            for path, shift, length in zip(self.leaves, self.shifts, self.lengths)
            if any(is_under(path, name) for name in names)
        }


class StepLayout(Protocol):
    """How the rows of items become steps.

    Attributes:
      tells_ends: whether the last step of every episode is marked as recorded.
    """

    @property
    def tells_ends(self) -> bool: ...

    def spec(self) -> Nest:
        """The spec of a step."""

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """The steps of one run of rows. A step is the last one only if that was recorded.

        Args:
          columns: path -> all rows that the run's items read of a column.
          begins, ends: whether the episode has no rows before these, and behind them; for flags that were not recorded.

        Raises:
          BrokenEpisode: the rows make no single episode.
        """


def are_zero(columns: Columns) -> Array:
    """[T] bool: every discount of a row is 0."""
    discounts = [column for column in columns_under(columns, DISCOUNT).values() if column.dtype != object]
    zero: Array = np.logical_and.reduce([(column == 0).reshape(len(column), -1).all(axis=1) for column in discounts])
    return zero


# Items of two rows whose columns have no axis of rows -> steps: TED's transitions, and those with stacks of frames.

_NEXT = "next"


@dataclass(frozen=True)
class Transitions:
    """TED's transitions; see `views.transition`."""

    leaves: Leaves
    tells_ends: ClassVar[bool] = True

    @staticmethod
    def of(reads: Reads) -> Transitions | None:
        names = {
            OBSERVATION,
            ACTION,
            f"{_NEXT}/{OBSERVATION}",
            f"{_NEXT}/{REWARD}",
            f"{_NEXT}/done",
            f"{_NEXT}/terminated",
        }
        if not all(any(is_under(path, name) for path in reads.leaves) for name in names):
            return None
        plain = [path for path in reads.leaves if not is_under(path, f"{_NEXT}/{OBSERVATION}")]
        (shift, length), *other_offsets = reads.offsets(plain)
        following = reads.offsets([f"{_NEXT}/{OBSERVATION}"])
        return None if other_offsets or following != {(shift + 1, length)} else Transitions(reads.leaves)

    def spec(self) -> Nest:
        reward = {
            f"{REWARD}{path}": ArraySpec(leaf.shape[:-1], leaf.dtype) for path, leaf in self._next(REWARD).items()
        }
        extras = {path: self.leaves[stored] for path, stored in _extras(self.leaves).items()}
        kept = {
            path: leaf for path, leaf in self.leaves.items() if is_under(path, OBSERVATION) or is_under(path, ACTION)
        }
        number = ArraySpec((), np.dtype(np.float32))
        return nested({**kept, **reward, DISCOUNT: number, **extras, **dict.fromkeys(FLAGS, FLAG)})

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """T transitions -> T + 1 rows."""
        done, terminated = (columns[f"{_NEXT}/{name}"].reshape(-1) for name in ("done", "terminated"))
        if done[:-1].any():
            at = int(np.flatnonzero(done)[0]) + 1
            raise BrokenEpisode(
                f"{_NEXT}/done", f"the episode ends at row {at:,}, and more rows follow; read it with as=items"
            )
        rewards = {f"{REWARD}{path}": columns[f"{_NEXT}/{REWARD}{path}"][..., 0] for path in self._next(REWARD)}
        extras = {path: columns[stored] for path, stored in _extras(self.leaves).items()}
        steps = _align_rows(columns, f"{_NEXT}/{OBSERVATION}", {**rewards, **extras}, bool(terminated[-1]))
        steps[IS_FIRST] &= begins
        steps[IS_LAST] &= done[-1]
        return steps

    def _next(self, name: str) -> dict[str, ArraySpec]:
        """What follows "next/NAME" in a path -> spec."""
        start = f"{_NEXT}/{name}"
        return {path[len(start) :]: leaf for path, leaf in self.leaves.items() if is_under(path, start)}


@dataclass(frozen=True)
class Stacks:
    """Transitions whose observations are the last few frames, or one; see `views.frame_stack`. Acme's transitions of one step are of this kind.

    Attributes:
      leaves: as in `Reads`.
      frames: size of the axis of frames; 0 without one.
    """

    leaves: Leaves
    frames: int
    tells_ends: ClassVar[bool] = False

    @staticmethod
    def of(reads: Reads) -> Stacks | None:
        fields = {OBSERVATION, ACTION, REWARD, DISCOUNT, NEXT_OBSERVATION}
        names = {path.partition("/")[0] for path in reads.leaves}
        if not fields <= names <= {*fields, EXTRAS}:
            return None
        plain = reads.offsets([ACTION, REWARD, DISCOUNT, EXTRAS])
        now, following = reads.offsets([OBSERVATION]), reads.offsets([NEXT_OBSERVATION])
        if any(len(offsets) != 1 for offsets in (plain, now, following)):
            return None
        (at, _), (begin, frames), (next_begin, next_frames) = (
            next(iter(offsets)) for offsets in (plain, now, following)
        )
        is_known = next_begin == begin + 1 and frames == next_frames and begin == at - (max(1, frames) - 1)
        return Stacks(reads.leaves, frames) if is_known else None

    def spec(self) -> Nest:
        kept = {
            path: leaf
            for path, leaf in self.leaves.items()
            if not is_under(path, NEXT_OBSERVATION) and not is_under(path, EXTRAS)
        }
        extras = {path: self.leaves[stored] for path, stored in _extras(self.leaves).items()}
        return nested({**kept, **extras, **dict.fromkeys(FLAGS, FLAG)})

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """T transitions -> T + 1 rows, the last of them terminal if the last discount is 0; frames before the first are left out."""
        before = max(1, self.frames) - 1
        cut = {
            path: column[before:] if is_under(path, OBSERVATION) or is_under(path, NEXT_OBSERVATION) else column
            for path, column in columns.items()
        }
        plain = {path: column for name in (REWARD, DISCOUNT) for path, column in columns_under(cut, name).items()}
        extras = {path: cut[stored] for path, stored in _extras(self.leaves).items()}
        steps = _align_rows(cut, NEXT_OBSERVATION, {**plain, **extras}, None)
        steps[IS_FIRST] &= begins
        steps[IS_LAST] &= ends and bool(are_zero(columns)[-1])
        steps[IS_TERMINAL] = steps[IS_LAST].copy()
        return steps


def _align_rows(columns: Columns, following: str, further: Columns, is_terminal: bool | None) -> dict[str, Array]:
    """[T] transitions -> [T + 1] rows: the next observation of the last one becomes a row of its own.

    Raises:
      BrokenEpisode: the next observation of a transition is not the observation of the transition after it.
    """
    observation: dict[str, Array] = {}
    for path, column in columns_under(columns, OBSERVATION).items():
        after = columns[following + path[len(OBSERVATION) :]]
        now, then = column[1:], after[:-1]
        are_same_texts = now.shape == then.shape and now.dtype == then.dtype == object and (now == then).all()
        if now.tobytes() != then.tobytes() and not are_same_texts:
            raise BrokenEpisode(
                path, "the observation after a transition is not that of the next transition; read it with as=items"
            )
        observation[path[len(OBSERVATION) + 1 :]] = np.concatenate([column, after[-1:]])
    return steps(observation, columns_below(columns, ACTION), None, is_terminal, further)


def _extras(leaves: Leaves) -> dict[str, str]:
    """Path of a step column -> path of the extra that holds it; what steps have already keeps its own path."""
    stored_paths = {path[len(EXTRAS) + 1 :]: path for path in leaves if path.startswith(f"{EXTRAS}/")}
    taken = (OBSERVATION, ACTION, REWARD, DISCOUNT, *FLAGS)
    return {path if path.partition("/")[0] not in taken else stored: stored for path, stored in stored_paths.items()}


_TRAJECTORY = (STEP_TYPE, OBSERVATION, ACTION, NEXT_STEP_TYPE, REWARD, DISCOUNT)
_NO_ROWS = {
    "eps_id": "fragments of a stream of episodes",
    "steps": "transitions of several steps, whose returns cannot be undone",
    "goal": "transitions with goals, whose rewards are made",
    "context": "pairs or puzzles made of observations",
    "action_is_pad": "chunks, whose actions are windows already",
    "action_pad_mask": "chunks, whose actions are windows already",
}
"""Column -> what items with it are."""


def why_no_steps(paths: Collection[str]) -> str:
    """Why items with these columns hold no steps; "" when their names do not say."""
    names = {path.partition("/")[0] for path in paths}
    for name, what in _NO_ROWS.items():
        if name in names and not set(FLAGS) & names:
            return f'they have a column "{name}": {what}'
    return ""


def layout_of(reads: Reads) -> StepLayout | str:
    """The layout of items that are windows; or why their rows make no steps."""
    names = {path.partition("/")[0] for path in reads.leaves}
    is_plain = len(set(zip(reads.shifts, reads.lengths))) == 1
    if is_plain and names.issuperset(_TRAJECTORY):
        return Trajectories(reads.leaves)
    if is_plain:
        return Rows(reads.leaves)
    layout: StepLayout | None = Transitions.of(reads) or Stacks.of(reads)
    return layout or "their columns read rows that differ, in a way that is known of no view"


@dataclass(frozen=True)
class Rows:
    """Items whose columns are the steps' own."""

    leaves: Leaves

    def spec(self) -> Nest:
        return nested({**self.leaves, **{name: FLAG for name in (IS_FIRST, IS_LAST) if name not in self.leaves}})

    @property
    def tells_ends(self) -> bool:
        return IS_LAST in self.leaves

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """The columns, with the flags that they lack."""
        own_flags = flags(len(next(iter(columns.values()))), None)
        own_flags[IS_FIRST] &= begins
        own_flags[IS_LAST][:] = False
        return {**columns, **{name: flag for name, flag in own_flags.items() if name not in columns}}


@dataclass(frozen=True)
class Trajectories:
    """Rows of trajectories; see `views.trajectory`."""

    leaves: Leaves
    tells_ends: ClassVar[bool] = True

    def spec(self) -> Nest:
        kept = {path: leaf for path, leaf in self.leaves.items() if path not in (STEP_TYPE, NEXT_STEP_TYPE)}
        return nested({**kept, **dict.fromkeys(FLAGS, FLAG)})

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """The rows up to the last step; padding behind it is left out."""
        kinds, following = columns[STEP_TYPE], columns[NEXT_STEP_TYPE]
        count = self._count(kinds, following)
        kinds = kinds[:count]
        is_last = kinds == LAST
        is_first = kinds == FIRST
        is_first[:1] |= is_last[:1] & (following[:1] == LAST)  # an episode of one step is (LAST, LAST)
        is_zero = are_zero(columns)[:count]
        # TF-Agents' drivers write the zero discount on the row before the last, its converter on the last one.
        is_zero[1:] |= is_zero[:-1].copy()
        own_flags = {IS_FIRST: is_first, IS_LAST: is_last, IS_TERMINAL: is_last & is_zero}
        kept = {path: column[:count] for path, column in columns.items() if path not in (STEP_TYPE, NEXT_STEP_TYPE)}
        return {**kept, **own_flags}

    @staticmethod
    def _count(kinds: Array, following: Array) -> int:
        """Rows up to the end of the episode. Raises `BrokenEpisode` if another episode begins behind it."""
        if kinds.ndim != 1 or following.ndim != 1:
            raise BrokenEpisode(STEP_TYPE, f"has rows of shape {list(kinds.shape[1:])}; expected one number")
        ends = np.flatnonzero(kinds == LAST)
        count = int(ends[0]) + 1 if len(ends) else len(kinds)
        firsts = 1 + np.flatnonzero(kinds[1:] == FIRST)
        is_padding = (kinds[count:] == LAST) & (following[count:] == FIRST)
        if len(firsts) or not is_padding.all():
            at = int(firsts[0]) if len(firsts) else count + int(np.flatnonzero(~is_padding)[0])
            raise BrokenEpisode(
                STEP_TYPE,
                f"another episode begins at row {at:,}: the writer put a stream of episodes into one sequence; "
                "read it with streams=split, or item by item with as=items",
            )
        return count
