"""Rate limiters as plain values: what a table's inserts and samples wait for.

Reverb lets an insert pass while (inserts + 1) * samples_per_insert - samples <= max_diff, and a sample while the table
holds min_size_to_sample items and inserts * samples_per_insert - samples - 1 >= min_diff; see rlds2reverb.wire.limiter.
Source of the four kinds and their bounds: rate_limiters.py of dm-reverb 0.14.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

from msgspec import Meta, Struct

MOST = 2**31 - 1
"""Largest number of items, or of samples of one, that a table can be given: an int of C++."""

_UNBOUNDED = sys.float_info.max


class Bounds(Struct, frozen=True):
    """The four numbers that Reverb makes of any rate limiter."""

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float

    @property
    def centre(self) -> float:
        """Where a new table's difference is best: halfway between the two bounds."""
        return (self.min_diff + self.max_diff) / 2 if self.min_diff > -_UNBOUNDED else 0.0


class _Kind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Base of all kinds; `kind` names one in YAML."""


class MinSize(_Kind, frozen=True, tag="min_size"):
    """Samples wait until the table holds `min_size` items; inserts never wait."""

    min_size: int = 1

    def bounds(self) -> Bounds:
        """As Reverb has them."""
        return Bounds(1.0, self.min_size, -_UNBOUNDED, _UNBOUNDED)


class SampleToInsertRatio(_Kind, frozen=True, tag="sample_to_insert_ratio"):
    """Keeps `samples_per_insert` samples an insert, within `error_buffer` samples, once there are `min_size` items."""

    samples_per_insert: float
    error_buffer: float
    min_size: int = 1

    def bounds(self) -> Bounds:
        """As Reverb has them."""
        centre = self.samples_per_insert * self.min_size
        return Bounds(self.samples_per_insert, self.min_size, centre - self.error_buffer, centre + self.error_buffer)


class Queue(_Kind, frozen=True, tag="queue"):
    """First in, first out; each item is sampled once, and inserts wait while `size` items wait."""

    size: Annotated[int, Meta(le=MOST)]

    def bounds(self) -> Bounds:
        """As Reverb has them."""
        return Bounds(1.0, 1, 0.0, float(self.size))


class Stack(_Kind, frozen=True, tag="stack"):
    """Last in, first out; each item is sampled once, and inserts wait while `size` items wait."""

    size: Annotated[int, Meta(le=MOST)]

    def bounds(self) -> Bounds:
        """As Reverb has them."""
        return Bounds(1.0, 1, 0.0, float(self.size))


Settled = MinSize | SampleToInsertRatio | Queue | Stack


class Prefill(_Kind, frozen=True, tag="prefill"):
    """MinSize(`items`) while a bulk push fills the table; `then`, from the first start that finds `items` items in it.

    Nobody samples before the table is full, and the push never waits for a sample. Reverb cannot change the limiter of a
    running table, so the change comes with a restart; see docs/runbook.md.
    """

    items: int
    then: MinSize | SampleToInsertRatio

    def bounds(self) -> Bounds:
        """Those while it fills."""
        return MinSize(min_size=self.items).bounds()


RateLimiter = Settled | Prefill


def reverb_limiter(limiter: RateLimiter) -> Any:
    """The `reverb.rate_limiters.RateLimiter`; of a prefill the one while it fills.

    Raises:
      ValueError: Reverb refuses the numbers.
    """
    from reverb import rate_limiters

    if isinstance(limiter, Queue):
        return rate_limiters.Queue(limiter.size)
    if isinstance(limiter, Stack):
        return rate_limiters.Stack(limiter.size)
    if isinstance(limiter, SampleToInsertRatio):
        return rate_limiters.SampleToInsertRatio(limiter.samples_per_insert, limiter.min_size, limiter.error_buffer)
    return rate_limiters.MinSize(limiter.items if isinstance(limiter, Prefill) else limiter.min_size)
