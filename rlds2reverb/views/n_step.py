"""N-step transitions: the return of n steps, and the observation after them; shorter near the end of the episode.

An episode has T rows, the last with the final observation. Item t has k = min(n, T - 1 - t) steps:

| | reward | discount | next_observation |
| --- | --- | --- | --- |
| style acme | r_t + g d_t r_{t+1} + ... + g^(k-1) d_t ... d_{t+k-2} r_{t+k-1} | g^(k-1) d_t ... d_{t+k-1} | o_{t+k} |
| style torchrl | r_t + g r_{t+1} + ... + g^(k-1) r_{t+k-1} | g^k | o_{t+k} |

Acme leaves one factor g to the learner, which multiplies the discount by its own. Its adder also makes the transitions of 1 to
n - 1 steps from the first row, while its buffer fills up; so does `early`, and without it there is one item per row. TorchRL's
`MultiStep` also has `steps_to_next_obs`, here `steps`, and leaves the done flags at step t. Sources: NStepTransitionAdder of
Acme 0.4, MultiStep of TorchRL 0.5.

>>> import numpy as np
>>> from rlds2reverb.episodes import Episode
>>> column = np.ones(5, np.float32)
>>> steps = dict(observation=np.arange(5), action=np.arange(5), reward=column, discount=column)
>>> cut = NStep(n=3, gamma=0.5).cut(Episode(steps, {}, "e"))
>>> cut.rows["reward"][:4], cut.fields["next_observation"].anchors
(array([1.75, 1.75, 1.5 , 1.  ], dtype=float32), array([3, 4, 4, 4]))
>>> cut = NStep(n=3, gamma=0.5, early=True).cut(Episode(steps, {}, "e"))
>>> cut.steps, cut.rows["steps"][:-1]
(array([-2, -1,  0,  1,  2,  3]), array([1, 2, 3, 3, 2, 1], dtype=int32))
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episodes import ACTION, DISCOUNT, OBSERVATION, REWARD, Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.views.base import check_flags, check_options
from rlds2reverb.views.labels import UNSAID_AT_DEFAULT, label_of
from rlds2reverb.views.steps import ONE_ROW, choice, columns, fields_of, need, pad, priorities, transition_count, under

STYLES = ("acme", "torchrl")
NEXT_OBSERVATION = "next_observation"
STEPS = "steps"


@dataclass(frozen=True)
class NStep:
    """One item per row, but for the last row.

    Attributes:
      n: steps, at most.
      gamma: discount per step, in (0, 1].
      style: "acme" (the data's discounts count) or "torchrl" (they do not).
      early: make the items of 1 to n - 1 steps from the first row, too, as Acme's adder does. They come before all others and
        are anchored before the first step, at copies of its row.
      priority: of every item.

    Raises:
      ViewError: an option that makes no sense.
    """

    n: int = 3
    gamma: float = 0.99
    style: str = "acme"
    early: bool = field(default=False, metadata=UNSAID_AT_DEFAULT)
    priority: float = 1.0

    def __post_init__(self) -> None:
        check_options("n_step", self.priority, n=self.n)
        choice("n_step", "style", self.style, STYLES)
        check_flags("n_step", early=self.early)
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, (int, float)) or not 0 < self.gamma <= 1:
            raise ViewError(f"n_step: gamma {self.gamma}: expected a number in (0, 1]")

    @property
    def label(self) -> str:
        """Name and options."""
        return label_of("n_step", self, gamma=float(self.gamma))

    def signature(self, step_spec: Nest) -> Nest:
        """{observation, action, reward, discount, next_observation, steps int32 []}; reward and discount keep their dtype, one float each."""
        steps = need("n_step", step_spec, OBSERVATION, ACTION, REWARD, DISCOUNT)
        for name in (REWARD, DISCOUNT):
            leaves = flatten(steps[name])
            if list(leaves) != [""] or leaves[""].dtype.kind != "f" or leaves[""].shape:
                raise ViewError(f"n_step: {name} is {steps[name]}, expected one float per step")
        return {
            OBSERVATION: steps[OBSERVATION],
            ACTION: steps[ACTION],
            REWARD: ArraySpec((), steps[REWARD].dtype),
            DISCOUNT: ArraySpec((), steps[DISCOUNT].dtype),
            NEXT_OBSERVATION: steps[OBSERVATION],
            STEPS: ArraySpec((), np.dtype(np.int32)),
        }

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """The data's discounts count in style acme only."""
        if self.style == "acme":
            return OBSERVATION, ACTION, REWARD, DISCOUNT
        return OBSERVATION, ACTION, REWARD

    def cut(self, episode: Episode) -> Cut:
        """Returns are columns of their own; both observations are one."""
        count = transition_count(episode)
        early = min(self.n, count) - 1 if self.early and count else 0
        reward, discount, steps = self._earned(episode, early)
        anchors = np.arange(early + count, dtype=np.int64)
        observed = {path: pad(column, early, 0) for path, column in columns(episode, OBSERVATION, ACTION).items()}
        derived = {REWARD: reward, DISCOUNT: discount, STEPS: steps.astype(np.int32)}
        rows = {**observed, **{path: _filled_up(column, early + len(episode)) for path, column in derived.items()}}
        arrived = np.maximum(anchors, early) + steps
        fields = {
            **fields_of({path: path for path in rows}),
            **fields_of(under(observed, OBSERVATION, NEXT_OBSERVATION), ONE_ROW, arrived),
        }
        return Cut(rows, fields, anchors, priorities(len(anchors), self.priority), early)

    def _earned(self, episode: Episode, early: int) -> tuple[Array, Array, Array]:
        """[early + T - 1] return, discount and number of steps of each item; those from the first row come first."""
        count = transition_count(episode)
        earned = columns(episode, REWARD, DISCOUNT)
        reward, discount = self._returns(earned[REWARD][:count], earned[DISCOUNT][:count], self.n)
        steps = np.minimum(self.n, count - np.arange(count))
        if not early:
            return reward, discount, steps
        shorter = np.arange(1, early + 1)
        first = [self._returns(earned[REWARD][:k], earned[DISCOUNT][:k], k) for k in shorter.tolist()]
        reward = np.concatenate((*(one[:1] for one, _ in first), reward))
        discount = np.concatenate((*(one[:1] for _, one in first), discount))
        return reward, discount, np.concatenate((shorter, steps))

    def _returns(self, rewards: Array, discounts: Array, n: int) -> tuple[Array, Array]:
        """[T - 1] returns and discounts of up to n steps, in float64, cast back; the loop is over n, not over steps."""
        count = len(rewards)
        factors = discounts.astype(np.float64) if self.style == "acme" else np.ones(count)
        total, scale = np.zeros(count), np.ones(count)  # scale: what the next reward is multiplied by
        for ahead in range(min(n, count)):
            alive = count - ahead
            if ahead:
                scale[:alive] *= self.gamma
            total[:alive] += scale[:alive] * rewards[ahead:]
            scale[:alive] *= factors[ahead:]
        if self.style == "torchrl":
            scale *= self.gamma
        return total.astype(rewards.dtype), scale.astype(discounts.dtype)


def _filled_up(column: Array, rows: int) -> Array:
    """[rows]; a zero for the last row, which no item reads."""
    return np.append(column, np.zeros(rows - len(column), column.dtype))
