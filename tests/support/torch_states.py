"""States of PyTorch's datasets, as `stored_formats` has those of others; they need PyTorch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlds2reverb.adapters.torch import LocalDataset, TableDataset
from tests.support.releases import BUNDLED


def dataset() -> LocalDataset:
    return LocalDataset(BUNDLED, "transition", 16, shuffle="global")


def table() -> TableDataset:
    return TableDataset("localhost:1", "replay", 4, samples=8)


def states() -> dict[str, Any]:
    """Kind -> what is saved in the middle of a pass."""
    batches = dataset()
    for _ in itertools.islice(batches, 2):
        pass
    return {"torch_dataset": batches.state_dict(), "torch_table": table().state_dict()}


def read_dataset(folder: Path) -> Any:
    """The keys of the batch after it, as numbers that JSON has."""
    batches = dataset()
    batches.load_state_dict(json.loads((folder / "states/torch_dataset.json").read_bytes()))
    return next(iter(batches)).info.key.tolist()


def read_table(folder: Path) -> Any:
    made = table()
    made.load_state_dict(json.loads((folder / "states/torch_table.json").read_bytes()))
    return {name: value for name, value in made.state_dict().items() if name != "program"}


READERS: dict[str, Callable[[Path], Any]] = {"torch_dataset": read_dataset, "torch_table": read_table}
