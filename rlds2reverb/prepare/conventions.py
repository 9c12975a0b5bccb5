"""Brings an episode to the seven RLDS fields, and mends three known trouble spots on request.

RLDS requires only is_first and is_last. These rules fill absent fields, and each filled column is reported:

| absent | filled with |
| --- | --- |
| is_terminal | False: the episode counts as truncated |
| reward | 0.0, float32 |
| discount | 1.0, float32; 0.0 on a terminal last step and on the step before it |

Trouble spots (probed, tf-agents 0.19): TF-Agents sets the discount to 0 on the boundary row only, while a learner reads
the discount of the row before it; and a reward recorded on the last step (as Open X-Embodiment does) sits on
the boundary row, which learners mask. And some producers end episodes with an observation that is not theirs (TFDS' d4rl_*
sets: the last of the whole file; or zeros). What was there is lost, so one can only do without it:

- "repeat": the last row gets the observation of the row before it. Every reward and every terminal end stays; where the end is
  truncated, learners bootstrap from the state before.
- "drop": the last row goes, and with it the last transition. The row before is the last one now, and not terminal: no learner
  sees a terminal end, or its reward.

Both leave a last row alone that has an action or a reward: it was recorded, not added.

`last_step` "repeat" puts a row behind a last one that has an action or a reward, see `formats.last_step`. Which rows were added is the same
before and after a transform (`formats.transformed.LastRow`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from rlds2reverb.episode import (
    DISCOUNT,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    columns_under,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.last_step import has_added_row, repeat_last_step
from rlds2reverb.formats.transform import AS_RECORDED, LAST_REWARDS, SHIFT
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.text import did_you_mean

TRANSITION = "transition"
TERMINAL_DISCOUNTS = (AS_RECORDED, TRANSITION)
REPEAT, DROP = "repeat", "drop"
LAST_OBSERVATIONS = (AS_RECORDED, REPEAT, DROP)
LAST_STEPS = (AS_RECORDED, REPEAT)


@dataclass(frozen=True)
class Conventions:
    """What to do with the trouble spots.

    Attributes:
      terminal_discount: "as_recorded", or "transition": the step before a terminal last step gets discount 0.
      last_reward: "as_recorded", or "shift": every reward moves one step back (r_t := r_{t+1}), for data that
        records a reward with the observation it led to; the last step gets 0.
      last_observation: "as_recorded", or what becomes of a last row that was added: "repeat" or "drop", see above.
      last_step: "as_recorded", or "repeat": a last row with an action or a reward is followed by another one, see above.
    """

    terminal_discount: str = AS_RECORDED
    last_reward: str = AS_RECORDED
    last_observation: str = AS_RECORDED
    last_step: str = AS_RECORDED

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("terminal_discount", self.terminal_discount, TERMINAL_DISCOUNTS),
            ("last_reward", self.last_reward, LAST_REWARDS),
            ("last_observation", self.last_observation, LAST_OBSERVATIONS),
            ("last_step", self.last_step, LAST_STEPS),
        ):
            if value not in choices:
                raise ConfigError(
                    f'{name} "{value}": expected one of {", ".join(choices)}{did_you_mean(str(value), choices)}'
                )

    @property
    def label(self) -> str:
        """All options; pushes with equal labels store the same items of the same episodes."""
        # Options that are as recorded go unsaid: item keys are older than they are.
        further = "" if self.last_observation == AS_RECORDED else f"|{self.last_observation}"
        further += "" if self.last_step == AS_RECORDED else f"|last_step={self.last_step}"
        return f"{self.terminal_discount}|{self.last_reward}{further}"

    def mends_end(self, episode: Episode) -> bool:
        """Whether `last_observation` changes the episode as recorded."""
        return self.last_observation != AS_RECORDED and len(episode) > 1 and has_added_row(episode)

    def adds_row(self, episode: Episode) -> bool:
        """Whether `last_step` puts a row behind the last one."""
        return self.last_step == REPEAT and len(episode) > 0 and not has_added_row(episode)

    def apply(self, episode: Episode) -> Episode:
        """The episode with all options applied; needs at least one step and all seven fields."""
        # The end first: with a row dropped, another one is the last that the discount and the rewards go by.
        if self.mends_end(episode):
            if self.last_observation == REPEAT:
                observations = columns_under(episode.columns, OBSERVATION)
                repeated = {path: np.concatenate((column[:-1], column[-2:-1])) for path, column in observations.items()}
                episode = _with(episode, repeated)
            else:  # the row that is the last now is marked so, and is as terminal as it was recorded
                shorter = {path: column[:-1] for path, column in episode.columns.items()}
                last = shorter[IS_LAST].copy()
                last[-1:] = True
                episode = replace(episode, columns={**shorter, IS_LAST: last})
        elif self.adds_row(episode):
            episode = repeat_last_step(episode)
        if self.terminal_discount == TRANSITION and ends_terminal(episode):
            episode = with_zero_transition_discount(episode)
        if self.last_reward == SHIFT:
            rewards = columns_under(episode.columns, REWARD)
            episode = _with(episode, {path: shifted_reward(reward) for path, reward in rewards.items()})
        return episode


class ConventionKeywords(TypedDict, total=False):
    """`Conventions` as keywords."""

    terminal_discount: str
    last_reward: str
    last_observation: str
    last_step: str


_FILLED_DTYPES = {REWARD: np.dtype(np.float32), DISCOUNT: np.dtype(np.float32), IS_TERMINAL: np.dtype(bool)}


def absent_fields(names: Mapping[str, object]) -> tuple[str, ...]:
    """Which of is_terminal, reward, discount are not among a step's fields (top level or nested)."""
    present = {name.split("/")[0] for name in names}
    return tuple(name for name in (IS_TERMINAL, REWARD, DISCOUNT) if name not in present)


def filled_spec(step_spec: Nest) -> Nest:
    absent = {name: ArraySpec((), _FILLED_DTYPES[name]) for name in absent_fields(step_spec)}
    return {**step_spec, **absent}


def fill_absent(episode: Episode, is_last_seen: bool = False) -> Episode:
    """The episode with the absent fields filled by the rules above; with `is_last_seen`, a row will be put behind the last one.

    It is returned unchanged when none is absent, or when it is no RLDS episode (is_first or is_last is absent, too): its problems are
    those of what was recorded.
    """
    absent = absent_fields(episode.columns)
    if not absent or not {IS_FIRST, IS_LAST} <= episode.columns.keys():
        return episode
    rows, columns = len(episode), dict(episode.columns)
    columns |= {name: np.full(rows, name == DISCOUNT, _FILLED_DTYPES[name]) for name in absent}
    # The step before the end as well: a learner reads the discount of the row that leads into the terminal one.
    terminal = columns[IS_TERMINAL]
    if DISCOUNT in absent and rows and len(terminal) == rows and terminal[-1]:
        columns[DISCOUNT][-1 if is_last_seen else -2 :] = 0
    return replace(episode, columns=columns)


def ends_terminal(episode: Episode) -> bool:
    terminal, last = episode.columns[IS_TERMINAL], episode.columns[IS_LAST]
    return bool(len(terminal) and terminal[-1] and last[-1])


def with_zero_transition_discount(episode: Episode) -> Episode:
    """The episode with discount 0 on the step that leads into the last one, in every column of discounts."""
    discounts = columns_under(episode.columns, DISCOUNT)
    return _with(episode, {path: zero_transition_discount(discount) for path, discount in discounts.items()})


def zero_transition_discount(discount: Array) -> Array:
    """[T] -> [T] with zero at T-2, the transition into the last step."""
    discount = discount.copy()
    discount[-2:-1] = 0
    return discount


def shifted_reward(reward: Array) -> Array:
    """[T, ...] -> [T, ...], each reward one step back, zero at the end."""
    shifted = np.zeros_like(reward)
    shifted[:-1] = reward[1:]
    return shifted


def _with(episode: Episode, columns: Mapping[str, Array]) -> Episode:
    """The episode with columns that follow from its others; its name stays."""
    return replace(episode, columns={**episode.columns, **columns})
