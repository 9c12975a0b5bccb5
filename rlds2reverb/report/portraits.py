"""Single episodes as the page shows them: small copies of what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.conventions import fill_absent
from rlds2reverb.episodes import DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, REWARD, Array, Episode
from rlds2reverb.errors import DecodeError
from rlds2reverb.look.pictures import Picture, Pictures, chosen_steps, fitted, pictures_of, thumbnail_size
from rlds2reverb.specs import ArraySpec

_CAMERAS = 4
_LAST_ROWS = 3
_TEXTS = 4


@dataclass(frozen=True)
class Size:
    """How much of an episode is kept.

    Attributes:
      frames: images of each column.
      side: pixels of their longer side.
      columns: that have curves.
      lines: curves of a column, one per dimension.
      points: of a curve.
    """

    frames: int
    side: int
    columns: int
    lines: int
    points: int


LARGE = Size(frames=48, side=112, columns=6, lines=4, points=160)
SMALL = Size(frames=8, side=64, columns=3, lines=2, points=80)


@dataclass
class Portrait:
    """What is shown of an episode.

    Attributes:
      id: the episode's.
      title: its id and what the dataset calls it.
      steps: of it.
      total: its return; None where it has none.
      at: [n] time steps of the curves' points.
      curves: path -> [n, at most `Size.lines`] float64.
      frames: path -> time steps, and small pictures of them.
      texts: path -> the first step's.
      last_rows: field -> its last values, as text.
      untold: why images are missing; "" where none are.
    """

    id: str
    title: str
    steps: int
    total: float | None
    at: Array
    curves: dict[str, Array] = field(default_factory=dict)
    frames: dict[str, tuple[list[int], list[Picture]]] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    last_rows: dict[str, list[str]] = field(default_factory=dict)
    untold: str = ""


def portrait_of(episode: Episode, spec: Mapping[str, ArraySpec], total: float | None, size: Size) -> Portrait:
    """An episode as it is shown. Columns may be of any kind and length, for bad ones are shown, too."""
    at = np.unique(np.linspace(0, max(0, len(episode) - 1), size.points).astype(np.int64))[: len(episode)]
    made = Portrait(episode.id, episode.title, len(episode), total, at)
    made.last_rows = _last_rows(episode)
    rewards_first = sorted(episode.columns.items(), key=lambda found: found[0] != REWARD)
    for path, column in rewards_first:
        if len(column) != len(episode) or not len(column):
            continue
        steps = chosen_steps(len(column), size.frames)
        pictures = pictures_of(path, column[steps], spec.get(path))  # no others are looked at
        if pictures is not None:
            _add_frames(made, pictures, steps, size)
        elif column.dtype.kind in "OSU":
            _add_text(made, path, column)
        elif column.dtype.kind in "fiu" and len(made.curves) < size.columns and column.size:
            made.curves[path] = column.reshape(len(column), -1)[at, : size.lines].astype(np.float64)
    return made


def _add_frames(made: Portrait, pictures: Pictures, steps: list[int], size: Size) -> None:
    if len(made.frames) >= _CAMERAS:
        return
    try:
        height, width = thumbnail_size(pictures.size, size.side)
        frames = [fitted(pictures.picture(at), height, width) for at in range(len(steps))]
    except DecodeError as error:
        made.untold = str(error)
        return
    made.frames[pictures.path] = steps, frames


def _add_text(made: Portrait, path: str, column: Array) -> None:
    first = column.ravel()[0] if column.size else None
    text = first.encode("utf-8", "surrogateescape") if isinstance(first, str) else first
    if isinstance(text, bytes) and len(made.texts) < _TEXTS:
        made.texts[path] = text[:300]


def _last_rows(episode: Episode) -> dict[str, list[str]]:
    columns = fill_absent(episode).columns if episode.columns else {}
    wanted = (REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL)
    found = {path: columns[path] for path in wanted if path in columns and columns[path].ndim == 1}
    return {path: [str(value) for value in column[-_LAST_ROWS:].tolist()] for path, column in found.items()}
