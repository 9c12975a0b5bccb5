"""What the values of a column span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array


@dataclass
class Range:
    """What the values of one column span, over all steps.

    Attributes:
      minimum, maximum, mean: over finite values; None for text and for a column without any.
      not_finite: values that are NaN or infinite.
    """

    minimum: float | None = None
    maximum: float | None = None
    total: float = 0.0
    finite: int = 0
    not_finite: int = 0

    @property
    def mean(self) -> float | None:
        """Mean of the finite values."""
        return self.total / self.finite if self.finite else None

    def add(self, column: Array) -> None:
        """Takes in [T, ...] values; text, complex and empty columns are passed over."""
        if column.dtype.kind in "OSUc" or not column.size:
            return
        values = column.astype(np.float64)
        finite = values[np.isfinite(values)]
        self.not_finite += values.size - finite.size
        if finite.size:
            low, high = float(finite.min()), float(finite.max())
            self.minimum = low if self.minimum is None else min(self.minimum, low)
            self.maximum = high if self.maximum is None else max(self.maximum, high)
            self.total += float(finite.sum())
            self.finite += finite.size

    def add_range(self, other: Range) -> None:
        """Takes in what the values of other steps span. The mean may differ in its last digits from that of one pass: sums are rounded."""
        self.minimum = min((one for one in (self.minimum, other.minimum) if one is not None), default=None)
        self.maximum = max((one for one in (self.maximum, other.maximum) if one is not None), default=None)
        self.total += other.total
        self.finite += other.finite
        self.not_finite += other.not_finite

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"min": self.minimum, "max": self.maximum, "mean": self.mean, "not_finite": self.not_finite}
