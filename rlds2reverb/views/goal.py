"""Goal relabelling: every transition gets a goal that the episode really reached, and the reward that follows from it.

| strategy | goal of transition t of an episode with rows 0 to T - 1 |
| --- | --- |
| future | the observation of a row drawn uniformly from t + 1 to T - 1 |
| final | the observation of row T - 1 |
| uniform | the observation of a row drawn uniformly from 0 to T - 1 |

The reward is 0 where the transition arrives at the goal's row (t + 1), and -1 elsewhere; `reached` says the same as a flag.
Goals are not copied: the field reads the stored observations at anchors of its own. "future" is the relabelling of the Open X
loaders (dlimp, Octo: uniform over the steps to come) and of hindsight experience replay.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> episode = Episode({"observation": np.arange(4), "action": np.arange(4)}, {}, "e")
>>> cut = Goal(strategy="final").cut(episode)
>>> cut.fields["goal"].anchors, cut.rows["reward"][:3]
(array([3, 3, 3]), array([-1., -1.,  0.], dtype=float32))
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Array, Episode
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.views.base import UNSAID_AT_DEFAULT, check_options, label_of
from rlds2reverb.views.extras import Extras, Wanted, extras_read, extras_rows, with_extras
from rlds2reverb.views.steps import (
    NEXT_ROW,
    ONE_ROW,
    check_seed,
    choice,
    columns,
    fields_of,
    generator,
    need,
    one_per_transition,
    priorities,
    transition_count,
    under,
)

STRATEGIES = ("future", "final", "uniform")
NEXT_OBSERVATION, GOAL, REACHED = "next_observation", "goal", "reached"
_READS = (OBSERVATION, ACTION)


@dataclass(frozen=True)
class Goal:
    """One item per transition.

    Attributes:
      strategy: one of `STRATEGIES`.
      seed: the draws depend on it and on the episode's id, and on nothing else.
      priority: of every item.
      extras: further columns in the items, see `views.extras`.

    Raises:
      ViewError: an option that makes no sense.
    """

    strategy: str = "future"
    seed: int = 0
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extras", Extras.of("goal", self.extras))
        check_options("goal", self.priority)
        check_seed("goal", self.seed)
        choice("goal", "strategy", self.strategy, STRATEGIES)

    @property
    def label(self) -> str:
        """Name and options."""
        return label_of("goal", self)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """{observation, action, next_observation, goal, reward float32 [], reached bool []}."""
        steps = need("goal", step_spec, OBSERVATION, ACTION)
        observation = steps[OBSERVATION]
        items = {
            OBSERVATION: observation,
            ACTION: steps[ACTION],
            NEXT_OBSERVATION: observation,
            GOAL: observation,
            REWARD: ArraySpec((), np.dtype(np.float32)),
            REACHED: ArraySpec((), np.dtype(bool)),
        }
        return with_extras("goal", self.extras, _READS, items, steps, metadata_spec)

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """Observation and action; the reward of its items is made, not read."""
        return *_READS, *extras_read(self.extras, _READS, step_spec)

    def item_count(self, rows: int | None) -> int | None:
        """One per transition."""
        return one_per_transition(rows)

    def cut(self, episode: Episode) -> Cut:
        """Three fields read the stored observations: at t, at t + 1, and at the goal's row."""
        count = transition_count(episode)
        anchors = np.arange(count, dtype=np.int64)
        goals = self._goal_rows(episode, anchors)
        reached = np.append(goals == anchors + 1, np.zeros(len(episode) - count, bool))
        observed = columns(episode, OBSERVATION, ACTION)
        rewards = np.where(reached, 0, -1).astype(np.float32)
        further = extras_rows("goal", self.extras, _READS, episode)
        rows = {**observed, REWARD: rewards, REACHED: reached, **further}
        fields = {
            **fields_of({path: path for path in rows}),
            **fields_of(under(observed, OBSERVATION, NEXT_OBSERVATION), NEXT_ROW),
            **fields_of(under(observed, OBSERVATION, GOAL), ONE_ROW, goals),
        }
        return Cut(rows, fields, anchors, priorities(count, self.priority))

    def _goal_rows(self, episode: Episode, anchors: Array) -> Array:
        """[T - 1] row of each transition's goal."""
        last = len(episode) - 1
        if self.strategy == "final":
            return np.full(len(anchors), last, np.int64)
        lowest = anchors + 1 if self.strategy == "future" else np.zeros_like(anchors)
        return generator("goal", self.seed, episode).integers(lowest, last, endpoint=True, dtype=np.int64)
