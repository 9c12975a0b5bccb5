"""Every view cuts encoded images as it cuts decoded ones: its items hold the files of the images that they would hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Array
from rlds2reverb.errors import ViewError
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import flatten
from rlds2reverb.views import FROM_CONFIG_ONLY, VIEWS, view_of
from rlds2reverb.views.base import View
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.trajectory import two_step
from tests.support import reference
from tests.support.pictures import CAMERA, HEIGHT, IMAGE, WIDTH, WRIST, Pictures, as_files, episodes
from tests.support.views.every import items_in

OPTIONS = (
    "sequence:length=4,pad_end=true,tile_end=true",
    "n_step:n=4,early=true",
    "frame_stack:frames=3,fill=zero",
    "slices:length=8,per_episode=3,strict=false,truncated=true",
    "target_pair:mode=inverse_dynamics,offset=2",
    "goal:strategy=final",
    "slices:length=3",
    "fragments:length=3",
    "fragments:length=4,batch_mode=complete_episodes",
)
ELSEWHERE = (*FROM_CONFIG_ONLY, "fragments", "jigsaw", "slices")
"""Views that need other options, or pixels."""

REQUIREMENTS = Requirements(
    {
        "obs": {},
        "ahead": {"data_col": "obs", "shift": [1, 3, -2]},
        "stack": {"data_col": "obs", "shift": "-3:0", "fill": "zero"},
    }
)
CUTTING: dict[str, View] = {
    **{text: view_of(text) for text in (*VIEWS, *OPTIONS) if text not in ELSEWHERE},
    "requirements": REQUIREMENTS,
    "prioritized": Prioritized(two_step(), lambda episode, steps: steps + 1.0),
}

DECODED = episodes((5, 3, 7))
IMAGES: dict[bytes, Array] = {
    file: image
    for one in DECODED
    for path in (CAMERA, WRIST)
    for file, image in zip(as_files(one).columns[path], one.columns[path])
}
IMAGES[b""] = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
"""What every file decodes to."""


def decoded(value: Array) -> Array:
    """[...] files -> [..., height, width, 3]."""
    return np.array([IMAGES[file] for file in value.ravel()], np.uint8).reshape(*value.shape, HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("name", CUTTING)
def test_items_hold_the_files_of_their_images(name: str) -> None:
    view = CUTTING[name]
    plain, kept = (filled_spec(source.spec()) for source in (Pictures(DECODED), Pictures(DECODED, (CAMERA, WRIST))))
    wanted, leaves = flatten(view.signature(plain)), flatten(view.signature(kept))
    assert list(wanted) == list(leaves)
    assert all(leaves[path].image == (IMAGE if leaf.dtype == np.uint8 else None) for path, leaf in wanted.items())
    items = items_in(view, [as_files(one) for one in DECODED], list(leaves))
    assert items
    for item in items:
        for (path, leaf), value in zip(leaves.items(), item):
            if leaf.image is not None:
                assert value.ndim == len(leaf.shape), path
    made: Any = [
        [decoded(value) if leaf.image is not None else value for leaf, value in zip(leaves.values(), item)]
        for item in items
    ]
    reference.assert_same_items(made, items_in(view, DECODED, list(leaves)))


def test_a_view_of_pixels_refuses_files() -> None:
    spec = Pictures(DECODED, (CAMERA, WRIST)).spec()
    one = {**spec, "observation": spec["observation"]["camera"]}
    with pytest.raises(
        ViewError, match=r"jigsaw: observation: expected one image column.* decoded ones; leave it out of encoded"
    ):
        Jigsaw(permutations=24, tiles=4).signature(one)


@pytest.mark.parametrize("fill", [-1, 255])
def test_a_number_is_no_file(fill: int) -> None:
    spec = filled_spec(Pictures(DECODED, (CAMERA,)).spec())
    with pytest.raises(ViewError, match=f'fill {fill} does not fit "observation/camera", which holds string'):
        view_of(f"frame_stack:fill={fill}").signature(spec)
