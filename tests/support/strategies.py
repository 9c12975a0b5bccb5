"""Hypothesis strategies that the suites share: specs, episodes, arrays, flag patterns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode

DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(kind)
    for kind in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16, object,
    )
)  # fmt: skip
"""Every dtype that Reverb stores; object is text."""


Columns = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Path -> dtype and shape of a step's value."""


def array(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Finite values of any dtype."""
    if dtype == object:
        flat = np.empty(int(np.prod(shape)), object)
        flat[:] = [bytes(rng.integers(0, 256, rng.integers(0, 9), np.uint8)) for _ in range(flat.size)]
        return flat.reshape(shape)
    if dtype == bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    """One of `DTYPES`."""
    return st.sampled_from(DTYPES)


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of one step's value: 0-d to 3-d, empty axes included."""
    return st.lists(st.integers(0, 4), max_size=3).map(tuple)


def column_specs() -> st.SearchStrategy[dict[str, tuple[np.dtype[Any], tuple[int, ...]]]]:
    """Column path -> dtype and shape, for one to four columns below "observation" and "action", nested up to two deep."""
    spec = st.tuples(dtypes(), shapes())
    leaf_names = st.sampled_from(["a", "b", "camera/left", "camera/right", "text"])
    nested = st.dictionaries(leaf_names, spec, min_size=1, max_size=3)

    def under(name: str) -> st.SearchStrategy[dict[str, tuple[np.dtype[Any], tuple[int, ...]]]]:
        flat = spec.map(lambda one: {name: one})
        return st.one_of(flat, nested.map(lambda many: {f"{name}/{key}": leaf for key, leaf in many.items()}))

    return st.builds(lambda a, b: {**a, **b}, under("observation"), under("action"))


def image_specs(least: int = 9, channels: str = "last") -> st.SearchStrategy[dict[str, Any]]:
    """For `episodes`: one column of images, of at least so many pixels a side, nested or not."""

    def specs(name: str, height: int, width: int, depth: int, dtype: Any) -> dict[str, Any]:
        shape = (height, width, depth) if channels == "last" else (depth, height, width)
        return {name: (np.dtype(dtype), shape), "action": (np.dtype(np.int32), ())}

    size = st.integers(least, least + 8)
    kinds = st.sampled_from(["uint8", "float16", "float32", "float64", ml_dtypes.bfloat16])
    return st.builds(specs, st.sampled_from(["observation", "observation/image"]), size, size, st.integers(0, 4), kinds)


@st.composite
def episodes(
    draw: st.DrawFn, min_steps: int = 2, max_steps: int = 40, specs: Any = None, episode_id: str = ""
) -> Episode:
    """A valid episode: flags in place, discount in [0, 1], finite values."""
    columns = draw(column_specs()) if specs is None else specs
    steps = draw(st.integers(min_steps, max_steps))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    terminal = draw(st.booleans())
    return episode(rng, steps, columns, terminal, episode_id)


def episode(
    rng: np.random.Generator,
    steps: int,
    columns: Columns | None = None,
    terminal: bool = True,
    episode_id: str = "",
) -> Episode:
    """A valid episode of `steps` rows; half-cheetah's columns by default."""
    float32 = np.dtype(np.float32)
    columns = columns or {"observation": (float32, (17,)), "action": (float32, (6,))}
    rows = np.arange(steps)
    discount = np.ones(steps, np.float32)
    discount[-2:] = 0 if terminal else 1
    reward = rng.normal(size=steps).astype(np.float32)
    reward[-1] = 0
    return Episode(
        {
            **{path: array(rng, dtype, (steps, *shape)) for path, (dtype, shape) in columns.items()},
            "reward": reward,
            "discount": discount,
            "is_first": rows == 0,
            "is_last": rows == steps - 1,
            "is_terminal": (rows == steps - 1) & terminal,
        },
        id=episode_id,
    )
