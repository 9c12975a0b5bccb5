"""Slices of fixed length chosen when the data is pushed, as TorchRL's `SliceSampler` chooses them when it samples.

An episode of rows r0 to r9 has seven slices of length 4, r0-r3 to r6-r9. `per_episode=2` keeps two of them, drawn without
replacement from a generator that depends on the seed and the episode's id only. An episode shorter than the length gives no
item when strict, else one item of all its rows. With truncated, an item also says where it ends:

| rows | truncated |
| --- | --- |
| r2 r3 r4 r5 | no no no yes |
| r5 r6 r7 r8 | no no no yes |

Source: SliceSampler of TorchRL 0.5 (start uniform in [0, T - length], `strict_length`, `truncated_key`).

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> episode = Episode({"observation": np.arange(10)}, {}, "e")
>>> len(Slices(length=4, per_episode=2).cut(episode).anchors)
2
>>> Slices(length=4, per_episode=2, truncated=True).cut(episode).rows["truncated"].astype(int)
array([0, 0, 0, 1, 0, 0, 0, 1, 0, 0])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut, Field, Window
from rlds2reverb.episode import Array, Episode, is_under
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, map_leaves
from rlds2reverb.views.base import (
    EVERYTHING,
    UNSAID_AT_DEFAULT,
    BaseView,
    Wanted,
    check_flags,
    check_seed,
    fields_of,
    generator,
    need,
)

TRUNCATED = "truncated"


@dataclass(frozen=True)
class Slices(BaseView):
    """Items of `length` consecutive rows, all step columns as recorded.

    Attributes:
      length: rows of an item.
      per_episode: slices kept per episode; fewer where an episode has fewer.
      strict: a shorter episode gives no item; otherwise one item of all its rows.
      seed: the choice depends on it and on the episode's id.
      truncated: add a field of that name, [length] bool, true on an item's last row only.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense.
    """

    _name = "slices"
    _reads = EVERYTHING  # so extras are metadata

    length: int = 32
    per_episode: int = 1
    strict: bool = True
    seed: int = 0
    truncated: bool = field(default=False, metadata=UNSAID_AT_DEFAULT)
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle(length=self.length, per_episode=self.per_episode)
        check_seed("slices", self.seed)
        check_flags("slices", strict=self.strict, truncated=self.truncated)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """The step spec with a leading axis of `length`, of any size when not strict; and truncated if that is set.

        Raises:
          ViewError: the steps are no dict, or have a field "truncated" already.
        """
        steps: dict[str, Nest] = dict(need("slices", step_spec))
        if self.truncated:
            self._check_free(steps)
            steps[TRUNCATED] = ArraySpec((), np.dtype(bool))
        items = self._with_extras(steps, steps, metadata_spec)
        return map_leaves(lambda leaf: leaf.with_leading(self.length if self.strict else None), items)

    def item_count(self, rows: int | None) -> int | None:
        """At most `per_episode`."""
        if rows is None:
            return self.per_episode
        starts = rows - self.length + 1
        return min(self.per_episode, starts) if starts > 0 else int(not self.strict and rows > 0)

    def cut(self, episode: Episode) -> Cut:
        """Starts in rising order."""
        starts = len(episode) - self.length + 1
        if starts < 1:
            anchors = np.zeros(int(not self.strict and len(episode) > 0), np.int64)
        else:
            draws = generator("slices", self.seed, episode)
            anchors = np.sort(draws.choice(starts, min(self.per_episode, starts), replace=False)).astype(np.int64)
        length = min(self.length, max(1, len(episode)))
        windows = (Window(0, length),)
        rows, fields = dict(episode.columns), fields_of({path: path for path in episode.columns}, windows)
        if self.truncated:
            self._check_free(rows)
            rows[TRUNCATED], own = _ends(len(episode), length, anchors)
            fields[TRUNCATED] = Field(TRUNCATED, windows, own)
        further = self._extras_rows(episode)
        rows, fields = {**rows, **further}, {**fields, **fields_of({path: path for path in further}, windows)}
        return Cut(rows, fields, anchors, np.full(len(anchors), self.priority, np.float64))

    def _check_free(self, steps: Mapping[str, object]) -> None:
        if any(is_under(path, TRUNCATED) for path in steps):
            raise ViewError(f'slices: truncated: expected steps without a field "{TRUNCATED}", found {sorted(steps)}')


def _ends(rows: int, length: int, anchors: Array) -> tuple[Array, Array]:
    """[T] bool, true on the last of every `length` rows; and [n] a row near each anchor where `length` such rows start."""
    ends = np.arange(rows) % length == length - 1
    return ends, np.minimum(anchors // length, max(0, rows // length - 1)) * length
