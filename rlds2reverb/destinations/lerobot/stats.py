"""The statistics of features that LeRobot normalizes by: of an episode, and of all from those of the episodes.

Of the last axis, over rows and the other axes; of an image, of each channel as [channels, 1, 1], of at most a hundred images and every
few pixels of them, divided by 255. An episode's quantiles are exact; those of the dataset are the episodes' averages, as in LeRobot.
Source: compute_stats.py of lerobot 0.6.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlds2reverb.episodes import Array

QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
_MOST_IMAGES = 100
_SIDE = 150
_NAMES = tuple(f"q{round(100 * quantile):02d}" for quantile in QUANTILES)

Stats = Mapping[str, Array]
"""min, max, mean, std, count, q01, q10, q50, q90, q99."""


def of_numbers(values: Array) -> dict[str, Array]:
    """Of [T, ...] numbers: [last axis]."""
    return _stats(values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1), len(values))


def sampled(rows: int) -> Array:
    """Which images of an episode are looked at."""
    return np.asarray(np.unique(np.linspace(0, rows - 1, min(rows, _MOST_IMAGES)).round().astype(int)))


def of_images(pixels: Array) -> dict[str, Array]:
    """Of [n, height, width, channels] uint8: [channels, 1, 1]."""
    step = max(1, math.ceil(max(pixels.shape[1:3]) / _SIDE))
    found = _stats(pixels[:, ::step, ::step].reshape(-1, pixels.shape[3]), len(pixels))
    return {name: one if name == "count" else one.reshape(-1, 1, 1) / 255 for name, one in found.items()}


def _stats(values: Array, count: int) -> dict[str, Array]:
    exact = values.astype(np.float64)
    with np.errstate(all="ignore"):
        made = {"min": exact.min(0), "max": exact.max(0), "mean": exact.mean(0), "std": exact.std(0)}
        quantiles = np.quantile(exact, QUANTILES, axis=0, method="inverted_cdf")
    return {**made, "count": np.array([count]), **dict(zip(_NAMES, quantiles))}


def merged(many: Sequence[Stats]) -> dict[str, Array]:
    """Those of all episodes."""
    stacked = {name: np.stack([np.asarray(one[name]) for one in many]) for name in many[0]}
    counts = stacked["count"].reshape(-1)
    weights = (counts / counts.sum()).reshape(-1, *[1] * (stacked["mean"].ndim - 1))
    with np.errstate(all="ignore"):
        mean = (stacked["mean"] * weights).sum(0)
        variance = ((stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2) * weights).sum(0)
        found = {"min": stacked["min"].min(0), "max": stacked["max"].max(0), "mean": mean, "std": np.sqrt(variance)}
        quantiles = {name: (stacked[name] * weights).sum(0) for name in _NAMES}
    return {**found, "count": np.array([counts.sum()]), **quantiles}
