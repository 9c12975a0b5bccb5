"""What the page of an inspection needs of a dataset's episodes, collected in inspect's one pass.

What is held is bounded by constants, not by the dataset: sketches of the first columns, and small copies of a few episodes. The choice
depends on the seed and the episodes' names only, so it is the same in any order, and with any number of workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.episode import DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, REWARD, Array, Episode
from rlds2reverb.errors import DecodeError
from rlds2reverb.inspection.inspection import Inspection, return_of
from rlds2reverb.look.drawing import items_drawing
from rlds2reverb.look.pictures import Picture, Pictures, chosen_steps, fitted, pictures_of, thumbnail_size
from rlds2reverb.look.sketches import DIMENSIONS, WAITING, Chosen, Numbers, Sketch, Texts, sketch_of
from rlds2reverb.look.statistics import ByTime
from rlds2reverb.prepare.conventions import fill_absent
from rlds2reverb.prepare.preparation import OutputCut
from rlds2reverb.prepare.problems import EXAMPLES, Problem
from rlds2reverb.specs import ArraySpec

_CAMERAS = 4
_LAST_ROWS = 3
_TEXTS = 4


@dataclass(frozen=True)
class Size:
    """How much of an episode is kept: images of each column and pixels of their longer side; columns with curves, curves (one per dimension) of a column, points of a curve."""

    frames: int
    side: int
    columns: int
    lines: int
    points: int


LARGE = Size(frames=48, side=112, columns=6, lines=4, points=160)
SMALL = Size(frames=8, side=64, columns=3, lines=2, points=80)


@dataclass
class Portrait:
    """An episode as it is shown.

    Attributes:
      title: its id and the dataset's own name.
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
    filled = fill_absent(episode).columns if episode.columns else {}
    for path in (REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL):
        if path in filled and filled[path].ndim == 1:
            made.last_rows[path] = [str(value) for value in filled[path][-_LAST_ROWS:].tolist()]
    rewards_first = sorted(episode.columns.items(), key=lambda found: found[0] != REWARD)
    for path, column in rewards_first:
        if len(column) != len(episode) or not len(column):
            continue
        steps = chosen_steps(len(column), size.frames)
        pictures = pictures_of(path, column[steps], spec.get(path))  # only these rows are looked at
        if pictures is not None:
            _add_frames(made, pictures, steps, size)
        elif column.dtype.kind in "OSU":
            first = column.ravel()[0] if column.size else None
            text = first.encode("utf-8", "surrogateescape") if isinstance(first, str) else first
            if isinstance(text, bytes) and len(made.texts) < _TEXTS:
                made.texts[path] = text[:300]
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


COLUMNS = 200  # most columns whose values are looked at
_SKETCHES = 1_000  # most dimensions of all columns together, about
_EPISODES = 4  # good or bad ones, chosen by the seed
_BAD_EPISODES = 48  # most that are shown because of their problems
_WAITING = 1 << 25  # bytes of all columns that wait to be looked at, about
_BLOCK_STEPS = 1 << 16


@dataclass(frozen=True)
class BadEpisode:
    """An episode that is shown because of its problems; `codes` counts them."""

    codes: Counter[str]
    portrait: Portrait


class Collector:
    """Watches the episodes of an inspection; see `inspection.Watcher`.

    Args:
      seed: chooses what is shown; at least 0.
      inspection: of the dataset; nothing has been read yet.

    Attributes:
      columns: path -> sketch of the values, for the first columns.
      rewards: by time step.
      episodes: the chosen ones.
      bad: the first few of each problem.
    """

    def __init__(self, seed: int, inspection: Inspection) -> None:
        self._spec = inspection.step_spec
        looked_at = list(self._spec)[:COLUMNS]
        most = min(DIMENSIONS, max(1, _SKETCHES // max(1, len(looked_at))))
        waiting = min(WAITING, _WAITING // max(1, len(looked_at)))
        sketches = {path: sketch_of(self._spec[path], most, seed, waiting) for path in looked_at}
        self.columns: dict[str, Sketch] = {path: one for path, one in sketches.items() if one is not None}
        self.rewards = ByTime()
        self.episodes = Chosen[Portrait](_EPISODES, seed)
        self.bad: list[BadEpisode] = []
        self._shown: Counter[str] = Counter()
        self._seed = seed
        self._items: dict[str, Chosen[tuple[str, str]]] = {}
        self._waiting: list[Array] = []
        self._waiting_steps = 0

    @property
    def items(self) -> dict[str, tuple[str, str]]:
        """Table -> drawing of items, and what it leaves out; see `items_drawing`."""
        return {table: values[0] for table, chosen in self._items.items() if (values := chosen.values())}

    def add(
        self, episode: Episode, columns: Mapping[str, Array], problems: Sequence[Problem], cuts: Sequence[OutputCut]
    ) -> None:
        for path, sketch in self.columns.items():
            if path in columns:
                sketch.add(columns[path])
        reward = columns.get(REWARD)
        if reward is not None and reward.ndim == 1 and reward.dtype.kind in "fiu":
            self._waiting.append(reward)
            self._waiting_steps += len(reward)
            if self._waiting_steps >= _BLOCK_STEPS:
                self._look_at_rewards()

        def portrait(size: Size) -> Portrait:
            return portrait_of(episode, self._spec, next(iter(return_of(episode)), None), size)

        if self.episodes.wants(episode.id):
            self.episodes.add(episode.id, portrait(LARGE))
        self._add_bad(Counter(problem.code for problem in problems), lambda: portrait(SMALL))
        for made in cuts:
            chosen = self._drawings(made.output.tables[0])
            if made.items_per_table and chosen.wants(episode.id):
                chosen.add(episode.id, items_drawing(made.view_name, made.cut))

    def add_part(self, other: Collector) -> None:
        """Adds what another collector saw of the episodes that follow."""
        self.flush()
        other.flush()
        for path, one in self.columns.items():
            another = other.columns[path]
            if isinstance(one, Numbers) and isinstance(another, Numbers):
                one.add_numbers(another)
            elif isinstance(one, Texts) and isinstance(another, Texts):
                one.add_texts(another)
        self.rewards.add_times(other.rewards)
        self.episodes.add_chosen(other.episodes)
        for bad in other.bad:
            self._add_bad(bad.codes, lambda found=bad.portrait: found)  # type: ignore[misc]
        for table, chosen in other._items.items():
            self._drawings(table).add_chosen(chosen)

    def flush(self) -> None:
        """Looks at all that is waiting. Call it once all is read."""
        for sketch in self.columns.values():
            if isinstance(sketch, Numbers):
                sketch.flush()
        self._look_at_rewards()

    def _look_at_rewards(self) -> None:
        waiting, self._waiting, self._waiting_steps = self._waiting, [], 0
        if waiting:
            steps = np.concatenate([np.arange(len(one)) for one in waiting])
            values = np.concatenate(waiting).astype(np.float64)
            finite = np.isfinite(values)
            is_whole = bool(finite.all())
            self.rewards.add(*((steps, values) if is_whole else (steps[finite], values[finite])))

    def _add_bad(self, codes: Counter[str], portrait: Callable[[], Portrait]) -> None:
        """Keeps a bad episode that the findings name; see `problems.EXAMPLES`."""
        if len(self.bad) < _BAD_EPISODES and any(self._shown[code] < EXAMPLES for code in codes):
            self.bad.append(BadEpisode(codes, portrait()))
        self._shown.update(codes)

    def _drawings(self, table: str) -> Chosen[tuple[str, str]]:
        return self._items.setdefault(table, Chosen(1, self._seed))
