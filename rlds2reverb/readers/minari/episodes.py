"""Stored columns of an episode -> rows of RLDS (`readers.alignment`).

| Minari | rows 0 to T - 1 | row T |
| --- | --- | --- |
| `observations` [T + 1] | observation | the final observation |
| `actions`, `rewards` [T] | action, reward | zeros |
| `terminations`, `truncations` [T] | | is_terminal: whether the last termination is True |
| `infos`, other groups, [T + 1] | as they are | as it is |
| the same, [T] | as they are | zeros |

| the last step is | read as |
| --- | --- |
| terminated, truncated or not | terminal |
| truncated only | not terminal |
| neither | not terminal; `no_end` counts it |
| both | terminal; `both_ends` counts it |
| followed by others | a broken episode |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD, STEP_FIELDS, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.metadata import METADATA
from rlds2reverb.readers.alignment import steps
from rlds2reverb.readers.casts import exactly
from rlds2reverb.readers.minari.spaces import Leaf
from rlds2reverb.readers.minari.stored import (
    ACTIONS,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    Images,
    StoredEpisode,
)
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec, column_spec, same_dtype
from rlds2reverb.tfds_files.images import decode_files

BOTH_ENDS, NO_END, CAST, LEFT_OUT, SPACE = "both_ends", "no_end", "cast", "left_out", "space"

Spec = Mapping[str, ArraySpec]

_FIELDS = {OBSERVATION: OBSERVATIONS, ACTION: ACTIONS}


@dataclass(frozen=True)
class Wanted:
    """What is read of each episode.

    Attributes:
      observation, action: the leaves.
      others: whether infos and further groups become columns.
      encoded: paths of images that stay JPEG files.
    """

    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    others: bool = True
    encoded: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Rows:
    """An episode in RLDS' alignment.

    Attributes:
      columns: path -> [T + 1, ...].
      jpeg: path -> what its files decode to, of the image columns that are stored as JPEG.
      notes: what is to be remarked: (code, path).
    """

    columns: Mapping[str, Array]
    jpeg: Mapping[str, ImageSpec] = field(default_factory=dict)
    notes: frozenset[tuple[str, str]] = frozenset()


def rows_of(stored: StoredEpisode, wanted: Wanted) -> Rows:
    """The rows of an episode.

    Raises:
      BrokenEpisode: it cannot be read, or makes no sense.
      SourceError: libraries for its images are missing.
    """
    notes: set[tuple[str, str]] = set()
    jpeg: dict[str, ImageSpec] = {}
    reward = _reward(stored.plain(REWARDS), notes)
    actions = len(reward)
    read = partial(_leaf, stored, wanted, jpeg)
    observation = {leaf.path: read(OBSERVATION, leaf, actions + 1) for leaf in wanted.observation}
    action = {leaf.path: read(ACTION, leaf, actions) for leaf in wanted.action}
    is_terminal = _end(stored, actions, notes)
    others = _others(stored, actions, notes) if wanted.others else {}
    return Rows(steps(observation, action, reward, is_terminal, others), jpeg, frozenset(notes))


def specs_of(rows: Rows, wanted: Wanted) -> tuple[dict[str, ArraySpec], frozenset[tuple[str, str]]]:
    """Path -> spec as this episode has it, with the spaces' bounds; and where it is not as the spaces say."""
    specs = {path: column_spec(column) for path, column in rows.columns.items()}
    notes = set()
    for name, leaves in ((OBSERVATION, wanted.observation), (ACTION, wanted.action)):
        for leaf in leaves:
            path = _path(name, leaf)
            if path in wanted.encoded and path in rows.jpeg:
                specs[path] = ArraySpec.of_images(rows.jpeg[path])
            elif specs[path] == leaf.spec:
                specs[path] = leaf.spec
            else:
                notes.add((SPACE, path))
    return specs, frozenset(notes)


def conforming(rows: Rows, specs: Spec) -> Rows:
    """The rows with the columns of the dataset; numbers of another dtype are cast where no value changes.

    Raises:
      BrokenEpisode: a column is missing, or has another shape or dtype.
    """
    notes = set(rows.notes)
    columns = {}
    for path, spec in specs.items():
        column = rows.columns.get(path)
        if column is None:
            raise BrokenEpisode(path, f"{path}: other episodes have this column, this one has not{_way_out(path)}")
        found = column_spec(column)
        if found.shape != spec.shape:
            raise BrokenEpisode(path, f"{path}: expected {spec}, as in other episodes; found {found}{_way_out(path)}")
        if not same_dtype(found.dtype, spec.dtype):
            column = _cast(path, column, spec)
            notes.add((CAST, path))
        columns[path] = column
    notes |= {(LEFT_OUT, path) for path in rows.columns.keys() - specs.keys()}
    return replace(rows, columns=columns, notes=frozenset(notes))


def _leaf(
    stored: StoredEpisode, wanted: Wanted, jpeg: dict[str, ImageSpec], column: str, leaf: Leaf, rows: int
) -> Array:
    found, path = stored.leaf(_FIELDS[column], leaf, rows), _path(column, leaf)
    if not isinstance(found, Images):
        return _checked(found, path)
    height, width, *channels = leaf.spec.shape
    shape = (height, width, channels[0] if channels else 1)
    if channels:
        jpeg[path] = ImageSpec(shape, leaf.spec.dtype, "jpeg", is_accurate=True)
    if path in wanted.encoded:
        return _as_objects(found.files)
    return _decoded(found.files, leaf, path)


def _decoded(files: Sequence[bytes], leaf: Leaf, path: str) -> Array:
    """[T, ...] pixels."""
    height, width, *channels = leaf.spec.shape
    try:
        feature = ImageSpec((height, width, channels[0] if channels else 1), leaf.spec.dtype)
        return decode_files(feature, files, path, exact=True).reshape(len(files), *leaf.spec.shape)
    except SourceError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise BrokenEpisode(path, str(error)) from error


def with_pixels(rows: Rows, kept: Collection[str], wanted: Wanted) -> Rows:
    """The rows that were read with images as files, as `wanted` has them.

    Args:
      rows: of an episode.
      kept: paths of observations whose images were left as files.
      wanted: what is read.

    Raises:
      BrokenEpisode: a file is no such image.
    """
    columns = dict(rows.columns)
    for leaf in wanted.observation:
        path = _path(OBSERVATION, leaf)
        if path in kept and path in rows.jpeg and path not in wanted.encoded:
            columns[path] = _decoded(list(columns[path]), leaf, path)
    return replace(rows, columns=columns)


def _path(column: str, leaf: Leaf) -> str:
    return f"{column}/{leaf.path}" if leaf.keys else column


def _as_objects(values: list[bytes]) -> Array:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _checked(column: Array, path: str) -> Array:
    """The column, unless it holds objects that are no texts, or values that Reverb's protocol does not know."""
    if column.dtype.kind == "O" and not set(map(type, column.ravel())) <= {bytes}:
        raise BrokenEpisode(
            path, f"{path}: expected numbers or texts, found {sorted({type(one).__name__ for one in column.ravel()})}"
        )
    return column


def _reward(rewards: Array, notes: set[tuple[str, str]]) -> Array:
    """[T]; whole numbers, which an environment may return where no reward has a fraction, become float64."""
    if rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
        raise BrokenEpisode(REWARD, f"{REWARDS}: expected a number per step, found {column_spec(rewards)}")
    if rewards.dtype.kind == "f":
        return rewards
    notes.add((CAST, REWARD))
    return _cast(
        REWARD, rewards.astype(np.int8) if rewards.dtype == bool else rewards, ArraySpec((), np.dtype(np.float64))
    )


def _end(stored: StoredEpisode, actions: int, notes: set[tuple[str, str]]) -> bool:
    """Whether the episode ends in a terminal state."""
    terminations, truncations = (_flags(stored, name, actions) for name in (TERMINATIONS, TRUNCATIONS))
    for name, ends in ((TERMINATIONS, terminations), (TRUNCATIONS, truncations)):
        if ends[:-1].any():
            raise BrokenEpisode(
                "", f"{name}: True at step {int(np.argmax(ends))} of {actions:,}; expected it at the last only"
            )
    if not actions:
        return False
    terminated, truncated = bool(terminations[-1]), bool(truncations[-1])
    if terminated == truncated:
        notes.add((BOTH_ENDS if terminated else NO_END, ""))
    return terminated


def _flags(stored: StoredEpisode, name: str, actions: int) -> Array:
    flags = stored.plain(name)
    if flags.shape != (actions,) or flags.dtype.kind not in "biu":
        raise BrokenEpisode(
            "",
            f"{name}: expected {actions:,} flags, as there are rewards; found {column_spec(flags)} times {len(flags):,}",
        )
    return np.asarray(flags != 0)


def _others(stored: StoredEpisode, actions: int, notes: set[tuple[str, str]]) -> dict[str, Array]:
    """Infos and further groups that are as long as the episode."""
    found = {}
    for path, column in stored.others():
        clashes = path.split("/")[0] in (*STEP_FIELDS, METADATA)
        if column is None or clashes or len(column) not in (actions, actions + 1):
            notes.add((LEFT_OUT, path))
        else:
            found[path] = _checked(column, path)
    return found


def _cast(path: str, column: Array, spec: ArraySpec) -> Array:
    """The column in another dtype.

    Raises:
      BrokenEpisode: a value would change.
    """
    made = exactly(column, spec.dtype)
    if made is not None:
        return made
    raise BrokenEpisode(
        path,
        f"{path}: expected {spec}, as in other episodes; found {column_spec(column)}, whose values {spec.dtype} does not hold exactly",
    )


def _way_out(path: str) -> str:
    return (
        "" if path.split("/")[0] in STEP_FIELDS else "; infos=drop leaves out all but observations, actions and rewards"
    )
