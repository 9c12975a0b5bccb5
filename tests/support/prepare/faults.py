"""Ways to spoil a good episode, each with the problems that it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episode import Array, Episode
from rlds2reverb.formats.source import spec_of
from rlds2reverb.specs import ArraySpec, flatten

Columns = dict[str, Array]
Fault = Callable[[np.random.Generator, Columns], tuple[str, str]]
"""Spoils columns in place; the (code, path) that must be reported."""


def good(rng: np.random.Generator, rows: int, terminal: bool = True) -> Episode:
    """A valid episode with columns of every kind."""
    at = np.arange(rows)
    discount = rng.uniform(0.1, 1, rows).astype(np.float32)
    if terminal:
        discount[-2:] = 0
    return Episode(
        {
            "observation/image": rng.integers(0, 255, (rows, 2, 2), np.uint8),
            "observation/state": rng.normal(size=(rows, 3)),
            "observation/text": np.array([b"text"] * rows, object),
            "action": rng.normal(size=(rows, 2)).astype(np.float32),
            "reward": np.where(at < rows - 1, rng.normal(size=rows), 0).astype(np.float32),
            "discount": discount,
            "is_first": at == 0,
            "is_last": at == rows - 1,
            "is_terminal": (at == rows - 1) & terminal,
            "confidence": rng.uniform(size=rows).astype(np.float16),
        },
        id="good",
    )


def spec(episode: Episode) -> dict[str, ArraySpec]:
    """The columns that every episode of its dataset must have."""
    return flatten(spec_of(episode))


def _inner(rng: np.random.Generator, columns: Columns) -> int:
    """A step that is neither the first nor one of the last two."""
    return int(rng.integers(1, len(columns["is_first"]) - 2))


def _first_missing(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["is_first"][0] = False
    return "first_missing", "is_first"


def _first_inside(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["is_first"][_inner(rng, columns)] = True
    return "first_inside", "is_first"


def _last_missing(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["is_last"][-1] = False
    return "last_missing", "is_last"


def _last_inside(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["is_last"][_inner(rng, columns)] = True
    return "last_inside", "is_last"


def _terminal_inside(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["is_terminal"][_inner(rng, columns)] = True
    return "terminal_inside", "is_terminal"


def _nan(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["observation/state"][_inner(rng, columns), 1] = np.nan
    return "nan", "observation/state"


def _reward_nan(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["reward"][_inner(rng, columns)] = np.nan
    return "nan", "reward"


def _infinite(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["action"][_inner(rng, columns), 0] = -np.inf
    return "infinite", "action"


def _discount_range(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["discount"][_inner(rng, columns)] = rng.choice([-0.5, 1.5])
    return "discount_range", "discount"


def _terminal_discount(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["discount"][-2] = 1
    return "terminal_discount", "discount"


def _last_reward(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["reward"][-1] = 2
    return "last_reward", "reward"


def _missing_column(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    del columns["confidence"]
    return "missing_column", "confidence"


def _extra_column(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["surplus"] = np.zeros(len(columns["is_first"]))
    return "extra_column", "surplus"


def _shape(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["observation/image"] = columns["observation/image"][:, :1]
    return "shape", "observation/image"


def _dtype(rng: np.random.Generator, columns: Columns) -> tuple[str, str]:
    columns["observation/text"] = np.zeros(len(columns["is_first"]), np.int8)
    return "dtype", "observation/text"


@dataclass(frozen=True)
class Spoiler:
    """A fault by name.

    Attributes:
      spoil: see `Fault`.
      needs_terminal: it shows only in an episode that ends terminal.
    """

    spoil: Fault
    needs_terminal: bool = False


SPOILERS = {
    "first_missing": Spoiler(_first_missing),
    "first_inside": Spoiler(_first_inside),
    "last_missing": Spoiler(_last_missing),
    "last_inside": Spoiler(_last_inside),
    "terminal_inside": Spoiler(_terminal_inside),
    "nan": Spoiler(_nan),
    "reward_nan": Spoiler(_reward_nan),
    "infinite": Spoiler(_infinite),
    "discount_range": Spoiler(_discount_range),
    "terminal_discount": Spoiler(_terminal_discount, needs_terminal=True),
    "last_reward": Spoiler(_last_reward),
    "missing_column": Spoiler(_missing_column),
    "extra_column": Spoiler(_extra_column),
    "shape": Spoiler(_shape),
    "dtype": Spoiler(_dtype),
}
"""Each spoils one thing and gives exactly one problem; any of them go together."""


def spoiled(rng: np.random.Generator, episode: Episode, names: list[str]) -> tuple[Episode, set[tuple[str, str]]]:
    """The episode with these faults, and the (code, path) of each."""
    columns = {path: column.copy() for path, column in episode.columns.items()}
    expected = {SPOILERS[name].spoil(rng, columns) for name in names}
    return episode.with_only_columns(columns), expected
