"""Names for what a table holds: the same for equal data, wherever it lies and in whatever order it came."""

from __future__ import annotations

import numpy as np
import xxhash

from rlds2reverb.episodes import byte_view
from rlds2reverb.stored.index import Index
from rlds2reverb.stored.snapshot import Snapshot


def fingerprint_of(snapshot: Snapshot, index: Index) -> str:
    """Of a table's items: their keys, and the chunks they read. What a chunk's key names never changes."""
    digest = xxhash.xxh3_128(snapshot.table.encode())
    used = (index.tensors >= 0).any(axis=1)
    for keys in (np.sort(index.keys), snapshot.chunks.keys[used]):
        digest.update(len(keys).to_bytes(8, "little"))
        digest.update(byte_view(keys))
    return f"reverb:{digest.hexdigest()}"
