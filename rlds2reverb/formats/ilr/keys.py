"""Which column each key of il-representations' data becomes, the options of reading, and the notices of a pass.

| key | column |
| --- | --- |
| `obs`, `obs_X` | `observation`, `observation/X` |
| `next_obs`, `next_obs_X` | the observation of the next row |
| `acts` | `action` |
| `rews` | `reward` |
| `dones` | where trajectories end |
| `terminals` | whether those ends are terminal: a key of this package alone |
| `infos` | `infos` |
| `frame` | none: the number of the step in its file |
| any other | that of its name; `extras/KEY` where the name is one of RLDS' |
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rlds2reverb.episode import ACTION, METADATA, OBSERVATION, REWARD, STEP_FIELDS, Notice, note
from rlds2reverb.formats.rows import REPEAT
from rlds2reverb.text import counted

OBS, NEXT_OBS, ACTS, REWS, DONES, INFOS, FRAME = "obs", "next_obs", "acts", "rews", "dones", "infos", "frame"
TERMINALS = "terminals"
EXTRAS = "extras"

_COLUMNS = {OBS: OBSERVATION, ACTS: ACTION, REWS: REWARD, INFOS: INFOS}
_TAKEN = (*STEP_FIELDS, METADATA)
NOT_COLUMNS = (DONES, FRAME, TERMINALS)


def column_of(key: str) -> str | None:
    """The column's path; None for a key without a column of its own."""
    if key in NOT_COLUMNS or is_next(key):
        return None
    if key.startswith(f"{OBS}_"):
        return f"{OBSERVATION}/{key[len(OBS) + 1 :]}"
    return _COLUMNS.get(key, f"{EXTRAS}/{key}" if key in _TAKEN else key)


def is_next(key: str) -> bool:
    """Whether it is an observation after the step."""
    return key == NEXT_OBS or key.startswith(f"{NEXT_OBS}_")


def next_of(key: str) -> str:
    """`obs` -> `next_obs`, `obs_ego` -> `next_obs_ego`."""
    return f"next_{key}"


def is_observation(key: str) -> bool:
    """Whether it is an observation before the step."""
    return key == OBS or key.startswith(f"{OBS}_")


TERMINAL, TRUNCATION = "terminal", "truncation"
DONE_MEANS = (TERMINAL, TRUNCATION)
KEEP, SPLIT, REFUSE = "keep", "split", "refuse"
GAPS = (KEEP, SPLIT, REFUSE)


@dataclass(frozen=True)
class Options:
    """How to read data that can be read in several ways.

    Attributes:
      done_means: whether a step that is done leads to a terminal state; il-representations does not tell that from a time limit.
      last_step: what becomes of the last of as many observations as actions; see `native`.
      gaps: a trajectory in which the observation after a step is not the next step's is kept, cut there, or a
        bad episode.
    """

    done_means: str = TERMINAL
    gaps: str = KEEP
    last_step: str = REPEAT


_STACKED = 8
"""Frames are stacked by fewer."""
_MOST_KEYS = 1_000
"""Keys with a notice of their own."""


@dataclass
class Findings:
    """What one pass found, counted.

    Attributes:
      steps: that were compared with the step after them.
      gaps: in how many of them the next observation is not that of the next step.
      late_gaps: those that are not among the first steps of a trajectory.
      foreign: trajectories whose last observation is the first of the next one.
      ends: trajectories that another one follows.
      repeated: trajectories whose last observation is the one before it.
      unfinished: trajectories without a step that is done.
      metadata: descriptions that are not the first one.
      left_out: key -> in how many steps its value was left out.
    """

    steps: int = 0
    gaps: int = 0
    late_gaps: int = 0
    foreign: int = 0
    ends: int = 0
    repeated: int = 0
    unfinished: int = 0
    metadata: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def gap(self, step: int) -> None:
        """One was found before this step of a trajectory."""
        self.gaps += 1
        self.late_gaps += step >= _STACKED

    def leave_out(self, key: str) -> None:
        """Counts a value of a key that is left out; keys beyond `_MOST_KEYS` are counted together."""
        self.left_out[key if key in self.left_out or len(self.left_out) < _MOST_KEYS else "..."] += 1

    def notices(self, has_rewards: bool, options: Options) -> tuple[Notice, ...]:
        """The notices of the pass."""
        found = [_done_means(options), *self._of_observations(options)]
        if not has_rewards:
            found.append(note("no_rewards", "no rewards are recorded; every reward is filled with 0"))
        if self.unfinished:
            found.append(
                Notice(
                    "no_end",
                    f"{_trajectories(self.unfinished)} without a step that is done: read as truncated",
                    self.unfinished,
                )
            )
        if self.metadata:
            found.append(
                Notice(
                    "other_metadata",
                    "later descriptions differ from the first: the shards are of several tasks",
                    self.metadata,
                )
            )
        for key, count in sorted(self.left_out.items()):
            found.append(
                Notice(
                    "left_out",
                    f'"{key}" is left out: the first step has none, or it is no array, number or text',
                    count,
                )
            )
        return tuple(found)

    def _of_observations(self, options: Options) -> list[Notice]:
        found = []
        if self.gaps:
            where = (
                ""
                if self.late_gaps
                else ", all of them among the first of a trajectory, as where frames are stacked anew"
            )
            done = "as recorded; gaps=split cuts trajectories there, gaps=refuse makes bad episodes of them"
            found.append(
                Notice(
                    "gaps",
                    f"the observation after a step is not that of the next one in {self.gaps:,} of {counted(self.steps, 'step')}"
                    f"{where}: no-ops were removed, or it was recorded otherwise"
                    + (f"; {done}" if options.gaps == KEEP else f"; gaps={options.gaps}"),
                    self.gaps,
                    "observation",
                )
            )
        if self.foreign:
            found.append(
                Notice(
                    "foreign_last_observation",
                    f"the last observation is the first of the next trajectory in {self.foreign:,} of {self.ends:,}, as in Procgen's "
                    'demonstrations; do without it by last_observation="repeat" or "drop"',
                    self.foreign,
                    "observation",
                )
            )
        if self.repeated:
            found.append(
                Notice(
                    "repeated_last_observation",
                    f"the last observation is the one before it in {_trajectories(self.repeated)}: none was recorded behind the last step, "
                    "as in Atari's and Minecraft's demonstrations",
                    self.repeated,
                    "observation",
                )
            )
        return found


def _trajectories(count: int) -> str:
    return "1 trajectory" if count == 1 else f"{count:,} trajectories"


def _done_means(options: Options) -> Notice:
    if options.done_means == TERMINAL:
        return note(
            "done_means",
            "a step that is done is read as terminal, time limits included; done_means=truncation reads none so",
        )
    return note("done_means", "no step is read as terminal (done_means=truncation)")
