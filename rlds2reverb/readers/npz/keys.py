"""Names of arrays in .npz files: RLDS', D4RL's, and those of other libraries' buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, IS_FIRST, IS_LAST, OBSERVATION, REWARD, STEP_FIELDS
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import NEXT_OBSERVATION

FIELDS = {
    "observations": OBSERVATION,
    "obs": OBSERVATION,
    OBSERVATION: OBSERVATION,
    "actions": ACTION,
    ACTION: ACTION,
    "rewards": REWARD,
    REWARD: REWARD,
    "discounts": DISCOUNT,
    DISCOUNT: DISCOUNT,
    "next_observations": NEXT_OBSERVATION,
    "next_obs": NEXT_OBSERVATION,
    NEXT_OBSERVATION: NEXT_OBSERVATION,
    **{flag: flag for flag in FLAGS},
}
"""Name of an array, up to its first "/" -> field of a step."""

TERMINALS, TIMEOUTS, ENDS = "terminals", "timeouts", "episode_ends"
_ENDINGS = {
    TERMINALS: TERMINALS,
    "terminations": TERMINALS,
    "terminated": TERMINALS,
    TIMEOUTS: TIMEOUTS,
    "truncations": TIMEOUTS,
    "truncated": TIMEOUTS,
    ENDS: ENDS,
}


@dataclass(frozen=True)
class Keys:
    """What the arrays of a file are.

    Attributes:
      columns: path of a column -> key.
      ends: `TERMINALS`, `TIMEOUTS` or `ENDS` -> key.
      others: keys of other arrays.
    """

    columns: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @property
    def is_of_rlds(self) -> bool:
        """Whether rows are RLDS' own, with flags."""
        return IS_FIRST in self.columns or IS_LAST in self.columns


def keys_of(where: str, there: Mapping[str, object]) -> Keys:
    """What the arrays of a file are, by their names.

    Raises:
      SourceError: two are the same column, or it has no observations or no actions.
    """
    columns: dict[str, str] = {}
    ends: dict[str, str] = {}
    others = []
    for key in there:
        first, slash, rest = key.partition("/")
        made, path = (ends, _ENDINGS[key]) if key in _ENDINGS else (columns, f"{FIELDS.get(first)}{slash}{rest}")
        if key not in _ENDINGS and first not in FIELDS:
            others.append(key)
        elif path in made:
            raise SourceError(f"{where}: {made[path]} and {key} are both {path}; leave one of them out")
        else:
            made[path] = key
    missing = [name for name in (OBSERVATION, ACTION) if not any(path.split("/")[0] == name for path in columns)]
    if missing:
        raise SourceError(
            f"{where}: no {' and no '.join(missing)}; it has: {', '.join(there) or 'nothing'}. Expected names such as {', '.join(STEP_FIELDS[:3])}, or observations, actions, rewards"
        )
    return Keys(columns, ends, tuple(others))
