"""Batches that must be there."""

from __future__ import annotations

from typing import Any

from rlds2reverb import Batch
from rlds2reverb.episode import Array


def next_of(made: Any) -> Batch:
    """The next batch of anything that has some left."""
    batch = made.next_batch()
    assert isinstance(batch, Batch)
    return batch


def source_of(batch: Batch) -> Array:
    """[B] which part or server each sample is of."""
    assert batch.info.source is not None
    return batch.info.source
