"""`Normalizer`: values as policies want them, and back, by the statistics of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import ACTION, OBSERVATION, Array, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.numbers.columns import ColumnStatistics, mask_of
from rlds2reverb.numbers.statistics import DatasetStatistics
from rlds2reverb.text import did_you_mean, shortened

MEAN_STD, MIN_MAX, QUANTILES = "mean_std", "min_max", "quantiles"
MODES = (MEAN_STD, MIN_MAX, QUANTILES)


@dataclass(frozen=True, eq=False)
class ColumnNormalizer:
    """Normalises one column: `(values - center) * scale`, and back.

    The last axes of values are those of the column's rows; before them are any number of axes, of a batch or of time.

    Attributes:
      center, scale: of each dimension, float64; a scale of 0 where the column has one value.
      low, high: of each dimension, between which values are clipped; infinite where they are not.
      mask: of each dimension, False for those that stay as they are.
      path: of the column, for messages.
    """

    center: Array
    scale: Array
    low: Array
    high: Array
    mask: Array
    path: str = ""

    def normalize(self, values: Any) -> Any:
        """numpy, torch or JAX -> the same kind, dtype (float32 for integers) and device; clipped where the normaliser clips.

        Raises:
          ConfigError: the last axes are not those of the column's rows.
        """
        values, dtype = self._checked_floats(values)
        center, scale = (_like(values, numbers) for numbers in (self.center, self.scale))
        normal = (values - center) * scale
        if np.isfinite(self.high).any():
            normal = normal.clip(_like(values, self.low), _like(values, self.high))
        return _cast(normal if self._is_whole else _choose(_like(values, self.mask), normal, values), dtype)

    def denormalize(self, values: Any) -> Any:
        """The inverse; what was clipped stays at the ends. A dimension of one value gets that value. Raises as `normalize`."""
        values, dtype = self._checked_floats(values)
        spread = np.divide(1.0, self.scale, out=np.zeros_like(self.scale), where=self.scale != 0)
        original = values * _like(values, spread) + _like(values, self.center)
        return _cast(original if self._is_whole else _choose(_like(values, self.mask), original, values), dtype)

    def _checked_floats(self, values: Any) -> tuple[Any, Any]:
        floats, dtype = _as_floats(values)
        shape, rows = tuple(floats.shape), self.center.shape
        # Without this, other widths would be broadcast where they happen to allow it.
        if shape[len(shape) - len(rows) :] != rows:
            raise ConfigError(
                f'Normalizer: "{self.path}": statistics of another signature: expected an array of shape [..., {", ".join(map(str, rows))}], found {list(shape)}'
            )
        return floats, dtype

    @cached_property
    def _is_whole(self) -> bool:
        return bool(self.mask.all())


class Normalizer:
    """Normalises nests of arrays by the statistics of a dataset, and back.

    | mode | value |
    | --- | --- |
    | `mean_std` | (x - mean) / (std + epsilon) |
    | `min_max` | 2 (x - min) / (max - min + epsilon) - 1, [-1, 1] |
    | `quantiles` | the same by q01 and q99 |

    A dimension of one value becomes 0, as in OpenVLA, and gets its value back. By quantiles, a dimension with q01 = q99 and other values beside them
    is normalised by its minimum and maximum instead: `by_ends` lists it.

    >>> import numpy as np, rlds2reverb
    >>> normalizer = rlds2reverb.Normalizer(rlds2reverb.statistics("bundled:half_cheetah"), "quantiles", columns=["action"])
    >>> batch = {"action": np.full((32, 6), 0.5, np.float32)}
    >>> normal = normalizer(batch)
    >>> bool(np.allclose(normalizer.denormalize(normal)["action"], 0.5))
    True

    Args:
      statistics: of a dataset, or a file of them that `DatasetStatistics.read` takes.
      mode: one of the modes above for all columns, or path -> mode.
      columns: paths to normalise; None for actions and observations of floats that are no images. With a mapping of modes, those.
      masks: path -> bools, False for dimensions that stay as they are, such as a gripper's; in place of those of the statistics.
      clip: whether to clip to [-1, 1] (`min_max`, `quantiles`), as OpenVLA and Octo do; a number clips to plus and minus that number in every mode.
      epsilon: added to what is divided by: 1e-8 as in LeRobot, OpenVLA and Octo; openpi adds 1e-6.

    Attributes:
      by_ends: path -> bools, dimensions that are normalised by minimum and maximum because q01 = q99.

    Raises:
      ConfigError: an unknown mode or column, a mask of the wrong width, or statistics that lack what a mode needs.
      SourceError: the file cannot be read.
    """

    def __init__(
        self,
        statistics: DatasetStatistics | str | Path,
        mode: str | Mapping[str, str] = MEAN_STD,
        columns: Sequence[str] | None = None,
        masks: Mapping[str, Sequence[bool]] | None = None,
        clip: bool | float = False,
        epsilon: float = 1e-8,
    ) -> None:
        read = DatasetStatistics.read(statistics) if isinstance(statistics, (str, Path)) else statistics
        modes = _modes(read, mode, columns)
        _check_known("columns", modes, read.columns)
        _check_known("masks", masks or {}, modes)
        if (clip is not False and not 0 < float(clip) < np.inf) or not 0 <= epsilon < np.inf:
            raise ConfigError(
                f"Normalizer: clip {clip}, epsilon {epsilon}: expected True, False or a number above 0, and one from 0"
            )
        self.by_ends: dict[str, Array] = {}
        self._columns = {
            path: self._column(path, read[path], name, (masks or {}).get(path), clip, epsilon)
            for path, name in modes.items()
        }

    def __getitem__(self, path: str) -> ColumnNormalizer:
        """What normalises one column."""
        return self._columns[path]

    @property
    def columns(self) -> tuple[str, ...]:
        """Paths that are normalised."""
        return tuple(self._columns)

    def __call__(self, nest: Any) -> Any:
        """As `normalize`."""
        return self.normalize(nest)

    def normalize(self, nest: Any) -> Any:
        """A nest with its columns normalised; others stay.

        Args:
          nest: mappings (also by "a/b") or tuples with names, of numpy, torch or JAX arrays; a batch, of which `data` is such a nest. It may
            lack some columns. Mappings become dicts.

        Raises:
          ConfigError: it has none of the columns, or arrays of another width than the statistics.
        """
        return self._map_root(nest, "normalize")

    def denormalize(self, nest: Any) -> Any:
        """The inverse of `normalize`."""
        return self._map_root(nest, "denormalize")

    def _map_root(self, nest: Any, way: str) -> Any:
        if _is_batch(nest):
            return nest._replace(data=self._map_root(nest.data, way))
        paths: list[str] = []
        mapped = self._mapped(nest, "", way, paths)
        if not self._columns.keys() & paths:
            there = shortened(", ".join(paths)) or type(nest).__name__
            raise ConfigError(
                f"Normalizer: expected a nest with {' or '.join(self._columns)}, found {there}; for one array there is normalizer[PATH].{way}"
            )
        return mapped

    def _mapped(self, nest: Any, path: str, way: str, paths: list[str]) -> Any:
        """Appends the paths of the leaves to `paths`."""
        if path in self._columns:
            paths.append(path)
            return getattr(self._columns[path], way)(nest)
        if isinstance(nest, Mapping):
            return {
                name: self._mapped(child, f"{path}/{name}" if path else str(name), way, paths)
                for name, child in nest.items()
            }
        if isinstance(nest, tuple) and hasattr(nest, "_fields"):
            children = zip(nest._fields, nest)
            return type(nest)(
                *(self._mapped(child, f"{path}/{name}" if path else name, way, paths) for name, child in children)
            )
        paths += [path] if path else []
        return nest

    def _column(
        self, path: str, column: ColumnStatistics, mode: str, mask: Any, clip: bool | float, epsilon: float
    ) -> ColumnNormalizer:
        used = np.ones(column.shape, bool) if column.mask is None else column.mask
        if mask is not None:
            used = mask_of(path, mask, column.shape)
        is_constant = column.is_constant
        if mode == MEAN_STD:
            center, scale = column.mean, 1 / np.where(is_constant, 1.0, column.std + epsilon)
        else:
            low, high = (column.min, column.max) if mode == MIN_MAX else _quantile_ends(column)
            if mode == QUANTILES and (is_equal := (low == high) & ~is_constant).any():
                self.by_ends[path] = is_equal
                low, high = np.where(is_equal, column.min, low), np.where(is_equal, column.max, high)
            half = (high - low + epsilon) / 2
            # One value: its mean comes back, whatever the ends are.
            center = np.where(is_constant, column.mean, low + half)
            scale = 1 / np.where(is_constant, 1.0, half)
        scale = np.where(is_constant, 0.0, scale)
        lacking = used & ~(np.isfinite(center) & np.isfinite(scale))
        if lacking.any():
            raise ConfigError(
                f'Normalizer: statistics of "{path}" lack what mode {mode} needs in {int(lacking.sum())} of {lacking.size} dimensions; choose another '
                "mode, or mask them"
            )
        most = np.inf if clip is False or (clip is True and mode == MEAN_STD) else float(clip)
        ends = np.full(column.shape, most)
        return ColumnNormalizer(np.where(used, center, 0.0), np.where(used, scale, 1.0), -ends, ends, used, path)


def _modes(
    statistics: DatasetStatistics, mode: str | Mapping[str, str], columns: Sequence[str] | None
) -> dict[str, str]:
    """Path -> mode."""
    if isinstance(mode, Mapping):
        if columns is not None:
            raise ConfigError("Normalizer: mode names the columns already; leave out columns")
        modes = dict(mode)
    else:
        if columns is None:
            columns = [
                path
                for path, column in statistics.items()
                if (is_under(path, ACTION) or is_under(path, OBSERVATION))
                and not column.is_image
                and "float" in column.dtype
                and (~np.isnan(column.mean)).all()
            ]
        modes = dict.fromkeys(columns, mode)
    for name in modes.values():
        if name not in MODES:
            raise ConfigError(
                f'Normalizer: mode "{name}": expected one of {", ".join(MODES)}{did_you_mean(str(name), MODES)}'
            )
    return modes


def _check_known(what: str, paths: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for path in paths:
        if path not in known:
            raise ConfigError(
                f'Normalizer: {what}: "{path}" is none of {", ".join(known)}{did_you_mean(str(path), list(known))}'
            )


def _quantile_ends(column: ColumnStatistics) -> tuple[Array, Array]:
    nothing = np.full(column.shape, np.nan)
    return column.quantiles.get(0.01, nothing), column.quantiles.get(0.99, nothing)


def _is_batch(nest: Any) -> bool:
    return isinstance(nest, tuple) and {"data", "info"} <= set(getattr(nest, "_fields", ()))


def _library(values: Any) -> str:
    """The library whose array it is, without importing it."""
    return type(values).__module__.partition(".")[0]


def _as_floats(values: Any) -> tuple[Any, Any]:
    """Floats to compute with, and the dtype of the result: float32 for integers and flags; lists and numbers as arrays of numpy.

    Floats of 16 bits are computed as float32: they round a mean of 300 to quarters, and a scale above 65504 is infinite in float16.
    """
    if _library(values) == "torch":
        dtype = values.dtype if values.is_floating_point() else None
        is_wide = dtype is not None and values.element_size() >= 4
        floats = values if is_wide else values.float()
        return floats, dtype or floats.dtype
    array = values if _library(values) in ("jax", "jaxlib") else np.asarray(values)
    if "float" not in str(array.dtype):
        return array.astype(np.float32), np.dtype(np.float32)
    return (array if array.dtype.itemsize >= 4 else array.astype(np.float32)), array.dtype


def _cast(values: Any, dtype: Any) -> Any:
    if values.dtype == dtype:
        return values
    return values.to(dtype) if _library(values) == "torch" else values.astype(dtype)


def _like(values: Any, numbers: Array) -> Any:
    """Numbers of the statistics in the dtype of `values`, and on their device; flags stay flags."""
    if _library(values) == "torch":
        import torch

        dtype = torch.bool if numbers.dtype == bool else values.dtype
        return torch.as_tensor(numbers, dtype=dtype, device=values.device)
    return numbers if numbers.dtype == bool else numbers.astype(values.dtype)


def _choose(mask: Any, values: Any, others: Any) -> Any:
    if _library(values) == "torch":
        return values.where(mask, others)
    if _library(values) in ("jax", "jaxlib"):
        import jax.numpy

        return jax.numpy.where(mask, values, others)
    return np.where(mask, values, others)
