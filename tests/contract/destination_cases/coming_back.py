"""Compares episodes with what came back of them, by what was told of losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rlds2reverb.conversion.report import Lost
from rlds2reverb.episode import Array, Episode, is_under, metadata_values


def assert_comes_back(given: Iterable[Episode], back: Iterable[Episode], losses: Iterable[Lost]) -> None:
    """Every bit of all columns and features is there, but in the rows of which a loss was told."""
    told = [(loss.path, loss.rows) for loss in losses if loss.path is not None]
    for episode, other in zip(given, back, strict=True):
        for path, column in episode.columns.items():
            rows = {rows for where, rows in told if is_under(path, where)}
            if "all" not in rows:
                assert bits(column[: -1 if rows else None]) == bits(other.columns[path][: -1 if rows else None]), path
        read = metadata_values(other, other.metadata)
        for name, value in metadata_values(episode, episode.metadata).items():
            if not any(is_under(f"metadata/{name}", where) for where, _ in told):
                assert bits(np.asarray(value)) == bits(np.asarray(read[name])), name


def bits(array: Array) -> Any:
    return array.dtype, array.shape, array.tolist() if array.dtype == object else array.tobytes()
