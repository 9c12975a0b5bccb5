"""How the episodes of a dataset end, and which producer is known to end them so. See docs/validation.md, "Producers"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from rlds2reverb.conventions import last_row_is_added
from rlds2reverb.episodes import DISCOUNT, IS_LAST, IS_TERMINAL, REWARD, Array, Episode

_OPEN_X = (
    "last row real, discount always 1, all terminal: as Open X-Embodiment sets (rlds_dataset_builder); "
    "last_reward=shift and terminal_discount=transition let learners see the end"
)
_REAL = "last row real, so no observation follows its action, and learners do not see it"
_ADDED = "last row added for the last observation, as RLDS has it"
_D4RL = "discount 0 in it even where truncated: as TFDS' d4rl_* sets"
_D4RL_WITHOUT_NEXT = (
    "last row added where terminal, real where truncated: as TFDS' d4rl_* sets of files without next_observations"
)
_REWARDED_LAST = "a reward in the last row only, where learners do not look; last_reward=shift moves it one step back"
_ENV_LOGGER = "not all marked is_last: as EnvLogger leaves episodes that were cut off"
_MIXED = "some have a last row that was added, some a real one"
_NONE_TERMINAL = "none terminal, though discounts of 0 lead into some ends"


@dataclass
class Ends:
    """How episodes of two steps and more end, counted.

    Attributes:
      episodes: all of them.
      terminal: those that end terminal.
      added: those whose last row holds no transition: its action and reward are 0.
      unmarked: those whose last row is not marked is_last.
      zero_discount: those that do not end terminal, and have discount 0 in the last row.
      cut_by_discount: those that do not end terminal, and have discount 0 in the row before the last.
      always_one: those with discount 1 in every row.
      rewarded_last: those with a reward other than 0 in the last row and in no other.
    """

    episodes: int = 0
    terminal: int = 0
    added: int = 0
    unmarked: int = 0
    zero_discount: int = 0
    cut_by_discount: int = 0
    always_one: int = 0
    rewarded_last: int = 0

    @property
    def truncated(self) -> int:
        """Those that do not end terminal."""
        return self.episodes - self.terminal

    @property
    def real(self) -> int:
        """Those whose last row holds an action or a reward."""
        return self.episodes - self.added

    @property
    def style(self) -> str:
        """What they have in common, and who writes so; "" without episodes."""
        return "; ".join(self._traits()) if self.episodes else ""

    def add(self, episode: Episode) -> None:
        """Takes in an episode with absent fields filled in. One that is too short, or has flags that cannot be read, is passed over."""
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
            self.zero_discount += not is_terminal and discount[-1] == 0
            self.cut_by_discount += not is_terminal and discount[-2] == 0
            self.always_one += bool(np.all(discount == 1))
        if reward is not None:
            self.rewarded_last += reward[-1] != 0 and not np.any(reward[:-1])

    def add_ends(self, other: Ends) -> None:
        """Takes in how other episodes end."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**{name: int(count) for name, count in asdict(self).items()}, "style": self.style}

    def _traits(self) -> Iterator[str]:
        if self.real == self.terminal == self.always_one == self.episodes:
            yield _OPEN_X
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
