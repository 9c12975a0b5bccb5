"""RLlib's names of columns, and those of a dataset; how an episode ends.

Sources of the names: rllib/policy/sample_batch.py, rllib/core/columns.py, rllib/offline/offline_prelearner.py (`SCHEMA`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

OBS, NEXT_OBS, ACTIONS, REWARDS, INFOS = "obs", "new_obs", "actions", "rewards", "infos"
TERMINATEDS, TRUNCATEDS, DONES = "terminateds", "truncateds", "dones"
EPS_ID, T, AGENT_ID, AGENT_INDEX, MODULE_ID = "eps_id", "t", "agent_id", "agent_index", "module_id"
NEXT_INFOS = "new_infos"  # ours: the infos of next observations, which whole episodes have

NAMES = (  # columns with a meaning for readers; all others are kept unchanged
    OBS,
    NEXT_OBS,
    ACTIONS,
    REWARDS,
    INFOS,
    TERMINATEDS,
    TRUNCATEDS,
    DONES,
    EPS_ID,
    T,
    AGENT_ID,
    AGENT_INDEX,
    MODULE_ID,
)
IN_ROWS = frozenset({OBS, NEXT_OBS, ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, DONES})
IN_METADATA = frozenset({EPS_ID, AGENT_ID, AGENT_INDEX, MODULE_ID, "type", "count"})


@dataclass(frozen=True)
class Names:
    """RLlib's name -> the dataset's, for those that differ."""

    renamed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, name: str) -> str:
        return self.renamed.get(name, name)

    def standard(self, name: str) -> str:
        """RLlib's name of a column of the dataset; "" if the column has a name of RLlib's but another meaning."""
        known = next((known for known, theirs in self.renamed.items() if theirs == name), name)
        return "" if known == name and name in self.renamed and self.renamed[name] != name else known

    @staticmethod
    def parsed(text: str) -> Names:
        """Reads "obs:o;actions:a"; raises `ValueError` for a name that is not RLlib's, or occurs twice."""
        pairs = [one.partition(":") for one in text.split(";")]
        renamed = {known: theirs for known, _, theirs in pairs}
        odd = [known for known, colon, theirs in pairs if known not in NAMES or not colon or not theirs]
        if odd or len(renamed) < len(pairs) or len(set(renamed.values())) < len(pairs):
            raise ValueError(f"expected NAME:COLUMN;..., each once, where NAME is one of {', '.join(NAMES)}")
        return Names(MappingProxyType(renamed))


UNFINISHED, TERMINATED, TRUNCATED = 0, 1, 2
ENDINGS = (b"unfinished", b"terminated", b"truncated")
