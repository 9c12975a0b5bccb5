"""A server config for one dataset, to start from and to change."""

from __future__ import annotations

import yaml

from replay_server.signatures import to_plain
from rlds2reverb.specs import Nest

_HEAD = """\
# A replay server for {items:,} items of {source}, for a push as below.
#   rlds2reverb serve --config THIS_FILE
#   rlds2reverb push {source} --server localhost:8000 --table {table} {view}
"""


def config_text(source: str, view: str, table: str, items: int, signature: Nest) -> str:
    """YAML that the server starts from unchanged.

    Args:
      source: as for `rlds2reverb push`.
      view: the option that names the view there, such as "--view two_step".
      table: its name.
      items: how many the table must hold.
      signature: of the view's items.
    """
    document = {
        "tables": [
            {
                "name": table,
                "sampler": "uniform",
                "remover": "fifo",
                "max_size": max(1, items),
                "rate_limiter": {"kind": "min_size", "min_size": 1},
                "signature": to_plain(signature),
            }
        ],
        "checkpoints": {"folder": "checkpoints"},
    }
    head = _HEAD.format(items=items, source=" ".join(source.split()), view=view, table=table)
    return head + yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None, allow_unicode=True)
