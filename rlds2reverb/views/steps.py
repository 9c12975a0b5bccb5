"""What views of single steps and transitions share: fields of one row, rows before and after, the flags of an end.

RLDS alignment: row t holds (o_t, a_t, r_t, d_t) where r_t and d_t are what a_t earned; the last of T rows holds the final
observation only. So T rows are T - 1 transitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from rlds2reverb.cuts import Field, Window
from rlds2reverb.episode import IS_LAST, IS_TERMINAL, Array, Episode, is_under
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, dtype_name, same_dtype
from rlds2reverb.views.base import check_made_up

Fill = Literal["first", "zero"] | int | float
"""What stands in rows that the episode does not have. "first": its first value before it, and zeros after it. "zero": zeros, or
empty text. A number: itself, before and after."""

_FLOAT64 = np.dtype(np.float64)

END_FLAGS = (IS_LAST, IS_TERMINAL)
"""What `end_flags` reads."""

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
    found = {new + path[len(name) :]: path for path in columns if is_under(path, name)}
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
    return {path: episode.columns[path] for name in names for path in under(episode.columns, name)}


def transition_count(episode: Episode) -> int:
    """T - 1."""
    return max(0, len(episode) - 1)


def one_per_transition(rows: int | None) -> int | None:
    """T - 1, as `views.base.CountsItems` has it."""
    return None if rows is None else max(0, rows - 1)


def pad(column: Array, before: int, after: int, fill: Fill = "first") -> Array:
    """[before + T + after, ...]: the column with rows filled as `fill` says, which must fit its dtype."""
    if not before and not after:
        return column
    check_made_up(before + after)
    first = fill == "first" and len(column) > 0
    head = np.repeat(column[:1], before, axis=0) if first else filled(column, before, fill)
    return np.concatenate((head, column, filled(column, after, fill)))


def filled(column: Array, rows: int, fill: Fill) -> Array:
    """[rows, ...] of a number, or zeros."""
    return zeros_like(column, rows) if isinstance(fill, str) else np.full((rows, *column.shape[1:]), fill, column.dtype)


def zeros_like(column: Array, rows: int) -> Array:
    """[rows, ...] zeros, or empty text."""
    shape = (rows, *column.shape[1:])
    return np.full(shape, b"", object) if column.dtype == object else np.zeros(shape, column.dtype)


def as_float32(column: Array) -> Array:
    """float64 becomes float32, as RLlib's collectors make it; everything else stays as it is."""
    return column.astype(np.float32) if same_dtype(column.dtype, _FLOAT64) else column


def float32_spec(leaf: ArraySpec) -> ArraySpec:
    """The spec of what `as_float32` makes."""
    return ArraySpec(leaf.shape, np.dtype(np.float32), leaf.name) if same_dtype(leaf.dtype, _FLOAT64) else leaf


def continued(view: str, before: Mapping[str, Array], rows: Mapping[str, Array]) -> dict[str, Array]:
    """Columns of a stream: the rows that come, behind those before if there are any.

    Raises:
      ViewError: they do not have the same columns.
    """
    if not before:
        return dict(rows)
    if set(before) != set(rows):
        missing, extra = sorted(set(before) - set(rows)), sorted(set(rows) - set(before))
        raise ViewError(f"{view}: columns differ from those of the episodes before: missing {missing}, new {extra}")
    return {path: np.concatenate((before[path], column)) for path, column in rows.items()}


def end_flags(episode: Episode) -> tuple[Array, Array]:
    """[T] terminated and [T] truncated: the step after row t is the last one, and terminal or not."""
    last, terminal = episode.columns[IS_LAST], episode.columns[IS_TERMINAL]
    terminated = np.append(last & terminal, False)[1:]
    truncated = np.append(last & ~terminal, False)[1:]
    return terminated, truncated


def generator(view: str, seed: int, episode: Episode) -> np.random.Generator:
    """Random numbers that depend on the view, the seed and the episode's id only, so that a push can be run again."""
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


def checked_fill(where: str, fill: Any) -> Fill:
    """The fill; a number as a plain one, whole where it is whole.

    Raises:
      ViewError: neither "first" nor "zero" nor a finite number.
    """
    if isinstance(fill, str):
        choice(where, "fill", fill, ("first", "zero", "a number"))
        return cast("Fill", fill)
    number = fill.item() if isinstance(fill, np.number) else fill
    if isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) < np.inf:
        return int(number) if number == int(number) and abs(number) < 2**64 else number
    raise ViewError(f"{where}: fill {fill!r}, expected one of first, zero, a number")


def fill_name(fill: Fill) -> Fill:
    """Equal fills have equal names: 0 is "zero"."""
    return "zero" if fill == 0 else fill


def check_fit(where: str, path: str, fill: Fill, dtype: np.dtype[Any]) -> None:
    """Refuses a number that a column cannot hold: text, a fraction among integers, out of range; floats may round.

    Raises:
      ViewError: says which column, its dtype and the number.
    """
    if not isinstance(fill, str) and not _fits(fill, dtype):
        raise ViewError(f'{where}: fill {fill} does not fit "{path}", which holds {dtype_name(dtype)}')


def _fits(fill: float, dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "OSU":
        return False
    if dtype.kind in "iu":
        return isinstance(fill, int) and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max
    if dtype.kind == "b":
        return fill in (0, 1)
    if abs(fill) > float(np.finfo(np.float64).max):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float64(fill).astype(dtype)))
