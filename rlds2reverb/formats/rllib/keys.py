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
    OBS, NEXT_OBS, ACTIONS, REWARDS, INFOS, TERMINATEDS, TRUNCATEDS, DONES, EPS_ID, T, AGENT_ID, AGENT_INDEX, MODULE_ID
)  # fmt: skip
IN_ROWS = frozenset({OBS, NEXT_OBS, ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, DONES})
IN_METADATA = frozenset({EPS_ID, AGENT_ID, AGENT_INDEX, MODULE_ID, "type", "count"})


@dataclass(frozen=True)
class ColumnNames:
    """The dataset's own names of columns: RLlib's name -> the dataset's, where they differ."""

    renamed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, name: str) -> str:
        return self.renamed.get(name, name)

    def standard(self, name: str) -> str:
        """RLlib's name of a column of the dataset; "" if the column has a name of RLlib's but another meaning."""
        standard = next((ours for ours, theirs in self.renamed.items() if theirs == name), name)
        return "" if standard == name and name in self.renamed and self.renamed[name] != name else standard

    @staticmethod
    def parse(text: str) -> ColumnNames:
        """Reads "obs:o;actions:a"; raises `ValueError` for a name that is not RLlib's, or occurs twice."""
        pairs = [pair.partition(":") for pair in text.split(";")]
        renamed = {name: theirs for name, _, theirs in pairs}
        odd = [name for name, colon, theirs in pairs if name not in NAMES or not colon or not theirs]
        if odd or len(renamed) < len(pairs) or len(set(renamed.values())) < len(pairs):
            raise ValueError(f"expected NAME:COLUMN;..., each once, where NAME is one of {', '.join(NAMES)}")
        return ColumnNames(MappingProxyType(renamed))


UNFINISHED, TERMINATED, TRUNCATED = 0, 1, 2
ENDINGS = (b"unfinished", b"terminated", b"truncated")
