"""Which keys a step has in TED, and which column each is made of.

| RLDS | TED |
| --- | --- |
| `observation`, or what is nested in it | the same key, at the root and under `next` |
| `action`, or what is nested in it | the same key, at the root |
| `reward` | `next.reward`, a number as [1] |
| `is_terminal`, `is_last` | `next.terminated`, `next.truncated`, `next.done`, each [1] |
| `discount` | `discount`, a number as [1] |
| a column `next/...` | the same key |
| any other column | the same key, at the root and under `next`; at the root only where `steps=` names it |
| the number of the episode | `collector.traj_ids` |

An episode of T + 1 rows has T steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from rlds2reverb.destinations.base import LAST_ROW, Content, Loss
from rlds2reverb.destinations.comparing import are_equal
from rlds2reverb.destinations.ted import LOSSES
from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, IS_TERMINAL, REWARD, Array, Episode, is_under
from rlds2reverb.readers.alignment import zero_row
from rlds2reverb.readers.ted.dtypes import NAMES
from rlds2reverb.specs import ArraySpec

NEXT = "next/"
IDS = "collector/traj_ids"
ENDS = ("done", "terminated", "truncated")
BATCH_SIZE = 32
"""`ReplayBuffer.loads` takes what was saved in place of its own, and `sample` refuses None."""
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_TAKEN = frozenset({*ENDS, "next", "reward", "collector", "index", "episode", "mask", "metadata"})
"""First names of keys that mean something in TED."""
_NOT_IN_META = frozenset({"shape", "device", "_type", "_tensordict", "meta"})
"""Names that `meta.json` has for other things."""


@dataclass(frozen=True)
class Key:
    """One key of TED.

    Attributes:
      name: '/'-joined; without `next/` where it is at both places.
      path: the column.
      spec: of a step's value.
      is_observed: whether it has the value before the step and the one after.
      unpacks: whether a number becomes [1].
    """

    name: str
    path: str
    spec: ArraySpec
    is_observed: bool = False
    unpacks: bool = False

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of a step's value."""
        return (1,) if self.unpacks else tuple(size or 0 for size in self.spec.shape)

    @property
    def in_group(self) -> str:
        """Its name in the H5 form, which has rewards without `next`."""
        return REWARD if self.path == REWARD else self.name

    def values(self, episode: Episode) -> Array:
        """[T, ...], or [T + 1, ...] of what is observed."""
        column = episode.columns[self.path]
        found = column if self.is_observed else column[:-1]
        return found.reshape(len(found), *self.row).astype(self.spec.dtype, copy=False)


@dataclass(frozen=True)
class Choices:
    """How a buffer is to be written.

    Attributes:
      is_h5: as HDF5; else memory-mapped files.
      steps: columns whose last row means nothing, so that they stand at the root only.
      keeps_discount: whether there is a key `discount`.
      compression: of h5py's `create_dataset`; None for none.
      batch_size: of the buffer.
    """

    is_h5: bool = True
    steps: frozenset[str] = frozenset()
    keeps_discount: bool = True
    compression: str | None = None
    batch_size: int = BATCH_SIZE


def keys_of(content: Content, choices: Choices) -> tuple[list[Key], list[Loss]]:
    """The keys of a content, and what has none."""
    keys: list[Key] = []
    losses = [Loss("metadata", LOSSES["metadata"], f"metadata/{path}") for path in content.metadata]
    if IS_TERMINAL not in content.columns:
        losses.append(Loss("unknown_end", LOSSES["unknown_end"], IS_TERMINAL))
    for path, spec in sorted(content.columns.items()):
        if path in FLAGS:
            continue
        code = _unfit(path, spec, choices) or _beside_another(path, content, choices)
        if code:
            losses.append(Loss(code, f"{spec}: {LOSSES[code]}", path))
        if code in ("", "bfloat16", "shape"):
            held = ArraySpec(spec.shape, np.dtype(np.float32)) if _is_widened(spec, choices) else spec
            keys.append(_key(path, held, choices.steps))
    return keys, losses


def ends_of(episode: Episode) -> dict[str, Array]:
    """`done`, `terminated` and `truncated` of every step, [T, 1]."""
    last = np.zeros((len(episode) - 1, 1), bool)
    terminated = last.copy()
    if IS_TERMINAL in episode.columns:
        terminated[:, 0] = episode.columns[IS_TERMINAL][1:]
    last[-1:] = True
    return {"done": last, "terminated": terminated, "truncated": last & ~terminated}


def losses_of(episode: Episode, keys: list[Key]) -> Iterator[Loss]:
    """What the last row of an episode has that no step holds."""
    columns = episode.columns
    is_terminal = IS_TERMINAL in columns and bool(columns[IS_TERMINAL][-1:].any())
    for key in keys:
        last = columns[key.path][-1:]
        if key.path == DISCOUNT:
            if not are_equal(last, np.full_like(last, 0 if is_terminal else 1)):
                yield Loss("last_discount", LOSSES["last_discount"], key.path, LAST_ROW)
        elif not key.is_observed and not are_equal(last, zero_row(last)):
            yield Loss("last_row", LOSSES["last_row"], key.path, LAST_ROW)


def _key(path: str, spec: ArraySpec, steps: frozenset[str]) -> Key:
    if path == REWARD:
        return Key(NEXT + REWARD, path, spec, unpacks=not spec.shape)
    if path == DISCOUNT:
        return Key(path, path, spec, unpacks=not spec.shape)
    is_step = is_under(path, ACTION) or path.startswith(NEXT) or path in steps
    return Key(path, path, spec, is_observed=not is_step)


def _unfit(path: str, spec: ArraySpec, choices: Choices) -> str:
    """The code of the loss, "" for none."""
    if path == DISCOUNT and not choices.keeps_discount:
        return "discount"
    if spec.dtype.kind in "OSU":
        return "text"
    if spec.dtype.kind == "c" or spec.dtype.newbyteorder("=") not in NAMES:
        return "dtype"
    if path not in (REWARD, DISCOUNT) and _means_something(path, choices.steps):
        return "name"
    if None in spec.shape:
        return "dtype"
    if 0 in spec.shape and not choices.is_h5:
        return "empty_values"
    if path in (REWARD, DISCOUNT) and spec.shape == (1,):
        return "shape"
    return "bfloat16" if _is_widened(spec, choices) else ""


def _beside_another(path: str, content: Content, choices: Choices) -> str:
    """Whether a column `next/...` would be taken for what another one is after the step: the code of the loss, "" if not."""
    below = path.removeprefix(NEXT)
    others = () if choices.is_h5 or below == path else content.columns
    return "name" if any(is_under(one, below) or is_under(below, one) for one in others) else ""


def _is_widened(spec: ArraySpec, choices: Choices) -> bool:
    return choices.is_h5 and spec.dtype == _BFLOAT16


def _means_something(path: str, steps: frozenset[str]) -> bool:
    """Whether readers take the key for something else, or no file can have its name."""
    parts = path.split("/")
    names = parts[1:] if path.startswith(NEXT) else parts
    if names[0] in _TAKEN or not all(map(_is_name, parts)):
        return True
    return parts[-1] in (*ENDS, REWARD) or (parts[-1] == ACTION and path != ACTION and path in steps)


def _is_name(part: str) -> bool:
    return (
        bool(part) and part.isprintable() and not part.startswith(".") and "\\" not in part and part not in _NOT_IN_META
    )
