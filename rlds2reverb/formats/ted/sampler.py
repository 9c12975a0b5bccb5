"""The priorities of a PrioritizedSampler or a PrioritizedSliceSampler, in the folder `sampler` of what `ReplayBuffer.dumps` wrote.

| file | content |
| --- | --- |
| `sumtree.memmap`, `mintree.memmap` | float64 [max_capacity], one for each row of the storage: (priority + eps) ** alpha; 0, and infinity, of rows without one |
| `sampler_metadata.json` | `_alpha`, `_beta`, `_eps`, `_max_priority` (value and row), `_max_capacity` |

Read are priorities as `update_priority` took them, up to the rounding of the sampler's own dtype, float32 by default. Alpha and beta are no
property of an item: a table's `priority_exponent` and an option of sampling are what they are here.

Source: torchrl/data/replay_buffers/samplers/prioritized.py, version 0.14 (`dumps`, `loads`, `update_priority`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import read_object, write_json
from rlds2reverb.formats.ted.folders import read_numbers
from rlds2reverb.text import counted

SAMPLER = "sampler"
PRIORITY = "sampler_priority"
"""The step column that has the priorities."""
FACTS = ("alpha", "beta", "eps", "max_priority")
"""What the sampler says beside them, as facts of the dataset."""

SUM_TREE = "sumtree.memmap"
_MIN_TREE = "mintree.memmap"
_METADATA = "sampler_metadata.json"
_SCHEMA = 1  # `_max_priority` as `update_priority` took it


@dataclass(frozen=True)
class Priorities:
    """The priorities of a storage's rows.

    Attributes:
      values: [max_capacity] float64, at least 0.
      facts: alpha, beta, eps and max_priority; without the last one where no priority was ever set.
    """

    values: Array
    facts: Mapping[str, float]

    def of_rows(self, name: str, batch: tuple[int, ...], counts_items: bool) -> Array:
        """[*batch] the priority of each step; that of an item stands in each of its steps.

        Args:
          counts_items: whether the storage counts the items of the first size, each with a priority; else all steps.

        Raises:
          SourceError: there are fewer than the storage has rows.
        """
        rows = batch[0] if counts_items else math.prod(batch)
        values = self.values[:rows].reshape(batch[:1] if counts_items else batch) if len(self.values) >= rows else None
        if values is None:
            raise SourceError(
                f"{name}: the sampler has priorities of {counted(len(self.values), 'row')}, the storage {rows:,}; priorities=drop reads it without them"
            )
        return np.broadcast_to(values.reshape(*values.shape, *[1] * (len(batch) - values.ndim)), batch)

    def of_columns(self, name: str, rows: int, columns: int, shift: int) -> Array:
        """[columns * rows] the priorities of a storage [rows, columns], column by column, of each the row `shift` first.

        Raises:
          SourceError: as `of_rows`.
        """
        return np.roll(self.of_rows(name, (rows, columns), False), -shift, 0).T.reshape(-1)


def read_priorities(folder: Path) -> Priorities | None:
    """Reads what a prioritised sampler dumped; None if there is no such folder, or another sampler's.

    Raises:
      SourceError: it is damaged.
    """
    if not (folder / SUM_TREE).exists():
        return None
    file = folder / _METADATA
    about = read_object(file, "TorchRL's description of a PrioritizedSampler")
    capacity = about.get("_max_capacity")
    if (
        isinstance(capacity, bool)
        or not isinstance(capacity, (int, float))
        or capacity != int(capacity)
        or capacity < 0
    ):
        raise SourceError(f"{file}: _max_capacity {capacity!r}: expected a number of rows")
    facts = {name: about.get(f"_{name}") for name in FACTS[:3]}
    highest = about.get("_max_priority")
    if isinstance(highest, list) and highest and isinstance(highest[0], (int, float)):
        facts["max_priority"] = highest[0]
    return priorities_of(str(file), read_numbers(folder / SUM_TREE, "torch.float64", [int(capacity)]), facts)


def priorities_of(where: str, tree: Array, facts: Mapping[str, Any]) -> Priorities:
    """The priorities of a sum tree's values.

    Args:
      tree: [max_capacity] float64.
      facts: as of `Priorities`, not checked.

    Raises:
      SourceError: the tree or a fact is no number of at least 0.
    """
    for name in FACTS[:3]:
        value = facts.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < np.inf:
            raise SourceError(f"{where}: _{name} {value!r}: expected a number of at least 0")
    if not (np.isfinite(tree) & (tree >= 0)).all():
        raise SourceError(f"{where}: the sum tree: expected finite numbers of at least 0")
    alpha, eps = float(facts["alpha"]), float(facts["eps"])
    # With alpha 0 the tree holds 1 for each row, whichever its priority was.
    values = np.where(tree > 0, 1.0, 0.0) if alpha == 0 else np.maximum(tree ** (1 / alpha) - eps, 0) * (tree > 0)
    return Priorities(values, {name: float(value) for name, value in facts.items() if value is not None})


def tree_of(priorities: Array, facts: Mapping[str, Any]) -> Array:
    """[n] float64 what the sum tree holds of priorities, which are finite and at least 0; facts as of `Priorities`."""
    _, alpha, eps = _exponents(facts)
    tree: Array = (priorities.astype(np.float64) + eps) ** alpha
    return tree


def finish_sampler(folder: Path, rows: int, facts: Mapping[str, Any]) -> None:
    """Writes what a PrioritizedSampler loads beside a sum tree of so many rows, which is in the folder already.

    Args:
      facts: as of `Priorities`; by default alpha 1, beta 1, and the eps of TorchRL.
    """
    beta, alpha, eps = _exponents(facts)
    tree = np.fromfile(folder / SUM_TREE, "<f8", rows)
    tree.tofile(folder / _MIN_TREE)
    row = int(np.argmax(tree))
    highest = max(float(tree[row]) ** (1 / alpha) - eps if alpha else 1.0, 0.0)
    metadata = {
        "_alpha": alpha,
        "_beta": beta,
        "_eps": eps,
        "_max_priority": [max(float(facts.get("max_priority", 0)), highest), float(row)],
        "_max_capacity": float(rows),
        "_schema_version": _SCHEMA,
    }
    write_json(folder / _METADATA, metadata)


def _exponents(facts: Mapping[str, Any]) -> tuple[float, float, float]:
    """Beta, alpha and eps."""
    beta, alpha, eps = (float(facts.get(name, default)) for name, default in (("beta", 1), ("alpha", 1), ("eps", 1e-8)))
    return beta, alpha, eps
