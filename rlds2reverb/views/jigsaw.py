"""Jigsaw puzzles for representation learning: images with their tiles in another order, and which order it is.

With four tiles A B / C D, and the orders 0 (A B / C D) and 1 (D A / B C) drawn for the first two steps as 1 and 0:

| item | context | target | timestep |
| --- | --- | --- | --- |
| 0 | D A / B C | 1 | 0 |
| 1 | A B / C D | 0 | 1 |

The image is divided into as many rows of tiles as columns. The last two rows and columns of pixels of each tile are left out,
so that edges give nothing away. What remains is put together to a smaller image. An episode has a shuffled list of all
orders. Its steps walk through the list, and start again when it ends. The final observation is never used.

Source: JigsawPairConstructor of il-representations (make_jigsaw_puzzle; it calls this a central crop, and keeps the tile's top
left). Two things differ. It takes the first step of a stream for its shape and then loses it, so the first trajectory lacks a
step and its later ones are numbered from 0; here no step is lost. It walks through one shuffled list over all trajectories;
here every episode has its own.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> image = np.kron([[1, 2], [3, 4]], np.ones((3, 3)))[None, :, :, None].repeat(2, axis=0)  # tiles of 3 by 3 pixels
>>> jigsaw = Jigsaw(permutations=2, tiles=4)
>>> cut = jigsaw.cut(Episode({"observation": image.astype(np.uint8)}, {}, "e"))
>>> jigsaw.orders[cut.rows["target"][0, 0]] + 1, cut.rows["context"][0, :, :, 0]
(array([1, 4, 2, 3]), array([[1, 4],
       [2, 3]], dtype=uint8))
"""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass, field
from functools import lru_cache
from io import StringIO
from pathlib import Path

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import OBSERVATION, Array, Episode, columns_under, content_digest
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.views.base import (
    UNSAID_AT_DEFAULT,
    BaseView,
    Wanted,
    check_options,
    check_seed,
    choice,
    fields_of,
    generator,
    label_of,
    need,
    one_per_transition,
    transition_count,
)

CONTEXT, TARGET, TIMESTEP = "context", "target", "timestep"
_CROPPED = 2
"""Rows and columns of pixels that a tile loses."""
_MOST_TILES = 100


@dataclass(frozen=True)
class Jigsaw(BaseView):
    """One item per transition: its image as a puzzle.

    Attributes:
      permutations: number of orders to make, or the path of a .npy or .csv file that has them ([classes, tiles], from 0).
      tiles: number of tiles of an image, a square number.
      channels: "last" ([H, W, C] images) or "first" ([C, H, W]).
      seed: the orders that are made depend on it. The classes that are drawn depend on it and on the episode's id.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense, or a file that cannot be read.
    """

    _name = "jigsaw"
    _reads = (OBSERVATION,)

    permutations: int | str | os.PathLike[str] = 1000
    tiles: int = 9
    channels: str = "last"
    seed: int = 0
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)
    _orders: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._settle(tiles=self.tiles)
        if not 4 <= self.tiles <= _MOST_TILES or math.isqrt(self.tiles) ** 2 != self.tiles:
            raise ViewError(f"jigsaw: tiles {self.tiles}: expected a square number from 4 to {_MOST_TILES}")
        choice("jigsaw", "channels", self.channels, ("first", "last"))
        check_seed("jigsaw", self.seed)
        try:
            if isinstance(self.permutations, (str, os.PathLike)):
                orders = read_tile_orders(Path(self.permutations), self.tiles)
            else:
                check_options("jigsaw", self.priority, permutations=self.permutations)
                orders = tile_orders(int(self.permutations), int(self.tiles), int(self.seed))
        except ViewError as error:
            raise ViewError(f"jigsaw: {str(error).removeprefix('jigsaw: ')}") from error
        object.__setattr__(self, "_orders", orders)

    @property
    def orders(self) -> Array:
        """[classes, tiles] int64: what a class means, place by place from the top left."""
        return self._orders

    @property
    def label(self) -> str:
        """Name and options; orders from a file count by their content."""
        of_file = isinstance(self.permutations, (str, os.PathLike))
        named = content_digest({"permutations": self._orders}) if of_file else self.permutations
        return label_of("jigsaw", self, permutations=named)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """{context: a smaller image, target int64 [1], timestep int64 []}.

        Raises:
          ViewError: observation is not one column of images that are large enough, of uint8 or floats.
        """
        steps = need("jigsaw", step_spec, OBSERVATION)
        leaves = flatten(steps[OBSERVATION], OBSERVATION)
        image = self._image(leaves)
        height, width = self._tile(image)
        side = math.isqrt(self.tiles)
        size, depth = (side * height, side * width), self._plan(image)[2:]
        shape = (*depth, *size) if self.channels == "first" else (*size, *depth)
        int64 = np.dtype(np.int64)
        items = {CONTEXT: ArraySpec(shape, image.dtype), TARGET: ArraySpec((1,), int64), TIMESTEP: ArraySpec((), int64)}
        return self._with_extras(items, steps, metadata_spec)

    def item_count(self, rows: int | None) -> int | None:
        return one_per_transition(rows)

    def cut(self, episode: Episode) -> Cut:
        """One row per transition; all columns but extras are made.

        Raises:
          ViewError: as `signature`.
        """
        columns = columns_under(episode.columns, OBSERVATION)
        image = self._image({path: ArraySpec(column.shape[1:], column.dtype) for path, column in columns.items()})
        count = transition_count(episode)
        classes = np.resize(generator("jigsaw", self.seed, episode).permutation(len(self._orders)), count)  # [T - 1]
        timesteps = np.arange(count, dtype=np.int64)
        context = self._puzzles(next(iter(columns.values()))[:count], self._orders[classes], self._tile(image))
        further = self._extras_rows(episode)
        rows = {
            CONTEXT: context,
            TARGET: classes.astype(np.int64)[:, None],
            TIMESTEP: timesteps,
            **{path: column[:count] for path, column in further.items()},
        }
        return Cut(rows, fields_of({path: path for path in rows}), timesteps, np.full(count, self.priority, np.float64))

    def _image(self, leaves: dict[str, ArraySpec]) -> ArraySpec:
        """The one observation column; raises ViewError unless it holds images of uint8 or floats."""
        image = next(iter(leaves.values()), None)
        if (
            image is None
            or len(leaves) > 1
            or len(image.shape) != 3
            or not (image.dtype == np.uint8 or image.dtype.kind in "fV")
        ):
            listed = ", ".join(f"{path} {leaf}" for path, leaf in leaves.items()) or "none"
            axes = "[C, H, W]" if self.channels == "first" else "[H, W, C]"
            is_encoded = image is not None and image.image is not None
            hint = "; a puzzle is made of decoded ones; leave it out of encoded (--encoded)" if is_encoded else ""
            raise ViewError(
                f"jigsaw: {OBSERVATION}: expected one image column, {axes} of uint8 or floats, found {listed}{hint}"
            )
        return image

    def _plan(self, image: ArraySpec) -> tuple[int | None, ...]:
        return (*image.shape[1:], image.shape[0]) if self.channels == "first" else image.shape

    def _tile(self, image: ArraySpec) -> tuple[int, int]:
        """Height and width of a tile in a puzzle; raises ViewError for images that are too small, or of a free size."""
        side, (height, width, _) = math.isqrt(self.tiles), self._plan(image)
        least = side * (_CROPPED + 1)
        if height is None or width is None or min(height, width) < least:
            raise ViewError(
                f"jigsaw: {OBSERVATION}: expected images of a fixed size, at least {least} by {least} pixels for {self.tiles} tiles"
                f' and channels="{self.channels}", found {image}'
            )
        return height // side - _CROPPED, width // side - _CROPPED

    def _puzzles(self, images: Array, orders: Array, tile: tuple[int, int]) -> Array:
        """[n, ...] images and the [n, tiles] orders of their tiles -> [n, ...] smaller images."""
        images = np.moveaxis(images, 1, -1) if self.channels == "first" else images  # [n, H, W, C]
        side, (count, height, width, depth) = math.isqrt(self.tiles), images.shape
        whole = images[:, : height // side * side, : width // side * side]  # without pixels beyond the last whole tile
        tiles = whole.reshape(count, side, height // side, side, width // side, depth)[:, :, : tile[0], :, : tile[1]]
        placed = tiles[np.arange(count)[:, None], orders // side, :, orders % side]  # [n, tiles, tile H, tile W, C]
        lines = placed.reshape(count, side, side, *tile, depth).swapaxes(2, 3)  # [n, side, tile H, side, tile W, C]
        puzzles = lines.reshape(count, side * tile[0], side * tile[1], depth)
        return np.moveaxis(puzzles, -1, 1) if self.channels == "first" else puzzles


MOST_ORDERS = 10_000
"""More classes take seconds to make, and no learner tells so many apart."""

_CANDIDATES = math.factorial(8)
"""Orders to choose from, up to rotation: all that nine tiles have. Larger puzzles draw as many, since all would not fit into memory."""


@lru_cache(maxsize=16)
def tile_orders(number: int, tiles: int, seed: int) -> Array:
    """[number, tiles] int64, distinct: at each place, from the top left row by row, the tile that stands there."""
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
    orders = np.array(chosen[:number], np.int64)
    orders.flags.writeable = False  # the cache hands out one array to all views
    return orders


def _rounds(tiles: int, rng: np.random.Generator) -> Array:
    """[tiles, candidates] uint8: orders that begin with tile 0, distinct and shuffled; each stands for its rotations."""
    if math.factorial(tiles - 1) <= _CANDIDATES:
        orders = np.array(list(itertools.permutations(range(1, tiles))), np.uint8)
    else:
        orders = np.unique(rng.permuted(np.tile(np.arange(1, tiles, dtype=np.uint8), (_CANDIDATES, 1)), axis=1), axis=0)
    rounds = np.zeros((tiles, len(orders)), np.uint8)
    rounds[1:] = rng.permutation(orders).T
    return rounds


def read_tile_orders(path: Path, tiles: int) -> Array:
    """[classes, tiles] int64 from a .npy file, or from a .csv file with one order per line."""
    if path.suffix not in (".npy", ".csv"):
        raise ViewError(f"{path}: permutations: expected a .npy or .csv file, or a number")
    try:
        orders = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else _parse_csv(path.read_text(encoding="utf-8"))
        )
    except (OSError, ValueError, EOFError) as error:
        raise ViewError(f"{path}: permutations: cannot be read: {' '.join(str(error).split())}") from error
    if (
        not isinstance(orders, np.ndarray)
        or orders.ndim != 2
        or orders.shape[1] != tiles
        or orders.dtype.kind not in "iu"
    ):
        came = f"{orders.dtype}{list(orders.shape)}" if isinstance(orders, np.ndarray) else type(orders).__name__
        raise ViewError(f"{path}: permutations: expected whole numbers [classes, {tiles}], got {came}")
    wrong = np.any(np.sort(orders, axis=1) != np.arange(tiles), axis=1)
    if wrong.any() or not len(orders):
        came = f"{orders[wrong][0].tolist()} in row {int(np.argmax(wrong))}" if len(orders) else "no row"
        raise ViewError(f"{path}: permutations: expected rows that hold each of 0 to {tiles - 1} once, got {came}")
    distinct, first = np.unique(orders, axis=0, return_index=True)
    if len(distinct) < len(orders):
        again = int(np.setdiff1d(np.arange(len(orders)), first)[0])
        raise ViewError(
            f"{path}: permutations: expected distinct rows, got {orders[again].tolist()} in row {again} again"
        )
    return orders.astype(np.int64)


def _parse_csv(text: str) -> Array:
    if not any(line.partition("#")[0].strip() for line in text.splitlines()):
        raise ValueError("it is empty")
    orders: Array = np.loadtxt(StringIO(text), np.int64, delimiter=",", ndmin=2)
    return orders
