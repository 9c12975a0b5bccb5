"""Action chunks, one row of one window at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.views.chunk import Chunk
from tests.support import strategies
from tests.support.views.case import Picture, ViewCase, of_each
from tests.support.views.slow import Item, in_order, stacked, value, zeros

ARM: strategies.Columns = {
    "observation/image": (np.dtype(np.uint8), (24, 24, 3)),  # large enough to be shared
    "observation/state": (np.dtype(np.float32), (4,)),
    "observation/text": (np.dtype(object), ()),
    "action": (np.dtype(np.float32), (3,)),
}
"""A robot's columns."""


def offsets_of(window: Any, stride: int, is_action: bool) -> list[int] | None:
    """Steps from the anchor, by hand."""
    if window is None:
        return None
    if isinstance(window, int):
        return [number * stride for number in (range(window) if is_action else range(-window + 1, 1))]
    return [int(part) for part in window.split(":") if part]


def bools_of(runs: Any, width: int, default: bool) -> list[bool]:
    """A mask from numbers of dimensions."""
    if runs is None:
        return [default] * width
    return [number > 0 for number in map(int, str(runs).split(":")) for _ in range(abs(number))]


def repeats_its_end(episode: Episode) -> bool:
    """Whether the last observation is the one before it."""
    columns = [column for path, column in episode.columns.items() if path.split("/")[0] == "observation"]
    return len(episode) > 1 and all(
        repr(column[-1].tolist() if column.ndim > 1 else column[-1])
        == repr(column[-2].tolist() if column.ndim > 1 else column[-2])
        for column in columns
    )


def without_dimensions(row: Array, keep: Sequence[bool]) -> Array:
    """A row with zeros in the dimensions that are not kept."""
    emptied = zeros(row[None])
    flat = np.atleast_1d(row).copy()
    for index in np.ndindex(flat.shape):
        if not keep[index[-1]]:
            flat[index] = np.atleast_1d(emptied)[index]
    return flat.reshape(row.shape)


def chunk_items(episode: Episode, view: Any) -> list[Item]:
    """Every window of every anchor, row by row, as LeRobot's dataset looks rows up: clamped, with a mask of what was clamped."""
    actions = len(episode) - 1
    behind = view.stride if view.history_stride is None else view.history_stride
    windows: dict[str, Any] = {"observation": view.history, "action": view.horizon}
    for part in filter(None, str(view.windows or "").split("+")):
        path, _, text = part.partition(":")
        windows[path] = None if text == "none" else int(text) if text.isdigit() else text
    items = []
    for anchor in range(view.skip_first, actions - view.skip_last):
        item: Item = {}
        for path, column in episode.columns.items():
            head = path.split("/")[0]
            if head not in ("observation", "action"):
                continue
            is_action = head == "action"
            name = max((name for name in windows if path == name or path.startswith(f"{name}/")), key=len)
            offsets = offsets_of(windows[name], view.stride if is_action else behind, is_action)
            rows = actions if is_action or repeats_its_end(episode) else len(episode)
            values, pads = [], []
            for offset in [0] if offsets is None else offsets:
                row = anchor + offset
                values.append(value(column, min(max(row, 0), rows - 1)))
                pads.append(not 0 <= row < rows)
            if is_action and view.relative is not None:
                relative = bools_of(view.relative_mask, (column.shape[1:] or (1,))[-1], True)
                base = values[0] if view.relative == "first" else episode.columns[view.relative][anchor]
                values = [
                    row - without_dimensions(base[..., : row.shape[-1]].astype(row.dtype), relative) for row in values
                ]
            for number, offset in enumerate([0] if offsets is None else offsets):
                if view.ends == "zero" and pads[number]:
                    values[number] = zeros(column)
                if view.ends == "neutral" and is_action and anchor + offset >= rows:
                    keep = bools_of(view.absolute, (column.shape[1:] or (1,))[-1], False)
                    values[number] = without_dimensions(values[number], keep)
            item[path] = values[0] if offsets is None else stacked(values, column)
            if offsets is None:
                continue
            if view.masks == "lerobot":
                item[f"{name}_is_pad"] = np.array(pads)
            elif name == "observation":
                nest = "observation/" if "observation" not in episode.columns else ""
                item[f"{nest}pad_mask"] = item[f"{nest}timestep_pad_mask"] = ~np.array(pads)
            else:
                item[f"{name}_pad_mask"] = ~np.array(pads)
        items.append(item)
    return items


def is_of_arm(view: Any) -> bool:
    return view.windows is not None or view.relative is not None or view.absolute is not None


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    """Random chunks; those with windows, masks or bases are of `ARM`."""
    window = st.one_of(st.integers(1, 5), st.lists(st.integers(-6, 6), min_size=1, max_size=4), st.none())
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        own = st.sampled_from(["observation/image", "observation/state", "observation", "action"])
        options["windows"] = draw(st.dictionaries(own, window, max_size=3)) or None
    if draw(st.booleans()):
        options["relative"] = draw(st.sampled_from(["first", "observation/state"]))
        options["relative_mask"] = draw(st.sampled_from([None, "2:-1", "-2:1", [True, False, True], 3]))
        action = options.get("windows") or {}
        if options["relative"] == "first" and action.get("action", 1) is None:
            del options["relative"], options["relative_mask"]
    ends = draw(st.sampled_from(["repeat", "zero", "neutral"]))
    if ends == "neutral":
        options["absolute"] = draw(st.sampled_from([None, "2:-1", "-2:1"]))
    horizon = draw(window.filter(lambda value: value is not None))
    return Chunk(
        draw(window), horizon, stride=draw(st.integers(1, 3)), history_stride=draw(st.sampled_from([None, 1, 2])), ends=ends,
        masks=draw(st.sampled_from(["lerobot", "octo"])), skip_first=draw(st.integers(0, 2)), skip_last=draw(st.integers(0, 2)),
        short="pad", **options,
    )  # fmt: skip


CASE = ViewCase(
    labels={
        "chunk": "chunk:history=1,horizon=1",
        "chunk:history=2,horizon=4,short=pad": "chunk:history=2,horizon=4",
        "chunk:history=-3:0,horizon=3,stride=2,history_stride=1,masks=octo,short=pad": (
            "chunk:history=-3:0,horizon=3,stride=2,history_stride=1,masks=octo"
        ),
        "chunk:history=none,horizon=2,ends=zero,skip_first=1,skip_last=1,short=pad": (
            "chunk:history=None,horizon=2,ends=zero,skip_first=1,skip_last=1"
        ),
        "chunk:history=2,horizon=3,ends=neutral,windows=observation/image:3+observation/state:1:-1,absolute=-2:1,relative=observation/state,relative_mask=2:-1,short=pad": (
            "chunk:history=2,horizon=3,windows=observation/image:3+observation/state:1:-1,ends=neutral,absolute=-2:1,"
            "relative=observation/state,relative_mask=2:-1"
        ),
    },
    more_labels={
        "chunk:horizon=0.0s:0.1s:0.2s,stride=0.1s,fps=10": "chunk:history=1,horizon=3",
        "chunk:history=-0.4s:0s,fps=5": "chunk:history=-2:0,horizon=1",
        "chunk:horizon=0:1:2": "chunk:history=1,horizon=3",
        "chunk:horizon=5:": "chunk:history=1,horizon=5:",
    },
    items=of_each(lambda view, episode: in_order(view, episode, chunk_items(episode, view))),
    rows=lambda view, number, episode: [
        [(number, t)] for t in range(view.skip_first, len(episode) - 1 - view.skip_last)
    ],
    specs=lambda view: st.just(ARM) if is_of_arm(view) else None,
    columns=lambda view: ARM if is_of_arm(view) else None,
    random=chunks(),
    picture=Picture("chunk:history=2,horizon=3", "observation action action_is_pad"),
    own_columns=(),
)
