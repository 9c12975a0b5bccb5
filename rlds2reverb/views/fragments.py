"""Rollout fragments as RLlib's workers sample them: one item per fragment, over a stream of episodes.

Two episodes of three transitions each, a0 a1 a2 and b0 b1 b2, give:

| batch_mode | length | items |
| --- | --- | --- |
| truncate_episodes | 2 | a0 a1, a2 b0, b1 b2 |
| truncate_episodes | 4 | a0 a1 a2 b0; b1 b2 wait for the next episode |
| complete_episodes | 2 | a0 a1 a2, b0 b1 b2 |
| complete_episodes | 4 | a0 a1 a2 b0 b1 b2 |

A fragment of `truncate_episodes` has exactly `length` steps; it may span episodes, and start and end inside one. A fragment of
`complete_episodes` has whole episodes, as many as it takes to reach `length`. With `agent_steps`, a step of n agents counts
n times.
Source: RLlib, "Sample Collections and Trajectory Views" (rollout_fragment_length, batch_mode, count_steps_by), and
SimpleListCollector: in agent steps a fragment may be up to n - 1 longer.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> flags = dict(is_first=np.arange(4) == 0, is_last=np.arange(4) == 3, is_terminal=np.zeros(4, bool))
>>> steps = dict(observation=np.arange(4), action=np.arange(4), reward=np.ones(4, np.float32), **flags)
>>> first, stream = Fragments(length=2).stream().cut(Episode(steps, {}, "a"))
>>> second, stream = stream.cut(Episode(steps, {}, "b"))
>>> first.anchors.tolist(), second.anchors.tolist(), stream.left_over
([0], [0, 2], 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves
from rlds2reverb.views.base import (
    END_FLAGS,
    UNSAID_AT_DEFAULT,
    BaseView,
    EpisodeStream,
    Wanted,
    as_float32,
    check_flags,
    choice,
    continued,
    end_flags,
    episode_number,
    first_t,
    float32_spec,
    need,
    transition_count,
    under,
)

TRUNCATE, COMPLETE = "truncate_episodes", "complete_episodes"
ENV_STEPS, AGENT_STEPS = "env_steps", "agent_steps"

OBS, NEW_OBS, ACTIONS, REWARDS = "obs", "new_obs", "actions", "rewards"
_MADE = {
    "terminateds": np.dtype(bool),
    "truncateds": np.dtype(bool),
    "t": np.dtype(np.int64),
    "eps_id": np.dtype(np.int64),
}


@dataclass(frozen=True)
class Fragments(BaseView):
    """One item per fragment; its columns have RLlib's names, one row per step taken.

    Attributes:
      length: `rollout_fragment_length`, in the unit of `count_steps_by`.
      batch_mode: "truncate_episodes" or "complete_episodes".
      count_steps_by: "env_steps" or "agent_steps".
      agents: agents that act in a step, for agent_steps; None counts the entries of a nested action, one per agent.
      new_obs: store the next observations, too. That doubles the bytes of observations, because at the end of an episode they are other rows.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense.
    """

    _name = "fragments"
    _reads = (OBSERVATION, ACTION, REWARD, *END_FLAGS)

    length: int = 200
    batch_mode: str = TRUNCATE
    count_steps_by: str = ENV_STEPS
    agents: int | None = None
    new_obs: bool = True
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle(length=self.length, agents=1 if self.agents is None else self.agents)
        choice("fragments", "batch_mode", self.batch_mode, (TRUNCATE, COMPLETE))
        choice("fragments", "count_steps_by", self.count_steps_by, (ENV_STEPS, AGENT_STEPS))
        check_flags("fragments", new_obs=self.new_obs)
        if self.agents is not None and self.count_steps_by == ENV_STEPS:
            raise ViewError(f"fragments: agents {self.agents}: expected with count_steps_by=agent_steps only")

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """{obs, new_obs, actions, rewards, terminateds bool, truncateds bool, t int64, eps_id int64}, all [steps, ...].

        `t` counts the steps of an episode, from its metadata `t` on if it has one, else from 0; `eps_id` is a hash of the episode's id. float64 becomes float32, as in RLlib.
        """
        steps = need("fragments", step_spec, OBSERVATION, ACTION, REWARD)
        action = steps[ACTION]
        length = self.steps(_agents(flatten({ACTION: action}))) if self.batch_mode == TRUNCATE else None
        derived = {name: ArraySpec((), dtype) for name, dtype in _MADE.items()}
        named = {
            OBS: steps[OBSERVATION],
            NEW_OBS: steps[OBSERVATION],
            ACTIONS: action,
            REWARDS: steps[REWARD],
            **derived,
        }
        if not self.new_obs:
            del named[NEW_OBS]
        items = self._with_extras(named, steps, metadata_spec)
        return map_leaves(lambda leaf: float32_spec(leaf).with_leading(length), items)

    def steps(self, agents: int) -> int:
        """Env steps that reach `length` when the action has `agents` entries."""
        if self.count_steps_by == ENV_STEPS:
            return self.length
        return -(-self.length // (agents if self.agents is None else self.agents))

    def cut(self, episode: Episode) -> Cut:
        """What the first episode of a stream gives."""
        return self.stream().cut(episode)[0]

    def stream(self) -> EpisodeStream:
        return _Stream(self)


@dataclass(frozen=True, eq=False)
class _Stream:
    view: Fragments
    waiting: tuple[Mapping[str, Array], ...] = ()  # those steps, one part per episode
    left_over: int = 0  # the number of those steps

    def cut(self, episode: Episode) -> tuple[Cut, _Stream]:
        before, taken = self.left_over, self._taken(episode)
        count, length = before + transition_count(episode), self.view.steps(_agents(episode.columns))
        if self.view.batch_mode == COMPLETE:
            length = count if count >= length else count + 1
        used = count // length * length
        rows = taken
        if used:
            parts = [part for part in self.waiting if len(next(iter(part.values())))]
            for part in parts:
                continued("fragments", {path: column[:0] for path, column in part.items()}, taken)  # the same columns
            rows = {path: np.concatenate([*(part[path] for part in parts), column]) for path, column in taken.items()}
        unread = {path: column[used:] for path, column in rows.items()}
        stream = _Stream(self.view, (unread,) if used else (*self.waiting, unread), count - used)
        anchors = np.arange(0, used, length, dtype=np.int64)
        rows = {path: column[:used] for path, column in rows.items()}
        windows = (Window(0, length),) * len(rows)
        return Cut.of_columns(
            rows, windows, anchors, np.full(len(anchors), self.view.priority, np.float64), before
        ), stream

    def _taken(self, episode: Episode) -> dict[str, Array]:
        count = transition_count(episode)
        terminated, truncated = end_flags(episode)
        derived = {
            "terminateds": terminated,
            "truncateds": truncated,
            "t": first_t(episode) + np.arange(len(episode), dtype=np.int64),
            "eps_id": np.full(len(episode), episode_number(episode), np.int64),
        }
        recorded = {
            new: episode.columns[path]
            for name, field in ((OBS, OBSERVATION), (ACTIONS, ACTION), (REWARDS, REWARD))
            for new, path in under(episode.columns, field, name).items()
        }
        further = self.view._extras_rows(episode)
        rows = {path: column[:count] for path, column in {**recorded, **derived, **further}.items()}
        if self.view.new_obs:
            later = under(episode.columns, OBSERVATION, NEW_OBS)
            rows |= {new: episode.columns[path][1 : count + 1] for new, path in later.items()}
        return {path: as_float32(column) for path, column in rows.items()}


def _agents(columns: Iterable[str]) -> int:
    """Entries of the action, one per agent; 1 for an action that is not nested."""
    return len({path.split("/")[1] for path in columns if path.startswith(f"{ACTION}/")}) or 1
