"""Images of any dtype become RGB pictures, and numbers that are no images do not."""

from __future__ import annotations

import doctest
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlds2reverb.errors import DecodeError
from rlds2reverb.look import pictures
from rlds2reverb.look.pictures import choose_steps, fit_picture, pictures_of
from rlds2reverb.specs import ArraySpec, ImageSpec
from tests.support.pictures import files

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (4, 9, 12, 3), np.uint8)


def shown(column: Any, step: int = 1) -> Any:
    found = pictures_of("camera", column, None)
    assert found is not None
    return found.picture(step)


def test_the_examples_of_the_docstrings_run() -> None:
    assert doctest.testmod(pictures).failed == 0


def test_bytes_in_colour_are_as_they_are() -> None:
    assert (shown(COLOUR) == COLOUR[1]).all()


def test_channels_may_stand_first() -> None:
    assert (shown(np.moveaxis(COLOUR, -1, 1)) == COLOUR[1]).all()


@pytest.mark.parametrize("axis", [True, False])
def test_grey_is_repeated(axis: bool) -> None:
    grey = COLOUR[..., :1] if axis else COLOUR[..., 0]
    assert (shown(grey) == COLOUR[1, ..., :1]).all()


def test_sixteen_bits_in_colour_are_their_high_byte() -> None:
    assert (shown(COLOUR.astype(np.uint16) * 256 + 7) == COLOUR[1]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_floats_from_0_to_1(dtype: Any) -> None:
    values = (COLOUR / 255).astype(dtype)
    wanted = np.rint(values[1].astype(np.float64) * 255)
    assert (shown(values) == wanted).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32, np.int8])
def test_depth_spans_the_episode(dtype: Any) -> None:
    depth = np.zeros((3, 8, 8), dtype)
    depth[0, 0, 0], depth[1, 0, 0], depth[2, 0, 0] = 10, 60, 110
    found = pictures_of("depth", depth, None)
    assert found is not None
    assert found.span == (0, 110)
    assert [found.picture(step)[0, 0, 0] for step in range(3)] == [23, 139, 255]


def test_what_is_not_finite_is_black_and_does_not_count() -> None:
    depth = np.full((2, 8, 8), 5.0)
    depth[0, 0, :3], depth[1, 1, 1] = (np.nan, np.inf, -np.inf), 15
    picture = shown(depth, 0)
    assert (picture[0, :3] == 0).all()
    assert shown(depth, 1)[1, 1].tolist() == [255, 255, 255]
    assert (shown(np.full((2, 8, 8), np.nan)) == 0).all()


def test_bool_and_alpha() -> None:
    masks = COLOUR[..., 0] > 99
    assert (shown(masks) == np.where(masks[1], 255, 0)[..., None]).all()
    opaque = np.concatenate([COLOUR, np.full((4, 9, 12, 1), 255, np.uint8)], -1)
    assert (shown(opaque) == COLOUR[1]).all()
    opaque[..., 3] = 0
    assert (shown(opaque) == 255).all()


@pytest.mark.parametrize("spec", [None, ArraySpec.of_images(ImageSpec((9, 12, 3), np.dtype(np.uint8), "png"))])
def test_files_are_decoded_when_their_step_is_shown(spec: ArraySpec | None) -> None:
    column = files(COLOUR)
    column[3] = b"damaged"
    found = pictures_of("camera", column, spec)
    assert found is not None
    assert (found.picture(2) == COLOUR[2]).all()
    with pytest.raises(DecodeError, match="camera"):
        found.picture(3)


@pytest.mark.parametrize(
    "column",
    [
        np.zeros((4, 7)),
        np.zeros((4, 7, 7)),
        np.zeros((4, 3, 3, 3)),
        np.zeros((4, 9, 9, 9)),
        np.zeros((4, 2, 9, 9, 3)),
        np.zeros((0, 9, 9, 3)),
        np.zeros((4, 9, 9), complex),
        np.array([b"text"], object),
        np.array([["a" * 9]]),
    ],
)
def test_what_is_no_image(column: Any) -> None:
    assert pictures_of("other", column, None) is None


def test_pictures_change_their_size() -> None:
    assert fit_picture(COLOUR[0], 18, 36).shape == (18, 36, 3)
    assert (fit_picture(COLOUR[0], 18, 36)[::2, ::3] == COLOUR[0]).all()
    assert fit_picture(COLOUR[0], 9, 12) is COLOUR[0] or (fit_picture(COLOUR[0], 9, 12) == COLOUR[0]).all()
    mean = COLOUR[0].astype(float).mean((0, 1))
    np.testing.assert_allclose(fit_picture(COLOUR[0], 1, 1)[0, 0], mean, atol=1)


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("count", [1, 2, 5, 1000])
def test_steps_are_chosen_evenly(steps: int, count: int) -> None:
    chosen = choose_steps(steps, count)
    assert len(chosen) == min(steps, count)
    assert chosen == sorted(set(chosen))
    if steps and count > 1:
        assert (chosen[0], chosen[-1]) == (0, steps - 1)
