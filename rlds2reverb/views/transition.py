"""TorchRL's transitions (TED): root and next, terminated and truncated apart; both observations are one stored column.

An episode of rows o0 a0 r0, o1 a1 r1, o2 (final) gives:

| item | observation | action | next/observation | next/reward | next/done |
| --- | --- | --- | --- | --- | --- |
| 0 | o0 | a0 | o1 | r0 | False |
| 1 | o1 | a1 | o2 | r1 | True |

Source of keys and shapes ([1] for reward and the three flags): TED of TorchRL 0.5.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> steps = dict(observation=np.arange(3), action=np.arange(3), reward=np.arange(3.0))
>>> flags = dict(is_first=[True, False, False], is_last=[False, False, True], is_terminal=[False, False, True])
>>> cut = Transition().cut(Episode({**steps, **{name: np.array(flag) for name, flag in flags.items()}}, {}, "e"))
>>> cut.anchors, cut.rows["next/terminated"][:2, 0]
(array([0, 1]), array([False,  True]))
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Episode
from rlds2reverb.specs import ArraySpec, Nest, map_leaves
from rlds2reverb.views.base import (
    END_FLAGS,
    NEXT_ROW,
    UNSAID_AT_DEFAULT,
    BaseView,
    Wanted,
    columns,
    end_flags,
    fields_of,
    need,
    one_per_transition,
    transition_count,
    under,
)

_FLAG = ArraySpec((1,), np.dtype(bool))
_NEXT = "next"


@dataclass(frozen=True)
class Transition(BaseView):
    """One item per transition: T rows give T - 1.

    Attributes:
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: a priority that is no finite number of at least 0.
    """

    _name = "transition"
    _reads = (OBSERVATION, ACTION, REWARD, *END_FLAGS)

    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle()

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """{observation, action, next: {observation, reward [..., 1], done [1], terminated [1], truncated [1]}}."""
        steps = need("transition", step_spec, OBSERVATION, ACTION, REWARD)
        reward = map_leaves(lambda leaf: ArraySpec((*leaf.shape, 1), leaf.dtype), steps[REWARD])
        following = {
            OBSERVATION: steps[OBSERVATION],
            REWARD: reward,
            "done": _FLAG,
            "terminated": _FLAG,
            "truncated": _FLAG,
        }
        items = {OBSERVATION: steps[OBSERVATION], ACTION: steps[ACTION], _NEXT: following}
        return self._with_extras(items, steps, metadata_spec)

    def item_count(self, rows: int | None) -> int | None:
        return one_per_transition(rows)

    def cut(self, episode: Episode) -> Cut:
        """A row's observation is stored once, as root of one transition and next of the one before."""
        taken = columns(episode, OBSERVATION, ACTION)
        rewards = under(episode.columns, REWARD, f"{_NEXT}/{REWARD}")
        terminated, truncated = end_flags(episode)
        derived = {
            **{new: episode.columns[path][..., None] for new, path in rewards.items()},
            f"{_NEXT}/done": (terminated | truncated)[:, None],
            f"{_NEXT}/terminated": terminated[:, None],
            f"{_NEXT}/truncated": truncated[:, None],
        }
        rows = {**taken, **derived, **self._extras_rows(episode)}
        fields = {
            **fields_of({path: path for path in rows}),
            **fields_of(under(taken, OBSERVATION, f"{_NEXT}/{OBSERVATION}"), NEXT_ROW),
        }
        count = transition_count(episode)
        return Cut(rows, fields, np.arange(count, dtype=np.int64), np.full(count, self.priority, np.float64))
