"""What RLlib calls its columns, and what a dataset may call them instead.

Sources: rllib/policy/sample_batch.py, rllib/core/columns.py, rllib/offline/offline_prelearner.py (`SCHEMA`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

OBS, NEXT_OBS, ACTIONS, REWARDS, INFOS = "obs", "new_obs", "actions", "rewards", "infos"
TERMINATEDS, TRUNCATEDS, DONES = "terminateds", "truncateds", "dones"
EPS_ID, T, AGENT_ID, AGENT_INDEX, MODULE_ID = "eps_id", "t", "agent_id", "agent_index", "module_id"
NEXT_INFOS = "new_infos"
"""Ours: the infos of next observations, which whole episodes have."""

NAMES = (
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
"""Columns that mean something here; all others are kept as they are."""
IN_ROWS = frozenset({OBS, NEXT_OBS, ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, DONES})
IN_METADATA = frozenset({EPS_ID, AGENT_ID, AGENT_INDEX, MODULE_ID, "type", "count"})


@dataclass(frozen=True)
class Names:
    """RLlib's name -> the dataset's, for those that differ."""

    renamed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, name: str) -> str:
        """What the dataset calls it."""
        return self.renamed.get(name, name)

    def standard(self, name: str) -> str:
        """What RLlib calls a column of the dataset; "" for one that has a name of RLlib's and is not that column."""
        known = next((known for known, theirs in self.renamed.items() if theirs == name), name)
        return "" if known == name and name in self.renamed and self.renamed[name] != name else known

    @staticmethod
    def parsed(text: str) -> Names:
        """Reads "obs:o;actions:a".

        Raises:
          ValueError: a name is none of RLlib's, or stands there twice.
        """
        pairs = [one.partition(":") for one in text.split(";")]
        renamed = {known: theirs for known, _, theirs in pairs}
        odd = [known for known, colon, theirs in pairs if known not in NAMES or not colon or not theirs]
        if odd or len(renamed) < len(pairs) or len(set(renamed.values())) < len(pairs):
            raise ValueError(f"expected NAME:COLUMN;..., each once, where NAME is one of {', '.join(NAMES)}")
        return Names(MappingProxyType(renamed))
