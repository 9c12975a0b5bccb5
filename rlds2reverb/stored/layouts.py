"""What the columns of a table's items are, and how their rows become steps.

| layout | its items | steps |
| --- | --- | --- |
| trajectories | TF-Agents' `Trajectory`: step_type, observation, action, ... | flags of step_type; rows of padding are left out |
| transitions | {observation, action, next: {observation, reward, ...}} | T items give T + 1 rows |
| stacks | {observation, action, reward, discount, next_observation}, observations of k frames or one | the same |
| rows | all columns read the same rows | columns as they are called; is_first and is_last are added where absent |

Items that are none of these tell of steps what cannot be undone: returns of several steps, goals, puzzles, chosen columns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD, Array
from rlds2reverb.readers.alignment import flags
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import Nest
from rlds2reverb.stored.reads import FLAG, Columns, Layout, Leaves, Reads, are_zero
from rlds2reverb.stored.transitions import Stacks, Transitions
from rlds2reverb.views.trajectory import FIRST, LAST, NEXT_STEP_TYPE, STEP_TYPE

_TRAJECTORY = (STEP_TYPE, OBSERVATION, ACTION, NEXT_STEP_TYPE, REWARD, DISCOUNT)
_NO_ROWS = {
    "eps_id": "fragments of a stream of episodes",
    "steps": "transitions of several steps, whose returns cannot be undone",
    "goal": "transitions with goals, whose rewards are made",
    "context": "pairs or puzzles made of observations",
}
"""Column -> what items with it are."""


def why_no_steps(paths: Collection[str]) -> str:
    """Why items with these columns tell of no steps; "" when their names do not tell."""
    names = {path.partition("/")[0] for path in paths}
    for name, what in _NO_ROWS.items():
        if name in names and not set(FLAGS) & names:
            return f'they have a column "{name}": {what}'
    return ""


def layout_of(reads: Reads) -> Layout | str:
    """The layout of items that are windows; or why their rows make no steps."""
    names = {path.partition("/")[0] for path in reads.leaves}
    is_plain = len(set(zip(reads.shifts, reads.lengths))) == 1
    if is_plain and names.issuperset(_TRAJECTORY):
        return Trajectories(reads.leaves)
    if is_plain:
        return Rows(reads.leaves)
    found: Layout | None = Transitions.of(reads) or Stacks.of(reads)
    return found or "their columns read rows that differ, in a way that is known of no view"


@dataclass(frozen=True)
class Rows:
    """Every column is one of the steps."""

    leaves: Leaves

    def spec(self) -> Nest:
        """The columns', and the two flags."""
        return nested({**self.leaves, **{name: FLAG for name in (IS_FIRST, IS_LAST) if name not in self.leaves}})

    @property
    def tells_ends(self) -> bool:
        """Where one of the columns is is_last."""
        return IS_LAST in self.leaves

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """The columns, and what they lack of the two flags."""
        made = flags(len(next(iter(columns.values()))), None)
        made[IS_FIRST] &= begins
        made[IS_LAST][:] = False
        return {**columns, **{name: flag for name, flag in made.items() if name not in columns}}


@dataclass(frozen=True)
class Trajectories:
    """Rows of trajectories; see `views.trajectory`."""

    leaves: Leaves

    def spec(self) -> Nest:
        """Flags in place of the two step types."""
        kept = {path: leaf for path, leaf in self.leaves.items() if path not in (STEP_TYPE, NEXT_STEP_TYPE)}
        return nested({**kept, **dict.fromkeys(FLAGS, FLAG)})

    @property
    def tells_ends(self) -> bool:
        """By step types."""
        return True

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """Without the rows behind the last one."""
        kinds, following = columns[STEP_TYPE], columns[NEXT_STEP_TYPE]
        count = self._count(kinds, following)
        kinds = kinds[:count]
        is_last = kinds == LAST
        is_first = kinds == FIRST
        is_first[:1] |= is_last[:1] & (following[:1] == LAST)  # an episode of one step is (LAST, LAST)
        is_zero = are_zero(columns)[:count]
        is_zero[1:] |= is_zero[
            :-1
        ].copy()  # TF-Agents' drivers have it on the row before, its converter on the last one
        made = {IS_FIRST: is_first, IS_LAST: is_last, IS_TERMINAL: is_last & is_zero}
        kept = {path: column[:count] for path, column in columns.items() if path not in (STEP_TYPE, NEXT_STEP_TYPE)}
        return {**kept, **made}

    @staticmethod
    def _count(kinds: Array, following: Array) -> int:
        """Rows up to the end of the episode.

        Raises:
          BrokenEpisode: another episode begins behind it.
        """
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
