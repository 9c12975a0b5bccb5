"""Stacked frames: each item sees the last k observations; every frame is stored once.

Of an episode of rows o0 o1 o2 (final) with frames=3:

| item | observation | next_observation |
| --- | --- | --- |
| 0 | o0 o0 o0 | o0 o0 o1 |
| 1 | o0 o0 o1 | o0 o1 o2 |

With fill=zero, frames before the first are zeros instead of the first one again.

>>> import numpy as np
>>> from rlds2reverb.episodes import Episode
>>> steps = dict(observation=np.arange(1, 4), action=np.arange(3), reward=np.ones(3), discount=np.ones(3))
>>> FrameStack(frames=3).cut(Episode(steps, {}, "e")).rows["observation"]
array([1, 1, 1, 2, 3])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import ACTION, DISCOUNT, OBSERVATION, REWARD, Episode
from rlds2reverb.specs import Nest, map_leaves
from rlds2reverb.views.base import Cut, Window, check_options
from rlds2reverb.views.steps import Fill, choice, columns, fields_of, need, pad, priorities, transition_count, under

NEXT_OBSERVATION = "next_observation"


@dataclass(frozen=True)
class FrameStack:
    """One item a transition, with stacked observations.

    Attributes:
      frames: k, oldest first.
      fill: what stands before the first row: "first" (it again) or "zero".
      priority: of every item.

    Raises:
      ViewError: an option that makes no sense.
    """

    frames: int = 4
    fill: Fill = "first"
    priority: float = 1.0

    def __post_init__(self) -> None:
        check_options("frame_stack", self.priority, frames=self.frames)
        choice("frame_stack", "fill", self.fill, ("first", "zero"))

    @property
    def label(self) -> str:
        """Name and options."""
        return f"frame_stack:frames={self.frames},fill={self.fill}"

    def signature(self, step_spec: Nest) -> Nest:
        """{observation [k, ...], action, reward, discount, next_observation [k, ...]}."""
        steps = need("frame_stack", step_spec, OBSERVATION, ACTION, REWARD, DISCOUNT)
        stacked = map_leaves(lambda leaf: leaf.with_leading(self.frames), steps[OBSERVATION])
        plain = {name: steps[name] for name in (ACTION, REWARD, DISCOUNT)}
        return {OBSERVATION: stacked, **plain, NEXT_OBSERVATION: stacked}

    def cut(self, episode: Episode) -> Cut:
        """Puts k - 1 rows before the first; an item's windows look back."""
        before = self.frames - 1
        given = columns(episode, OBSERVATION, ACTION, REWARD, DISCOUNT)
        rows = {path: pad(column, before, 0, self.fill) for path, column in given.items()}
        observations = under(rows, OBSERVATION)
        fields = {
            **fields_of({path: path for path in rows if path not in observations}),
            **fields_of(observations, (Window(-before, 1),)),
            **fields_of(under(rows, OBSERVATION, NEXT_OBSERVATION), (Window(1 - before, 2),)),
        }
        count = transition_count(episode)
        return Cut(rows, fields, before + np.arange(count, dtype=np.int64), priorities(count, self.priority), before)
