"""What the page needs of a dataset's episodes, collected in inspect's one pass.

What it holds is bounded by constants, not by the dataset: sketches of the first columns, and small copies of a few episodes. What it chooses
depends on the seed and the episodes' names, so it is the same whatever the order, and whoever reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import REWARD, Array, Episode
from rlds2reverb.push.cutting import OutputCut
from rlds2reverb.report.chosen import Chosen
from rlds2reverb.report.columns import DIMENSIONS, WAITING, Numbers, Sketch, sketch_of
from rlds2reverb.report.items import items_drawing
from rlds2reverb.report.portraits import LARGE, SMALL, Portrait, Size, portrait_of
from rlds2reverb.report.texts import Texts
from rlds2reverb.report.times import ByTime
from rlds2reverb.reports.inspected import Inspection
from rlds2reverb.reports.inspection import return_of
from rlds2reverb.validation import Problem
from rlds2reverb.validation.findings import EXAMPLES

COLUMNS = 200
"""Most columns whose values are looked at."""
_SKETCHES = 1_000
"""Most dimensions of all columns together, about."""
_EPISODES = 4
"""Good or bad ones, chosen by the seed."""
_BAD_EPISODES = 48
"""Most that are shown because of their problems."""
_WAITING = 1 << 25
"""Bytes of all columns that wait to be looked at, about."""
_BLOCK_STEPS = 1 << 16

_Portrayed = Callable[[], Portrait]


@dataclass(frozen=True)
class BadEpisode:
    """An episode that is shown because of its problems.

    Attributes:
      codes: of its problems, each as often as it has it.
      portrait: what is shown.
    """

    codes: Counter[str]
    portrait: Portrait


class Collector:
    """Looks at the episodes of an inspection; see `reports.watching.Watcher`.

    Args:
      seed: chooses what is shown; at least 0.
      inspection: of the dataset; nothing has been read yet.

    Attributes:
      columns: path -> what the values of the first columns look like.
      rewards: by time step.
      episodes: the chosen ones.
      bad: the first few of each problem.
      items: table -> drawing of items, and what it leaves out, see `items.items_drawing`.
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
        """Table -> drawing of items, and what it leaves out."""
        return {table: values[0] for table, chosen in self._items.items() if (values := chosen.values())}

    def add(
        self, episode: Episode, columns: Mapping[str, Array], problems: Sequence[Problem], cuts: Sequence[OutputCut]
    ) -> None:
        """Takes in an episode."""
        for path, sketch in self.columns.items():
            if path in columns:
                sketch.add(columns[path])
        self._add_rewards(columns.get(REWARD))
        if self.episodes.wants(episode.id):
            self.episodes.add(episode.id, self._portrait(episode, LARGE))
        self._add_bad(Counter(problem.code for problem in problems), lambda: self._portrait(episode, SMALL))
        for made in cuts:
            self._add_items(episode, made)

    def add_part(self, other: Collector) -> None:
        """Takes in what another saw of the episodes that follow."""
        self.flush()
        other.flush()
        for path, sketch in self.columns.items():
            _join(sketch, other.columns[path])
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

    def _add_rewards(self, reward: Array | None) -> None:
        if reward is None or reward.ndim != 1 or reward.dtype.kind not in "fiu":
            return
        self._waiting.append(reward)
        self._waiting_steps += len(reward)
        if self._waiting_steps >= _BLOCK_STEPS:
            self._look_at_rewards()

    def _portrait(self, episode: Episode, size: Size) -> Portrait:
        return portrait_of(episode, self._spec, next(iter(return_of(episode)), None), size)

    def _add_bad(self, codes: Counter[str], portrait: _Portrayed) -> None:
        """Keeps a bad episode that the findings tell of; see `validation.findings.EXAMPLES`."""
        if len(self.bad) < _BAD_EPISODES and any(self._shown[code] < EXAMPLES for code in codes):
            self.bad.append(BadEpisode(codes, portrait()))
        self._shown.update(codes)

    def _add_items(self, episode: Episode, made: OutputCut) -> None:
        chosen = self._drawings(made.output.tables[0])
        if made.items_per_table and chosen.wants(episode.id):
            chosen.add(episode.id, items_drawing(made.view_name, made.cut))

    def _drawings(self, table: str) -> Chosen[tuple[str, str]]:
        return self._items.setdefault(table, Chosen(1, self._seed))


def _join(one: Sketch, other: Sketch) -> None:
    if isinstance(one, Numbers) and isinstance(other, Numbers):
        one.add_numbers(other)
    elif isinstance(one, Texts) and isinstance(other, Texts):
        one.add_texts(other)
