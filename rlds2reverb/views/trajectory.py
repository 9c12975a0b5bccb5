"""Views of TF-Agents trajectories: rows of step_type, observation, action, policy_info, next_step_type, reward, discount, in windows.

Source: `tf_agents.replay_buffers.rlds_to_reverb`, tf-agents 0.19 (probed). Row t comes from RLDS step t; its
next_step_type from step t+1, and the step after an episode's last is a padding step of type FIRST::

    RLDS         first  .     .     last+terminal
    step_type    FIRST  MID   MID   LAST
    next         MID    MID   LAST  FIRST
    discount     d0     d1    d2    0

A single-step episode is (LAST, LAST). The zero discount stands on the boundary row, where TF-Agents puts it;
`conventions.terminal_discount` puts it on the transition as well.

Each view stores what one of TF-Agents' observers stores: `SequenceView` as `ReverbAddTrajectoryObserver`, `WholeEpisode` as
`ReverbAddEpisodeObserver`, `AcrossEpisodes` as `ReverbTrajectorySequenceObserver`.

>>> import numpy as np
>>> window_anchors(rows=4, length=2, stride=1)
array([0, 1, 2])
>>> window_anchors(rows=4, length=3, stride=2)
array([0])
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any

import numpy as np

from rlds2reverb.cuts import Cut, Window, zeros_like
from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    columns_under,
)
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves, named_tuple_type, with_view
from rlds2reverb.views.base import (
    CHANGES_NO_ITEM,
    UNSAID_AT_DEFAULT,
    BaseView,
    Extras,
    View,
    Wanted,
    check_flags,
    check_made_up,
    check_options,
    continued,
    renaming_hint,
)

FIRST, MID, LAST = 0, 1, 2
"""Values of step_type, int32; as in `dm_env` and TF-Agents."""

TRAJECTORY = "Trajectory"
POLICY_INFO = "policy_info"
STEP_TYPE = "step_type"
NEXT_STEP_TYPE = "next_step_type"
FIELDS = (STEP_TYPE, OBSERVATION, ACTION, POLICY_INFO, NEXT_STEP_TYPE, REWARD, DISCOUNT)
"""Fields of `tf_agents.trajectories.Trajectory`, in order."""

READS = (OBSERVATION, ACTION, POLICY_INFO, REWARD, DISCOUNT, *FLAGS)
"""Step fields that a trajectory is made of."""

_INT32 = np.dtype(np.int32)


def trajectory_spec(step_spec: Nest) -> Nest:
    """Spec of one trajectory row for steps of `step_spec`: a namedtuple Trajectory of nests."""
    if not isinstance(step_spec, Mapping):
        raise ViewError(f"step spec: expected a dict of step fields, got {type(step_spec).__name__}")
    missing = [name for name in (OBSERVATION, ACTION, REWARD, DISCOUNT) if name not in step_spec]
    if missing:
        raise ViewError(
            f"step spec without {', '.join(missing)}: a trajectory needs them; found {sorted(step_spec)}; "
            f"a transform must not leave them out, and can rename columns to them{renaming_hint(step_spec)}"
        )
    step_type = ArraySpec((), _INT32, STEP_TYPE)
    return named_tuple_type(TRAJECTORY, FIELDS)(
        step_type,
        step_spec[OBSERVATION],
        step_spec[ACTION],
        step_spec.get(POLICY_INFO, ()),
        step_type,
        step_spec[REWARD],
        step_spec[DISCOUNT],
    )


def with_window(spec: Nest, size: int | None) -> Nest:
    """A trajectory spec with a leading axis of `size` on every leaf."""
    return map_leaves(methodcaller("with_leading", size), spec)


def step_types(is_first: Array, is_last: Array) -> Array:
    """[T] int32: FIRST, which is 0, where is_first (it wins), LAST where is_last, else MID."""
    kinds: Array = np.add(is_last, MID, dtype=_INT32)
    kinds *= ~is_first
    return kinds


def trajectory_rows(
    columns: Mapping[str, Array], next_is_first: bool = True, next_is_last: bool = False
) -> dict[str, Array]:
    """Columns of [T] steps -> columns of [T] trajectory rows, in the order of `FIELDS`.

    Args:
      columns: [T, ...] by path; the three flags, discount, and observation, action and reward (nested or not); optionally
        policy_info.
      next_is_first, next_is_last: flags of the step that follows the last row; by default the padding step.
    """
    missing = [name for name in (IS_FIRST, IS_LAST, IS_TERMINAL, DISCOUNT) if name not in columns]
    if not columns_under(columns, REWARD):
        missing.append(REWARD)
    if missing:
        raise ViewError(f"steps without {', '.join(missing)}; found {sorted(columns)}")
    kinds = step_types(columns[IS_FIRST], columns[IS_LAST])
    following = np.empty_like(kinds)
    following[:-1] = kinds[1:]
    following[-1:] = FIRST if next_is_first else LAST if next_is_last else MID
    alone = (kinds | following) == FIRST  # both are
    if alone.any():
        kinds[alone] = following[alone] = LAST
    discount = columns[DISCOUNT].copy()  # [T, ...]
    discount[columns[IS_LAST] & columns[IS_TERMINAL]] = 0
    computed = {
        STEP_TYPE: {STEP_TYPE: kinds},
        NEXT_STEP_TYPE: {NEXT_STEP_TYPE: following},
        DISCOUNT: {DISCOUNT: discount},
    }
    rows: dict[str, Array] = {}
    for name in FIELDS:
        rows.update(computed.get(name) or columns_under(columns, name))
    return rows


def padding_rows(rows: Mapping[str, Array], count: int) -> dict[str, Array]:
    """`count` boundary rows (LAST, FIRST, zeros elsewhere; empty text) as TF-Agents pads episodes."""
    padding = {path: zeros_like(column, count) for path, column in rows.items()}
    padding[STEP_TYPE] = np.full(count, LAST, _INT32)
    padding[NEXT_STEP_TYPE] = np.full(count, FIRST, _INT32)
    return padding


def table_signature(items: Nest, view: str = "") -> Nest:
    """The signature for a table of such items.

    A table of trajectories has the one signature that TF-Agents' own `push_rlds_to_reverb` takes: the number of rows is free, and
    a float32 discount is named and bounded. A table of any other items has their spec.

    Args:
      items: `view.signature(step_spec)`.
      view: `name_of(view)`: a push by another one is refused. "" for a table that takes items of any view.
    """
    if type(items).__name__ == TRAJECTORY and getattr(items, "_fields", ()) == FIELDS:
        free: Any = map_leaves(lambda leaf: replace(leaf, shape=(None, *leaf.shape[1:])), items)
        if free.discount == ArraySpec((None,), np.dtype(np.float32)):  # TF-Agents' functions refuse any other
            bounded = replace(free.discount, name=DISCOUNT, minimum=np.float32(0), maximum=np.float32(1))
            free = free._replace(discount=bounded)
        items = free
    return with_view(items, view) if view else items


class _TrajectoryView(BaseView):
    """Makes items of trajectory rows; extras stand in policy_info."""

    _reads = READS

    def _item_spec(self, size: int | None, step_spec: Nest, metadata_spec: Nest) -> Nest:
        """Spec of `size` trajectory rows; policy_info has the extras beside the steps' own policy_info.

        Raises:
          ViewError: as `trajectory_spec`; or the steps have a policy_info that cannot take the extras.
        """
        plain = trajectory_spec(step_spec)
        if extras_spec := self._extras_spec(step_spec, metadata_spec):
            own, where = plain.policy_info, f"{self._said}: extras: they go into {POLICY_INFO}, and that of the steps"
            if flatten(own) and not isinstance(own, Mapping):
                raise ViewError(f"{where} is no dict; rename it")
            if both := sorted(extras_spec.keys() & dict(own).keys()):
                raise ViewError(f"{where} has {', '.join(both)} already; rename it")
            plain = plain._replace(policy_info={**dict(own), **extras_spec})
        return with_window(plain, size)

    def _rows(self, episode: Episode) -> dict[str, Array]:
        extras = {f"{POLICY_INFO}/{path}": column for path, column in self._extras_columns(episode).items()}
        return trajectory_rows({**episode.columns, **extras})


@dataclass(frozen=True)
class SequenceView(_TrajectoryView):
    """Items of `length` consecutive rows, one every `stride` rows.

    For an episode a b c d (d is the last row), P a padding row:

    | options | items |
    | --- | --- |
    | length 2 | ab bc cd |
    | length 2, stride 2 | ab cd |
    | length 3, stride 2 | abc |
    | length 3, stride 2, pad_end | abc |
    | length 6 | none |
    | length 6, pad_end | abcdPP |
    | length 3, pad_end, tile_end | abc bcd cdP dPP |

    Attributes:
      length: rows of an item.
      stride: rows between the starts of two items.
      pad_end: an episode shorter than `length` is padded to one item; without it, it gives none.
      tile_end: pad by length - 1 rows, so that items start at every row; needs `pad_end`.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: length or stride no whole number of at least 1, a priority that is no finite number of at least 0, or
        `tile_end` without `pad_end`.
    """

    _name = "sequence"

    length: int = 2
    stride: int = 1
    pad_end: bool = False
    tile_end: bool = False
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle(length=self.length, stride=self.stride)
        check_flags("sequence", pad_end=self.pad_end, tile_end=self.tile_end)
        if self.tile_end and not self.pad_end:
            raise ViewError("sequence: tile_end needs pad_end")

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """A Trajectory of specs with a leading axis of `length`."""
        return self._item_spec(self.length, step_spec, metadata_spec)

    def _spelled_name(self, options: Collection[str]) -> str:
        """Pairs of rows are the default view, whatever it was made by."""
        return self._name if set(options) - {"priority", "extras"} else "two_step"

    def item_count(self, rows: int | None) -> int | None:
        """Whole windows of the rows, with those that are padded."""
        if rows is None:
            return None
        return len(range(0, max(0, rows + self._padding(rows) - self.length + 1), self.stride)) if rows else 0

    def cut(self, episode: Episode) -> Cut:
        """Windows over the episode's rows, its last step followed by a padding first step."""
        return self.cut_rows(self._rows(episode))

    def cut_rows(self, rows: dict[str, Array]) -> Cut:
        """Windows over ready trajectory rows that end in a boundary row."""
        count = _row_count(rows)
        padding = self._padding(count)
        if padding:
            check_made_up(padding)
            filler = padding_rows(rows, padding)
            rows = {path: np.concatenate((column, filler[path])) for path, column in rows.items()}
        anchors = window_anchors(count + padding, self.length, self.stride)
        windows = (Window(0, self.length),) * len(rows)
        return Cut.of_columns(rows, windows, anchors, np.full(len(anchors), self.priority, np.float64))

    def _padding(self, rows: int) -> int:
        if self.tile_end:
            return self.length - 1
        return max(0, self.length - rows) if self.pad_end else 0


def two_step(priority: float = 1.0, extras: Wanted = ()) -> SequenceView:
    """TF-Agents' default: overlapping pairs of rows (a b, b c, c d)."""
    check_options("two_step", priority)
    view = SequenceView(length=2, priority=priority, extras=Extras.of("two_step", extras))
    # No field: the view equals the sequence, and so do the keys of its items.
    object.__setattr__(view, "_alias", "two_step")
    return view


def name_of(view: View) -> str:
    """What the signature of a table calls a view: its label, but the default view is "two_step".

    Signatures are stored in checkpoints and compared with those of pushes, so this never changes. `views.base.spell_view` is for people.
    """
    return "two_step" if view.label == two_step().label else view.label


def window_anchors(rows: int, length: int, stride: int) -> Array:
    """[n] int64 starts of every whole window; n = 1 + (rows - length) // stride, or 0."""
    return np.arange(0, max(0, rows - length + 1), stride, dtype=np.int64)


@dataclass(frozen=True)
class WholeEpisode(_TrajectoryView):
    """One item per episode, boundary row included.

    | episode | items |
    | --- | --- |
    | a b c d | abcd |
    | a | a |

    Attributes:
      max_length: most rows of an episode, or None for any number.
      skip_longer: a longer episode gives no item; otherwise it is an error.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: max_length no whole number of at least 1, or a priority that is no finite number of at least 0.
    """

    _name = "episode"  # in the label only with extras: the other options say whether an episode is stored, not what

    max_length: int | None = field(default=None, metadata=CHANGES_NO_ITEM)
    skip_longer: bool = field(default=False, metadata=CHANGES_NO_ITEM)
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle(max_length=1 if self.max_length is None else self.max_length)
        check_flags("episode", skip_longer=self.skip_longer)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """A Trajectory of specs with a leading axis of any size."""
        return self._item_spec(None, step_spec, metadata_spec)

    def item_count(self, rows: int | None) -> int | None:
        """One, unless the episode is too long."""
        return int(rows is None or self.max_length is None or rows <= self.max_length)

    def cut(self, episode: Episode) -> Cut:
        """One window over all rows.

        Raises:
          ViewError: the episode is longer than `max_length` and `skip_longer` is off.
        """
        return self.cut_rows(self._rows(episode))

    def cut_rows(self, rows: dict[str, Array]) -> Cut:
        """One window over ready trajectory rows."""
        count = _row_count(rows)
        too_long = self.max_length is not None and count > self.max_length
        if too_long and not self.skip_longer:
            raise ViewError(
                f"episode of {count} steps: longer than max_length {self.max_length}; raise it or set skip_longer"
            )
        anchors = np.zeros(0 if too_long else 1, np.int64)
        windows = (Window(0, count),) * len(rows)
        return Cut.of_columns(rows, windows, anchors, np.full(len(anchors), self.priority, np.float64))


@dataclass(frozen=True)
class AcrossEpisodes(_TrajectoryView):
    """Items of `length` consecutive rows of the stream of episodes, one every `stride` rows, across their borders.

    With length=3, the episodes a b c and d e give:

    | after episode | items |
    | --- | --- |
    | a b c | abc |
    | d e | bcd cde |

    What an episode gives depends on those before it: the last length - 1 rows of the stream are carried over, and stored again
    with the next episode. An episode that validation rejects is left out of the stream.

    Attributes:
      length: rows of an item.
      stride: rows between the starts of two items, episode borders or not.
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense.
    """

    _name = "across_episodes"

    length: int = 2
    stride: int = 1
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle(length=self.length, stride=self.stride)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """A Trajectory of specs with a leading axis of `length`."""
        return self._item_spec(self.length, step_spec, metadata_spec)

    def cut(self, episode: Episode) -> Cut:
        """What the first episode of a stream gives."""
        return self.stream().cut(episode)[0]

    def stream(self) -> RowStream:
        return RowStream(self)


@dataclass(frozen=True, eq=False)
class RowStream:
    """The position in a stream that is cut part by part; items do not depend on where the parts end."""

    view: AcrossEpisodes
    count: int = 0  # rows of the stream so far
    # columns of the last `length` rows, or of all when there are fewer; {} before the first. A stream that has begun
    # elsewhere needs the last length - 1 only.
    last_rows: Mapping[str, Array] = field(default_factory=dict)

    @property
    def left_over(self) -> int:
        """Rows after the last item."""
        beyond = self.count - self.view.length
        return self.count if beyond < 0 else beyond % self.view.stride

    def cut(self, episode: Episode) -> tuple[Cut, RowStream]:
        return self.cut_rows(self.view._rows(episode))

    def cut_rows(self, rows: Mapping[str, Array]) -> tuple[Cut, RowStream]:
        """Windows over ready trajectory rows and the length - 1 rows before them, and the stream after them."""
        length, stride = self.view.length, self.view.stride
        before = {path: column[max(0, len(column) - (length - 1)) :] for path, column in self.last_rows.items()}
        carried = _row_count(before)
        rows = continued("across_episodes", before if carried else {}, rows)
        count = _row_count(rows)
        first = -(self.count - carried) % stride  # the stream's items start at multiples of the stride
        anchors = np.arange(first, max(first, count - length + 1), stride, dtype=np.int64)
        windows = (Window(0, length),) * len(rows)
        cut = Cut.of_columns(rows, windows, anchors, np.full(len(anchors), self.view.priority, np.float64), carried)
        last_rows = {path: column[max(0, count - length) :] for path, column in rows.items()}
        return cut, RowStream(self.view, self.count + count - carried, last_rows)


def _row_count(rows: Mapping[str, Array]) -> int:
    return len(next(iter(rows.values()))) if rows else 0
