"""Which column each key of il-representations' data becomes, the options of reading, and the notices of a pass.

| key | column |
| --- | --- |
| `obs`, `obs_X` | `observation`, `observation/X` |
| `next_obs`, `next_obs_X` | the observation of the next row |
| `acts` | `action` |
| `rews` | `reward`; zeros of float32 where there is none |
| `dones` | none: marks the ends of trajectories |
| `terminals` | none: marks terminal ends; only this package writes it |
| `infos` | `infos` |
| `frame` | none: the number of the step in its file |
| any other | the same name; `extras/KEY` if that is one of RLDS' |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    IS_FIRST,
    METADATA,
    OBSERVATION,
    REWARD,
    STEP_FIELDS,
    Array,
    Notice,
    is_under,
    note,
)
from rlds2reverb.formats.rows import REPEAT
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import counted

OBS, NEXT_OBS, ACTS, REWS, DONES, INFOS, FRAME = "obs", "next_obs", "acts", "rews", "dones", "infos", "frame"
TERMINALS = "terminals"
EXTRAS = "extras"

COLUMNS = {OBS: OBSERVATION, ACTS: ACTION, REWS: REWARD, INFOS: INFOS}
_TAKEN = (*STEP_FIELDS, METADATA)
NOT_COLUMNS = (DONES, FRAME, TERMINALS)


def column_of(key: str) -> str | None:
    """The column's path; None for a key without a column of its own."""
    if key in NOT_COLUMNS or is_next(key):
        return None
    if key.startswith(f"{OBS}_"):
        return f"{OBSERVATION}/{key[len(OBS) + 1 :]}"
    return COLUMNS.get(key, f"{EXTRAS}/{key}" if key in _TAKEN else key)


def is_next(key: str) -> bool:
    return key == NEXT_OBS or key.startswith(f"{NEXT_OBS}_")


def next_of(key: str) -> str:
    """`obs` -> `next_obs`, `obs_ego` -> `next_obs_ego`."""
    return f"next_{key}"


def is_observation(key: str) -> bool:
    return key == OBS or key.startswith(f"{OBS}_")


def missing(there: Collection[str]) -> list[str]:
    """The keys that every dataset needs, without those that are there."""
    return [*([] if any(map(is_observation, there)) else [OBS]), *(key for key in (ACTS, DONES) if key not in there)]


_NO_REWARD = ArraySpec((), np.dtype(np.float32))


def has_rewards(specs: Collection[str]) -> bool:
    """Whether there is a reward among these paths."""
    return any(is_under(path, REWARD) for path in specs)


def with_reward(specs: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """The specs of recorded columns, and of the reward that `made_up_reward` adds."""
    return dict(specs) if has_rewards(specs) else {**specs, REWARD: _NO_REWARD}


def made_up_reward(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Path -> [T] zeros, where an episode has no reward; il-representations' benchmarks mostly record none."""
    return {} if has_rewards(columns) else {REWARD: np.zeros(len(columns[IS_FIRST]), _NO_REWARD.dtype)}


TERMINAL, TRUNCATION, BY_INFOS = "terminal", "truncation", "infos"
DONE_MEANS = (TERMINAL, TRUNCATION, BY_INFOS)
_TIME_LIMIT = "TimeLimit.truncated"
"""Key of the infos by which Gym's wrapper TimeLimit says that its limit ended the episode. Source: gym/wrappers/time_limit.py."""


def is_time_limit(infos: Any) -> bool:
    """Whether the infos of a step that is done say that a time limit ended the episode."""
    truncated = infos.get(_TIME_LIMIT) if isinstance(infos, Mapping) else None
    return isinstance(truncated, (bool, np.bool_, int, np.ndarray)) and np.size(truncated) == 1 and bool(truncated)


KEEP, SPLIT, REFUSE = "keep", "split", "refuse"
GAPS = (KEEP, SPLIT, REFUSE)


@dataclass(frozen=True)
class IlrOptions:
    """The options, see `read`; il-representations itself does not separate terminal ends from time limits."""

    done_means: str = TERMINAL
    gaps: str = KEEP
    last_step: str = REPEAT
    without_effect: tuple[str, ...] = ()  # keys of a configuration that change nothing here
    renamed: tuple[tuple[str, str], ...] = ()  # keys of a configuration, and the names that they are read under


_STACKED = 8  # more than the number of frames that are stacked
_MOST_KEYS = 1_000  # keys with a notice of their own


@dataclass
class Findings:
    """Counts of one pass.

    Attributes:
      steps: steps that were compared with the following step.
      gaps: steps among them whose next observation is not that of the following step.
      late_gaps: gaps that are not among the first steps of a trajectory.
      foreign: trajectories whose last observation is the first of the next one.
      ends: trajectories followed by another one.
      repeated: trajectories whose last observation repeats the one before it.
      unfinished: trajectories without a step that is done.
      time_limits: trajectories whose last infos say that a time limit ended them.
      metadata: descriptions that differ from the first.
      left_out: key -> number of values left out.
    """

    steps: int = 0
    gaps: int = 0
    late_gaps: int = 0
    foreign: int = 0
    ends: int = 0
    repeated: int = 0
    unfinished: int = 0
    time_limits: int = 0
    metadata: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def gap(self, step: int) -> None:
        """Counts a gap before this step of a trajectory."""
        self.gaps += 1
        self.late_gaps += step >= _STACKED

    def leave_out(self, key: str) -> None:
        """Counts a value that is left out; keys beyond `_MOST_KEYS` are counted together."""
        self.left_out[key if key in self.left_out or len(self.left_out) < _MOST_KEYS else "..."] += 1

    def notices(self, has_rewards: bool, options: IlrOptions) -> Iterator[Notice]:
        if options.done_means == TERMINAL:
            text = "a step that is done is read as terminal, time limits included; done_means=truncation reads none so"
            if self.time_limits:
                text += f", done_means=infos all but {counted(self.time_limits, 'trajectory')} whose infos say {_TIME_LIMIT}"
            yield note("done_means", text)
        elif options.done_means == BY_INFOS:
            text = f"a step that is done is read as terminal, but for {self.time_limits:,} whose infos say {_TIME_LIMIT} (done_means=infos)"
            yield note("done_means", text)
        else:
            yield note("done_means", "no step is read as terminal (done_means=truncation)")
        if options.without_effect:
            text = f"{', '.join(options.without_effect)}: known to il-representations, but chooses no shards; they hold what was recorded"
            yield note("without_effect", text, len(options.without_effect))
        for key, name in options.renamed:
            yield note("renamed_key", f"{key} is read as {name}; il-representations' own code ignores {key}")
        if self.gaps:
            stacked = ", all of them among the first of a trajectory, as where frames are stacked anew"
            recorded = "as recorded; gaps=split cuts trajectories there, gaps=refuse makes bad episodes of them"
            text = (
                f"the observation after a step is not that of the next one in {self.gaps:,} of {counted(self.steps, 'step')}"
                f"{'' if self.late_gaps else stacked}: no-ops were removed, or it was recorded otherwise; "
                f"{recorded if options.gaps == KEEP else f'gaps={options.gaps}'}"
            )
            yield Notice("gaps", text, self.gaps, OBSERVATION)
        if self.foreign:
            text = (
                f"the last observation is the first of the next trajectory in {self.foreign:,} of {self.ends:,}, as in Procgen's "
                'demonstrations; do without it by last_observation="repeat" or "drop" (--last-observation)'
            )
            yield Notice("foreign_last_observation", text, self.foreign, OBSERVATION)
        if self.repeated:
            text = (
                f"the last observation is the one before it in {counted(self.repeated, 'trajectory')}: none was recorded behind the last step, "
                "as in Atari's and Minecraft's demonstrations"
            )
            yield Notice("repeated_last_observation", text, self.repeated, OBSERVATION)
        if not has_rewards:
            yield note("no_rewards", "no rewards are recorded; every reward is filled with 0")
        if self.unfinished:
            text = f"{counted(self.unfinished, 'trajectory')} without a step that is done: read as truncated"
            yield Notice("no_end", text, self.unfinished)
        if self.metadata:
            text = "later descriptions differ from the first: the shards are of more than one task"
            yield Notice("other_metadata", text, self.metadata)
        for key, count in sorted(self.left_out.items()):
            text = f'"{key}" is left out: the first step has none, or it is no array, number or text'
            yield Notice("left_out", text, count)
