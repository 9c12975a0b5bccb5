"""RLlib's view requirements, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.views.requirements import Requirements
from tests.support.views.case import Picture, ViewCase, of_each
from tests.support.views.slow import Item, in_order, made_up, read, stacked, value

PLAIN = {
    "obs": {},
    "new_obs": {"shift": 0},
    "prev_rewards": {"data_col": "rewards", "shift": -1},
    "frames": {"data_col": "obs", "shift": "-3:0"},
    "picked": {"data_col": "actions", "shift": [2, 0, -1]},
    "every_third": {"data_col": "rewards", "shift": "0:1", "batch_repeat_value": 3},
}
DRAWN = {
    "frames": {"data_col": "obs", "shift": "-2:0"},
    "new_obs": {"data_col": "obs", "shift": 1},
    "prev_rewards": {"data_col": "rewards", "shift": -1},
}
WIDE = {
    "obs": {"data_col": "obs"},
    "new_obs": {"data_col": "obs", "shift": 1},
    "prev_rewards": {"data_col": "rewards", "shift": -1},
    "frames": {"data_col": "obs", "shift": "-3:0"},
    "joined": {"data_col": "actions", "shift": [-3, -2, 2, 3, 0]},
    "sparse": {"data_col": "obs", "shift": "-4:2:2", "batch_repeat_value": 3},
}
"""Several windows a field, some of them backwards, and anchors of their own."""

NAMES = {"obs": "observation", "actions": "action", "rewards": "reward"}


def requirement_items(episode: Episode, requirements: dict[str, dict[str, Any]]) -> list[Item]:
    """RLlib's columns; a requirement has `data_col`, `offsets` (a list), `repeat` and perhaps `fill`."""
    count = len(episode) - 1
    found = []
    for t in range(count):
        item: Item = {}
        for name, requirement in requirements.items():
            column_name, start = requirement["data_col"], t // requirement["repeat"] * requirement["repeat"]
            rows = [start + offset for offset in requirement["offsets"]]
            fill = requirement.get("fill") or ("zero" if f"prev_{column_name}" in requirements else "first")
            known = len(episode) if column_name == "obs" else count
            is_time = column_name == "t" and not requirement.get("fill")

            def pick(
                column: Array, rows: Any = rows, fill: Any = fill, known: int = known, is_time: bool = is_time
            ) -> Array:
                column = column.astype(np.float32) if column.dtype == np.float64 else column
                values = []
                for row in rows:
                    if 0 <= row < known:
                        values.append(value(column, row))
                    elif row < 0 and is_time:  # of RLlib's reset observation
                        values.append(np.array(-1))
                    else:
                        values.append(made_up(column, "zero" if row >= known and fill == "first" else fill))
                return values[0] if len(values) == 1 else stacked(values, column)

            item |= read(episode, NAMES.get(column_name, column_name), name, pick)
        found.append(item)
    return found


def plain(view: Requirements) -> dict[str, dict[str, Any]]:
    """What `requirement_items` takes; new_obs is obs, one row later."""
    found = {}
    for name, requirement in view.requirements.items():
        column, rows = requirement.data_col or name, _rows(requirement.shift)
        if column == "new_obs":
            column, rows = "obs", [row + 1 for row in rows]
        found[name] = {
            "data_col": column,
            "offsets": rows,
            "repeat": requirement.batch_repeat_value,
            "fill": requirement.fill,
        }
    return found


def _rows(shift: Any) -> list[int]:
    if isinstance(shift, str):
        first, last, *step = map(int, shift.split(":"))
        return list(range(first, last + 1, *step))
    return [shift] if np.ndim(shift) == 0 else list(shift)


@st.composite
def required(draw: st.DrawFn) -> Requirements:
    """Random requirements."""
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "prev_actions", "prev_rewards"]), min_size=1, unique=True))
    written = {}
    for name in names:
        column = name[5:] if name.startswith("prev_") else draw(st.sampled_from(["obs", "actions", "rewards"]))
        first, count, step = draw(st.integers(-5, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
        offsets = [first + step * number for number in range(count)]
        shift = draw(st.sampled_from([offsets, f"{first}:{offsets[-1]}:{step}"]))
        written[name] = {"data_col": column, "shift": shift, "batch_repeat_value": draw(st.integers(1, 4))}
        if fill := draw(st.sampled_from([None, None, "first", "zero"])):
            written[name]["fill"] = fill
    return Requirements(written)


CASE = ViewCase(
    labels={
        "requirements": (
            'requirements:{"every_third": ["rewards", [0, 1], 3], "frames": ["obs", [-3, -2, -1, 0], 1], "new_obs": ["new_obs", [0], 1], '
            '"obs": ["obs", [0], 1], "picked": ["actions", [2, 0, -1], 1], "prev_rewards": ["rewards", [-1], 1]},zero=[\'rewards\']'
        ),
        "requirements, wide": (
            'requirements:{"frames": ["obs", [-3, -2, -1, 0], 1], "joined": ["actions", [-3, -2, 2, 3, 0], 1], "new_obs": ["obs", [1], 1], '
            '"obs": ["obs", [0], 1], "prev_rewards": ["rewards", [-1], 1], "sparse": ["obs", [-4, -2, 0, 2], 3]},zero=[\'rewards\']'
        ),
    },
    views={"requirements": Requirements(PLAIN), "requirements, wide": Requirements(WIDE)},
    items=of_each(lambda view, episode: in_order(view, episode, requirement_items(episode, plain(view)))),
    random=required(),
    picture=Picture("requirements", "obs rewards", (0, 1, 4), view=Requirements(DRAWN)),
    narrows=True,
    with_extras=lambda view, wanted: Requirements(view.requirements, extras=wanted),
)
