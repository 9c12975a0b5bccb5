"""Stacked frames: each item sees the last k observations; every frame is stored once.

With frames=3, an episode of rows o0 o1 o2 (o2 is the final observation) gives:

| item | observation | next_observation |
| --- | --- | --- |
| 0 | o0 o0 o0 | o0 o0 o1 |
| 1 | o0 o0 o1 | o0 o1 o2 |

With fill=zero, frames before the first are zeros instead of the first one again; with fill=-1 they are full of -1.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> steps = dict(observation=np.arange(1, 4), action=np.arange(3), reward=np.ones(3), discount=np.ones(3))
>>> FrameStack(frames=3).cut(Episode(steps, {}, "e")).rows["observation"]
array([1, 1, 1, 2, 3])
>>> FrameStack(frames=3, fill={"observation": -1}).cut(Episode(steps, {}, "e")).rows["observation"]
array([-1, -1,  1,  2,  3])
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import ACTION, DISCOUNT, OBSERVATION, REWARD, Episode, is_under
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import Nest, flatten, map_leaves
from rlds2reverb.views.base import (
    UNSAID_AT_DEFAULT,
    BaseView,
    Fill,
    Wanted,
    check_fit,
    checked_fill,
    columns,
    fields_of,
    fill_name,
    label_of,
    need,
    one_per_transition,
    pad,
    transition_count,
    under,
)

NEXT_OBSERVATION = "next_observation"


@dataclass(frozen=True)
class FrameStack(BaseView):
    """One item per transition, with stacked observations.

    Attributes:
      frames: k, oldest first.
      fill: what stands before the first row: "first" (that row again), "zero" or a number. A mapping from paths to such fills
        gives columns fills of their own. A path names an observation column or a nest of them; the longest one counts, and
        a column that none leads to has "first".
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense.
    """

    _name = "frame_stack"
    _reads = (OBSERVATION, ACTION, REWARD, DISCOUNT)

    frames: int = 4
    fill: Fill | Mapping[str, Fill] = "first"
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle(frames=self.frames)
        fill: Any = self.fill
        if isinstance(fill, Mapping):
            if strange := [path for path in fill if not isinstance(path, str)]:
                raise ViewError(f"frame_stack: fill of {strange[0]!r}, expected a path of an observation column")
            fill = {path: checked_fill(f'frame_stack: "{path}"', value) for path, value in fill.items()}
        else:
            fill = checked_fill("frame_stack", fill)
        object.__setattr__(self, "fill", fill)

    @property
    def label(self) -> str:
        fills = {OBSERVATION: self.fill} if not isinstance(self.fill, Mapping) else self.fill
        plain = {path: fill_name(fill) for path, fill in fills.items()} or {OBSERVATION: "first"}
        fill = plain[OBSERVATION] if list(plain) == [OBSERVATION] else json.dumps(plain, sort_keys=True)
        return label_of("frame_stack", self, fill=fill)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """{observation [k, ...], action, reward, discount, next_observation [k, ...]}.

        Raises:
          ViewError: the steps lack one of these, a fill does not fit its column's dtype, or names no column.
        """
        steps = need("frame_stack", step_spec, *self._reads)
        self._fills({path: leaf.dtype for path, leaf in flatten(steps[OBSERVATION], OBSERVATION).items()})
        stacked = map_leaves(lambda leaf: leaf.with_leading(self.frames), steps[OBSERVATION])
        plain = {name: steps[name] for name in (ACTION, REWARD, DISCOUNT)}
        items = {OBSERVATION: stacked, **plain, NEXT_OBSERVATION: stacked}
        return self._with_extras(items, steps, metadata_spec)

    def item_count(self, rows: int | None) -> int | None:
        return one_per_transition(rows)

    def cut(self, episode: Episode) -> Cut:
        """Puts k - 1 rows before the first; an item's windows look back."""
        before = self.frames - 1
        further = self._extras_rows(episode)
        recorded = {**columns(episode, *self._reads), **further}
        observations = under(recorded, OBSERVATION)
        fills = self._fills({path: recorded[path].dtype for path in observations})
        rows = {path: pad(column, before, 0, fills.get(path, "first")) for path, column in recorded.items()}
        fields = {
            **fields_of({path: path for path in rows if path not in observations}),
            **fields_of(observations, (Window(-before, 1),)),
            **fields_of(under(rows, OBSERVATION, NEXT_OBSERVATION), (Window(1 - before, 2),)),
        }
        count = transition_count(episode)
        return Cut(
            rows, fields, before + np.arange(count, dtype=np.int64), np.full(count, self.priority, np.float64), before
        )

    def _fills(self, observations: Mapping[str, np.dtype[Any]]) -> dict[str, Fill]:
        """Path of an observation column -> its fill."""
        named = self.fill if isinstance(self.fill, Mapping) else {OBSERVATION: self.fill}
        fills: dict[str, Fill] = dict.fromkeys(observations, "first")
        for path in sorted(named, key=len):  # what is deeper comes later
            below = [column for column in observations if is_under(column, path)]
            if not below:
                raise ViewError(f'frame_stack: fill of "{path}", expected a path to some of {sorted(observations)}')
            fills |= dict.fromkeys(below, named[path])
        for path, fill in fills.items():
            check_fit("frame_stack", path, fill, observations[path])
        return fills
