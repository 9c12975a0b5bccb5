"""What views of single steps and transitions share: fields of one row, rows before and after, the flags of an end.

RLDS alignment: row t holds (o_t, a_t, r_t, d_t) where r_t and d_t are what a_t earned; the last of T rows holds the final
observation only. So T rows are T - 1 transitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlds2reverb.episodes import IS_LAST, IS_TERMINAL, Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.views.base import Field, Window

Fill = Literal["first", "zero"]
"""What stands in rows before the first: its value again, or zeros."""

ONE_ROW = (Window(0, 1, squeeze=True),)
NEXT_ROW = (Window(1, 2, squeeze=True),)


def need(view: str, spec: Nest, *names: str) -> Mapping[str, Nest]:
    """The step spec as a mapping that has these fields.

    Raises:
      ViewError: it is no mapping, or lacks one.
    """
    if not isinstance(spec, Mapping):
        raise ViewError(f"{view}: expected a dict of step fields, got {type(spec).__name__}")
    missing = [name for name in names if name not in spec]
    if missing:
        raise ViewError(f"{view}: the steps lack {', '.join(missing)}; found {sorted(spec)}")
    return spec


def under(columns: Mapping[str, Array], name: str, renamed: str | None = None) -> dict[str, str]:
    """New path -> path of every column of a step field, nested or not; `renamed` stands in the field's place."""
    new = name if renamed is None else renamed
    found = {new + path[len(name) :]: path for path in columns if path == name or path.startswith(f"{name}/")}
    if not found:
        raise ViewError(f"steps without {name}; found {sorted(columns)}")
    return found


def fields_of(
    paths: Mapping[str, str], windows: tuple[Window, ...] = ONE_ROW, anchors: Array | None = None
) -> dict[str, Field]:
    """The same windows for several columns."""
    return {new: Field(path, windows, anchors) for new, path in paths.items()}


def columns(episode: Episode, *names: str) -> dict[str, Array]:
    """The columns of some step fields."""
    return {path: episode.steps[path] for name in names for path in under(episode.steps, name)}


def transition_count(episode: Episode) -> int:
    """T - 1."""
    return max(0, len(episode) - 1)


def pad(column: Array, before: int, after: int, fill: Fill = "first") -> Array:
    """Rows before, filled as `fill` says, and zero rows after."""
    if not before and not after:
        return column
    head = np.repeat(column[:1], before, axis=0) if fill == "first" else zeros_like(column, before)
    return np.concatenate((head, column, zeros_like(column, after)))


def zeros_like(column: Array, rows: int) -> Array:
    """[rows, ...] zeros, or empty text."""
    shape = (rows, *column.shape[1:])
    return np.full(shape, b"", object) if column.dtype == object else np.zeros(shape, column.dtype)


def as_float32(column: Array) -> Array:
    """float64 becomes float32, as RLlib's collectors make it; everything else stays as it is."""
    return column.astype(np.float32) if column.dtype == np.float64 else column


def float32_spec(leaf: ArraySpec) -> ArraySpec:
    """The spec of what `as_float32` makes."""
    return ArraySpec(leaf.shape, np.dtype(np.float32), leaf.name) if leaf.dtype == np.float64 else leaf


def end_flags(episode: Episode) -> tuple[Array, Array]:
    """[T] terminated and truncated: whether the step after row t is a terminal last step, or a last step that is not."""
    last, terminal = episode.steps[IS_LAST], episode.steps[IS_TERMINAL]
    terminated = np.append(last & terminal, False)[1:]
    truncated = np.append(last & ~terminal, False)[1:]
    return terminated, truncated


def generator(view: str, seed: int, episode: Episode) -> np.random.Generator:
    """Random numbers that depend on the view, the seed and the episode's name only, so that a push can be run again."""
    digest = np.frombuffer(f"{view}|{seed}|{episode.id}".encode(), np.uint8)
    return np.random.default_rng(digest.tolist())


def priorities(count: int, priority: float) -> Array:
    """[count] float64, all the same."""
    return np.full(count, priority, np.float64)


def check_seed(view: str, seed: Any) -> None:
    """Refuses a seed that is no whole number.

    Raises:
      ViewError: says what came.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ViewError(f"{view}: seed {seed}: expected a whole number")


def choice(view: str, name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuses a word that is none of the allowed.

    Raises:
      ViewError: says which there are.
    """
    if value not in allowed:
        raise ViewError(f'{view}: {name} "{value}", expected one of {", ".join(allowed)}')
