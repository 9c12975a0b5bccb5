"""Curves as the paths of an SVG drawing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlds2reverb.showing.curves import Curve

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
        parts += _bin(number / count, (number + 1) / count, (_y(top, span), _y(bottom, span)), is_down)
        is_down = True
    return "".join(parts)


def _bin(start: float, stop: float, ends: tuple[float, float], is_down: bool) -> Iterator[str]:
    top, bottom = ends
    yield f"V{top:g}" if is_down else f"M{start * WIDTH:.6g} {top:g}"
    if bottom != top:
        yield f"V{bottom:g}"
    yield f"H{stop * WIDTH:.6g}"


def _y(value: float, span: tuple[float, float]) -> float:
    low, high = span
    half = high / 2 - low / 2  # without overflow
    share = (value / 2 - low / 2) / half if half > 0 else 0.5
    return round(HEIGHT - _INSIDE - share * (HEIGHT - 2 * _INSIDE), 2)
