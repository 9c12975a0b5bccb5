"""What the suites of sampling share: contents of batches, learners that are quick to notice, and what a table has left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.learner import server_queue
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.sampler import Sampler
from tests.support.faults.tools import Content


def be_quick(monkeypatch: pytest.MonkeyPatch, silence_seconds: float = 0.3) -> None:
    """Samplers notice soon that nothing comes, and take a silent stream for dead soon."""
    quick = replace(
        server_queue._DEADLINES, call=5.0, notice=0.05, silence=silence_seconds, backoff_first=0.01, backoff_most=0.2
    )
    monkeypatch.setattr(server_queue, "_DEADLINES", quick)


@contextmanager
def sampler_of(address: str, table: str, batch_size: int, **options: Any) -> Iterator[Sampler]:
    """A sampler over a connection of its own."""
    with (
        rlds2reverb.connect(address, timeout_seconds=2.0) as client,
        client.sample(table, batch_size, **options) as sampler,
    ):
        yield sampler


def contents(batches: Iterable[Batch]) -> list[tuple[int, Content]]:
    """Key and columns' bytes of every sample."""
    samples: list[tuple[int, Content]] = []
    for data, info in batches:
        columns = [np.asarray(column) for column in data]
        samples += [
            (int(key), tuple(column[number].tobytes() for column in columns)) for number, key in enumerate(info.key)
        ]
    return samples
