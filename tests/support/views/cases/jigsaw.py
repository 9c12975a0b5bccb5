"""Jigsaw puzzles, laid pixel by pixel; which order of tiles was drawn is taken from the view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.views.jigsaw import Jigsaw
from tests.support import strategies
from tests.support.views.case import Picture, ViewCase, of_each
from tests.support.views.slow import Item, in_order


def jigsaw_items(episode: Episode, view: Jigsaw, classes: Sequence[int]) -> list[Item]:
    """Puzzles laid pixel by pixel; the class of every item is given."""
    (images,) = (column for path, column in episode.columns.items() if path.split("/")[0] == "observation")
    side = round(view.tiles**0.5)
    found = []
    for t, number in enumerate(classes):
        image = images[t].transpose(1, 2, 0) if view.channels == "first" else images[t]
        height, width = image.shape[0] // side, image.shape[1] // side
        puzzle = np.empty((side * (height - 2), side * (width - 2), image.shape[2]), image.dtype)
        for place, tile in enumerate(view.orders[number]):
            for y in range(height - 2):
                for x in range(width - 2):
                    seen = image[tile // side * height + y, tile % side * width + x]
                    puzzle[place // side * (height - 2) + y, place % side * (width - 2) + x] = seen
        context = puzzle.transpose(2, 0, 1) if view.channels == "first" else puzzle
        found.append({"context": context, "target": np.array([number], np.int64), "timestep": np.array(t, np.int64)})
    return found


def columns(view: Jigsaw) -> strategies.Columns:
    """Images of twelve by nine pixels."""
    shape = (12, 9, 3) if view.channels == "last" else (3, 9, 12)
    return {"observation": (np.dtype(np.uint8), shape), "action": (np.dtype(np.int32), ())}


def tiles(rows: int) -> dict[str, Array]:
    """Images of four tiles, 1 2 above 3 4."""
    image = np.kron([[1, 2], [3, 4]], np.ones((3, 3))).astype(np.uint8)[None, :, :, None]
    return {"observation": image.repeat(rows, axis=0)}


CASE = ViewCase(
    labels={
        "jigsaw": "jigsaw:permutations=1000,tiles=9,channels=last,seed=0",
        "jigsaw:permutations=24,tiles=4,channels=first,seed=3": "jigsaw:permutations=24,tiles=4,channels=first,seed=3",
    },
    more_labels={"jigsaw:permutations=7,tiles=4": "jigsaw:permutations=7,tiles=4,channels=last,seed=0"},
    items=of_each(
        lambda view, episode: in_order(
            view, episode, jigsaw_items(episode, view, view.cut(episode).rows["target"][:, 0].tolist())
        )
    ),
    random=st.builds(
        Jigsaw, st.integers(1, 24), st.just(4), st.sampled_from(["first", "last"]), seed=st.integers(0, 20)
    ),
    picture=Picture("jigsaw:permutations=24,tiles=4", "context target timestep", (0, 1, 4), replaced=tiles),
    specs=lambda view: strategies.image_specs(9, view.channels),
    columns=columns,
)
