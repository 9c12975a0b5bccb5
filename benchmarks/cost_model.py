"""What replay costs, as a model: linear in servers, items, samples and their bytes; fitted to measured points, checked against others.

Pure: points come in, coefficients, predictions and costs go out. All times are seconds, of processors where they are named so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Point:
    """One measured life of some servers. Everything is the sum over them, but wall times, which are those of the slowest.

    Attributes:
      content: what was stored.
      servers, episodes, items, steps: how many there were; steps as the source has them.
      step_bytes: of a step, as items have it.
      chunk_steps: steps of a chunk.
      empty_bytes: resident memory of the servers, but for pages of files, before anything was stored.
      memory_bytes, restored_bytes: growth beyond that, of the filled servers and of those that were restored.
      sent_bytes: of the push, as the pusher counts them.
      push_seconds, sample_seconds: wall time.
      pusher_processor, insert_processor: of the pusher, and of the servers meanwhile and until they were quiet.
      warm_samples, samples: sampled items, before the clock started and after.
      received_bytes: of the messages that `samples` came in; 0 where they were not counted.
      learner_processor, serve_processor: of the sampling process, and of the servers meanwhile.
      checkpoint_seconds, checkpoint_processor, checkpoint_bytes: of one checkpoint of each server, all at once.
      saving_bytes: what the servers' memory grew by, at most, while two checkpoints were written one after the other.
      restore_seconds, restore_processor: from the start of the processes until all are ready.
    """

    content: str
    servers: int
    episodes: int
    items: int
    steps: int
    step_bytes: float
    chunk_steps: int
    empty_bytes: int
    memory_bytes: int
    restored_bytes: int
    sent_bytes: int
    push_seconds: float
    pusher_processor: float
    insert_processor: float
    warm_samples: int
    samples: int
    received_bytes: int
    sample_seconds: float
    learner_processor: float
    serve_processor: float
    checkpoint_seconds: float
    checkpoint_processor: float
    checkpoint_bytes: int
    saving_bytes: int
    restore_seconds: float
    restore_processor: float

    @property
    def chunks(self) -> float:
        """How many are stored; the last one of an episode may be shorter."""
        return self.episodes * math.ceil(self.steps / self.episodes / self.chunk_steps)

    @property
    def fresh_chunks(self) -> float:
        """Chunks that the learner had not met before the clock started and met after, as expected of uniform draws.

        An item's steps count as one chunk's, and the learner keeps all it has met: true of tables no larger than its arena.
        """
        before, after = self.warm_samples / self.chunks, (self.warm_samples + self.samples) / self.chunks
        return self.chunks * (math.exp(-before) - math.exp(-after))


TERMS: Mapping[str, Callable[[Point], float]] = {
    "server": lambda point: point.servers,
    "episode": lambda point: point.episodes,
    "item": lambda point: point.items,
    "chunk": lambda point: point.chunks,
    "byte": lambda point: point.steps * point.step_bytes,
    "sample": lambda point: point.samples,
    "sample of several servers": lambda point: point.samples * (point.servers > 1),
    "fresh chunk": lambda point: point.fresh_chunks,
    "byte of a sampled chunk": lambda point: point.samples * point.chunk_steps * point.step_bytes,
}
"""What costs are linear in."""

_OF_ITEMS = ("item", "chunk", "byte")

QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "pusher_processor": ("server", "episode", "item"),
    "sent_bytes": _OF_ITEMS,
    "insert_processor": _OF_ITEMS,
    "memory_bytes": _OF_ITEMS,
    "saving_bytes": ("item", "chunk"),
    "checkpoint_bytes": _OF_ITEMS,
    "checkpoint_processor": _OF_ITEMS,
    "restore_processor": ("server", "item", "byte"),
    "learner_processor": ("sample", "sample of several servers", "fresh chunk"),
    "serve_processor": ("sample", "fresh chunk"),
    "received_bytes": ("sample", "byte of a sampled chunk"),
}
"""A field of `Point` -> the terms that it is made of."""


@dataclass(frozen=True)
class Fit:
    """A quantity as a sum of terms.

    Attributes:
      coefficients: term -> what one of it costs, in the quantity's unit; never negative.
      spread: the largest measured / fitted among the points, or fitted / measured: 1 when they fit exactly.
    """

    coefficients: Mapping[str, float]
    spread: float

    def predicted(self, point: Point) -> float:
        """The quantity, of servers like a point's; only what its terms need is read of the point."""
        return sum(cost * TERMS[term](point) for term, cost in self.coefficients.items())


def fitted(quantity: str, points: Sequence[Point]) -> Fit:
    """Least squares of the relative errors, so that small points count as much as large ones.

    A coefficient that would be negative is left out, and the rest is fitted again; so is one of a term that no point has.

    Raises:
      ValueError: fewer points than terms, or a quantity that is not positive at some point.
    """
    terms = list(QUANTITIES[quantity])
    measured = np.array([getattr(point, quantity) for point in points], float)
    if len(points) < len(terms) or not (measured > 0).all():
        raise ValueError(f"{quantity}: expected at least {len(terms)} points with positive values, got {measured}")
    terms = [term for term in terms if any(TERMS[term](point) for point in points)]
    while True:
        rows = np.array([[TERMS[term](point) for term in terms] for point in points], float)  # [points, terms]
        found = np.linalg.lstsq(rows / measured[:, np.newaxis], np.ones(len(points)), rcond=None)[0]
        if (found >= 0).all():
            break
        terms.pop(int(np.argmin(found)))
    ratios = measured / (rows @ found)
    return Fit(dict(zip(terms, map(float, found))), float(np.maximum(ratios, 1 / ratios).max()))


Model = Mapping[str, Fit]
"""Quantity -> its fit."""


def model_of(points: Sequence[Point]) -> Model:
    """Every quantity, fitted to the points that have it."""
    return {name: fitted(name, [point for point in points if getattr(point, name) > 0]) for name in QUANTITIES}


class Check(NamedTuple):
    """A quantity of a point that the model was not fitted to."""

    quantity: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured / predicted."""
        return self.measured / self.predicted


def checks_of(model: Model, other: Point) -> list[Check]:
    """The model against a point, in all that was measured there."""
    found = [Check(name, fit.predicted(other), getattr(other, name)) for name, fit in model.items()]
    return [check for check in found if check.measured > 0]


@dataclass(frozen=True)
class Costs:
    """What one step costs, from the source to a table.

    Attributes:
      push, insert: processor seconds of the pusher, and of the server.
      sent, memory, saving, checkpoint_bytes: bytes; `saving` is memory that comes on top while checkpoints are written.
      checkpoint, restore: processor seconds of the server; the start of an empty one is not in them.
      empty_bytes: of memory of a server that holds nothing.
      sample, serve, received: processor seconds of the learner and of the server, and bytes, of one sampled item.
    """

    push: float
    insert: float
    sent: float
    memory: float
    saving: float
    checkpoint_bytes: float
    checkpoint: float
    restore: float
    empty_bytes: float
    sample: float
    serve: float
    received: float


def costs_of(point: Point, model: Model) -> Costs:
    """Those of a point, by its steps and samples. Of the model is only what an empty server takes to start."""
    start = point.servers * model["restore_processor"].coefficients.get("server", 0.0)
    return Costs(
        push=point.pusher_processor / point.steps,
        insert=point.insert_processor / point.steps,
        sent=point.sent_bytes / point.steps,
        memory=point.memory_bytes / point.steps,
        saving=point.saving_bytes / point.steps,
        checkpoint_bytes=point.checkpoint_bytes / point.steps,
        checkpoint=point.checkpoint_processor / point.steps,
        restore=max(0.0, point.restore_processor - start) / point.steps,
        empty_bytes=point.empty_bytes / point.servers,
        sample=point.learner_processor / point.samples,
        serve=point.serve_processor / point.samples,
        received=point.received_bytes / point.samples,
    )
