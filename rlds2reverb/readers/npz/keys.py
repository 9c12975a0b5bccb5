"""Names of arrays in .npz files: RLDS', D4RL's, and those of other libraries' buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlds2reverb.episodes import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    STEP_FIELDS,
    is_under,
)
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

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys of steps that rows of RLDS have nothing for: other flags, and next observations."""
        if not self.is_of_rlds:
            return ()
        following = [key for path, key in self.columns.items() if is_under(path, NEXT_OBSERVATION)]
        return (*(key for kind, key in self.ends.items() if kind != ENDS), *following)


def is_other(key: str) -> bool:
    """Whether an array of this name is neither a column nor says where episodes end."""
    return key not in _ENDINGS and key.partition("/")[0] not in FIELDS


def keys_of(where: str, there: Mapping[str, object]) -> Keys:
    """What the arrays of a file are, by their names.

    Raises:
      SourceError: two are the same column, it has no observations or no actions, or `is_terminal` is the only one of RLDS' flags.
    """
    columns: dict[str, str] = {}
    ends: dict[str, str] = {}
    others = []
    for key in there:
        first, slash, rest = key.partition("/")
        made, path = (ends, _ENDINGS[key]) if key in _ENDINGS else (columns, f"{FIELDS.get(first)}{slash}{rest}")
        if is_other(key):
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
    keys = Keys(columns, ends, tuple(others))
    if IS_TERMINAL in columns and not keys.is_of_rlds:
        raise SourceError(
            f"{where}: {columns[IS_TERMINAL]} without is_first or is_last: whether it goes with a step or with the state after it is not told. "
            "Call flags of steps terminals; or add is_last, for rows as RLDS has them"
        )
    return keys
