"""Records of one width as numpy arrays: constant bytes and columns side by side, then one `bytes` per record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2reverb.episodes import Array


def records(count: int, parts: Sequence[bytes | Array]) -> Array:
    """[count, width] uint8 of parts side by side: `bytes` are the same in every record, arrays are [count, n] uint8."""
    widths = list(map(width_of, parts))
    out = np.empty((count, sum(widths)), np.uint8)
    at = 0
    for part, width in zip(parts, widths):
        out[:, at : at + width] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return out


def width_of(part: bytes | Array) -> int:
    """Bytes that a part takes up in every record."""
    return len(part) if isinstance(part, bytes) else part.shape[1]


def as_bytes(block: Array) -> list[bytes]:
    """[n, width] uint8, C-ordered -> one `bytes` per row; copies once."""
    rows: list[bytes] = block.view(f"V{block.shape[1]}").ravel().tolist()
    return rows
