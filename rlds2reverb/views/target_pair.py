"""Pairs of context and target for representation learning, as il-representations builds them.

With offset=2, an episode with steps 0 to 3 gives these items (the final observation, o4, is never used):

| mode | first item | second item |
| --- | --- | --- |
| identity | context o0, target o0 | context o1, target o1 |
| none | context o0, target o2 | context o1, target o3 |
| dynamics | context o0, extra_context a0 a1, target o2 | context o1, extra_context a1 a2, target o3 |
| inverse_dynamics | context o0, extra_context o2, target a0 a1 | context o1, extra_context o3, target a1 a2 |
| action_prediction | context o0, target a0 a1 | context o1, target a1 a2 |

`timestep` is the step of the target. Source: target pair constructors of il-representations (Identity, TemporalOffset).

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> episode = Episode({"observation": np.arange(5), "action": np.arange(5) * 10}, {}, "e")
>>> cut = TargetPair(mode="dynamics", offset=2).cut(episode)
>>> cut.anchors, cut.fields["extra_context"].windows
(array([2, 3]), (Window(start=-2, stop=0, squeeze=False),))
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import ACTION, OBSERVATION, Episode
from rlds2reverb.specs import ArraySpec, Nest, map_leaves
from rlds2reverb.views.base import (
    UNSAID_AT_DEFAULT,
    BaseView,
    Wanted,
    choice,
    columns,
    fields_of,
    label_of,
    need,
    transition_count,
    under,
)

IDENTITY, NONE, DYNAMICS = "identity", "none", "dynamics"
INVERSE_DYNAMICS, ACTION_PREDICTION = "inverse_dynamics", "action_prediction"
MODES = (IDENTITY, NONE, DYNAMICS, INVERSE_DYNAMICS, ACTION_PREDICTION)

CONTEXT, TARGET, EXTRA, TIMESTEP = "context", "target", "extra_context", "timestep"

_LAYOUT: dict[str, dict[str, str]] = {
    IDENTITY: {CONTEXT: "now", TARGET: "now"},
    NONE: {CONTEXT: "before", TARGET: "now"},
    DYNAMICS: {CONTEXT: "before", EXTRA: "actions", TARGET: "now"},
    INVERSE_DYNAMICS: {CONTEXT: "before", EXTRA: "now", TARGET: "actions"},
    ACTION_PREDICTION: {CONTEXT: "before", TARGET: "actions"},
}
"""Mode -> field -> what it holds: the observation of step t, that of step t - offset, or the actions between."""


@dataclass(frozen=True)
class TargetPair(BaseView):
    """One item per step t, from step `offset` on (identity: from the first step on).

    Attributes:
      mode: one of `MODES`.
      offset: steps between context and target; ignored by identity.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense.
    """

    _name = "target_pair"

    mode: str = NONE
    offset: int = 1
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle(offset=self.offset)
        choice("target_pair", "mode", self.mode, MODES)

    @property
    def label(self) -> str:
        return label_of("target_pair", self, offset=self._offset)

    @property
    def _offset(self) -> int:
        return 0 if self.mode == IDENTITY else self.offset

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """{context, target, extra_context where the mode has one, timestep int64 []}."""
        steps = need("target_pair", step_spec, OBSERVATION, ACTION)
        actions = map_leaves(lambda leaf: leaf.with_leading(self.offset), steps[ACTION])
        specs = {"now": steps[OBSERVATION], "before": steps[OBSERVATION], "actions": actions}
        fields = {name: specs[kind] for name, kind in _LAYOUT[self.mode].items()}
        items = {**fields, TIMESTEP: ArraySpec((), np.dtype(np.int64))}
        return self._with_extras(items, steps, metadata_spec)

    @property
    def _reads(self) -> tuple[str, ...]:
        return tuple(sorted({ACTION if kind == "actions" else OBSERVATION for kind in _LAYOUT[self.mode].values()}))

    def item_count(self, rows: int | None) -> int | None:
        """One per transition that has a target and what comes before it."""
        return None if rows is None else max(0, rows - 1 - self._offset)

    def cut(self, episode: Episode) -> Cut:
        """Contexts, targets and extra contexts are windows into the same stored observations and actions."""
        windows = {
            "now": (OBSERVATION, Window(0, 1, squeeze=True)),
            "before": (OBSERVATION, Window(-self._offset, 1 - self._offset, squeeze=True)),
            "actions": (ACTION, Window(-self.offset, 0)),
        }
        names = {windows[kind][0] for kind in _LAYOUT[self.mode].values()}
        further = self._extras_rows(episode)
        plain = {TIMESTEP: np.arange(len(episode), dtype=np.int64), **further}
        rows = {**columns(episode, *sorted(names)), **plain}
        fields = fields_of({path: path for path in plain})
        for name, kind in _LAYOUT[self.mode].items():
            column, window = windows[kind]
            fields |= fields_of(under(rows, column, name), (window,))
        anchors = np.arange(self._offset, max(self._offset, transition_count(episode)), dtype=np.int64)
        return Cut(rows, fields, anchors, np.full(len(anchors), self.priority, np.float64))
