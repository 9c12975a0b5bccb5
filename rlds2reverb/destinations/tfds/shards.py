"""How many files a dataset is cut into, and where: the rule of TFDS.

Source: core/utils/shard_utils.py of TFDS 4.9.10.
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST_BYTES, MOST_BYTES = 64 << 20, 1 << 30
_FRAME_BYTES = 16
_MANY = 1024
_FEW = (512, 256, 128, 64, 32, 16, 8, 4, 2)


def shard_count(total_bytes: int, episodes: int) -> int:
    """How many files TFDS would write: 1, a power of two up to 1024, or a multiple of that; each of 64 MiB to 1 GiB.

    Args:
      total_bytes: of all records, without their frames.
      episodes: how many there are; no file is without one.
    """
    total = total_bytes + episodes * _FRAME_BYTES
    least, most = total // MOST_BYTES, total // LEAST_BYTES
    if least <= _MANY <= most and episodes >= _MANY:
        return _MANY
    if least > _MANY:
        return _MANY * max(1, min(-(-least // _MANY), episodes // _MANY))
    return next((count for count in _FEW if least <= count <= most and episodes >= count), 1)


def shards_of_at_most(most_bytes: int, total_bytes: int, episodes: int) -> int:
    """How many files of about so many bytes, none without an episode."""
    return max(1, min(-(-(total_bytes + episodes * _FRAME_BYTES) // most_bytes), episodes))


def bounds(episodes: int, shards: int) -> Sequence[int]:
    """[shards + 1] the first episode of every file, and behind the last; halves are rounded to even numbers."""
    return [round(episodes * shard / shards) for shard in range(shards + 1)]
