"""How a storage in TED's own form is laid out: what its items are, which of them were written, and where steps lie.

| batch size | item | read as |
| --- | --- | --- |
| [N], leaves [N, ...] | a step | rows of one sequence |
| [N], leaves [N, T, ...] | a trajectory that was stored as one item | N trajectories of T steps |
| [N, T] or [columns, N, T] | a trajectory | the same |
| [rows, columns] of a storage with ndim 2 | a step of each environment | columns beside each other, time first |

A batch size of one dimension does not tell the first two apart: T may be an axis of each step, such as agents. Nor do files without metadata tell
the last two apart, such as a `scratch_dir`. `next` decides, where it goes on along one of the two axes; otherwise the user does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Notice, note
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.ted.folders import Folder, Leaf, PerRow, as_column, leaf_of
from rlds2reverb.formats.ted.keys import DONE, DONES, NEXT, REWARD, ROWS, TRAJECTORY_IDS, TedOptions, last_part
from rlds2reverb.formats.ted.trajectories import INDEX, StorageGrid, as_bytes
from rlds2reverb.text import counted

_MASKS = ("mask", "collector/mask")
_SAMPLED = 32  # items, and steps of each, whose `next` is compared
_BLOCK_BYTES = 1 << 20  # read at once in the search for the last row that was written


@dataclass(frozen=True)
class StorageLayout:
    """A storage, its keys as its items have them, and where its steps lie. `counts_items` says that it counts whole trajectories, not steps."""

    folder: Folder
    leaves: Mapping[str, Leaf]
    grid: StorageGrid
    counts_items: bool
    notices: tuple[Notice, ...]


def lay_out(
    name: str, folder: Folder, leaves: Mapping[str, Leaf], length: int | None, cursor: int | None, options: TedOptions
) -> StorageLayout:
    """Decides how a storage is read.

    Args:
      leaves: those of the folder, under the names that options give them.
      length: the number of recorded items, or of steps; None without metadata: the rows at the end that are 0 in every key count as never
        written, as in the `scratch_dir` of a LazyMemmapStorage.
      cursor: the row that would be written next.

    Raises:
      SourceError: metadata and files disagree, or items may be steps as well as trajectories.
    """
    if length is not None and length > math.prod(folder.batch):
        raise SourceError(
            f"{name}: len {length:,}: expected at most {math.prod(folder.batch):,}, as the batch size {list(folder.batch)} says"
        )
    leaves, notices = _with_ends_of_dm_env(leaves, options)
    written = folder.batch[0] if length is None else min(length, folder.batch[0])
    if length is None and not folder.is_whole:
        written = _written_rows(folder)
        if written < folder.batch[0]:
            notices.append(_unwritten(written, folder.batch[0]))
    is_single = len(folder.batch) == 1
    if is_single:
        holds_trajectories, notice = _choose_in_one_dimension(name, folder, leaves, written, options)
        if holds_trajectories:
            folder, leaves = _spread_items(name, folder, leaves)
        rows, counted_items = written, holds_trajectories
    else:
        counts_items = _counts_items(name, folder.batch, length, cursor)
        holds_trajectories, notice = _choose_in_more_dimensions(name, folder, leaves, written, counts_items, options)
        counted_items = holds_trajectories if counts_items is None else counts_items
        rows = written if length is None or counted_items else length // math.prod(folder.batch[1:])
    notices += [notice] if notice else []
    if holds_trajectories:
        grid, padding = _grid_of_items(name, folder, leaves, rows)
        # A batch [columns, T] of a collector has the ends of several trajectories in each column, unless the user says otherwise.
        grid = replace(grid, items_end=is_single or options.holds_trajectories is True)
        notices += padding
    else:
        grid = replace(_grid_of_steps(name, folder, rows, cursor), stops=folder.stops)
    return StorageLayout(folder, leaves, grid, counted_items, tuple(notices))


_STEP_TYPE = "step_type"
_LAST_OF_DM_ENV = 2
"""dm_env's `StepType.LAST`; FIRST is 0, MID is 1."""


def _with_ends_of_dm_env(leaves: Mapping[str, Leaf], options: TedOptions) -> tuple[Mapping[str, Leaf], list[Notice]]:
    """Adds `next/done` from dm_env's step types where nothing else divides trajectories, as in what TorchRL makes of V-D4RL's HDF5 files."""
    divides = any(NEXT + key in leaves for key in DONES) or any(key in leaves for key in TRAJECTORY_IDS)
    keys = [key for key in leaves if last_part(key) == _STEP_TYPE and not key.startswith(NEXT)]
    if divides or options.trajectories or len(keys) != 1 or leaves[keys[0]].dtype.kind not in "iu":
        return leaves, []
    step_types = leaves[keys[0]].read()
    if step_types.size and (step_types.min() < 0 or step_types.max() > _LAST_OF_DM_ENV):
        return leaves, []
    text = f"trajectories end where {keys[0].replace('/', '.')} is {_LAST_OF_DM_ENV}, as dm_env marks the last step; no end flags are there"
    return {**leaves, f"{NEXT}done": leaf_of(step_types == _LAST_OF_DM_ENV)}, [note("keys", text)]


_DATA = "data/"
_ADDED = "add_count"


def is_of_atari(folder: Folder) -> bool:
    """Whether a folder is a split that TorchRL's AtariDQNExperienceReplay wrote: a ring of Dopamine."""
    return not folder.batch and f"{_DATA}observation" in folder.leaves and f"{_DATA}{NEXT}terminated" in folder.leaves


def unpack_atari(name: str, folder: Folder) -> tuple[Folder, int, dict[str, int]]:
    """A split of AtariDQNExperienceReplay as a storage of T steps, the number of recorded ones, and what its writer would have said.

    Each frame is stored once, with an empty one behind the last, so there is no `next.observation`; after a terminal step none was recorded.
    `add_count` steps were added in all: the ring's next row is `add_count` modulo T. All else is of the whole split.

    Raises:
      SourceError: keys differ in their number of steps.

    Source: torchrl/data/datasets/atari_dqn.py; dopamine/replay_memory/circular_replay_buffer.py (`is_full`, `cursor`).
    """
    steps = folder.leaves[f"{_DATA}{NEXT}terminated"].shape[0]
    leaves: dict[str, Leaf] = {}
    constants: dict[str, Any] = dict(folder.others)
    for key, leaf in folder.leaves.items():
        if not key.startswith(_DATA):
            constants[key] = leaf.read() if leaf.shape else leaf.read()[()]
            continue
        rows = steps + (key == f"{_DATA}observation")
        if leaf.shape[:1] != (rows,):
            raise SourceError(f"{name}: {key}: has shape {list(leaf.shape)}; expected {counted(rows, 'row')}")
        leaves[key.removeprefix(_DATA)] = replace(leaf, shape=(steps, *leaf.shape[1:]))
    added = constants.pop(_ADDED, steps)
    if np.ndim(added) or int(added) < 0:
        raise SourceError(f"{name}: {_ADDED} {added}: expected a number of steps")
    count = int(added)
    writer = {"cursor": count % max(steps, 1), "write_count": count}
    return Folder((steps,), leaves, constants), min(count, steps), writer


def _choose_in_one_dimension(
    name: str, folder: Folder, leaves: Mapping[str, Leaf], written: int, options: TedOptions
) -> tuple[bool, Notice | None]:
    """Whether each of the N items of a batch [N] is a trajectory [T, ...], and a notice where `next` has decided that.

    Raises:
      SourceError: items may be both.
    """
    if options.holds_trajectories is not None:
        return options.holds_trajectories, None
    if folder.time == 0 or folder.stops is not None:
        return False, None
    steps = _common_steps(leaves)
    if steps < 2 or not written or options.trajectories == ROWS:
        return False, None
    text = (
        "each item of the storage is read as a trajectory, along whose steps next goes on; items=steps says otherwise"
    )
    of_items = True, note("items", text)
    ids = next((leaf for key in (*TRAJECTORY_IDS, options.trajectories) if (leaf := leaves.get(key))), None)
    if ids is not None and options.trajectories != DONE and ids.shape[1:] not in ((), (1,)):
        return of_items
    by_item, by_row = _next_goes_on(leaves, (written, steps), 1), _next_goes_on(leaves, (written, steps), 0)
    if by_item and not by_row:
        return of_items
    has_ends = any(NEXT + key in leaves for key in DONES) or ids is not None
    if by_row and not by_item and has_ends:
        return False, None
    raise SourceError(
        f"{name}: a batch of {counted(written, 'item')}, each [{steps:,}, ...] in the keys that every step has: items=trajectories reads "
        f"{counted(written, 'trajectory')} of {counted(steps, 'step')}; items=steps reads {counted(written, 'step')}, each with {steps:,} values beside "
        "each other, of agents, say"
    )


def _choose_in_more_dimensions(
    name: str,
    folder: Folder,
    leaves: Mapping[str, Leaf],
    written: int,
    counts_items: bool | None,
    options: TedOptions,
) -> tuple[bool, Notice | None]:
    """Whether time is the last size of a batch [N, ..., T]; else it is the first one. A notice where `next` says other than the metadata.

    Raises:
      SourceError: it may be either.
    """
    if options.holds_trajectories is not None:
        return options.holds_trajectories, None
    batch = folder.batch
    if folder.time in (0, len(batch) - 1):
        return folder.time != 0, None
    items, columns = (written * math.prod(batch[1:-1]), batch[-1]), (written, math.prod(batch[1:]))
    by_item, by_row = _next_goes_on(leaves, items, 1, len(batch)), _next_goes_on(leaves, columns, 0, len(batch))
    if by_item != by_row:
        text = "next goes on along the {} size of the batch, which is read as time; items={} says otherwise"
        told = note("items", text.format(*("last", "steps") if by_item else ("first", "trajectories")))
        return by_item, None if counts_items in (by_item, None) else told
    has_mask = any(key in leaves for key in _MASKS)
    if counts_items is not None or has_mask or not written:
        return counts_items is not False, None
    raise SourceError(
        f"{name}: a batch of {list(batch)}, and nothing tells which size is time: items=trajectories reads "
        f"{counted(items[0], 'trajectory')} of {counted(batch[-1], 'step')}, as TensorDicts are stored; items=steps reads {counted(written, 'step')} of "
        f"{counted(columns[1], 'environment')} beside each other, as a storage of ndim={len(batch)} keeps them"
    )


def _grid_of_items(
    name: str, folder: Folder, leaves: Mapping[str, Leaf], written: int
) -> tuple[StorageGrid, list[Notice]]:
    """Time is the last size of the batch, all other sizes count trajectories; and a notice of steps that only fill them up."""
    batch = folder.batch
    columns, count = math.prod(batch[:-1]), written * math.prod(batch[1:-1])
    steps, notices = _count_by_mask(name, folder, count, batch[-1]), []
    if steps is None:
        steps = _steps_before_padding(batch, leaves, count)
        if padding := int((batch[-1] - steps).sum()):
            text = (
                f"{counted(padding, 'step')} at the end of {counted(int((steps < batch[-1]).sum()), 'trajectory')} are 0 in every key, as those that fill trajectories "
                "up to one length, and no key mask is there: they are left out"
            )
            notices.append(Notice("unwritten", text, padding))
    return StorageGrid(count, batch[-1], steps, 0, False, columns, len(batch)), notices


def _steps_before_padding(batch: tuple[int, ...], leaves: Mapping[str, Leaf], count: int) -> Array:
    """[count] the number of steps of each trajectory up to the last one that is not 0 in every key."""
    steps = np.full(count, batch[-1])
    length = batch[-1]
    stored = [
        leaf.stored.reshape(math.prod(batch), math.prod(leaf.shape[len(batch) :]))
        for leaf in leaves.values()
        if math.prod(leaf.shape) and (leaf.held is None or 0 not in leaf.held.strides)
    ]
    if not stored or not length:
        return steps
    # Most trajectories end in a step that is not 0: only the others are read whole.
    last = slice(length - 1, count * length, length)
    padded = np.logical_and.reduce([(rows[last] == 0).all(axis=1) for rows in stored])
    for number in np.flatnonzero(padded).tolist():
        of_trajectory = slice(number * length, (number + 1) * length)
        used = np.logical_or.reduce([(rows[of_trajectory] != 0).any(axis=1) for rows in stored])
        steps[number] = int(np.flatnonzero(used)[-1]) + 1 if used.any() else 0
    return steps


def _grid_of_steps(name: str, folder: Folder, rows: int, cursor: int | None) -> StorageGrid:
    """Time is the first size of the batch, all other sizes count columns; a full storage is a ring."""
    batch = folder.batch
    held, columns = batch[0], math.prod(batch[1:])
    first = cursor if cursor is not None and rows == held else 0
    if first > held:
        raise SourceError(f"{name}: write cursor {first:,}: expected at most {held:,}")
    return StorageGrid(columns, rows, np.full(columns, rows), first % max(held, 1), True, held, len(batch))


def _counts_items(name: str, batch: tuple[int, ...], length: int | None, cursor: int | None) -> bool | None:
    """Whether `len` counts the items of a batch of two sizes or more, else it counts steps. If both are possible, the write cursor decides;
    None without `len`, or without that cursor.

    Raises:
      SourceError: it can count neither.
    """
    held, columns = batch[0], math.prod(batch[1:])
    if length is None:
        return None
    if columns == 0 or length % columns:
        if length > held:
            raise SourceError(
                f"{name}: len {length:,}: expected a multiple of {columns:,}, or at most {held:,}, as the batch size {list(batch)} says"
            )
        return True
    if length > held:
        return False
    if columns == 1 or not length:
        return columns == 1
    return None if cursor is None else held > 0 and cursor % held == length % held


def _count_by_mask(name: str, folder: Folder, columns: int, rows: int) -> Array | None:
    """[columns] the number of steps that a mask keeps; None without a mask."""
    key = next((key for key in _MASKS if key in folder.leaves), None)
    if key is None:
        return None
    leaf = folder.leaves[key]
    if math.prod(leaf.shape) != math.prod(folder.batch):
        raise SourceError(f"{name}: {key}: has shape {list(leaf.shape)}; expected {list(folder.batch)}")
    kept = leaf.read().reshape(-1, rows)[:columns] != 0
    valid = np.asarray(kept.sum(axis=1))
    if (kept != (np.arange(rows) < valid[:, None])).any():
        raise SourceError(f"{name}: {key}: expected steps that are kept to come first in each trajectory")
    return valid


def _written_rows(folder: Folder) -> int:
    """Number of rows up to the last one that is not 0 in every key."""
    if any(isinstance(value, PerRow) for value in folder.others.values()):
        return folder.batch[0]
    written = 0
    for leaf in folder.leaves.values():
        if math.prod(leaf.shape) == 0 or leaf.shape[0] != folder.batch[0]:
            continue
        row_bytes = math.prod(leaf.shape[1:]) * leaf.dtype.itemsize
        block, stop = max(_BLOCK_BYTES // row_bytes, 1), leaf.shape[0]
        while stop > written:
            start = max(written, stop - block)
            used = np.flatnonzero(as_bytes(leaf.stored[start:stop]).any(axis=1))
            if len(used):
                written = start + int(used[-1]) + 1
                break
            stop = start
    return written


def _unwritten(written: int, held: int) -> Notice:
    text = (
        f"{counted(held - written, 'row')} of {held:,} at the end are 0 in every key, as rows that were never written, and no file says how many were: "
        "they are left out. ReplayBuffer.dumps writes the number of rows"
    )
    return Notice("unwritten", text, held - written)


def _common_steps(leaves: Mapping[str, Leaf]) -> int:
    """The second size, if all keys have the same one that say what happened in a step: rewards and end flags, or all keys without any; else 0.

    Beside rewards and end flags of [N, T] other keys may stand once for each item, such as a goal. Ids and the number of a row always may.
    """
    shapes = {key: leaf.shape for key, leaf in leaves.items() if key not in (INDEX, *TRAJECTORY_IDS, *_MASKS)}
    of_steps = [shapes[key] for key in (NEXT + REWARD, *(NEXT + key for key in DONES)) if key in shapes]
    sizes = {shape[1:2] for shape in of_steps or shapes.values()}
    return next(iter(sizes))[0] if len(sizes) == 1 and () not in sizes else 0


def _next_goes_on(leaves: Mapping[str, Leaf], sizes: tuple[int, int], axis: int, dims: int = 1) -> bool:
    """Whether `next` mostly is what stands one further on along the axis, where that differs from what stands here.

    Args:
      sizes: the recorded [items, steps] that the keys are looked at as, or [rows, columns].
      dims: leading sizes of a key that these two make; with one size, the second one of `sizes` is the key's own.
    """
    written, width = sizes
    rows = np.unique(np.linspace(0, max(written - 2, 0), min(written, _SAMPLED)).astype(int))
    rows = rows[rows < written - (axis == 0)]
    continued = compared = 0
    for key, leaf in leaves.items():
        after = leaves.get(NEXT + key)
        if (
            after is None
            or not len(rows)
            or last_part(key) in DONES | {REWARD}
            or (after.shape, after.dtype) != (leaf.shape, leaf.dtype)
            or (dims == 1 and leaf.shape[1:2] != (width,))
        ):
            continue
        row = leaf.shape[max(dims, 2) :]
        here, later = _sample_items(leaf, width, row, rows), _sample_items(after, width, row, rows)
        if axis == 0:
            beyond = _sample_items(leaf, width, row, rows + 1)
        else:
            here, later, beyond = here[:, :-1], later[:, :-1], here[:, 1:]
        moved = (_join_steps(here) != _join_steps(later)).any(axis=1)
        compared += int(moved.sum())
        continued += int((moved & (_join_steps(beyond) == _join_steps(later)).all(axis=1)).sum())
    return 2 * continued > compared > 0


def _sample_items(leaf: Leaf, width: int, row: tuple[int, ...], numbers: Array) -> Array:
    """[n, steps, ...] of these items of `width` steps, with at most `_SAMPLED` steps of each."""
    count = math.prod(leaf.shape) // max(math.prod(row), 1)
    stored, sampled = leaf.stored.reshape(count, *row), min(width, _SAMPLED)
    return np.stack([stored[number * width : number * width + sampled] for number in numbers.tolist()])


def _join_steps(values: Array) -> Array:
    """[rows, steps, ...] -> [rows * steps, bytes of each]."""
    return as_bytes(values.reshape(math.prod(values.shape[:2]), *values.shape[2:]))


def _spread_items(name: str, folder: Folder, leaves: Mapping[str, Leaf]) -> tuple[Folder, dict[str, Leaf]]:
    """A batch of trajectories [N] as one of [N, T]. What stands once for a trajectory, such as its id, stands in each of its steps then."""
    shapes = {key: leaf.shape for key, leaf in leaves.items() if key not in (INDEX, *TRAJECTORY_IDS)}
    usual = [
        shapes.get(key, ()) for key in (*(NEXT + key for key in ("done", "terminated", "truncated", REWARD)), "action")
    ]
    sizes = {shape[1] for shape in usual if len(shape) > 1} or {shape[1] for shape in shapes.values() if len(shape) > 1}
    if len(sizes) != 1:
        named = ", ".join(f"{key.replace('/', '.')} {list(shape)}" for key, shape in sorted(shapes.items()))
        raise SourceError(
            f"{name}: items=trajectories: expected keys of [{folder.batch[0]:,}, steps, ...] with one number of steps; found {named}"
        )
    batch = (folder.batch[0], sizes.pop())

    def spread(leaf: Leaf) -> Leaf:
        if leaf.shape[:2] == batch:
            return leaf
        if leaf.shape[:1] != batch[:1]:
            raise SourceError(
                f"{name}: has a key of shape {list(leaf.shape)}; expected it to begin with {list(folder.batch)}"
            )
        values = leaf.read() if leaf.dtype != bool else leaf.read() != 0
        return leaf_of(np.broadcast_to(values[:, None], (*batch, *leaf.shape[1:])))

    per_row = {
        key: leaf_of(as_column(value.values))
        for key, value in folder.others.items()
        if isinstance(value, PerRow) and len(value.values) == batch[0]
    }
    spread_leaves = {key: spread(leaf) for key, leaf in {**leaves, **per_row}.items() if key != INDEX}
    return replace(folder, batch=batch), spread_leaves
