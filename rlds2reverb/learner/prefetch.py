"""How many batches are under way where nobody says it."""

from __future__ import annotations

import math

from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.wire.messages import TableInfo

FEWEST, MOST = 4, 8
"""The server's answers are larger, and come with less waiting, the more it is asked for at a time."""

ONCE = 1
"""Of tables whose items leave with their samples: what was taken and not read is gone for good."""

_MOST_BYTES = 32 << 20
"""Of all batches beyond `FEWEST`, by what the table's signature says."""

_FREE_SIZE = 1_000
"""Steps of an episode, and bytes of a text, where the signature leaves them open."""


def default_prefetch(table: TableInfo, batch_size: int) -> int:
    """Batches of so many samples: more where items are small, and drawn whatever their priorities have become meanwhile."""
    if table.max_times_sampled > 0:
        return ONCE
    leaves = [] if table.signature is None else list(flatten(table.signature).values())
    if table.sampler != "uniform" or not leaves or not all(isinstance(leaf, ArraySpec) for leaf in leaves):
        return FEWEST
    batch_bytes = max(1, batch_size * sum(map(_item_bytes, leaves)))
    return min(MOST, max(FEWEST, _MOST_BYTES // batch_bytes))


def _item_bytes(leaf: ArraySpec) -> int:
    sizes = [_FREE_SIZE if size is None else size for size in leaf.shape]
    return math.prod(sizes) * (_FREE_SIZE if leaf.dtype.kind == "O" else leaf.dtype.itemsize)
