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
from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Episode
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.views.base import (
    NEXT_ROW,
    ONE_ROW,
    UNSAID_AT_DEFAULT,
    BaseView,
    Wanted,
    check_seed,
    choice,
    columns,
    fields_of,
    generator,
    need,
    one_per_transition,
    transition_count,
    under,
)

STRATEGIES = ("future", "final", "uniform")
NEXT_OBSERVATION, GOAL, REACHED = "next_observation", "goal", "reached"


@dataclass(frozen=True)
class Goal(BaseView):
    """One item per transition.

    Attributes:
      strategy: one of `STRATEGIES`.
      seed: the draws depend on it and on the episode's id, and on nothing else.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense.
    """

    _name = "goal"
    _reads = (OBSERVATION, ACTION)  # the reward of its items is made, not read

    strategy: str = "future"
    seed: int = 0
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle()
        check_seed("goal", self.seed)
        choice("goal", "strategy", self.strategy, STRATEGIES)

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
        return self._with_extras(items, steps, metadata_spec)

    def item_count(self, rows: int | None) -> int | None:
        return one_per_transition(rows)

    def cut(self, episode: Episode) -> Cut:
        """Three fields read the stored observations: at t, at t + 1, and at the goal's row."""
        count = transition_count(episode)
        anchors = np.arange(count, dtype=np.int64)
        last = len(episode) - 1
        if self.strategy == "final":
            goals = np.full(count, last, np.int64)
        else:
            lowest = anchors + 1 if self.strategy == "future" else np.zeros_like(anchors)
            goals = generator("goal", self.seed, episode).integers(lowest, last, endpoint=True, dtype=np.int64)
        reached = np.append(goals == anchors + 1, np.zeros(len(episode) - count, bool))
        observed = columns(episode, OBSERVATION, ACTION)
        rewards = np.where(reached, 0, -1).astype(np.float32)
        further = self._extras_rows(episode)
        rows = {**observed, REWARD: rewards, REACHED: reached, **further}
        fields = {
            **fields_of({path: path for path in rows}),
            **fields_of(under(observed, OBSERVATION, NEXT_OBSERVATION), NEXT_ROW),
            **fields_of(under(observed, OBSERVATION, GOAL), ONE_ROW, goals),
        }
        return Cut(rows, fields, anchors, np.full(count, self.priority, np.float64))
