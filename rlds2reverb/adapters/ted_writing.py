"""Steps in TED, as a collector hands them over -> the episodes that a writer takes. Arrays only; `adapters.torchrl` has the tensors.

A batch holds parts of trajectories: they begin before it and go on after it. `TrajectoryRecorder` keeps what is unfinished.

| between one step and the next of a row | the trajectory |
| --- | --- |
| the step's next/done (else next/terminated or next/truncated) is set | ends; terminal by next/terminated |
| the id changes | is kept until its id comes again, in any row: collectors in processes hand their rows over in turn |
| no flag is set, and the observation is another one than the step's `next` | is cut: it ends there as truncated, with the observation under `next` |

Steps that `split_trajectories` added to make rows equally long, false in its mask, are left out.

So a step's own `next` is always what follows it, also where a step was dropped between two batches, or where `next` is a later
observation, as after MultiStep: then each step is an episode of its own.

Columns are those of a dump of such a buffer that is read (docs/formats/ted.md): keys that are at the root and under `next` have the last
`next` in the row behind the last step; others have zeros there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.adapters.ted import DONE, FLAGS, NEXT, TERMINATED, TRUNCATED
from rlds2reverb.episode import ACTION, DISCOUNT, OBSERVATION, REWARD, Array, columns_below, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.rows import steps, zero_row

TRAJECTORY_ID = "collector/traj_ids"
MASKS = ("collector/mask", "mask")
"""Where TorchRL's `split_trajectories` says which steps are no padding; the second where the ids are at the root (0.14.1)."""

_OF_COLLECTORS = "collector"  # a group of keys that describe the collecting, and are no columns
_OF_BUFFERS = ("index", "priority_weight", "_weight")  # keys that sampling adds, and td_error beside them


@dataclass
class _Part:
    """Consecutive steps of one trajectory: path -> [T, ...], of a step at the root and under `next`."""

    root: dict[str, Array]
    following: dict[str, Array]

    @property
    def count(self) -> int:
        return len(next(iter(self.root.values())))


@dataclass
class TrajectoryRecorder:
    """Cuts batches of steps into episodes.

    Attributes:
      max_steps: the most steps of an unfinished trajectory; one that has them is cut there as truncated. None for no limit.
      most_bytes: the most bytes of an unfinished trajectory.
      cuts: trajectories that were cut because a step between two of their parts is missing.
      columns: path -> (shape of a step, dtype), of the first batch; None before it.
    """

    max_steps: int | None = None
    most_bytes: int = 1 << 30
    cuts: int = 0
    columns: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] | None = None
    _open: dict[Hashable, list[_Part]] = field(default_factory=dict)

    def take(self, leaves: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """Takes steps, and gives the columns of the episodes that they end, in the order of rows.

        Args:
          leaves: "/"-joined key -> [B, T, ...]; T consecutive steps of each of B environments.

        Raises:
          ConfigError: keys are missing, or have other shapes or dtypes than in the first batch; an end flag is not one per step. Nothing
            was taken. Or an unfinished trajectory has more than `most_bytes`.
        """
        mask = next((name for name in MASKS if _is_mask(leaves.get(name))), "")
        if mask:
            leaves = dict(leaves)
            lengths = _lengths_of(mask, leaves.pop(mask))
        root, following, ids, done, terminal = self._split(leaves)
        if not mask:
            lengths = np.full(done.shape[0], done.shape[1])
        elif lengths.shape != done.shape[:1]:
            raise ConfigError(f'TED: "{mask}" has {len(lengths)} rows; expected {len(done)}')
        return self._cut(root, following, ids, done, terminal, lengths)

    def finish(self) -> Iterator[dict[str, Array]]:
        """Gives the columns of the unfinished trajectories, as truncated episodes."""
        for key in list(self._open):
            yield self._end(key, False)

    def discard(self) -> int:
        """Drops the unfinished trajectories, and returns the number of their steps."""
        count = sum(part.count for parts in self._open.values() for part in parts)
        self._open.clear()
        return count

    @property
    def unfinished(self) -> int:
        """The number of unfinished trajectories."""
        return len(self._open)

    def _split(
        self, leaves: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array], Array | None, Array, Array]:
        below = f"{NEXT}/"
        following = {key[len(below) :]: leaf for key, leaf in leaves.items() if key.startswith(below)}
        root = {key: leaf for key, leaf in leaves.items() if not key.startswith(below)}
        ids = root.get(TRAJECTORY_ID)
        root = {
            key: leaf
            for key, leaf in root.items()
            if not is_under(key, _OF_COLLECTORS) and key.rpartition("/")[2] not in (*FLAGS, *_OF_BUFFERS)
        }
        for key, side, name in ((OBSERVATION, root, ""), (ACTION, root, ""), (OBSERVATION, following, below)):
            if not any(is_under(path, key) for path in side):
                raise ConfigError(
                    f'TED: no key "{name}{key}"; there are {", ".join(sorted(leaves))}. Rename keys with a transform, such as RenameTransform'
                )
        shape = next(iter(root.values())).shape[:2]
        flags = {name: _flag(name, following.pop(name), shape) for name in FLAGS if name in following}
        if not flags:
            raise ConfigError(
                f'TED: neither "{below}{DONE}" nor "{below}{TERMINATED}" nor "{below}{TRUNCATED}": nothing says where a trajectory ends'
            )
        for key in [key for key in following if key.rpartition("/")[2] in FLAGS]:
            del following[key]  # of a group of agents; the root's flags end the trajectory
        done = flags.get(DONE)
        if done is None:
            done = np.logical_or.reduce([flags[name] for name in (TERMINATED, TRUNCATED) if name in flags])
        if TERMINATED not in flags and TRUNCATED not in flags:
            raise ConfigError(
                f'TED: "{below}{DONE}" alone does not say whether a trajectory ended in a terminal state or was cut off; add "{below}{TERMINATED}"'
            )
        terminal = flags[TERMINATED] if TERMINATED in flags else done & ~flags[TRUNCATED]
        self._check_columns({**root, **{below + key: leaf for key, leaf in following.items()}}, shape)
        if ids is not None:
            if ids.size != shape[0] * shape[1]:
                raise ConfigError(f'TED: "{TRAJECTORY_ID}" has {list(ids.shape[2:])} per step; expected one id')
            ids = ids.reshape(shape)
        return root, following, ids, done | terminal, terminal

    def _check_columns(self, leaves: Mapping[str, Array], shape: tuple[int, ...]) -> None:
        columns = {key: (leaf.shape[2:], leaf.dtype) for key, leaf in leaves.items()}
        for key, leaf in leaves.items():
            if leaf.shape[:2] != shape:
                raise ConfigError(f'TED: "{key}" is {list(leaf.shape)}; expected it to begin with {list(shape)}')
        if self.columns is None:
            self.columns = columns
        elif columns != self.columns:
            lines = [
                f'"{key}" is {_words(columns.get(key))}, and was {_words(self.columns.get(key))}'
                for key in sorted(columns.keys() | self.columns)
                if columns.get(key) != self.columns.get(key)
            ]
            raise ConfigError(
                f"TED: steps differ from those before: {'; '.join(lines)}. Nothing of this batch was taken"
            )

    def _cut(
        self,
        root: dict[str, Array],
        following: dict[str, Array],
        ids: Array | None,
        done: Array,
        terminal: Array,
        lengths: Array,
    ) -> Iterator[dict[str, Array]]:
        """Cuts B rows; `lengths` [B]: of their steps, without the padding behind them."""
        rows, count = done.shape
        observed = [path for path in _observed(root, following) if is_under(path, OBSERVATION)]
        breaks = np.zeros((rows, max(0, count - 1)), bool)  # between a step and the next one of its row
        for path in observed:
            breaks |= differ(following[path][:, :-1], root[path][:, 1:], 2)
        missing = breaks & ~done[:, :-1]
        changes = np.zeros_like(breaks) if ids is None else ids[:, 1:] != ids[:, :-1]
        stops = done.copy()
        stops[:, :-1] |= missing | changes
        filled = np.flatnonzero(lengths)
        stops[filled, lengths[filled] - 1] = True
        for row, length in zip(range(rows), lengths.tolist()):
            start = 0
            for stop in (np.flatnonzero(stops[row, :length]) + 1).tolist():
                key: Hashable = ("row", row) if ids is None else ("id", ids[row, start].item())
                part = _Part(
                    *({path: leaf[row, start:stop] for path, leaf in side.items()} for side in (root, following))
                )
                if key in self._open and any(
                    differ(self._open[key][-1].following[path][-1:], part.root[path][:1], 1).any() for path in observed
                ):
                    self.cuts += 1
                    yield self._end(key, False)
                self._open.setdefault(key, []).append(part)
                is_cut = stop < length and bool(missing[row, stop - 1]) and not changes[row, stop - 1]
                self.cuts += is_cut
                if done[row, stop - 1]:
                    yield self._end(key, bool(terminal[row, stop - 1]))
                elif is_cut or self._is_full(key):
                    yield self._end(key, False)
                start = stop
        for parts in self._open.values():  # a collector writes the next batch into the same memory
            last = parts[-1]
            last.root = {path: leaf.copy() for path, leaf in last.root.items()}
            last.following = {path: leaf.copy() for path, leaf in last.following.items()}

    def _is_full(self, key: Hashable) -> bool:
        """Whether an unfinished trajectory has `max_steps`. Raises `ConfigError` if it has too many bytes."""
        parts = self._open[key]
        count = sum(part.count for part in parts)
        size = sum(leaf.nbytes for part in parts for side in (part.root, part.following) for leaf in side.values())
        if size > self.most_bytes:
            raise ConfigError(
                f"TED: a trajectory of {count:,} steps without an end takes {size:,} bytes, and may take {self.most_bytes:,}; let long ones be "
                "cut (max_steps=...), or allow more (most_episode_bytes=...)"
            )
        return self.max_steps is not None and count >= self.max_steps

    def _end(self, key: Hashable, is_terminal: bool) -> dict[str, Array]:
        parts = self._open.pop(key)
        # `concatenate` copies also a single part, which may lie in the collector's memory.
        root = {path: np.concatenate([part.root[path] for part in parts]) for path in parts[0].root}
        following = {path: np.concatenate([part.following[path] for part in parts]) for path in parts[0].following}
        reward = following.pop(REWARD, root.pop(REWARD, None))
        observed = {path: np.concatenate([root[path], following[path][-1:]]) for path in _observed(root, following)}
        observation = columns_below(observed, OBSERVATION)
        discount = root.pop(DISCOUNT, None)
        further: dict[str, Array] = {path: leaf for path, leaf in observed.items() if not is_under(path, OBSERVATION)}
        further |= {
            path: np.concatenate([leaf, zero_row(leaf)])
            for path, leaf in root.items()
            if path not in observed and not is_under(path, ACTION)
        }
        further |= {
            f"{NEXT}/{path}": np.concatenate([leaf, zero_row(leaf)])
            for path, leaf in following.items()
            if path not in observed
        }
        columns = steps(observation, columns_below(root, ACTION), reward, is_terminal, further, discount)
        if discount is not None:
            columns[DISCOUNT][-1:] = 0 if is_terminal else 1
        return columns


def _observed(root: Mapping[str, Array], following: Mapping[str, Array]) -> list[str]:
    """Keys that a step has at the root and under `next`, of the same dtype and shape."""
    return [
        path
        for path, leaf in root.items()
        if path in following and (following[path].dtype, following[path].shape) == (leaf.dtype, leaf.shape)
    ]


def _is_mask(leaf: Array | None) -> bool:
    """Whether it is one bool per step: a column of that name, as of legal actions, has more."""
    return leaf is not None and leaf.dtype == bool and leaf.size == leaf.shape[0] * leaf.shape[1]


def _lengths_of(name: str, leaf: Array) -> Array:
    """[B]: the true ones of a mask [B, T], which begin each row; raises `ConfigError` if others stand between them."""
    mask = leaf.reshape(leaf.shape[:2])
    if (mask[:, 1:] & ~mask[:, :-1]).any():
        raise ConfigError(
            f'TED: "{name}" is false before steps for which it is true: expected padding at the end of each row only, as split_trajectories '
            "makes it. If it is no padding, rename the key with a transform, such as RenameTransform"
        )
    return np.asarray(mask.sum(axis=1))


def _flag(name: str, leaf: Array, shape: tuple[int, ...]) -> Array:
    """[B, T] of a flag; raises `ConfigError` unless it is one per step."""
    if leaf.shape[:2] != shape or leaf.size != shape[0] * shape[1]:
        raise ConfigError(
            f'TED: "{NEXT}/{name}" is {list(leaf.shape)} for a batch of {list(shape)}: expected one flag per step. Where each agent has its own, '
            "say by a transform when the whole trajectory ends, such as all or any of them"
        )
    return np.asarray(leaf.reshape(shape) != 0)


def _words(column: tuple[tuple[int, ...], np.dtype[Any]] | None) -> str:
    return "not there" if column is None else f"{column[1]}{list(column[0])}"


def differ(column: Array, other: Array, axes: int) -> Array:
    """[...] of the first `axes`: whether two columns of one shape and dtype differ in any bit there. A NaN is itself.

    >>> differ(np.array([[1.0, np.nan], [2.0, 0.0]]), np.array([[1.0, np.nan], [2.0, -0.0]]), 1)
    array([False,  True])
    """
    if column.dtype == object:
        return np.asarray(np.asarray(column != other).reshape(*column.shape[:axes], -1).any(axis=-1))
    size = column.dtype.itemsize * int(np.prod(column.shape[axes:]))
    bits, other_bits = (
        np.ascontiguousarray(side).reshape(-1).view(np.uint8).reshape(*column.shape[:axes], size)
        for side in (column, other)
    )
    return np.asarray((bits != other_bits).any(axis=-1))
