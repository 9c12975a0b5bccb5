"""Action chunks: what a robot policy sees (the last few observations) and what it predicts (the next few actions), with masks of what is padded.

With history=2 and horizon=3, an episode of three actions (a0 a1 a2; o3 is the final observation) gives:

| item | observation | observation_is_pad | action | action_is_pad |
| --- | --- | --- | --- | --- |
| 0 | o0 o0 | True False | a0 a1 a2 | False False False |
| 1 | o0 o1 | False False | a1 a2 a2 | False False True |
| 2 | o1 o2 | False False | a2 a2 a2 | False True True |

Every row with an action of its own is an anchor: all but the last (`episode`). A window is a number of rows, a list of offsets, or None for
the anchor's row without an axis. Offsets are steps, or seconds, which become steps by a rate.

| `ends` | rows beyond the episode | as in |
| --- | --- | --- |
| repeat | its first or last value | LeRobot (clamped indices), openpi (last action) |
| zero | zeros, or empty text | |
| neutral | as repeat; but of actions past the end, dimensions that are not `absolute` are zeros | Octo and OpenVLA (`chunk_act_obs`) |

An observation of the last row that equals the one before it to the byte was repeated by a reader (`formats.rows`): it counts as padding, as
in LeRobot, whose episodes end with their last action.

Sources: `LeRobotDataset._get_query_indices` and `check_delta_timestamps` (lerobot 0.4), `DeltaActions` and `make_bool_mask` (openpi),
`traj_transforms.chunk_act_obs` (Octo).

Rows are stored once, and items share them by windows. But a sample carries every chunk that its item touches, frames included: an action 15
steps ahead would carry 15 frames along. So where there are frames, all that is small is gathered into one row for each anchor.

>>> import numpy as np
>>> from rlds2reverb.episode import Episode
>>> cut = Chunk(history=2, horizon=3).cut(Episode({"observation": np.arange(4), "action": np.arange(4) * 10}, {}, "e"))
>>> cut.rows["action"].tolist(), cut.fields["action"].windows
([0, 0, 10, 20, 20, 20], (Window(start=0, stop=3, squeeze=False),))
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut, Field, Window, zeros_like
from rlds2reverb.episode import (
    ACTION,
    OBSERVATION,
    Array,
    Episode,
    column_bytes,
    columns_under,
    gaps_around,
    is_under,
    repeats_row_before,
)
from rlds2reverb.errors import ViewError
from rlds2reverb.images import kind_of
from rlds2reverb.specs import ArraySpec, Nest, flatten, is_float, map_with_path, nested
from rlds2reverb.views.base import (
    CHANGES_NO_ITEM,
    MOST_MADE_UP_ROWS,
    MOST_ROWS,
    ONE_ROW,
    UNSAID_AT_DEFAULT,
    BaseView,
    Wanted,
    check_made_up,
    choice,
    columns,
    need,
    pad,
    transition_count,
)

REPEAT, ZERO, NEUTRAL = "repeat", "zero", "neutral"
LEROBOT, OCTO = "lerobot", "octo"
REFUSE, PAD = "refuse", "pad"
FIRST = "first"

TOLERANCE_SECONDS = 1e-4
"""How far an offset in seconds may lie from a step. Source: `tolerance_s` of LeRobotDataset."""

SHARED_ROW_BYTES = 1024
"""A column with rows of more bytes has frames; beside it, a smaller one is gathered, which costs less than the frames that a longer window
would carry along."""

Offset = int | float
"""A whole number counts steps, any other one seconds."""

WindowLike = int | str | Sequence[int | float | str] | None
"""A number of rows; a list of offsets, as text with ":" between them ("-4:0", "-0.4s:0s"; "5:" is a list of one); None for the anchor's row."""

MaskLike = int | str | Sequence[bool] | Sequence[int] | Mapping[str, Any] | None
"""A bool for each dimension; or numbers of dimensions, negative ones for False ("6:-1" is six True and one False, as openpi's
`make_bool_mask(6, -1)`); or a mapping of action columns to these ("action/arm:6+action/grip:-1")."""

_BOOL = np.dtype(bool)
_SECONDS = re.compile(r"([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)s?")
_MARKS = frozenset("+:,")


@dataclass(frozen=True)
class Chunk(BaseView):
    """One item per row with an action of its own.

    Attributes:
      history: the window of observations; a number counts the last rows up to the anchor's.
      horizon: the window of actions; a number counts the rows from the anchor's on.
      windows: path of observation or action columns, or of nests of them -> their own window; the longest path counts. Each has a mask of its own.
      stride: steps between two rows of a window that is a number, or seconds as a float or a text such as "0.1s".
      history_stride: the same for observations only; None for `stride`.
      fps: steps in a second, for offsets in seconds; None where the dataset says it. The view has steps afterwards.
      ends: one of repeat, zero, neutral, see the module.
      absolute: of `neutral`, which dimensions of actions are absolute; None for none of them.
      relative: what actions are relative to: "first" (the first action of the window), the path of a step column (its value at the anchor), or
        a mapping of action columns to these.
      relative_mask: which dimensions of actions become relative; None for all.
      masks: "lerobot" (`PATH_is_pad`, True = padded), or "octo" (`action_pad_mask`; `pad_mask` and `timestep_pad_mask` in the observation;
        True = real).
      skip_first, skip_last: anchors that are left out at the ends of each episode, as LeRobot's `drop_n_first_frames`, `drop_n_last_frames`.
      short: what becomes of an episode with fewer actions than a window of actions reaches ahead: "refuse" or "pad".
      priority: of every item.
      extras: further columns in the items, see `views.base`.

    Raises:
      ViewError: an option that makes no sense, or seconds that are no multiple of a step.
    """

    _name = "chunk"
    _reads = (OBSERVATION, ACTION)
    _rows: ClassVar[Mapping[str, tuple[Offset, ...] | None]]
    _is_in_seconds: ClassVar[bool]
    _reach: ClassVar[int]

    history: WindowLike = 1
    horizon: WindowLike = 1
    windows: str | Mapping[str, WindowLike] | None = field(default=None, metadata=UNSAID_AT_DEFAULT)
    stride: int | float | str = field(default=1, metadata=UNSAID_AT_DEFAULT)
    history_stride: int | float | str | None = field(default=None, metadata=UNSAID_AT_DEFAULT)
    fps: float | None = field(default=None, metadata=CHANGES_NO_ITEM)
    ends: str = field(default=REPEAT, metadata=UNSAID_AT_DEFAULT)
    absolute: MaskLike = field(default=None, metadata=UNSAID_AT_DEFAULT)
    relative: str | Mapping[str, str] | None = field(default=None, metadata=UNSAID_AT_DEFAULT)
    relative_mask: MaskLike = field(default=None, metadata=UNSAID_AT_DEFAULT)
    masks: str = field(default=LEROBOT, metadata=UNSAID_AT_DEFAULT)
    skip_first: int = field(default=0, metadata=UNSAID_AT_DEFAULT)
    skip_last: int = field(default=0, metadata=UNSAID_AT_DEFAULT)
    short: str = field(default=REFUSE, metadata=CHANGES_NO_ITEM)
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        self._settle()
        choice("chunk", "ends", self.ends, (REPEAT, ZERO, NEUTRAL))
        choice("chunk", "masks", self.masks, (LEROBOT, OCTO))
        choice("chunk", "short", self.short, (REFUSE, PAD))
        for name, count in (("skip_first", self.skip_first), ("skip_last", self.skip_last)):
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 0 <= count <= MOST_ROWS:
                raise ViewError(f"chunk: {name} {count!r}: expected a whole number of anchors, from 0 on")
        if self.absolute is not None and self.ends != NEUTRAL:
            raise ViewError(f"chunk: absolute {self.absolute}: expected with ends=neutral only, got ends={self.ends}")
        if self.relative_mask is not None and self.relative is None:
            raise ViewError(f"chunk: relative_mask {self.relative_mask}: expected with relative only")
        self._put(
            absolute=_by_path_text("absolute", self.absolute, _runs_text, ACTION),
            relative=_by_path_text("relative", self.relative, _base_text, ACTION),
            relative_mask=_by_path_text("relative_mask", self.relative_mask, _runs_text, ACTION),
        )
        self._settle_windows()

    def _put(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _settle_windows(self) -> None:
        """Puts steps in place of seconds where the rate is known, and one spelling in place of windows that are equal."""
        stride = _offset("stride", self.stride)
        behind = stride if self.history_stride is None else _offset("history_stride", self.history_stride)
        texts = _by_path_text("windows", self.windows, _window_text)
        named = {"history": _window_text("history", self.history), "horizon": _window_text("horizon", self.horizon)}
        windows = {**named, **{path: _window_text(path, text) for path, text in _by_path(texts).items()}}
        offsets = {
            name: _offsets(window, stride if _is_of_actions(name) else behind, _is_of_actions(name))
            for name, window in windows.items()
        }
        if self.fps is not None:
            if isinstance(self.fps, bool) or not isinstance(self.fps, (int, float)) or not 0 < self.fps < math.inf:
                raise ViewError(f"chunk: fps {self.fps!r}: expected a number of steps in a second, above 0")
            offsets = {name: None if own is None else _in_steps(name, own, self.fps) for name, own in offsets.items()}
            (stride,), (behind,) = (
                _in_steps("stride", [stride], self.fps),
                _in_steps("history_stride", [behind], self.fps),
            )
        for name, value in (("stride", stride), ("history_stride", behind)):
            if not 0 < value <= MOST_MADE_UP_ROWS:
                raise ViewError(f"chunk: {name} {value!r}: expected one step or more")
        for name, own in offsets.items():
            if own is None:
                continue
            check_made_up(max([len(own), *(abs(offset) for offset in own if isinstance(offset, int))]))
            is_count = own == _offsets(len(own), stride if _is_of_actions(name) else behind, _is_of_actions(name))
            windows[name] = len(own) if is_count else _offsets_text(own)
        own_windows = {name: window for name, window in windows.items() if name not in named}
        of_actions = [own for name, own in offsets.items() if _is_of_actions(name) and own is not None]
        self._put(
            history=windows["history"],
            horizon=windows["horizon"],
            windows=_join_paths(own_windows),
            stride=stride if isinstance(stride, int) else _spell_offset(stride),
            history_stride=None if behind == stride else behind if isinstance(behind, int) else _spell_offset(behind),
            fps=None,
            # Not options: they follow from these.
            _rows={name: None if own is None else tuple(own) for name, own in offsets.items()},
            _is_in_seconds=any(
                isinstance(offset, float) for own in (*offsets.values(), [stride, behind]) for offset in own or ()
            ),
            _reach=1 + int(max((offset for own in of_actions for offset in own), default=0)),
        )

    @property
    def is_in_seconds(self) -> bool:
        """Whether a rate is needed, because offsets or strides are in seconds."""
        return self._is_in_seconds

    def at_rate(self, fps: float) -> Chunk:
        """The view with steps in place of seconds.

        Raises:
          ViewError: an offset is farther than `TOLERANCE_SECONDS` from a step.
        """
        return replace(self, fps=fps) if self.is_in_seconds else self

    # What items hold.

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """Observations, actions, what these are relative to, and extras."""
        bases = [base for base in _by_path(self.relative, ACTION).values() if base != FIRST]
        held = super().reads(step_spec)
        return (*held, *(base for base in bases if not any(is_under(base, name) for name in held)))

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """{observation [history, ...], action [horizon, ...], observation_is_pad bool [history], action_is_pad bool [horizon]}.

        Raises:
          ViewError: the steps lack a column, a window or a mask names none or does not fit, or relative actions are no floats.
        """
        steps = need("chunk", step_spec, *self._reads)
        leaves = {path: leaf for name in self._reads for path, leaf in flatten(steps[name], name).items()}
        layout = item_layout(self, tuple(leaves))
        self._change_of({path: (leaf.dtype, leaf.shape) for path, leaf in flatten(steps).items()}, layout)

        def windowed(path: str, leaf: ArraySpec) -> ArraySpec:
            offsets = layout.columns[path].offsets
            return leaf if offsets is None else leaf.with_leading(len(offsets))

        items = {name: map_with_path(windowed, steps[name], name) for name in self._reads}
        for path, (offsets, _) in layout.masks.items():
            head, _, inside = path.partition("/")
            if inside:
                items[head] = nested({**flatten(items[head]), inside: ArraySpec((len(offsets),), _BOOL)})
            else:
                items[head] = ArraySpec((len(offsets),), _BOOL)
        return self._with_extras(items, steps, metadata_spec)

    def item_count(self, rows: int | None) -> int | None:
        """One per action; none of an episode that is refused."""
        if rows is None:
            return None
        count = max(0, rows - 1)
        return 0 if self.short == REFUSE and count < self._reach else max(0, count - self.skip_first - self.skip_last)

    def cut(self, episode: Episode) -> Cut:
        """Frames once, with rows made up before and after them where windows reach there; one row per anchor of all else.

        Raises:
          ViewError: the episode has fewer actions than the horizon, or its rate is needed and not known; or as `signature`.
        """
        further = self._extras_rows(episode)
        recorded = columns(episode, *self._reads)
        count = transition_count(episode)
        if self.is_in_seconds:
            raise ViewError(
                "chunk: seconds become steps by a rate, which is not known here: add fps=N to the view, or give steps"
            )
        self.check_rows(len(episode))
        layout = item_layout(self, tuple(recorded))
        change = self._change_of(
            {path: (column.dtype, column.shape[1:]) for path, column in episode.columns.items()}, layout
        )
        real = {False: _observed_rows(recorded, count, gaps_around(episode.id)[1]), True: count}
        # Frames decide: beside them, what is small is gathered; without any, all is shared, which takes the fewest bytes.
        has_frames = any(_is_large(column) for column in recorded.values())
        shared = {
            path
            for path, own in layout.columns.items()
            if path not in change.bases and (own.is_one_row or not has_frames or _is_large(recorded[path]))
        }
        reached = [offset for path in shared for offset in layout.columns[path].offsets or ()]
        before = max(0, -min(reached, default=0))
        after = max(0, max(reached, default=0) - 1) if count else 0
        total = before + len(episode) + after
        check_made_up(total - len(episode))
        at = np.arange(count, dtype=np.int64)  # [n] steps of all anchors
        rows: dict[str, Array] = {}
        kinds: list[tuple[str, str, tuple[Window, ...]]] = []
        for path, column in recorded.items():
            own = layout.columns[path]
            known = column[: real[own.is_action]]
            if path in shared:
                known = (
                    column if own.is_one_row else known
                )  # nothing reads beyond it, and other views may share it as it is
                rows[path] = self._extended(known, before, total - before - len(known), change.absolute.get(path))
                kinds.append((path, path, ONE_ROW if own.offsets is None else _windows(own.offsets)))
                continue
            values = self._gathered(known, at, own.offsets or (0,), path, change, episode)
            values = values[:, 0] if own.offsets is None else values
            rows[path] = _place(values, before, total)
            kinds.append((path, path, ONE_ROW))
        stored_masks: dict[object, str] = {}
        for path, (offsets, is_action) in layout.masks.items():
            # Equal masks are one column: of one window under two names, and of columns with equal windows. Shared ones differ in their
            # windows only, where the rows that these reach are stored.
            is_shared = not has_frames and -min(offsets) <= before and max(offsets) <= after + 1
            stored = stored_masks.setdefault(is_action if is_shared else (offsets, is_action), path)
            if stored == path:
                places = np.arange(-before, total - before)[:, None] if is_shared else at[:, None] + np.array(offsets)
                is_real = (places >= 0) & (places < real[is_action])
                mask = is_real if self.masks == OCTO else ~is_real
                rows[path] = mask[:, 0] if is_shared else _place(mask, before, total)
            kinds.append((path, stored, _windows(offsets) if is_shared else ONE_ROW))
        for path, column in further.items():
            rows[path] = pad(column, before, total - before - len(column), "zero")
            kinds.append((path, path, ONE_ROW))
        anchors = before + at[self.skip_first : max(self.skip_first, count - self.skip_last)]
        return Cut(rows, _fields(tuple(kinds)), anchors, np.full(len(anchors), self.priority, np.float64), before)

    def check_rows(self, rows: int) -> None:
        """Raises `ViewError` for an episode with fewer actions than the horizon, unless those are padded."""
        count = rows - 1
        if 0 < count < self._reach and self.short == REFUSE:
            raise ViewError(
                f"chunk: horizon: expected at most {count}, the actions of the episode, got {self._reach}; "
                "short=pad pads such episodes, and on_invalid=skip (--on-invalid skip) leaves them out"
            )

    # Beyond the ends, and relative to what.

    def _change_of(
        self, steps: Mapping[str, tuple[np.dtype[Any], tuple[int | None, ...]]], layout: ItemLayout
    ) -> _ActionChange:
        """What happens to each action column, by its path; checks masks and bases against dtypes and shapes of a step.

        Raises:
          ViewError: a mask or a base that does not fit.
        """
        if self.relative is None and self.ends != NEUTRAL:
            return _NO_CHANGE
        actions = [path for path, own in layout.columns.items() if own.is_action]
        absolute: dict[str, Array] = {}
        bases: dict[str, tuple[str, Array]] = {}
        for name, masks in (
            ("absolute", self.absolute),
            ("relative_mask", self.relative_mask),
            ("relative", self.relative),
        ):
            for path in _by_path(masks, ACTION):
                if not any(is_under(action, path) for action in actions):
                    raise ViewError(f'chunk: {name}: "{path}": expected an action column, found {", ".join(actions)}')
        if self.ends == NEUTRAL:
            absolute = {path: _mask("absolute", self.absolute, path, steps[path][1], default=False) for path in actions}
        for path in actions if self.relative is not None else ():
            base = _deepest(_by_path(self.relative, ACTION), path)
            if base is None:
                continue
            mask = _mask("relative_mask", self.relative_mask, path, steps[path][1], default=True)
            self._check_base(path, base, mask, steps, layout)
            bases[path] = (base, mask)
        return _ActionChange(absolute, bases)

    def _check_base(
        self,
        path: str,
        base: str,
        mask: Array,
        steps: Mapping[str, tuple[np.dtype[Any], tuple[int | None, ...]]],
        layout: ItemLayout,
    ) -> None:
        dtype, shape = steps[path]
        if not is_float(dtype):
            raise ViewError(f'chunk: relative: "{path}": expected floats, got {dtype}; integers can overflow')
        if layout.columns[path].offsets is None and base == FIRST:
            raise ViewError(f'chunk: relative=first: "{path}" has no window, so it is the first action itself')
        if base == FIRST:
            return
        if base not in steps:
            raise ViewError(
                f'chunk: relative: "{base}": expected "first" or a step column, found {", ".join(sorted(steps))}'
            )
        base_dtype, base_shape = steps[base]
        least = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
        width = (base_shape or (1,))[-1]
        if (
            base_dtype.kind not in "iuf"
            or base_shape[:-1] != shape[:-1]
            or len(base_shape) != len(shape)
            or (width or 0) < least
        ):
            raise ViewError(
                f'chunk: relative: "{base}": expected numbers of at least {least} dimensions, as the mask of "{path}" has them, '
                f"got {ArraySpec(base_shape, base_dtype)}; relative_mask says which dimensions become relative"
            )

    def _extended(self, known: Array, before: int, after: int, absolute: Array | None) -> Array:
        """[before + rows + after, ...]: a column with what stands beyond its ends; `absolute` is of actions, where ends are neutral."""
        if not before and not after:
            return known
        if not len(known) or self.ends == ZERO:
            return np.concatenate((zeros_like(known, before), known, zeros_like(known, after)))
        head, tail = np.repeat(known[:1], before, axis=0), np.repeat(known[-1:], after, axis=0)
        return np.concatenate((head, known, tail if absolute is None else _neutral(tail, absolute)))

    def _gathered(
        self, known: Array, at: Array, offsets: tuple[int, ...], path: str, change: _ActionChange, episode: Episode
    ) -> Array:
        """[n, offsets, ...]: the window of each anchor."""
        if not len(at):
            return np.empty((0, len(offsets), *known.shape[1:]), known.dtype)
        places = at[:, None] + np.array(offsets)
        values: Array = known[np.clip(places, 0, len(known) - 1)]
        beyond = (places < 0) | (places >= len(known))
        if path in change.bases:
            values = _relative_to(values, *change.bases[path], at, episode)
        if self.ends == ZERO:
            values[beyond] = zeros_like(known, 1)[0]
        elif path in change.absolute:
            past = places >= len(known)
            values[past] = _neutral(values[past], change.absolute[path])
        return values


class ColumnLayout(NamedTuple):
    offsets: tuple[int, ...] | None  # in rows from the anchor; None for its own row without an axis
    is_action: bool

    @property
    def is_one_row(self) -> bool:
        return self.offsets in (None, (0,))


class ItemLayout(NamedTuple):
    columns: Mapping[str, ColumnLayout]  # by the path of a column
    masks: Mapping[
        str, tuple[tuple[int, ...], bool]
    ]  # path of a mask -> the offsets that it is of, and whether of actions


class _ActionChange(NamedTuple):
    """By the path of an action column; masks are [dimensions] bool."""

    absolute: Mapping[str, Array]  # where ends are neutral: the dimensions that are repeated past the end
    bases: Mapping[str, tuple[str, Array]]  # what it is relative to, and in which dimensions


_NO_CHANGE = _ActionChange(MappingProxyType({}), MappingProxyType({}))


@lru_cache(64)
def item_layout(view: Chunk, paths: tuple[str, ...]) -> ItemLayout:
    """Cached: all episodes of a dataset have the same columns. Raises `ViewError` for a window of no column, or where a mask has the name of one."""
    rows: Any = view._rows
    own = {name: offsets for name, offsets in rows.items() if name not in ("history", "horizon")}
    offsets = {OBSERVATION: rows["history"], ACTION: rows["horizon"], **own}
    groups = {path: max((name for name in offsets if is_under(path, name)), key=len) for path in paths}
    for name in own:
        if not any(is_under(path, name) for path in paths):
            there = ", ".join(sorted(paths))
            raise ViewError(f'chunk: windows: "{name}": expected a column of observations or actions, found {there}')
    masks: dict[str, tuple[tuple[int, ...], bool]] = {}
    for name in dict.fromkeys(groups.values()):
        if offsets[name] is not None:
            masks |= dict.fromkeys(_mask_names(view.masks, name, paths), (offsets[name], is_under(name, ACTION)))
    if taken := [mask for mask in masks if any(is_under(path, mask) for path in paths)]:
        raise ViewError(f'chunk: the steps have a column "{taken[0]}", which is the name of a mask; rename it')
    columns_of = {path: ColumnLayout(offsets[group], is_under(path, ACTION)) for path, group in groups.items()}
    return ItemLayout(columns_of, masks)


def _mask_names(masks: str, name: str, paths: Sequence[str]) -> tuple[str, ...]:
    if masks == LEROBOT:
        return (f"{name}_is_pad",)
    if name != OBSERVATION:
        return (f"{name}_pad_mask",)
    inside = "" if OBSERVATION in paths else f"{OBSERVATION}/"
    return f"{inside}pad_mask", f"{inside}timestep_pad_mask"


@lru_cache(256)
def _fields(kinds: tuple[tuple[str, str, tuple[Window, ...]], ...]) -> Mapping[str, Field]:
    """Cached: most episodes of a dataset share these fields."""
    return MappingProxyType({path: Field(column, windows) for path, column, windows in kinds})


@lru_cache(256)
def _windows(offsets: tuple[int, ...]) -> tuple[Window, ...]:
    """Runs of consecutive offsets as one window each."""
    ends = [number for number in range(1, len(offsets)) if offsets[number] != offsets[number - 1] + 1]
    runs = zip([0, *ends], [*ends, len(offsets)])
    return tuple(Window(offsets[first], offsets[stop - 1] + 1) for first, stop in runs)


def _is_large(column: Array) -> bool:
    """Whether rows are image files, whose size differs from episode to episode, or have more than `SHARED_ROW_BYTES`, on average where they are text."""
    if column.dtype == object and kind_of(column):
        return True
    return len(column) > 0 and column_bytes(column) > SHARED_ROW_BYTES * len(column)


def _observed_rows(recorded: Mapping[str, Array], count: int, is_before_gap: bool) -> int:
    """Rows with an observation of their own: without the last one if that equals, to the byte, the one before it.

    Before a gap the last row was recorded, unless `last_step=repeat` has put it there, which leaves it without an action.
    """
    if not count:
        return count + bool(len(next(iter(recorded.values()))))
    if is_before_gap and any(
        np.any(rows[count:] != zeros_like(rows, 1)) for rows in columns_under(recorded, ACTION).values()
    ):
        return count + 1
    is_repeated = repeats_row_before(columns_under(recorded, OBSERVATION).values(), count)
    return count if is_repeated else count + 1


def _place(values: Array, before: int, total: int) -> Array:
    """[total, ...]: one row per anchor, from row `before` on; nothing reads the others."""
    if len(values) == total:
        return values
    head, tail = zeros_like(values, before), zeros_like(values, total - before - len(values))
    return np.concatenate((head, values, tail))


def _neutral(values: Array, absolute: Array) -> Array:
    """Rows with zeros, or empty text, in every dimension that is not absolute."""
    kept = values if values.ndim > 1 else values[:, None]  # a scalar action has one dimension
    neutral = zeros_like(kept, len(kept))
    neutral[..., absolute] = kept[..., absolute]
    return neutral.reshape(values.shape)


def _relative_to(values: Array, base: str, mask: Array, at: Array, episode: Episode) -> Array:
    """[n, offsets, ...]: the values without what they are relative to, in the dimensions of the mask."""
    wide = values if values.ndim > 2 else values[..., None]  # a scalar action has one dimension
    if base == FIRST:
        taken = wide[:, :1]
    else:
        column = episode.columns[base][at].astype(values.dtype)
        taken = (column if column.ndim > 1 else column[:, None])[:, None]
    relative = wide.copy()
    relative[..., mask] -= taken[..., : len(mask)][..., mask[: taken.shape[-1]]]
    return relative.reshape(values.shape)


# Options as texts, and back.


def _offset(name: str, value: Any) -> Offset:
    """A whole number of steps, or a float of seconds."""
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"[+-]?[0-9]{1,9}", text):
            return int(text)
        if match := _SECONDS.fullmatch(text):
            try:
                return float(match[1])
            except ValueError:
                pass
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    elif isinstance(value, (float, np.floating)) and math.isfinite(value):
        return float(value)
    raise ViewError(f'chunk: {name}: expected steps (2) or seconds (0.1 or "0.1s"), got {value!r}')


def _window_text(name: str, window: Any) -> int | str | None:
    """A number of rows, offsets as text, or None."""
    if window is None or (isinstance(window, str) and window.lower() == "none"):
        return None
    if isinstance(window, str) and ":" in window:
        parts = window.split(":")
        return _offsets_text(_agreed(name, parts[:-1] if not parts[-1] else parts))
    if isinstance(window, (list, tuple, np.ndarray)):
        return _offsets_text(_agreed(name, list(window)))
    count = int(window) if isinstance(window, str) and re.fullmatch(r"[0-9]{1,10}", window) else window
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= MOST_MADE_UP_ROWS:
        raise ViewError(
            f'chunk: {name} {window!r}: expected a whole number of rows (1 to {MOST_MADE_UP_ROWS}), offsets such as "-4:0" or '
            '"-0.4s:0s" (a list in Python), or none'
        )
    return int(count)


def _agreed(name: str, values: Sequence[Any]) -> list[Offset]:
    """Offsets that are all steps or all seconds."""
    offsets = [_offset(name, value) for value in values]
    if not offsets:
        raise ViewError(f"chunk: {name}: expected at least one offset, got an empty list")
    if not any(isinstance(offset, float) for offset in offsets):
        return offsets
    if any(isinstance(offset, int) and offset for offset in offsets):
        raise ViewError(f"chunk: {name}: expected steps only or seconds only, got {list(values)}")
    return [float(offset) for offset in offsets]


def _offsets_text(offsets: Sequence[Offset]) -> str:
    return ":".join(_spell_offset(offset) for offset in offsets) + (":" if len(offsets) == 1 else "")


def _spell_offset(offset: Offset) -> str:
    return f"{offset!r}s" if isinstance(offset, float) else str(offset)


def _is_of_actions(name: str) -> bool:
    """Whether a window is the horizon, or of an action column."""
    return name == "horizon" or is_under(name, ACTION)


def _offsets(window: int | str | None, stride: Offset, is_action: bool) -> list[Offset] | None:
    """The offsets of a window from its anchor; None for the anchor's row."""
    if isinstance(window, int):
        return [stride * number for number in (range(window) if is_action else range(1 - window, 1))]
    return None if window is None else [_offset("window", part) for part in window.split(":") if part]


def _in_steps(name: str, offsets: Sequence[Offset], fps: float) -> list[Offset]:
    """Raises `ViewError` for seconds that are farther than `TOLERANCE_SECONDS` from a step."""
    steps: list[Offset] = []
    for offset in offsets:
        if isinstance(offset, int):
            steps.append(offset)
            continue
        nearest = round(offset * fps)
        if abs(offset - nearest / fps) > TOLERANCE_SECONDS:
            raise ViewError(
                f"chunk: {name}: {offset:g} s: expected a multiple of {1 / fps:g} s (fps={fps:g}) within {TOLERANCE_SECONDS:g} s; "
                f"the nearest is {nearest / fps:g} s"
            )
        steps.append(nearest)
    return steps


def _runs_text(name: str, mask: Any) -> str:
    """Numbers of dimensions as text, negative ones for False."""
    parts: list[Any]
    if isinstance(mask, str):
        parts = [part for part in mask.split(":") if part]
    else:
        parts = list(mask) if isinstance(mask, (list, tuple, np.ndarray)) else [mask]
    are_bools = all(isinstance(part, (bool, np.bool_)) for part in parts)
    try:
        numbers = [
            (1 if part else -1) if are_bools else operator.index(int(part) if isinstance(part, str) else part)
            for part in parts
        ]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or 0 in numbers or max(map(abs, numbers)) > MOST_MADE_UP_ROWS:
        raise ViewError(
            f'chunk: {name} {mask!r}: expected a bool for each dimension, or numbers of dimensions such as "6:-1" '
            "(six that are, one that is not)"
        )
    runs: list[int] = []
    for number in numbers:
        if runs and runs[-1] * number > 0:
            runs[-1] += number
        else:
            runs.append(number)
    return ":".join(map(str, runs))


def _base_text(name: str, base: Any) -> str:
    if not isinstance(base, str) or not base or _MARKS & set(base):
        raise ViewError(f'chunk: {name} {base!r}: expected "first", or the path of a step column')
    return base


def _by_path_text(name: str, value: Any, spell: Callable[[str, Any], Any], default: str = "") -> Any:
    """Text of an option that may differ between columns: PATH:VALUE with "+" between them; a value alone without a path; None for nothing."""
    if value is None:
        return None
    own = _split_paths(name, value, default)
    if strange := [path for path in own if not isinstance(path, str) or not path or _MARKS & set(path)]:
        raise ViewError(f'chunk: {name}: {strange[0]!r}: expected PATH:VALUE, where the path has no "+", ":" and ","')
    texts = {path: spell(name if path == default else f"{name}: {path}", part) for path, part in own.items()}
    if isinstance(value, Mapping) or list(own) != [default]:
        return _join_paths(texts)
    text = texts[default]
    return int(text) if spell is _runs_text and ":" not in text else text


def _join_paths(texts: Mapping[str, Any]) -> str | None:
    return "+".join(f"{path}:{'none' if text is None else text}" for path, text in sorted(texts.items())) or None


def _split_paths(name: str, value: Any, default: str) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        return {default: value}
    own: dict[Any, Any] = {}
    for part in value.split("+"):
        head, colon, tail = part.partition(":")
        path, text = (head, tail) if colon and not re.fullmatch(r"-?[0-9]+", head) else (default, part)
        if path in own:
            raise ViewError(f'chunk: {name}: "{value}": {path or "a value without a path"} stands twice')
        own[path] = text
    return own


@lru_cache(256)
def _by_path(text: int | str | None, default: str = "") -> Mapping[str, Any]:
    """Path -> value of an option whose text `_by_path_text` made."""
    return MappingProxyType({} if text is None else _split_paths("", text, default))


def _deepest(values: Mapping[str, Any], path: str) -> Any:
    """The value of the longest path that leads to a column; None without one."""
    return max(
        ((name, value) for name, value in values.items() if is_under(path, name)),
        default=(None, None),
        key=lambda pair: len(pair[0]),
    )[1]


def _mask(name: str, masks: Any, path: str, shape: tuple[int | None, ...], default: bool) -> Array:
    """[dimensions] bool of an action column; its last axis has the dimensions, and a scalar is one.

    Raises:
      ViewError: the mask has another number of dimensions.
    """
    width = (shape or (1,))[-1] or 0
    if masks is None:
        return np.full(width, default)
    runs = _deepest(_by_path(masks, ACTION), path)
    if runs is None:
        return np.zeros(width, bool)  # the mask is of other columns
    numbers = [int(part) for part in str(runs).split(":")]
    mask = np.repeat([number > 0 for number in numbers], np.abs(numbers))
    if len(mask) != width:
        raise ViewError(
            f'chunk: {name}: expected a mask of {width} dimensions, as "{path}" has them, got {len(mask)} ({runs}); '
            "several action columns have a mask each: PATH:MASK+PATH:MASK"
        )
    return mask
