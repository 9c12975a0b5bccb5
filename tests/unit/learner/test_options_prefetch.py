"""What is asked for at a time, where nobody says it: much of little items, little of what would be lost or come too late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.wire.messages import RateLimiter, TableInfo

FLOATS, PIXELS, WORDS = np.dtype(np.float32), np.dtype(np.uint8), np.dtype(object)
SMALL: Nest = {"observation": ArraySpec((2, 17), FLOATS), "reward": ArraySpec((2,), FLOATS)}
LIMITER = RateLimiter(1.0, -1e9, 1e9, 1, 0, 0)
TABLE = TableInfo("replay", "uniform", "fifo", 100, 0, 0, LIMITER, SMALL, 0, 0, 0)


@pytest.mark.parametrize(
    ("batch_size", "signature", "expected"),
    [
        (1, SMALL, 16),
        (256, SMALL, 8),
        (256, {"image": ArraySpec((2, 84, 84, 4), PIXELS)}, 4),
        (16, {"episode": ArraySpec((None, 17), FLOATS)}, 16),
        (24, {"few": ArraySpec((2, 17), FLOATS)}, 10),
        (32, {"few": ArraySpec((2, 17), FLOATS)}, 8),
        (16, {"episode": ArraySpec((None, 84, 84, 4), PIXELS)}, 4),
        (256, {"words": ArraySpec((2,), WORDS)}, 8),
        (4_096, {"words": ArraySpec((2,), WORDS)}, 4),
        (1_000, {"six": ArraySpec((1_370,), FLOATS)}, 6),
        (10**9, {"nothing": ArraySpec((0,), FLOATS)}, 8),
        (256, None, 4),
    ],
)
def test_large_batches_are_fewer(batch_size: int, signature: Nest | None, expected: int) -> None:
    assert SampleOptions(batch_size).choose_prefetch(replace(TABLE, signature=signature)) == expected


@pytest.mark.parametrize("sampler", ["prioritized(0.8)", "max_heap", "min_heap", "fifo", "lifo"])
def test_where_order_or_priority_counts_there_are_few(sampler: str) -> None:
    assert SampleOptions(256).choose_prefetch(replace(TABLE, sampler=sampler)) == 4


def test_of_items_that_leave_with_their_samples_there_is_one() -> None:
    assert SampleOptions(256).choose_prefetch(replace(TABLE, max_times_sampled=1)) == 1


def test_what_is_said_counts() -> None:
    assert SampleOptions(256, prefetch=3).choose_prefetch(replace(TABLE, max_times_sampled=1)) == 3
