"""Rollout fragments as RLlib's workers sample them: one item a fragment, over a stream of episodes.

Of two episodes of three transitions each, a0 a1 a2 and b0 b1 b2:

| batch_mode | length | items |
| --- | --- | --- |
| truncate_episodes | 2 | a0 a1, a2 b0, b1 b2 |
| truncate_episodes | 4 | a0 a1 a2 b0; b1 b2 wait for the next episode |
| complete_episodes | 2 | a0 a1 a2, b0 b1 b2 |
| complete_episodes | 4 | a0 a1 a2 b0 b1 b2 |

A fragment of `truncate_episodes` has exactly `length` steps, may span episodes and may start and end inside one; one of `complete_episodes`
has whole episodes, as many as it takes to reach `length`. Counted in agent steps, a step of n agents counts n times.
Source: RLlib, "Sample Collections and Trajectory Views" (rollout_fragment_length, batch_mode, count_steps_by), and
SimpleListCollector: in agent steps a fragment may be up to n - 1 longer.

>>> import numpy as np
>>> from rlds2reverb.episodes import Episode
>>> flags = dict(is_first=np.arange(4) == 0, is_last=np.arange(4) == 3, is_terminal=np.zeros(4, bool))
>>> steps = dict(observation=np.arange(4), action=np.arange(4), reward=np.ones(4, np.float32), **flags)
>>> cut = Fragments(length=2).stream()
>>> [cut(Episode(steps, {}, name)).anchors.tolist() for name in "ab"], cut.left_over
([[0], [0, 2]], 0)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves
from rlds2reverb.views.base import Cut, StreamCutter, Window, check_flags, check_options
from rlds2reverb.views.steps import (
    as_float32,
    choice,
    continued,
    end_flags,
    float32_spec,
    need,
    priorities,
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
class Fragments:
    """One item a fragment; its columns have RLlib's names, one row a step taken.

    Attributes:
      length: `rollout_fragment_length`, in the unit of `count_steps_by`.
      batch_mode: "truncate_episodes" or "complete_episodes".
      count_steps_by: "env_steps" or "agent_steps".
      agents: how many act in a step, for agent_steps; None takes the entries of a nested action, one an agent.
      new_obs: store the next observations, too. They double the observations: at the end of an episode they are other rows.
      priority: of every item.

    Raises:
      ViewError: an option that makes no sense.
    """

    length: int = 200
    batch_mode: str = TRUNCATE
    count_steps_by: str = ENV_STEPS
    agents: int | None = None
    new_obs: bool = True
    priority: float = 1.0

    def __post_init__(self) -> None:
        check_options("fragments", self.priority, length=self.length, agents=1 if self.agents is None else self.agents)
        choice("fragments", "batch_mode", self.batch_mode, (TRUNCATE, COMPLETE))
        choice("fragments", "count_steps_by", self.count_steps_by, (ENV_STEPS, AGENT_STEPS))
        check_flags("fragments", new_obs=self.new_obs)
        if self.agents is not None and self.count_steps_by == ENV_STEPS:
            raise ViewError(f"fragments: agents {self.agents}: expected with count_steps_by=agent_steps only")

    @property
    def label(self) -> str:
        """Name and options."""
        counted = f"count_steps_by={self.count_steps_by},agents={self.agents}"
        return f"fragments:length={self.length},batch_mode={self.batch_mode},{counted},new_obs={self.new_obs}"

    def signature(self, step_spec: Nest) -> Nest:
        """{obs, new_obs, actions, rewards, terminateds bool, truncateds bool, t int64, eps_id int64}, all [steps, ...].

        `t` counts the steps of an episode, `eps_id` is a hash of the episode's name. float64 becomes float32, as in RLlib.
        """
        steps = need("fragments", step_spec, OBSERVATION, ACTION, REWARD)
        action = steps[ACTION]
        length = self.steps(_agents(flatten({ACTION: action}))) if self.batch_mode == TRUNCATE else None
        made = {name: ArraySpec((), dtype) for name, dtype in _MADE.items()}
        named = {OBS: steps[OBSERVATION], NEW_OBS: steps[OBSERVATION], ACTIONS: action, REWARDS: steps[REWARD], **made}
        if not self.new_obs:
            del named[NEW_OBS]
        return {
            name: map_leaves(lambda leaf: float32_spec(leaf).with_leading(length), spec) for name, spec in named.items()
        }

    def steps(self, agents: int) -> int:
        """Env steps that reach `length`, where the action has so many entries."""
        if self.count_steps_by == ENV_STEPS:
            return self.length
        return -(-self.length // (agents if self.agents is None else self.agents))

    def cut(self, episode: Episode) -> Cut:
        """What the first episode of a stream gives."""
        return self.stream()(episode)

    def stream(self) -> StreamCutter:
        """Cuts the episodes of one stream, in their order."""
        return _Stream(self)


class _Stream:
    """The steps that are in no fragment yet."""

    def __init__(self, view: Fragments) -> None:
        self._view = view
        self._waiting: tuple[dict[str, Array], ...] = ()
        self.left_over = 0
        """Steps in no fragment yet."""

    def __call__(self, episode: Episode) -> Cut:
        before, taken = self.left_over, self._taken(episode)
        count, length = before + transition_count(episode), self._view.steps(_agents(episode.steps))
        if self._view.batch_mode == COMPLETE:
            length = count if count >= length else count + 1
        used = count // length * length
        rows = self._joined(taken) if used else taken
        rest = {path: column[used:] for path, column in rows.items()}
        self._waiting = (rest,) if used else (*self._waiting, rest)
        self.left_over = count - used
        anchors = np.arange(0, used, length, dtype=np.int64)
        rows = {path: column[:used] for path, column in rows.items()}
        return Cut.of_columns(
            rows, (Window(0, length),) * len(rows), anchors, priorities(len(anchors), self._view.priority), before
        )

    def _joined(self, taken: dict[str, Array]) -> dict[str, Array]:
        """All steps that wait, and those that come."""
        parts = [part for part in self._waiting if len(next(iter(part.values())))]
        for part in parts:
            continued("fragments", {path: column[:0] for path, column in part.items()}, taken)  # the same columns
        return {path: np.concatenate([*(part[path] for part in parts), column]) for path, column in taken.items()}

    def _taken(self, episode: Episode) -> dict[str, Array]:
        """One row a step taken."""
        count = transition_count(episode)
        terminated, truncated = end_flags(episode)
        made = {
            "terminateds": terminated,
            "truncateds": truncated,
            "t": np.arange(len(episode), dtype=np.int64),
            "eps_id": np.full(len(episode), _episode_number(episode), np.int64),
        }
        recorded = {
            new: episode.steps[path]
            for name, field in ((OBS, OBSERVATION), (ACTIONS, ACTION), (REWARDS, REWARD))
            for new, path in under(episode.steps, field, name).items()
        }
        rows = {path: column[:count] for path, column in {**recorded, **made}.items()}
        if self._view.new_obs:
            later = under(episode.steps, OBSERVATION, NEW_OBS)
            rows |= {new: episode.steps[path][1 : count + 1] for new, path in later.items()}
        return {path: as_float32(column) for path, column in rows.items()}


def _agents(columns: Iterable[str]) -> int:
    """Entries of the action; 1 of an action that is not nested."""
    return len({path.split("/")[1] for path in columns if path.startswith(f"{ACTION}/")}) or 1


def _episode_number(episode: Episode) -> int:
    """63 bits that depend on the episode's name."""
    return int.from_bytes(hashlib.blake2b(episode.id.encode(), digest_size=8).digest(), "little") >> 1
