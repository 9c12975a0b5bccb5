"""What samplers of one server and of several, sources from disk, and mixes of them have in common: they give batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypeVar

from rlds2reverb.learner.batch import Batch, unbatched
from rlds2reverb.specs import Nest

_Own = TypeVar("_Own", bound="BatchIterator")


class BatchIterator(Iterator[Batch], ABC):
    """Iterates batches until they end, or until it is closed. Close it, or use it as a context manager."""

    @abstractmethod
    def next_batch(self) -> Batch | None:
        """The next batch; None at the end. Iterating raises what this does."""

    @abstractmethod
    def stop(self) -> None:
        """Begins no more samples. What was asked for ahead still comes, where anything is."""

    @abstractmethod
    def close(self) -> None:
        """Ends it at once."""

    def __iter__(self: _Own) -> _Own:
        """Batches, one after the other; see `next_batch`."""
        return self

    def __next__(self) -> Batch:
        """The next batch; see `next_batch`."""
        if (batch := self.next_batch()) is None:
            raise StopIteration
        return batch

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def only_sample(batches: BatchIterator, structure: Nest | None) -> Batch:
    """The only sample that there is, without the axis of a batch. Closes what gave it. Raises as `next_batch` does.

    Args:
      batches: gives one batch of one sample.
      structure: nest of what its columns are called.
    """
    with batches:
        (batch,) = batches
    return unbatched(batch, structure)
