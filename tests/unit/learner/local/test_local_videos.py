"""Frames of videos that stay in their files until a batch needs them: the same batches as of frames that are decoded at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb import local
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.images import Size, resize_images
from rlds2reverb.specs import flatten
from tests.contract.source_cases.lerobot import DATA

pytest.importorskip("av")

VIEW = "chunk:history=2,horizon=3"
NAME = f"lerobot:{DATA / 'v30'}?last_step=repeat"
CAMERA = "wrist"


def cameras(**options: Any) -> list[np.ndarray]:
    batches = local(NAME, VIEW, 3, epochs=2, seed=4, **options)
    return [batch.data["observation"]["images"][CAMERA] for batch in batches]


@pytest.mark.parametrize("size", [None, Size(7, 9)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": 0},
        {"shuffle": 4},
        {"shuffle": "global"},
        {"shuffle": "global", "shuffle_bytes": 20_000},
        {"shuffle": "global", "rank": 1, "world_size": 2},
    ],
    ids=str,
)
def test_batches_are_those_of_decoded_frames(options: dict[str, Any], size: Size | None) -> None:
    lazy = cameras(**options, encoded="all", decode=True if size is None else size)
    decoded = cameras(**options)
    assert len(lazy) == len(decoded) > 2
    for ours, whole in zip(lazy, decoded):
        flat = whole.reshape(-1, *whole.shape[2:])
        expected = flat if size is None else resize_images(flat, size)
        np.testing.assert_array_equal(ours.reshape(expected.shape), expected)


def test_what_is_not_decoded_here_has_no_frames() -> None:
    """A push would store them, and they live in one process only."""
    source, path = open_source(NAME), f"observation/images/{CAMERA}"
    assert list(source.frames()) == [path]
    assert path not in source.images()
    assert flatten(source.with_encoded(["all"]).spec())[path].image is None
    with pytest.raises(SourceError, match="expected image columns"):
        source.with_encoded([path])
    assert cameras(encoded="all", decode=False)[0].dtype == np.uint8
