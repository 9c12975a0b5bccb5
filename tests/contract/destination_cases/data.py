"""The kinds of episodes that every destination is asked to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Episode
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import Source
from tests.support import strategies

EPISODES = 4

Columns = Callable[[np.random.Generator, int], Mapping[str, Array]]


def episode(number: int, more: Mapping[str, Array] | None = None, metadata: Mapping[str, Any] | None = None) -> Episode:
    """A valid episode of two rows or more; its last row has no action and no reward."""
    rng = np.random.default_rng(number)
    rows = 2 + number % 3
    at = np.arange(rows)
    terminal = number % 2 == 0
    action, reward = rng.normal(size=(rows, 2)).astype(np.float32), rng.normal(size=rows).astype(np.float32)
    action[-1], reward[-1] = 0, 0
    discount = np.ones(rows, np.float32)
    if terminal:
        discount[-2:] = 0
    columns = {
        "observation": rng.normal(size=(rows, 3)).astype(np.float32),
        "action": action,
        "reward": reward,
        "discount": discount,
        "is_first": at == 0,
        "is_last": at == rows - 1,
        "is_terminal": (at == rows - 1) & terminal,
    }
    if more is not None:
        columns = {**{path: column for path, column in columns.items() if path != "observation"}, **more}
    return Episode(columns, metadata or {}, f"episode {number}")


def with_columns(columns: Columns) -> list[Episode]:
    made = []
    for number in range(EPISODES):
        rng = np.random.default_rng(100 + number)
        made.append(episode(number, columns(rng, 2 + number % 3)))
    return made


def dtypes(rng: np.random.Generator, rows: int) -> Mapping[str, Array]:
    numbers = [dtype for dtype in strategies.DTYPES if dtype != object]
    return {f"observation/{dtype}": strategies.array(rng, dtype, (rows, 2)) for dtype in numbers}


def texts(rng: np.random.Generator, rows: int) -> Mapping[str, Array]:
    column = np.empty(rows, object)
    column[:] = [f"say {number} ü".encode() for number in range(rows)]
    return {"observation/state": rng.normal(size=(rows, 2)).astype(np.float32), "observation/said": column}


def images(rng: np.random.Generator, rows: int) -> Mapping[str, Array]:
    return {"observation/image": rng.integers(0, 256, (rows, 18, 20, 3), np.uint8)}


def with_images(number: int, metadata: Mapping[str, Any] | None = None) -> Episode:
    """As `episode`, with the frames of two cameras, of which one is moving."""
    rows = 2 + number % 3
    rng = np.random.default_rng(200 + number)
    still = np.repeat(rng.integers(0, 256, (1, 3, 4, 3), np.uint8), rows, 0).repeat(8, 1).repeat(8, 2)
    moving = np.stack([np.roll(still[row], 5 * row, 1) for row in range(rows)])
    return episode(number, {"observation/still": still, "observation/moving": moving}, metadata)


def nested(rng: np.random.Generator, rows: int) -> Mapping[str, Array]:
    deep = {f"observation/{name}": rng.normal(size=(rows, 2)).astype(np.float32) for name in ("a/b/c", "a/d", "e")}
    return {**deep, "observation/scalar": rng.normal(size=rows).astype(np.float32)}


def unicode(rng: np.random.Generator, rows: int) -> Mapping[str, Array]:
    return {"observation/größe λ": rng.normal(size=(rows, 2)).astype(np.float32)}


def last_row() -> list[Episode]:
    made = []
    for number in range(EPISODES):
        one = episode(number)
        action = one.columns["action"].copy()
        action[-1] = 7
        made.append(one.with_columns(action=action))
    return made


def described() -> list[Episode]:
    """Episodes with metadata of several kinds."""
    return [
        episode(
            number,
            metadata={
                "number": np.int64(number),
                "said/by": f"name {number} é".encode(),
                "scores": np.arange(3, dtype=np.float64) / 3 + number,
            },
        )
        for number in range(EPISODES)
    ]


def files(folder: Path) -> Source:
    """A source of images that are PNG files."""
    from rlds2reverb.conversion.convert import convert  # the other kinds need formats alone

    convert(with_columns(images), f"tfds:{folder / 'of_files'}")
    return open_source(f"tfds:{folder / 'of_files' / '1.0.0'}")


KINDS: dict[str, Callable[[Path], Any]] = {
    "plain": lambda _: [episode(number) for number in range(EPISODES)],
    "dtypes": lambda _: with_columns(dtypes),
    "text": lambda _: with_columns(texts),
    "images": lambda _: with_columns(images),
    "files": files,
    "nested": lambda _: with_columns(nested),
    "unicode": lambda _: with_columns(unicode),
    "metadata": lambda _: described(),
    "last_row": lambda _: last_row(),
}
"""Kind -> makes a source of it; the folder is for files."""
