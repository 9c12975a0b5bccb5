"""Episodes to look at, and what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Episode
from rlds2reverb.look.contents import Contents, FoundEpisode, contents_of
from rlds2reverb.prepare.problems import Problem

HOSTILE = "<img src=x onerror=alert(1)></script>\x1b[2J\u202e"
"""A name or a text that does harm where it is not escaped."""


def camera(steps: int, height: int = 24, width: int = 32) -> Array:
    """[steps, height, width, 3]: a block of a colour of its own in each step, on a grey that stays."""
    images = np.full((steps, height, width, 3), 60, np.uint8)
    for step in range(steps):
        left = step * (width - 8) // max(1, steps - 1)
        images[step, 8:16, left : left + 8] = (255 - 20 * step % 200, 30 * step % 256, 200)
    return images


def episode(
    steps: int = 6, columns: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None
) -> Episode:
    """With a camera, a vector, a text; `columns` come in addition."""
    rows = np.arange(steps)
    text = np.empty(steps, object)
    text[:] = b"reach for it"
    own = {
        "observation/camera": camera(steps),
        "observation/state": np.stack([np.sin(rows), np.cos(rows)], 1),
        "action": rows.astype(np.float32),
        "reward": np.ones(steps, np.float32) * (rows < steps - 1),
        "discount": np.ones(steps, np.float32),
        "language": text,
        "is_first": rows == 0,
        "is_last": rows == steps - 1,
        "is_terminal": rows == steps - 1,
    }
    return Episode({**own, **(columns or {})}, metadata or {}, "data#3")


def contents(
    one: Episode | None = None, problems: Sequence[Problem] = (), chosen: Sequence[str] = (), count: int | None = 9
) -> Contents:
    """What is shown of an episode."""
    return contents_of(FoundEpisode(episode() if one is None else one, 3, count), {}, problems, chosen)
