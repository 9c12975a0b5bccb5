"""A server config for one dataset, to start from and to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from replay_server.signatures import to_plain
from rlds2reverb.specs import Nest

_HEAD = """\
# A replay server for {items} items of {source}, for a push as below.
#   rlds2reverb serve --config THIS_FILE
#   rlds2reverb push {source} --server localhost:8000 {arguments}
"""


def config_text(source: str, arguments: str, tables: Mapping[str, tuple[int, Nest]]) -> str:
    """YAML that the server starts from unchanged.

    Args:
      source: as for `rlds2reverb push`.
      arguments: the options that name tables and views there, such as "--table replay --view two_step".
      tables: name -> how many items it must hold, and their signature.
    """
    document = {
        "tables": [_table(name, items, signature) for name, (items, signature) in tables.items()],
        "checkpoints": {"folder": "checkpoints"},
    }
    counts = " and ".join(f"{items:,}" for items, _ in tables.values())
    head = _HEAD.format(items=counts, source=" ".join(source.split()), arguments=arguments)
    return head + yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None, allow_unicode=True)


def _table(name: str, items: int, signature: Nest) -> dict[str, Any]:
    return {
        "name": name,
        "sampler": "uniform",
        "remover": "fifo",
        "max_size": max(1, items),
        "rate_limiter": {"kind": "min_size", "min_size": 1},
        "signature": to_plain(signature),
    }
