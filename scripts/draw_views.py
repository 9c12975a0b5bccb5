"""Draws docs/views/*.svg: what the views store of a small episode, and which rows some of their items hold.

Everything in a picture comes from the cut itself: boxes are stored rows, lines of boxes stored columns, coloured bars the
windows of an item (`rlds2reverb/report/drawing.py`). `scripts/generate_docs.py` (`make docs`) writes the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episodes import Episode
from rlds2reverb.report import drawing
from rlds2reverb.views.base import StreamView, View
from rlds2reverb.views.registry import view_of
from rlds2reverb.views.requirements import Requirements

_STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.box { fill: #f6f8fa; stroke: #818b98; }
.title { font-weight: bold; }
.quiet { fill: #59636e; font-size: 11px; }
.i0 { fill: #0969da; } .i1 { fill: #bc4c00; } .i2 { fill: #1a7f37; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.card { fill: #0d1117; stroke: #3d444d; }
.box { fill: #151b23; stroke: #656c76; }
.quiet { fill: #9198a1; }
.i0 { fill: #4493f8; } .i1 { fill: #f0883e; } .i2 { fill: #3fb950; }
}"""
"""A card of its own in the reader's colours, so that the background of the page does not matter."""


@dataclass(frozen=True)
class Picture:
    """What to draw.

    Attributes:
      title: how the view is written.
      view: makes the cut.
      columns: the stored columns to show, the others are left out.
      items: their numbers, at most three.
      rows: of the episode; several episodes are cut as one stream, and the last one is drawn.
    """

    title: str
    view: View
    columns: tuple[str, ...]
    items: tuple[int, ...] = (0, 1)
    rows: tuple[int, ...] = (6,)


def _named(text: str, columns: str, items: tuple[int, ...] = (0, 1), rows: tuple[int, ...] = (6,)) -> Picture:
    return Picture(text, view_of(text), tuple(columns.split()), items, rows)


_REQUIREMENTS = Requirements(
    {
        "frames": {"data_col": "obs", "shift": "-2:0"},
        "new_obs": {"data_col": "obs", "shift": 1},
        "prev_rewards": {"data_col": "rewards", "shift": -1},
    }
)

PICTURES: dict[str, Picture] = {
    "two_step": _named("two_step", "step_type observation action", (0, 1, 4)),
    "sequence": _named("sequence:length=3,pad_end=true,tile_end=true", "step_type observation", (0, 1, 5)),
    "episode": _named("episode", "step_type observation", (0,)),
    "across_episodes": _named("across_episodes:length=3", "step_type observation", (0, 1, 2), (4, 4)),
    "fragments": _named("fragments:length=2", "obs new_obs t", (0, 1), (4, 4)),
    "transition": _named("transition", "observation action next/reward next/terminated", (0, 1, 4)),
    "n_step": _named("n_step:n=3,gamma=0.5", "observation reward steps", (0, 1, 4)),
    "frame_stack": _named("frame_stack:frames=3", "observation action", (0, 1)),
    "goal": _named("goal:seed=7", "observation reward", (0, 1, 2)),
    "slices": _named("slices:length=3,per_episode=2", "observation action", (0, 1), (9,)),
    "target_pair": _named("target_pair:mode=dynamics,offset=2", "observation action", (0, 1)),
    "jigsaw": _named("jigsaw:permutations=24,tiles=4", "context target timestep", (0, 1, 4)),
    "requirements": Picture("requirements", _REQUIREMENTS, ("obs", "rewards"), (0, 1, 4)),
}
"""Name of the file -> what it shows."""


def small_episode(number: int, rows: int, view: str) -> Episode:
    """An episode whose values are their own names: o0, a0, r0 (rewards of 1 and images of tiles for views that compute)."""
    row = np.arange(rows)
    letters = ("o", "a", "r") if number == 0 else ("p", "b", "s")
    words = [np.array([f"{letter}{at}".encode() for at in row], object) for letter in letters]
    tiles = np.kron([[1, 2], [3, 4]], np.ones((3, 3))).astype(np.uint8)[None, :, :, None]  # 1 2 above 3 4
    return Episode(
        {
            "observation": tiles.repeat(rows, axis=0) if view.startswith("jigsaw") else words[0],
            "action": words[1],
            "reward": np.ones(rows, np.float32) if view.startswith("n_step") else words[2],
            "discount": np.ones(rows, np.float32),
            "is_first": row == 0,
            "is_last": row == rows - 1,
            "is_terminal": row == rows - 1,
        },
        id=f"episode {number}",
    )


def cut_of(picture: Picture) -> Cut:
    """The cut that is drawn."""
    episodes = [small_episode(n, rows, picture.title) for n, rows in enumerate(picture.rows)]
    if not isinstance(picture.view, StreamView):
        return picture.view.cut(episodes[-1])
    stream = picture.view.stream()
    for episode in episodes:
        cut, stream = stream.cut(episode)
    return cut


def draw(picture: Picture) -> str:
    """The picture as SVG."""
    cut = cut_of(picture)
    shown = ", ".join(f"item {number}" for number in picture.items)
    described = f"{picture.title}: stored rows as boxes, and the rows that {shown} hold as bars"
    rows = range(cut.row_count)
    return drawing.draw(
        drawing.Drawing(picture.title, described, cut, picture.columns, picture.items, rows, _text), _STYLE
    )


def _text(value: Any) -> str:
    """What stands in a box; empty text is a zero of its kind, of an image all pixels."""
    if np.ndim(value) == 3:
        return "".join(str(pixel) for pixel in np.ravel(value))
    plain = np.ravel(np.asarray(value)).tolist()[0]
    if isinstance(plain, bytes):
        return plain.decode() or "0"
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    return f"{plain:g}"
