"""Keys and priorities that come from learners, checked before anything is sent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError


def checked_keys(keys: npt.ArrayLike) -> Array:
    """[n] uint64 keys of items; int64 of the same bits, as PyTorch has them, will do.

    Raises:
      ConfigError: other numbers than whole ones.
    """
    item_keys = np.atleast_1d(np.asarray(keys))
    if item_keys.dtype == np.int64:
        item_keys = item_keys.view(np.uint64)
    if item_keys.dtype.kind != "u" and item_keys.size:
        raise ConfigError(f"keys: expected uint64, as info.key has them, got {item_keys.dtype}{list(item_keys.shape)}")
    flat: Array = item_keys.astype(np.uint64).ravel()
    return flat


def checked_priorities(keys: npt.ArrayLike, priorities: npt.ArrayLike) -> tuple[Array, Array]:
    """[n] uint64 keys and [n] float64 priorities; one priority does for all keys.

    Raises:
      ConfigError: numbers of them that differ, or a priority that is not finite. Negative ones are for the server to judge: heaps order by
      them, prioritized samplers and removers refuse them.
    """
    item_keys = checked_keys(keys)
    values = np.asarray(priorities, np.float64)
    values = np.full(len(item_keys), values) if values.ndim == 0 else values.ravel()
    if len(values) != len(item_keys):
        raise ConfigError(f"priorities: {len(values)} for {len(item_keys)} keys; expected one each")
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ConfigError(
            f"priorities: {values[wrong[0]]} at index {wrong[0]} ({len(wrong)} such): expected finite numbers"
        )
    return item_keys, values
