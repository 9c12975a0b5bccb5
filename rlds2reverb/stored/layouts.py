"""The columns of a table's items, and how their rows become steps.

| layout | its items | steps |
| --- | --- | --- |
| trajectories | TF-Agents' `Trajectory`: step_type, observation, action, ... | flags of step_type; rows of padding are left out |
| transitions | {observation, action, next: {observation, reward, ...}} | T items give T + 1 rows |
| stacks | {observation, action, reward, discount, next_observation}, observations of k frames or one | the same |
| chunks | windows of observations and actions, see `views.chunk`; the signature names the view | T items give T + 1 rows: the last observation stands there twice, for the one behind it is in no item |
| rows | all columns read the same rows | columns as they are called; is_first and is_last are added where absent |

Other items hold what cannot be undone to steps: returns of several steps, goals, puzzles, chosen columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
from rlds2reverb.formats.rows import flags, steps, with_row_behind
from rlds2reverb.specs import ArraySpec, Nest, nested
from rlds2reverb.views import view_of
from rlds2reverb.views.base import EXTRAS
from rlds2reverb.views.chunk import OCTO, Chunk, item_layout
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
      shifts, lengths, squeezed: of each column, as in `Index`.
      view: as the signature names it; "" where it does not.
    """

    leaves: Leaves
    shifts: Sequence[int]
    lengths: Sequence[int]
    squeezed: Sequence[bool] = ()
    view: str = ""

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

    def rows_behind(self, view: str) -> int | None:
        """Steps of a run beyond the rows of its items' first column; None where only the rows tell. `view` is named by the signature, or "" is."""

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

    def rows_behind(self, view: str) -> int | None:
        return 1

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

    def rows_behind(self, view: str) -> int | None:
        return None  # frames before the first are no steps

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


_UNPADDED = ("two_step", "sequence", "episode")
_TRAJECTORY = (STEP_TYPE, OBSERVATION, ACTION, NEXT_STEP_TYPE, REWARD, DISCOUNT)
_NO_ROWS = {
    "eps_id": "fragments of a stream of episodes",
    "steps": "transitions of several steps, whose returns cannot be undone",
    "goal": "transitions with goals, whose rewards are made",
    "context": "pairs or puzzles made of observations",
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
    if reads.view.partition(":")[0] == _CHUNK or names & _CHUNK_MASKS:
        return ActionChunks.of(reads)
    if is_plain and names.issuperset(_TRAJECTORY):
        return Trajectories(reads.leaves)
    if is_plain:
        return Rows(reads.leaves)
    layout: StepLayout | None = Transitions.of(reads) or Stacks.of(reads)
    return layout or "their columns read rows that differ, in a way that is known of no view"


# Chunks: the row of an anchor stands at offset 0 of its windows.

_CHUNK, _CHUNK_MASKS = "chunk", {"action_is_pad", "action_pad_mask"}


@dataclass(frozen=True)
class ActionChunks:
    """Windows of observations and actions, with masks.

    Attributes:
      leaves: path -> spec of a step's column.
      places: path -> the place of the anchor's row in the window, the rows of the window, and whether these lie side by side in one stored row.
      extras: path of a step's column -> path of the extra that holds it.
      next_action: path of the mask of actions, and the place in it that says whether an action follows; None where none does.
      has_octo_masks: whether masks are true where rows are real.
    """

    leaves: Leaves
    places: Mapping[str, tuple[int, int, bool]]
    extras: Mapping[str, str]
    next_action: tuple[str, int] | None
    has_octo_masks: bool

    @staticmethod
    def of(reads: Reads) -> ActionChunks | str:
        """The layout; or why there is none."""
        if reads.view.partition(":")[0] != _CHUNK:
            return "they are chunks, and the table's signature does not name the view that says what their windows are"
        view = view_of(reads.view)
        assert isinstance(view, Chunk)
        if view.relative is not None:
            return "their actions are relative, and what they were relative to is not in them"
        paths = [path for path in reads.leaves if any(is_under(path, name) for name in (OBSERVATION, ACTION))]
        masks = item_layout(view, tuple(path for path in paths if not path.endswith(_MASK_ENDINGS))).masks
        squeezed = dict(zip(reads.leaves, reads.squeezed))
        leaves: dict[str, ArraySpec] = {}
        places: dict[str, tuple[int, int, bool]] = {}
        columns = item_layout(view, tuple(path for path in paths if path not in masks)).columns
        for path, column in columns.items():
            offsets = column.offsets or (0,)
            if 0 not in offsets:
                return f'their windows of "{path}" do not hold the row of their step'
            is_gathered = squeezed[path] and column.offsets is not None
            leaf = reads.leaves[path]
            leaves[path] = replace(leaf, shape=leaf.shape[1:]) if is_gathered else leaf
            places[path] = (offsets.index(0), len(offsets), is_gathered)
        extras = _extras(reads.leaves)
        leaves |= {path: reads.leaves[stored] for path, stored in extras.items()}
        following = (
            (path, offsets.index(1)) for path, (offsets, is_action) in masks.items() if is_action and 1 in offsets
        )
        return ActionChunks(leaves, places, extras, next(following, None), view.masks == OCTO)

    @property
    def tells_ends(self) -> bool:
        return self.next_action is not None

    def rows_behind(self, view: str) -> int | None:
        return None

    def spec(self) -> Nest:
        return nested({**self.leaves, **dict.fromkeys((IS_FIRST, IS_LAST), FLAG)})

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """T chunks -> T + 1 rows."""
        path, (_, length, is_gathered) = next(iter(self.places.items()))
        count = len(columns[path]) - (0 if is_gathered else length - 1)
        recorded = {
            path: columns[path][:, place] if is_gathered else columns[path][place : place + count]
            for path, (place, _, is_gathered) in self.places.items()
        }
        recorded |= {path: columns[stored][:count] for path, stored in self.extras.items()}
        steps = {**with_row_behind(recorded), **flags(count + 1, None)}
        steps[IS_FIRST] &= begins
        steps[IS_LAST] &= ends and self._has_ended(columns, count)
        return steps

    def _has_ended(self, columns: Columns, count: int) -> bool:
        """Whether no action follows the last one."""
        if self.next_action is None:
            return False
        path, place = self.next_action
        mask = columns[path]
        is_set = mask[count - 1, place] if mask.ndim == 2 else mask[count - 1 + place]
        return bool(is_set) != self.has_octo_masks


_MASK_ENDINGS = ("_is_pad", "pad_mask")


@dataclass(frozen=True)
class Rows:
    """Items whose columns are the steps' own."""

    leaves: Leaves

    def rows_behind(self, view: str) -> int | None:
        return 0

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

    def rows_behind(self, view: str) -> int | None:
        # Others may hold rows of padding.
        return 0 if view.partition(":")[0] in _UNPADDED and "=True" not in view else None

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
