"""The shipped transforms beside OpenVLA's own code, which RLDS2REVERB_OPENVLA says where to find."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transformed import transformed
from tests.support.open_x_sets import SETS, episode, recorded
from tests.support.openvla import VARIABLE, checkout, standardised_by_openvla

FOLDER = checkout()

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(FOLDER is None, reason=f"{VARIABLE} names no checkout of openvla/openvla"),
]


@pytest.mark.parametrize("name", SETS)
def test_their_code_makes_the_same(name: str) -> None:
    assert FOLDER is not None
    pytest.importorskip("tensorflow")
    if any("quaternion" in str(kind) for path, kind in SETS[name].items() if path == "action"):
        pytest.importorskip("tensorflow_graphics")
    for seed in range(1, 9):
        rows = 3 + 5 * seed
        theirs = standardised_by_openvla(FOLDER, name, recorded(name, rows, seed))
        (ours,) = transformed(EpisodeList([episode(name, rows, seed)], name), transform_of(f"open_x/{name}"))
        np.testing.assert_allclose(
            ours.columns["action"], np.array(theirs["action"]), atol=1e-4
        )  # their angles are of float32
        np.testing.assert_array_equal(ours.columns["observation/proprio"], np.array(theirs["proprio"], np.float32))
        images = {camera: ours.columns[f"observation/image_{camera}"] for camera in theirs["images"]}
        if name == "droid":  # which outer camera is first, and which instruction is taken, each draws for itself
            assert sorted(int(pixels.sum()) for pixels in images.values()) == sorted(
                int(pixels.sum()) for pixels in theirs["images"].values()
            )
            continue
        for camera, pixels in theirs["images"].items():
            np.testing.assert_array_equal(images[camera], pixels)
        assert [text.decode() for text in ours.columns["language_instruction"]] == theirs["instruction"]
