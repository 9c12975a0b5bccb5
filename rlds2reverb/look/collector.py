"""What the page of an inspection needs of a dataset's episodes, collected in inspect's one pass.

What is held is bounded by constants, not by the dataset: sketches of the first columns, and small copies of a few episodes. The choice
depends on the seed and the episodes' names only, so it is the same in any order, and with any number of workers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from rlds2reverb.episode import ACTION, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, REWARD, Array, Episode, is_under
from rlds2reverb.errors import DecodeError
from rlds2reverb.images import kind
from rlds2reverb.inspection.inspection import Inspection, return_of
from rlds2reverb.look.drawing import items_drawing
from rlds2reverb.look.pictures import Picture, Pictures, choose_steps, fit_picture, pictures_of, thumbnail_size
from rlds2reverb.look.sketches import Chosen, Sketch, Texts, sketch_of
from rlds2reverb.numbers.distributions import ByTime
from rlds2reverb.numbers.sketch import DIMENSIONS, WAITING, Numbers
from rlds2reverb.prepare.conventions import fill_absent
from rlds2reverb.prepare.findings import EXAMPLES
from rlds2reverb.prepare.preparation import OutputCut
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import number

_CAMERAS = 4
_LAST_ROWS = 3
_TEXTS = 4
_LONGEST = 300  # bytes of a text


INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction", "task", "language")
"""Last names of columns, and of metadata, with what a robot is to do."""
_CONSTANTS = 100
"""Of an episode, by name."""
"""Last parts of the paths under which datasets keep what a robot was asked to do."""


@dataclass(frozen=True)
class PortraitSize:
    """How much of an episode is kept.

    Attributes:
      frames: images of all cameras together.
      width: pixels of an image; a tall one has at most twice as many rows.
      columns, lines, points: columns with curves, curves (one per dimension) of a column, points of a curve.
    """

    frames: int
    width: int
    columns: int
    lines: int
    points: int


LARGE = PortraitSize(frames=48, width=224, columns=12, lines=4, points=160)
SMALL = PortraitSize(frames=4, width=224, columns=3, lines=2, points=80)


@dataclass
class Portrait:
    """An episode as it is shown.

    Attributes:
      title: its id and the dataset's own name.
      total: its return; None where it has none.
      at: [n] time steps of the curves' points.
      instruction: what was asked for; "" where no text says so.
      curves: path -> [n, at most `PortraitSize.lines`] float64, of columns that change: the reward's first, then the action's.
      widths: path -> dimensions of the column.
      not_drawn: number of further columns that change.
      constants: path -> value, of the first columns that keep one; "" where the value has several numbers.
      constant_count: number of columns that keep one value.
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
    instruction: bytes = b""
    curves: dict[str, Array] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    not_drawn: int = 0
    constants: dict[str, str] = field(default_factory=dict)
    constant_count: int = 0
    frames: dict[str, tuple[list[int], list[Picture]]] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    last_rows: dict[str, list[str]] = field(default_factory=dict)
    untold: str = ""


def is_constant(column: Array) -> bool:
    """Whether all rows of [T, ...] are the same; NaN is never the same."""
    if not column.size:
        return False
    if column.dtype.kind == "O":
        values = column.reshape(len(column), -1).tolist()
        return all(row == values[0] for row in values)
    # The last row first: in most columns it differs, and the whole need not be compared.
    return bool((column[-1] == column[0]).all()) and bool((column == column[:1]).all())


def is_instruction(path: str) -> bool:
    return path.rpartition("/")[2] in INSTRUCTIONS


def portrait_of(episode: Episode, spec: Mapping[str, ArraySpec], total: float | None, size: PortraitSize) -> Portrait:
    """An episode as it is shown. Columns may be of any kind and length, for bad ones are shown, too."""
    at = np.unique(np.linspace(0, max(0, len(episode) - 1), size.points).astype(np.int64))[: len(episode)]
    portrait = Portrait(episode.id, episode.title, len(episode), total, at)
    filled = fill_absent(episode).columns if episode.columns else {}
    for path in (REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL):
        if path in filled and filled[path].ndim == 1:
            portrait.last_rows[path] = [str(value) for value in filled[path][-_LAST_ROWS:].tolist()]
    # A bad episode may lack rows in some columns: they have no step to be drawn at.
    whole = {path: column for path, column in episode.columns.items() if 0 < len(column) == len(episode)}
    # One row tells the kind: files of all rows would be decoded else.
    cameras = [path for path, column in whole.items() if pictures_of(path, column[:1], spec.get(path)) is not None]
    steps = choose_steps(len(episode), max(1, size.frames // max(1, len(cameras[:_CAMERAS]))))
    for path in cameras[:_CAMERAS]:
        if (pictures := pictures_of(path, whole[path][steps], spec.get(path))) is not None:
            _add_frames(portrait, pictures, steps, size.width)
    for path in sorted(whole, key=lambda path: 0 if path == REWARD else 1 if is_under(path, ACTION) else 2):
        column = whole[path]
        if path in cameras:
            continue
        if column.dtype.kind in "OSU":
            text = _first_text(column)
            if text is not None and len(portrait.texts) < _TEXTS:
                portrait.texts[path] = text
        elif column.dtype.kind not in "fiub" or not column.size:
            continue
        elif len(column) > 1 and is_constant(column):
            portrait.constant_count += 1
            if len(portrait.constants) < _CONSTANTS:
                portrait.constants[path] = number(float(column[0])) if column.ndim == 1 else ""
        elif column.dtype.kind != "b":
            if len(portrait.curves) < size.columns:
                values = column.reshape(len(column), -1)
                portrait.curves[path], portrait.widths[path] = (
                    values[at, : size.lines].astype(np.float64),
                    values.shape[1],
                )
            else:
                portrait.not_drawn += 1
    portrait.instruction = _instruction_of(episode, whole)
    return portrait


def _instruction_of(episode: Episode, whole: Mapping[str, Array]) -> bytes:
    """The first text that is an instruction: of the steps, else of the episode."""
    of_steps = (_first_text(column) for path, column in whole.items() if is_instruction(path))
    of_episode = (_as_bytes(value) for path, value in episode.metadata.items() if is_instruction(path))
    return next((text for text in chain(of_steps, of_episode) if text), b"")


def _first_text(column: Array) -> bytes | None:
    return _as_bytes(column.ravel()[0]) if column.size else None


def _as_bytes(value: object) -> bytes | None:
    text = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return text[:_LONGEST] if isinstance(text, bytes) else None


def _add_frames(portrait: Portrait, pictures: Pictures, steps: list[int], width: int) -> None:
    try:
        size = pictures.size
        height, width = thumbnail_size(size, round(width * min(2.0, max(1.0, size[0] / size[1]))))
        frames = [fit_picture(pictures.picture(at), height, width) for at in range(len(steps))]
    except DecodeError as error:
        portrait.untold = str(error)
        return
    portrait.frames[pictures.path] = steps, frames


_ACTION_EPISODES, _ACTION_ROWS, _ACTION_DIMENSIONS = 64, 256, 32


class ActionSample:
    """The actions of some episodes that the seed chose, at some of their steps.

    Attributes:
      names: [dimensions] path of an action and place in a row.
      chosen: [n, dimensions] float64 of each episode; [0, dimensions] where an action has another shape or is not finite.
    """

    def __init__(self, spec: Mapping[str, ArraySpec], seed: int) -> None:
        self._places: list[tuple[str, int]] = []
        self.names: list[str] = []
        for path, leaf in spec.items():
            if not is_under(path, ACTION) or leaf.dtype.kind not in "fiu" or None in leaf.shape or kind(leaf):
                continue
            size = math.prod(size or 0 for size in leaf.shape)
            for at in range(min(size, _ACTION_DIMENSIONS - len(self.names))):
                self._places.append((path, at))
                self.names.append(f"{path}[{at}]" if leaf.shape else path)
        self._sizes = {path: math.prod(size or 0 for size in spec[path].shape) for path, _ in self._places}
        self.chosen = Chosen[Array](_ACTION_EPISODES, seed)

    def add(self, name: str, columns: Mapping[str, Array]) -> None:
        """Adds the `meant` columns of an episode."""
        if self.names and self.chosen.wants(name):
            self.chosen.add(name, self._rows(columns))

    def ends(self, sketches: Mapping[str, Sketch]) -> tuple[Array, Array]:
        """[dimensions] smallest and largest action of the whole dataset, from its sketches."""
        low, high = np.full(len(self.names), np.inf), np.full(len(self.names), -np.inf)
        for at, (path, place) in enumerate(self._places):
            sketch = sketches.get(path)
            if isinstance(sketch, Numbers) and place < sketch.dimensions:
                low[at], high[at] = sketch.histograms.low[place], sketch.histograms.high[place]
        return low, high

    def _rows(self, columns: Mapping[str, Array]) -> Array:
        arrays = [columns.get(path) for path in self._sizes]
        there = [column for column in arrays if column is not None and column.dtype.kind in "fiu"]
        nothing = np.zeros((0, len(self.names)))
        if len(there) < len(arrays) or len({len(column) for column in there}) > 1:
            return nothing
        steps = choose_steps(len(there[0]), _ACTION_ROWS)
        parts = []
        for (path, size), column in zip(self._sizes.items(), there):
            if column[:1].size != size:
                return nothing
            most = sum(place == path for place, _ in self._places)
            parts.append(column[steps].reshape(len(steps), size)[:, :most].astype(np.float64))
        rows = np.concatenate(parts, axis=1)
        return rows if np.isfinite(rows).all() else nothing


COLUMNS = 200  # most columns whose values are looked at
_SKETCHES = 2_000  # most dimensions of all columns together, about
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
      seen, kept_one: path -> episodes that have the column, and those in which it keeps one value; not of images.
      rewards: by time step.
      actions: of some episodes.
      episodes: the chosen ones.
      bad: the first few of each problem.
    """

    def __init__(self, seed: int, inspection: Inspection) -> None:
        self._spec = inspection.step_spec
        looked_at = list(self._spec)[:COLUMNS]
        most = _most_dimensions([self._spec[path] for path in looked_at])
        waiting = min(WAITING, _WAITING // max(1, len(looked_at)))
        sketches = {path: sketch_of(self._spec[path], most, seed, waiting) for path in looked_at}
        self.columns: dict[str, Sketch] = {path: sketch for path, sketch in sketches.items() if sketch is not None}
        self.seen, self.kept_one = Counter[str](), Counter[str]()
        self.rewards = ByTime()
        self.actions = ActionSample(self._spec, seed)
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
                if isinstance(sketch, Texts) or not sketch.is_image:
                    self.seen[path] += 1
                    self.kept_one[path] += is_constant(columns[path])
        self.actions.add(episode.id, columns)
        reward = columns.get(REWARD)
        if reward is not None and reward.ndim == 1 and reward.dtype.kind in "fiu":
            # Episodes are short, and each call into numpy costs microseconds: rewards are looked at together.
            self._waiting.append(reward)
            self._waiting_steps += len(reward)
            if self._waiting_steps >= _BLOCK_STEPS:
                self._look_at_rewards()

        def portrait(size: PortraitSize) -> Portrait:
            return portrait_of(episode, self._spec, next(iter(return_of(episode)), None), size)

        if self.episodes.wants(episode.id):
            self.episodes.add(episode.id, portrait(LARGE))
        self._add_bad(Counter(problem.code for problem in problems), lambda: portrait(SMALL))
        for cut in cuts:
            chosen = self._drawings(cut.output.tables[0])
            if cut.items_per_table and chosen.wants(episode.id):
                chosen.add(episode.id, items_drawing(cut.view_name, cut.cut))

    def add_part(self, other: Collector) -> None:
        """Adds what another collector saw of the episodes that follow."""
        self.flush()
        other.flush()
        for path, sketch in self.columns.items():
            another = other.columns[path]
            if isinstance(sketch, Numbers) and isinstance(another, Numbers):
                sketch.add_numbers(another)
            elif isinstance(sketch, Texts) and isinstance(another, Texts):
                sketch.add_texts(another)
        self.seen.update(other.seen)
        self.kept_one.update(other.kept_one)
        self.rewards.add_times(other.rewards)
        self.actions.chosen.add_chosen(other.actions.chosen)
        self.episodes.add_chosen(other.episodes)
        for bad in other.bad:
            self._add_bad(bad.codes, lambda portrait=bad.portrait: portrait)  # type: ignore[misc]
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
            steps = np.concatenate([np.arange(len(values)) for values in waiting])
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


def _most_dimensions(specs: Sequence[ArraySpec]) -> int:
    """The most dimensions of each column: narrow ones leave their room to wide ones."""
    sizes = [1 if kind(spec) else math.prod(size or 1 for size in spec.shape) for spec in specs]
    most = DIMENSIONS
    while most > 1 and sum(min(size, most) for size in sizes) > _SKETCHES:
        most = most * 3 // 4
    return most
