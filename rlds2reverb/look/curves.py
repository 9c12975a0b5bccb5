"""Numbers over steps, for drawings of any width: the lowest and the highest value of each bin of steps.

| steps | bins | bin 0 | bin 1 | bin 2 | bin 3 |
| --- | --- | --- | --- | --- | --- |
| 1 2 3 4 | 2 | 1 to 2 | 3 to 4 | | |
| 1 2 3 4 5 | 2 | 1 to 2 | 3 to 5 | | |
| 1 2 | 4 | 1 | 1 | 2 | 2 |
| 1 nan 3 4 | 2 | 1 | 3 to 4 | | |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlds2reverb.episode import Array

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One number per step.

    Attributes:
      label: which dimension of its column: "[3]", or "" for a column of scalars.
      values: [T] float64; NaN and infinities are not drawn.
    """

    label: str
    values: Floats

    @property
    def span(self) -> tuple[float, float] | None:
        """The lowest and the highest finite value; None without any."""
        finite = self.values[np.isfinite(self.values)]
        return (float(finite.min()), float(finite.max())) if finite.size else None

    @property
    def is_still(self) -> bool:
        """Whether there is nothing to draw: all values are the same, or none is finite."""
        span = self.span
        return span is None or (span[0] == span[1] and bool(np.isfinite(self.values).all()))

    def bins(self, count: int) -> tuple[Floats, Floats]:
        """[count] lowest and [count] highest finite values of as many bins of steps; NaN where a bin has none.

        With fewer steps than bins a step takes several of them.
        """
        steps = len(self.values)
        if not steps:
            return np.full(count, np.nan), np.full(count, np.nan)
        starts = np.arange(count) * steps // count  # [count]
        if steps <= count:
            taken = np.where(np.isfinite(self.values), self.values, np.nan)[starts]
            return taken, taken
        finite = np.isfinite(self.values)
        low = np.minimum.reduceat(np.where(finite, self.values, np.inf), starts)
        high = np.maximum.reduceat(np.where(finite, self.values, -np.inf), starts)
        empty = low > high
        return np.where(empty, np.nan, low), np.where(empty, np.nan, high)


def levels(curve: Curve, count: int, height: int, span: tuple[float, float]) -> tuple[Array, Array]:
    """Where a curve runs in a drawing of `count` columns and `height` rows whose bottom and top are the values of `span`.

    [count] lowest and highest row, 0 at the bottom; -1 in a column with nothing. Neighbouring columns touch: what lies between them belongs
    to the right one.
    """
    low, high = curve.bins(count)
    bottom, top = _rows(low, height, span), _rows(high, height, span)
    both = (bottom[1:] >= 0) & (bottom[:-1] >= 0)
    joined_bottom, joined_top = bottom.copy(), top.copy()
    joined_bottom[1:] = np.where(both, np.minimum(bottom[1:], top[:-1]), bottom[1:])
    joined_top[1:] = np.where(both, np.maximum(top[1:], bottom[:-1]), top[1:])
    return joined_bottom, joined_top


def _rows(values: Floats, height: int, span: tuple[float, float]) -> Array:
    """[n] values -> [n] rows; -1 for NaN. A curve without any height runs in the middle."""
    low, high = span
    half = high / 2 - low / 2  # without overflow
    if not half > 0:
        return np.where(np.isnan(values), -1, (height - 1) // 2).astype(np.int64)
    share = (values / 2 - low / 2) / half
    rows = np.rint(np.clip(np.nan_to_num(share), 0, 1) * (height - 1)).astype(np.int64)
    return np.where(np.isnan(values), -1, rows)


def span_of(curves: Sequence[Curve]) -> tuple[float, float] | None:
    """The lowest and the highest value of all of them; None without any finite one."""
    spans = [span for curve in curves if (span := curve.span) is not None]
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None


def ticks(low: float, high: float, most: int, is_whole: bool = False) -> list[float]:
    """Round values within a span for an axis: as many as there are for a step of 1, 2 or 5 times a power of 10, at most `most` (2 or more).

    With `is_whole` they are whole numbers. [] where the span is beyond what float64 can divide.

    >>> ticks(0, 29, 6, True), ticks(-0.7, -0.02, 4), ticks(2, 2, 3)
    ([0.0, 5.0, 10.0, 15.0, 20.0, 25.0], [-0.6, -0.4, -0.2], [2.0])
    """
    half = high / 2 - low / 2  # without overflow
    if not half > 0:
        return [float(low)]
    raw = half / most * 2
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 1e-300 else 0.0
    steps = [step * power for step in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)]
    for step in (step for step in steps if 0 < step < math.inf and (not is_whole or step >= 1)):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            return [round(number * step, 12 - math.floor(math.log10(step))) for number in range(first, last + 1)]
    return []


def range_text(curves: Sequence[Curve]) -> str:
    """The range of curves in words, and the number of values that are not drawn."""
    span = span_of(curves)
    if span is None:
        return "no finite value"
    low, high = span
    text = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    not_finite = sum(int(curve.values.size - np.isfinite(curve.values).sum()) for curve in curves)
    return f"{text}, {not_finite:,} not finite" if not_finite else text


def sparkline_of(curve: Curve, span: tuple[float, float], width: int, height: int) -> str:
    """The `d` of a curve in a small drawing of so many units: through the lowest and the highest value of each unit of its width. Interrupted where values are not finite."""
    parts: list[str] = []
    is_down = False
    low, high = curve.bins(min(width, max(1, len(curve.values))))
    for at, ends in enumerate(zip(low.tolist(), high.tolist())):
        if math.isnan(ends[0]):
            is_down = False
            continue
        x = (at + 0.5) * width / len(low)
        for value in dict.fromkeys(ends):
            y = _down(value, span, 1, height - 1)
            parts.append(f"{'L' if is_down else 'M'}{x:.4g} {y:.3g}")
            is_down = True
    return "".join(parts)


WIDTH, HEIGHT = 600, 100
_INSIDE = 4


def path_of(curve: Curve, span: tuple[float, float]) -> str:
    """The `d` of a curve in a drawing of WIDTH x HEIGHT; "" for one without a finite value. Interrupted where values are not finite.

    A step is a level line; where there are more steps than WIDTH, a bin of them is a line from its highest to its lowest value.
    """
    count = min(len(curve.values), WIDTH)
    low, high = curve.bins(count)
    parts: list[str] = []
    is_down = False
    for number, (bottom, top) in enumerate(zip(low.tolist(), high.tolist())):
        if math.isnan(bottom):
            is_down = False
            continue
        upper, lower = _y(top, span), _y(bottom, span)
        parts.append(f"V{upper:g}" if is_down else f"M{number / count * WIDTH:.6g} {upper:g}")
        if lower != upper:
            parts.append(f"V{lower:g}")
        parts.append(f"H{(number + 1) / count * WIDTH:.6g}")
        is_down = True
    return "".join(parts)


def _y(value: float, span: tuple[float, float]) -> float:
    return round(_down(value, span, _INSIDE, HEIGHT - _INSIDE), 2)


def _down(value: float, span: tuple[float, float], top: float, bottom: float) -> float:
    """How far below the upper edge a value is: between `top`, for the highest of the span, and `bottom`; in the middle where all are the same."""
    low, high = span
    half = high / 2 - low / 2  # without overflow
    share = (value / 2 - low / 2) / half if half > 0 else 0.5
    return bottom - share * (bottom - top)
