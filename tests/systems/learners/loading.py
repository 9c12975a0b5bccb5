"""Reads a table by the workers of a DataLoader, in a process that does nothing else: nothing in it has connected.

python -m tests.systems.learners.loading '{"way": "fork", "server": "localhost:8000", ...}' prints what came, as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

from torch.utils.data import DataLoader

from rlds2reverb.adapters.torch import TableDataset

SECONDS = 200
"""For a batch: a worker that hangs is an error."""


def loader(dataset: TableDataset, way: str, workers: int = 2, **more: Any) -> DataLoader:
    """With workers of that kind. Those of a fork server find what they need imported, which takes longer than all they do."""
    multiprocessing.set_forkserver_preload(["rlds2reverb.adapters.torch"])
    return DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=way, timeout=SECONDS, **more
    )


def loaded(way: str, server: str, table: str, workers: int, **options: Any) -> list[list[int]]:
    """The observations of all batches."""
    return [
        batch.data["observation"].tolist() for batch in loader(TableDataset(server, table, **options), way, workers)
    ]


if __name__ == "__main__":
    print(json.dumps(loaded(**json.loads(sys.argv[1]))))
