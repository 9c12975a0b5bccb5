"""Orders of jigsaw tiles that differ much from one another: read from a file, or made from a seed.

Made orders come in rounds of n, where n is the number of tiles: one order and its rotations, which agree nowhere. Each round is
the candidate whose closest order among those chosen is the farthest. Whole rounds have the largest mean distance there is:
every tile stands at every place equally often.

>>> tile_orders(6, 4, seed=0)
array([[0, 3, 1, 2],
       [3, 1, 2, 0],
       [1, 2, 0, 3],
       [2, 0, 3, 1],
       [0, 2, 1, 3],
       [2, 1, 3, 0]])
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from io import StringIO
from pathlib import Path

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ViewError

MOST_ORDERS = 10_000
"""More classes than that take seconds to make, and no learner tells so many apart."""

_CANDIDATES = math.factorial(8)
"""Rounds to choose from; of nine tiles there are no more."""


@lru_cache(maxsize=16)
def tile_orders(number: int, tiles: int, seed: int) -> Array:
    """[number, tiles] int64, distinct: at each place, from the top left row by row, the tile that stands there.

    Raises:
      ViewError: fewer than 1, or more than there are (tiles!) or may be (`MOST_ORDERS`).
    """
    most = min(MOST_ORDERS, math.factorial(tiles))
    if not 1 <= number <= most:
        raise ViewError(f"permutations {number}: expected 1 to {most} of {tiles} tiles")
    candidates = _rounds(tiles, np.random.default_rng([seed & (2**64 - 1), tiles]))  # [tiles, candidates]
    closest = np.zeros(candidates.shape[1], np.uint8)  # most places at which a candidate agrees with a chosen order
    chosen: list[Array] = []
    while len(chosen) < number:
        first = candidates[:, np.argmin(closest)]
        for turn in range(tiles):
            order = np.roll(first, -turn)
            chosen.append(order)
            agreeing = np.zeros_like(closest)
            for place in range(tiles):
                agreeing += candidates[place] == order[place]
            np.maximum(closest, agreeing, out=closest)
    found = np.array(chosen[:number], np.int64)
    found.flags.writeable = False
    return found


def _rounds(tiles: int, rng: np.random.Generator) -> Array:
    """[tiles, candidates] uint8: orders that begin with tile 0, distinct and shuffled; each stands for its rotations."""
    if math.factorial(tiles - 1) <= _CANDIDATES:
        rest = np.array(list(itertools.permutations(range(1, tiles))), np.uint8)
    else:
        rest = np.unique(rng.permuted(np.tile(np.arange(1, tiles, dtype=np.uint8), (_CANDIDATES, 1)), axis=1), axis=0)
    rounds = np.zeros((tiles, len(rest)), np.uint8)
    rounds[1:] = rng.permutation(rest).T
    return rounds


def read_tile_orders(path: Path, tiles: int) -> Array:
    """[classes, tiles] int64 from a .npy file, or from a .csv file with one order per line.

    Raises:
      ViewError: the file cannot be read, or holds something else than orders of that many tiles, counted from 0.
    """
    if path.suffix not in (".npy", ".csv"):
        raise ViewError(f"{path}: permutations: expected a .npy or .csv file, or a number")
    try:
        found = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else _parsed(path.read_text(encoding="utf-8"))
        )
    except (OSError, ValueError, EOFError) as error:
        raise ViewError(f"{path}: permutations: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.shape[1] != tiles or found.dtype.kind not in "iu":
        came = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise ViewError(f"{path}: permutations: expected whole numbers [classes, {tiles}], got {came}")
    wrong = np.any(np.sort(found, axis=1) != np.arange(tiles), axis=1)
    if wrong.any() or not len(found):
        came = f"{found[wrong][0].tolist()} in row {int(np.argmax(wrong))}" if len(found) else "no row"
        raise ViewError(f"{path}: permutations: expected rows that hold each of 0 to {tiles - 1} once, got {came}")
    distinct, first = np.unique(found, axis=0, return_index=True)
    if len(distinct) < len(found):
        again = int(np.setdiff1d(np.arange(len(found)), first)[0])
        raise ViewError(
            f"{path}: permutations: expected distinct rows, got {found[again].tolist()} in row {again} again"
        )
    return found.astype(np.int64)


def _parsed(text: str) -> Array:
    if not any(line.partition("#")[0].strip() for line in text.splitlines()):
        raise ValueError("it is empty")
    found: Array = np.loadtxt(StringIO(text), np.int64, delimiter=",", ndmin=2)
    return found
