"""Which part of a mix the next episode is of: a function of the seed, the weights and how many episodes the parts have.

| | one pass | of a nominal length |
| --- | --- | --- |
| ends | when every part is at its end | after so many episodes |
| a part at its end | is drawn no more | begins again |
| equal weights draw as | `numpy.random.default_rng(seed).random()` among the parts that are left | il-representations' InterleavedDataset: `RandomState(seed).choice(parts)` |

Source of the latter: `InterleavedDataset` in il_representations/data/read_dataset.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Draw:
    """How parts are drawn.

    Attributes:
      weights: of the parts, positive.
      seed: of the draws.
      length: the nominal one; None for one pass.
    """

    weights: tuple[float, ...]
    seed: int = 0
    length: int | None = None

    def picker(self) -> Callable[[Sequence[int]], int]:
        """Makes the draws, each among the parts that are given."""
        return _weighted(self.weights, self.seed) if self.length is None else _as_interleaved(self.weights, self.seed)


def _weighted(weights: Sequence[float], seed: int) -> Callable[[Sequence[int]], int]:
    rng = np.random.default_rng(seed)

    def pick(left: Sequence[int]) -> int:
        sums = np.cumsum([weights[part] for part in left])
        at = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
        return left[min(at, len(left) - 1)]

    return pick


def _as_interleaved(weights: Sequence[float], seed: int) -> Callable[[Sequence[int]], int]:
    rng = np.random.RandomState(seed)
    shares = None if len(set(weights)) == 1 else np.asarray(weights) / sum(weights)

    def pick(left: Sequence[int]) -> int:
        return int(rng.choice(len(left), p=shares))

    return pick


class Drawing:
    """The draws of one reading.

    Args:
      draw: how they are made.
      parts: how many there are.

    Attributes:
      number: how many episodes were given.
    """

    def __init__(self, draw: Draw, parts: int) -> None:
        self._draw, self._pick = draw, draw.picker()
        self._left = list(range(parts))
        self.number = 0

    def part(self) -> int | None:
        """The part that is to give the next episode; None at the end."""
        if not self._left or self.number == self._draw.length:
            return None
        return self._pick(self._left)

    def is_over(self, part: int) -> None:
        """It has none, and is drawn no more."""
        self._left.remove(part)

    def pass_over(self, counts: Sequence[int], first: int) -> list[int]:
        """Makes the draws of the first so many episodes; how many of them each part gives, which has `counts`."""
        given = [0] * len(counts)
        while self.number < first and (part := self.part()) is not None:
            if self._draw.length is None and given[part] == counts[part]:
                self.is_over(part)
            else:
                given[part] += 1
                self.number += 1
        return given
