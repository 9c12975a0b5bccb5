"""Images [T, H, W, C] to another size, as `tf.image.resize` makes them, in numpy alone.

Every output row (column) is a weighted sum of a few neighbouring input rows (columns): a table of places and weights for each axis.

| method | a weight is | same as |
| --- | --- | --- |
| area | the part of the input pixel that the output pixel covers; for larger and for smaller images | `tf.image.resize(x, size, method="area")` |
| lanczos3 | a windowed sinc of radius 3, widened when the image gets smaller, then normed | `tf.image.resize(x, size, method="lanczos3", antialias=True)` |

Sums are taken in float32, in TensorFlow's own order: `area` is equal to the bit. `lanczos3` differs by what two libraries' sines do.
Integers are then rounded to the nearest (halves to even) and cut to their range: `tf.cast(tf.clip_by_value(tf.round(y), low, high), dtype)`.
Source: tensorflow/core/kernels/image/resize_area_op.cc and scale_and_translate_op.cc.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError

AREA, LANCZOS3 = "area", "lanczos3"
METHODS = (AREA, LANCZOS3)

MOST_PIXELS = 8192
"""The longest side of an image that is made; more is a slip of the pen."""

_WRITTEN = re.compile(r"([0-9]{1,6})x([0-9]{1,6})(?::(\w+))?")
_RADIUS = np.float32(3)
_NEAR_ZERO = np.float32(1e-3)
"""Where TensorFlow takes sin(x) / x as 1."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Size:
    """What an image becomes.

    Attributes:
      height, width: in pixels.
      method: one of `METHODS`.

    Raises:
      ConfigError: a side below 1 or above `MOST_PIXELS`, or another method.
    """

    height: int
    width: int
    method: str = AREA

    def __post_init__(self) -> None:
        if not (1 <= self.height <= MOST_PIXELS and 1 <= self.width <= MOST_PIXELS):
            raise ConfigError(f"{self.height}x{self.width}: expected sides of 1 to {MOST_PIXELS} pixels")
        if self.method not in METHODS:
            raise ConfigError(f'method "{self.method}": expected one of {", ".join(METHODS)}')

    def __str__(self) -> str:
        return f"{self.height}x{self.width}:{self.method}"

    @classmethod
    def parse(cls, text: object) -> Size:
        """From "HEIGHTxWIDTH" or "HEIGHTxWIDTH:METHOD".

        Raises:
          ConfigError: it is not of that form.
        """
        found = _WRITTEN.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
        if found is None:
            raise ConfigError(f"{text!r}: expected HEIGHTxWIDTH or HEIGHTxWIDTH:METHOD, such as 256x256:lanczos3")
        return cls(int(found[1]), int(found[2]), found[3] or AREA)


@dataclass(frozen=True, eq=False)
class _Taps:
    """How one axis is made: output i is the sum over k of weights[i, k] * input[places[i, k]].

    Attributes:
      places: [out, k] indices into the input; where the weight is 0, any valid one.
      weights: [out, k].
      scale: what remains to be divided by.
    """

    places: npt.NDArray[np.int64]
    weights: Floats
    scale: np.float32


def resized(images: Array, size: Size) -> Array:
    """[T, H, W, C] -> [T, height, width, C] of the same dtype, one of `IMAGE_DTYPES`; at least one pixel.

    Works image by image, so beside the result it needs memory for one image as float32.
    """
    steps, height, width, channels = images.shape
    dtype = images.dtype.newbyteorder("=")
    made = np.empty((steps, size.height, size.width, channels), dtype)
    taps = _TAPS[size.method]
    rows, columns = taps(height, size.height), taps(width, size.width)
    put = _ORDERS[size.method]
    with np.errstate(invalid="ignore", over="ignore"):  # of pixels that are not finite; validation tells them
        for step in range(steps):
            made[step] = _as(put(images[step].astype(np.float32), rows, columns), dtype)
    return made


def _as(image: Floats, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return image
    limits = np.iinfo(dtype)
    return np.clip(np.rint(image), limits.min, limits.max).astype(dtype)


def _columns_then_rows(image: Floats, rows: _Taps, columns: _Taps) -> Floats:
    """TensorFlow's order for `area`; the areas are divided by last."""
    made = _along_rows(np.swapaxes(_along_rows(np.swapaxes(image, 0, 1), columns), 0, 1), rows)
    made *= np.float32(1) / (rows.scale * columns.scale)
    return made


def _rows_then_columns(image: Floats, rows: _Taps, columns: _Taps) -> Floats:
    """TensorFlow's order for `lanczos3`."""
    return np.swapaxes(_along_rows(np.swapaxes(_along_rows(image, rows), 0, 1), columns), 0, 1)


def _along_rows(image: Floats, taps: _Taps) -> Floats:
    """[in, A, C] -> [out, A, C]: whole rows are added up, first tap first."""
    flat = np.ascontiguousarray(image).reshape(len(image), -1)
    made = flat[taps.places[:, 0]] * taps.weights[:, :1]
    addend = np.empty_like(made)
    for places, weights in zip(taps.places.T[1:], taps.weights.T[1:]):
        np.take(flat, places, axis=0, out=addend, mode="clip")  # other modes copy once more
        addend *= weights[:, None]
        made += addend
    reshaped: Floats = made.reshape(len(made), *image.shape[1:])
    return reshaped


@lru_cache(maxsize=64)
def _area_taps(before: int, after: int) -> _Taps:
    """Output pixel i covers input [i * scale, (i + 1) * scale]; all in float32, as TensorFlow reckons."""
    one, scale = np.float32(1), np.float32(before) / np.float32(after)
    numbers = np.arange(after, dtype=np.float32)
    low, high = (numbers * scale)[:, None], ((numbers + one) * scale)[:, None]
    first, end = np.floor(low).astype(np.int64), np.ceil(high).astype(np.int64)
    places = first + np.arange(int((end - first).max()))
    left = places.astype(np.float32)
    from_inside = np.where(left + one > high, high - left, one)
    from_before = np.where(left + one > high, scale, left + one - low)
    weights = np.where(left < low, from_before, from_inside)
    return _taps(places, weights, places < end, before, scale)


@lru_cache(maxsize=64)
def _lanczos3_taps(before: int, after: int) -> _Taps:
    """Weights by the distance from the output pixel's centre, each row of them normed to 1."""
    half = np.float32(0.5)
    inverse = np.float32(1.0 / float(np.float32(after) / np.float32(before)))
    widened = max(inverse, np.float32(1))
    centres = ((np.arange(after, dtype=np.float32) + half) * inverse)[:, None]
    reach = _RADIUS * widened
    first = np.clip(np.ceil(centres - reach - half), 0, before - 1).astype(np.int64)
    end = np.clip(np.floor(centres + reach - half), 0, before - 1).astype(np.int64) + 1
    places = first + np.arange(int((end - first).max()))
    distances = np.abs((places.astype(np.float32) + half - centres) * (np.float32(1) / widened))
    weights = np.where(places < end, _lanczos3(distances), np.float32(0))
    total = np.zeros(after, np.float32)
    for column in weights.T:
        total += column
    return _taps(places, weights * (np.float32(1) / total)[:, None], places < end, before, np.float32(1))


def _lanczos3(distances: Floats) -> Floats:
    pi = np.float32(np.pi)
    safe = np.maximum(distances, _NEAR_ZERO)
    sines = [np.sin(angle.astype(np.float64)).astype(np.float32) for angle in (pi * safe, pi * safe / _RADIUS)]
    values = _RADIUS * sines[0] * sines[1] / (pi * pi * safe * safe)
    near = np.where(distances <= _NEAR_ZERO, np.float32(1), values)
    return np.where(distances > _RADIUS, np.float32(0), near).astype(np.float32)


def _taps(places: Array, weights: Array, is_covered: Array, before: int, scale: np.float32) -> _Taps:
    weights = np.where(is_covered, weights, 0).astype(np.float32)
    return _Taps(np.clip(places, 0, before - 1), weights, scale)


_TAPS: dict[str, Callable[[int, int], _Taps]] = {AREA: _area_taps, LANCZOS3: _lanczos3_taps}
_ORDERS: dict[str, Callable[[Floats, _Taps, _Taps], Floats]] = {
    AREA: _columns_then_rows,
    LANCZOS3: _rows_then_columns,
}
