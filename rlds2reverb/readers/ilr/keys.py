"""Which column each key of il-representations' data becomes.

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

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, STEP_FIELDS
from rlds2reverb.metadata import METADATA

OBS, NEXT_OBS, ACTS, REWS, DONES, INFOS, FRAME = "obs", "next_obs", "acts", "rews", "dones", "infos", "frame"
TERMINALS = "terminals"
EXTRAS = "extras"

_COLUMNS = {OBS: OBSERVATION, ACTS: ACTION, REWS: REWARD, INFOS: INFOS}
_TAKEN = (*STEP_FIELDS, METADATA)
NOT_COLUMNS = (DONES, FRAME, TERMINALS)


def column_of(key: str) -> str | None:
    """The column's path; None for a key that is no column of its own."""
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
