"""N-step transitions: the return of n steps, and the observation after them; shorter near the end of the episode.

An episode has T rows, the last with the final observation. Item t has k = min(n, T - 1 - t) steps:

| | reward | discount | next_observation |
| --- | --- | --- | --- |
| style acme | r_t + g d_t r_{t+1} + ... + g^(k-1) d_t ... d_{t+k-2} r_{t+k-1} | g^(k-1) d_t ... d_{t+k-1} | o_{t+k} |
| style torchrl | r_t + g r_{t+1} + ... + g^(k-1) r_{t+k-1} | g^k | o_{t+k} |

Acme leaves one factor g to the learner, which multiplies the discount by its own. Its adder also makes the transitions of 1 to
n - 1 steps from the first row, while its buffer fills up; so does `early`, and without it there is one item per row. TorchRL's
`MultiStep` also has `steps_to_next_obs`, here `steps`, and leaves the done flags at step t.

Rewards and discounts may be nests and have axes, as in Acme: every leaf has a return of its own, see `paired`.

Sources: NStepTransitionAdder of Acme 0.4, MultiStep of TorchRL 0.5.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
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

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from rlds2reverb.cuts import Cut, zeros_like
from rlds2reverb.episode import ACTION, DISCOUNT, OBSERVATION, REWARD, Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_with_path
from rlds2reverb.views.base import (
    ONE_ROW,
    UNSAID_AT_DEFAULT,
    BaseView,
    Wanted,
    check_flags,
    choice,
    columns,
    fields_of,
    label_of,
    need,
    one_per_transition,
    pad,
    transition_count,
    under,
)

STYLES = ("acme", "torchrl")
NEXT_OBSERVATION = "next_observation"
STEPS = "steps"

_Leaf = TypeVar("_Leaf")


@dataclass(frozen=True)
class NStep(BaseView):
    """One item per row, but for the last row.

    Attributes:
      n: steps, at most.
      gamma: discount per step, in (0, 1].
      style: "acme" (the data's discounts count) or "torchrl" (they do not).
      early: make the items of 1 to n - 1 steps from the first row, too, as Acme's adder does. They come before all others and
        are anchored before the first step, at copies of its row.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense.
    """

    _name = "n_step"

    n: int = 3
    gamma: float = 0.99
    style: str = "acme"
    early: bool = field(default=False, metadata=UNSAID_AT_DEFAULT)
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle(n=self.n)
        choice("n_step", "style", self.style, STYLES)
        check_flags("n_step", early=self.early)
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, (int, float)) or not 0 < self.gamma <= 1:
            raise ViewError(f"n_step: gamma {self.gamma}: expected a number in (0, 1]")

    @property
    def label(self) -> str:
        return label_of("n_step", self, gamma=float(self.gamma))

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """{observation, action, reward, discount, next_observation, steps int32 []}; reward and discount keep their dtypes.

        A nest of rewards or discounts gives as many returns and discounts; one that is a nest makes a nest of the other.
        A reward has the shape of reward and discount broadcast together.

        Raises:
          ViewError: the steps lack one of these; a reward or a discount is no float; or two nests or shapes do not go together.
        """
        steps = need("n_step", step_spec, OBSERVATION, ACTION, REWARD, DISCOUNT)
        reward, discount = (_floats(name, steps[name]) for name in (REWARD, DISCOUNT))
        pairs = paired(reward, discount)
        earned = {path: ArraySpec(_joint_shape(path, *pair), pair[0].dtype) for path, pair in pairs.items()}
        nest = steps[DISCOUNT] if list(reward) == [""] else steps[REWARD]
        items = {
            OBSERVATION: steps[OBSERVATION],
            ACTION: steps[ACTION],
            REWARD: map_with_path(lambda path, _: earned[path], nest),
            DISCOUNT: map_with_path(lambda path, _: ArraySpec(pairs[path][1].shape, pairs[path][1].dtype), nest),
            NEXT_OBSERVATION: steps[OBSERVATION],
            STEPS: ArraySpec((), np.dtype(np.int32)),
        }
        return self._with_extras(items, steps, metadata_spec)

    @property
    def _reads(self) -> tuple[str, ...]:
        """The data's discounts count in style acme only."""
        return OBSERVATION, ACTION, REWARD, *((DISCOUNT,) if self.style == "acme" else ())

    def item_count(self, rows: int | None) -> int | None:
        """One per transition, and with `early` the shorter ones from the first row."""
        count = one_per_transition(rows)
        return count if not count or not self.early else count + min(self.n, count) - 1

    def cut(self, episode: Episode) -> Cut:
        """Returns are columns of their own; both observations are one."""
        count = transition_count(episode)
        early = min(self.n, count) - 1 if self.early and count else 0
        shorter = np.arange(1, early + 1)
        steps = np.concatenate((shorter, np.minimum(self.n, count - np.arange(count))))
        anchors = np.arange(early + count, dtype=np.int64)
        observed = columns(episode, OBSERVATION, ACTION)
        recorded = {**observed, **self._extras_rows(episode)}
        derived = {**self._earned(episode, shorter), STEPS: steps.astype(np.int32)}
        unread = early + len(episode) - len(steps)  # the last row, which no item reads
        rows = {
            **{path: pad(column, early, 0) for path, column in recorded.items()},
            **{path: np.concatenate((column, zeros_like(column, unread))) for path, column in derived.items()},
        }
        arrived = np.maximum(anchors, early) + steps
        fields = {
            **fields_of({path: path for path in rows}),
            **fields_of(under(observed, OBSERVATION, NEXT_OBSERVATION), ONE_ROW, arrived),
        }
        return Cut(rows, fields, anchors, np.full(len(anchors), self.priority, np.float64), early)

    def _earned(self, episode: Episode, shorter: Array) -> dict[str, Array]:
        """Path -> [early + T - 1, ...] returns and discounts of each item; the `shorter` ones from the first row come first."""
        count = transition_count(episode)
        reward, discount = (
            {path[len(name) + 1 :]: episode.columns[path] for path in under(episode.columns, name)}
            for name in (REWARD, DISCOUNT)
        )
        earned: dict[str, Array] = {}
        for path, (rewards, discounts) in paired(reward, discount).items():
            early = [self._returns(rewards[:k], discounts[:k], k) for k in shorter.tolist()]
            firsts = [(returns[:1], scales[:1]) for returns, scales in early]
            every = [*firsts, self._returns(rewards[:count], discounts[:count], self.n)]
            below = f"/{path}" if path else ""
            earned[REWARD + below] = np.concatenate([returns for returns, _ in every])
            earned[DISCOUNT + below] = np.concatenate([scales for _, scales in every])
        return earned

    def _returns(self, rewards: Array, discounts: Array, n: int) -> tuple[Array, Array]:
        """[T - 1, ...] returns and discounts of up to n steps, in float64, cast back; the loop is over n, not over steps."""
        count, axes = len(rewards), max(rewards.ndim, discounts.ndim)
        aligned = _with_axes(rewards, axes)
        factors = discounts.astype(np.float64) if self.style == "acme" else np.ones(discounts.shape)
        shape = np.broadcast_shapes(aligned.shape[1:], _with_axes(discounts, axes).shape[1:])
        total = np.zeros((count, *shape))
        scale = np.ones(discounts.shape)  # what the next reward is multiplied by
        for ahead in range(min(n, count)):
            alive = count - ahead
            if ahead:
                scale[:alive] *= self.gamma
            total[:alive] += _with_axes(scale[:alive], axes) * aligned[ahead:]
            scale[:alive] *= factors[ahead:]
        if self.style == "torchrl":
            scale *= self.gamma
        return total.astype(rewards.dtype), scale.astype(discounts.dtype)


def paired(rewards: Mapping[str, _Leaf], discounts: Mapping[str, _Leaf]) -> dict[str, tuple[_Leaf, _Leaf]]:
    """Path -> reward and discount; a single one (its path is "") goes with every one of the other's, as in Acme's adder."""
    if list(rewards) == [""]:
        return {path: (rewards[""], discount) for path, discount in discounts.items()}
    if list(discounts) == [""]:
        return {path: (reward, discounts[""]) for path, reward in rewards.items()}
    if set(rewards) != set(discounts):
        raise ViewError(
            f"n_step: rewards {sorted(rewards)} and discounts {sorted(discounts)}: expected the same paths, or one of them single"
        )
    return {path: (reward, discounts[path]) for path, reward in rewards.items()}


def _floats(name: str, nest: Nest) -> dict[str, ArraySpec]:
    leaves = flatten(nest)
    if not leaves or any(leaf.dtype.kind != "f" for leaf in leaves.values()):
        listed = ", ".join(f"{name}/{path} {leaf}".replace("/ ", " ") for path, leaf in leaves.items()) or "none"
        raise ViewError(f"n_step: {name}: expected floats, found {listed}")
    return leaves


def _joint_shape(path: str, reward: ArraySpec, discount: ArraySpec) -> tuple[int | None, ...]:
    """The shape of both, broadcast as numpy does; a free size goes with 1 or another free size only."""
    axes = max(len(reward.shape), len(discount.shape))
    reward_sizes, discount_sizes = ((1,) * (axes - len(leaf.shape)) + leaf.shape for leaf in (reward, discount))
    shape = tuple(theirs if size == 1 else size for size, theirs in zip(reward_sizes, discount_sizes))
    if any(theirs not in (1, size) for size, theirs in zip(shape, discount_sizes)):
        raise ViewError(f'n_step: reward {reward} and discount {discount} of "{path}": expected shapes that broadcast')
    return shape


def _with_axes(column: Array, axes: int) -> Array:
    """The column with axes of size 1 behind the first, to have `axes` of them."""
    return column.reshape(len(column), *(1,) * (axes - column.ndim), *column.shape[1:])
