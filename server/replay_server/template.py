"""A server config for one dataset, to start from and to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from replay_server.signatures import to_plain
from rlds2reverb.specs import Nest

_HEAD = """\
# A replay server for {items} items of {part}{source}, for a push as below.
#   rlds2reverb serve --config THIS_FILE
#   rlds2reverb push {source} --server localhost:8000 {arguments}
"""


@dataclass(frozen=True)
class Wanted:
    """A table to write into a config.

    Attributes:
      items: how many it must hold.
      signature: theirs.
      by_priority: they have priorities of their own, to sample by.
    """

    items: int
    signature: Nest
    by_priority: bool = False


def config_text(source: str, arguments: str, tables: Mapping[str, Wanted], episodes: int | None = None) -> str:
    """YAML that the server starts from unchanged.

    Args:
      source: as for `rlds2reverb push`.
      arguments: the options that name tables and views there, such as "--table replay --view two_step".
      tables: name -> what it must hold.
      episodes: how many at the start of the source were looked at, or None for all.
    """
    document = {
        "tables": [_table(name, wanted) for name, wanted in tables.items()],
        "checkpoints": {"folder": "checkpoints"},
    }
    counts = " and ".join(f"{wanted.items:,}" for wanted in tables.values())
    part = "" if episodes is None else f"the first {episodes:,} episodes of "
    head = _HEAD.format(items=counts, part=part, source=" ".join(source.split()), arguments=arguments)
    return head + yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None, allow_unicode=True)


def _table(name: str, wanted: Wanted) -> dict[str, Any]:
    return {
        "name": name,
        "sampler": {"kind": "prioritized", "exponent": 1.0} if wanted.by_priority else "uniform",
        "remover": "fifo",
        "max_size": max(1, wanted.items),
        "rate_limiter": {"kind": "min_size", "min_size": 1},
        "signature": to_plain(wanted.signature),
    }
