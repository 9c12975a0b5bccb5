"""Records of one width as numpy arrays: constant bytes and columns side by side, then one `bytes` for each record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2reverb.episode import Array


def records(count: int, parts: Sequence[bytes | Array]) -> Array:
    """[count, width] of parts side by side: `bytes` are the same in every record, arrays are [count, n], all of one dtype."""
    widths = list(map(width_of, parts))
    dtype = next((part.dtype for part in parts if not isinstance(part, bytes)), np.dtype(np.uint8))
    out = np.empty((count, sum(widths)), dtype)
    at = 0
    for part, width in zip(parts, widths):
        out[:, at : at + width] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return out


def width_of(part: bytes | Array) -> int:
    """Bytes of a part in every record."""
    return len(part) if isinstance(part, bytes) else part.shape[1]


def as_bytes(block: Array) -> list[bytes]:
    """[n, width] uint8, C-ordered -> one `bytes` per row; copies once."""
    # Void, not numpy's byte strings: those lose zeros at their end. `tolist` makes all objects in one call.
    rows: list[bytes] = block.view(f"V{block.shape[1]}").ravel().tolist()
    return rows
