"""Items of two rows whose columns have no axis of rows -> steps: TED's transitions, and those with stacks of frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import (
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
from rlds2reverb.readers.alignment import steps
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.stored.reads import FLAG, Columns, Leaves, Reads, are_zero
from rlds2reverb.views.extras import EXTRAS
from rlds2reverb.views.frame_stack import NEXT_OBSERVATION

_NEXT = "next"


@dataclass(frozen=True)
class Transitions:
    """TED's transitions; see `views.transition`."""

    leaves: Leaves

    @staticmethod
    def of(reads: Reads) -> Transitions | None:
        """None for items of another kind."""
        wanted = {
            OBSERVATION,
            ACTION,
            f"{_NEXT}/{OBSERVATION}",
            f"{_NEXT}/{REWARD}",
            f"{_NEXT}/done",
            f"{_NEXT}/terminated",
        }
        if not all(any(is_under(path, name) for path in reads.leaves) for name in wanted):
            return None
        rest = [path for path in reads.leaves if not is_under(path, f"{_NEXT}/{OBSERVATION}")]
        (shift, length), *others = reads.offsets(rest)
        following = reads.offsets([f"{_NEXT}/{OBSERVATION}"])
        return None if others or following != {(shift + 1, length)} else Transitions(reads.leaves)

    def spec(self) -> Nest:
        """Observation, action, reward, discount, the flags, and the extras."""
        reward = {
            f"{REWARD}{path}": ArraySpec(leaf.shape[:-1], leaf.dtype) for path, leaf in self._next(REWARD).items()
        }
        others = {path: self.leaves[stored] for path, stored in self._others().items()}
        kept = {
            path: leaf for path, leaf in self.leaves.items() if is_under(path, OBSERVATION) or is_under(path, ACTION)
        }
        number = ArraySpec((), np.dtype(np.float32))
        return nested({**kept, **reward, DISCOUNT: number, **others, **dict.fromkeys(FLAGS, FLAG)})

    @property
    def tells_ends(self) -> bool:
        """By done."""
        return True

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """T transitions -> T + 1 rows."""
        done, terminated = (columns[f"{_NEXT}/{name}"].reshape(-1) for name in ("done", "terminated"))
        if done[:-1].any():
            at = int(np.flatnonzero(done)[0]) + 1
            raise BrokenEpisode(
                f"{_NEXT}/done", f"the episode ends at row {at:,}, and more rows follow; read it with as=items"
            )
        rewards = {f"{REWARD}{path}": columns[f"{_NEXT}/{REWARD}{path}"][..., 0] for path in self._next(REWARD)}
        others = {path: columns[stored] for path, stored in self._others().items()}
        made = _aligned(columns, f"{_NEXT}/{OBSERVATION}", {**rewards, **others}, bool(terminated[-1]))
        made[IS_FIRST] &= begins
        made[IS_LAST] &= done[-1]
        return made

    def _next(self, name: str) -> dict[str, ArraySpec]:
        """What follows the name in the paths below "next" -> spec."""
        start = f"{_NEXT}/{name}"
        return {path[len(start) :]: leaf for path, leaf in self.leaves.items() if is_under(path, start)}

    def _others(self) -> dict[str, str]:
        return _extras(self.leaves)


@dataclass(frozen=True)
class Stacks:
    """Transitions whose observations are the last few frames, or one; see `views.frame_stack`. Acme's transitions of one step are such.

    Attributes:
      leaves: as in `Reads`.
      frames: axis of frames; 0 when there is none.
    """

    leaves: Leaves
    frames: int

    @staticmethod
    def of(reads: Reads) -> Stacks | None:
        """None for items of another kind."""
        wanted = {OBSERVATION, ACTION, REWARD, DISCOUNT, NEXT_OBSERVATION}
        names = {path.partition("/")[0] for path in reads.leaves}
        if not wanted <= names <= {*wanted, EXTRAS}:
            return None
        plain = reads.offsets([ACTION, REWARD, DISCOUNT, EXTRAS])
        now, following = reads.offsets([OBSERVATION]), reads.offsets([NEXT_OBSERVATION])
        if any(len(one) != 1 for one in (plain, now, following)):
            return None
        (at, _), (begin, frames), (next_begin, next_frames) = (next(iter(one)) for one in (plain, now, following))
        is_known = next_begin == begin + 1 and frames == next_frames and begin == at - (max(1, frames) - 1)
        return Stacks(reads.leaves, frames) if is_known else None

    def spec(self) -> Nest:
        """Observation, action, reward, discount, the flags, and the extras."""
        kept = {
            path: leaf
            for path, leaf in self.leaves.items()
            if not is_under(path, NEXT_OBSERVATION) and not is_under(path, EXTRAS)
        }
        others = {path: self.leaves[stored] for path, stored in _extras(self.leaves).items()}
        return nested({**kept, **others, **dict.fromkeys(FLAGS, FLAG)})

    @property
    def tells_ends(self) -> bool:
        """Only of terminal ones."""
        return False

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """T transitions -> T + 1 rows, the last of them terminal where the last discount is 0; frames before the first are left out."""
        before = max(1, self.frames) - 1
        cut = {
            path: column[before:] if is_under(path, OBSERVATION) or is_under(path, NEXT_OBSERVATION) else column
            for path, column in columns.items()
        }
        plain = {path: column for name in (REWARD, DISCOUNT) for path, column in columns_under(cut, name).items()}
        others = {path: cut[stored] for path, stored in _extras(self.leaves).items()}
        made = _aligned(cut, NEXT_OBSERVATION, {**plain, **others}, None)
        made[IS_FIRST] &= begins
        made[IS_LAST] &= ends and bool(are_zero(columns)[-1])
        made[IS_TERMINAL] = made[IS_LAST].copy()
        return made


def _aligned(columns: Columns, following: str, others: Columns, is_terminal: bool | None) -> dict[str, Array]:
    """[T] transitions -> [T + 1] rows.

    Raises:
      BrokenEpisode: the next observation of a transition is not the observation of the one after it.
    """
    observation: dict[str, Array] = {}
    for path, column in columns_under(columns, OBSERVATION).items():
        after = columns[following + path[len(OBSERVATION) :]]
        if column[1:].tobytes() != after[:-1].tobytes() and not _equal(column[1:], after[:-1]):
            raise BrokenEpisode(
                path, "the observation after a transition is not that of the next transition; read it with as=items"
            )
        observation[path[len(OBSERVATION) + 1 :]] = np.concatenate([column, after[-1:]])
    return steps(observation, columns_below(columns, ACTION), None, is_terminal, others)


def _equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype == object and bool((one == other).all())


def _extras(leaves: Leaves) -> dict[str, str]:
    """Path of a step column -> path of the extra that holds it; what steps have already keeps its own path."""
    found = {path[len(EXTRAS) + 1 :]: path for path in leaves if path.startswith(f"{EXTRAS}/")}
    taken = (OBSERVATION, ACTION, REWARD, DISCOUNT, *FLAGS)
    return {path if path.partition("/")[0] not in taken else stored: stored for path, stored in found.items()}
