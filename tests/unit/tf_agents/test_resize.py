"""Images of another size are those of `tf.image.resize`: by area to the bit, by lanczos3 within one in integers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.images import Size, resize_images
from rlds2reverb.specs import IMAGE_DTYPES
from tests.support import strategies

SIDES = st.integers(1, 90)
CAMERAS = [(480, 640, 256, 256), (256, 320, 256, 256), (180, 320, 128, 128), (180, 320, 224, 224), (64, 64, 128, 96)]
"""Sizes that robot datasets have, and that learners want."""


def tensorflow_does(images: Array, size: Size) -> Array:
    """As the loaders of Octo (dlimp) write it: resized, rounded, cut, cast."""
    antialias = size.method == "lanczos3"
    made = tf.image.resize(images, (size.height, size.width), method=size.method, antialias=antialias)
    if images.dtype.kind == "f":
        return np.asarray(made)
    limits = np.iinfo(images.dtype)
    return np.asarray(tf.cast(tf.clip_by_value(tf.round(made), limits.min, limits.max), images.dtype))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, int, int]:
    shape = (draw(st.integers(1, 2)), draw(SIDES), draw(SIDES), draw(st.integers(1, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return strategies.array(rng, draw(st.sampled_from(IMAGE_DTYPES)), shape), draw(SIDES), draw(SIDES)


@given(cases())
def test_area_is_tensorflows_to_the_bit(case: tuple[Array, int, int]) -> None:
    images, height, width = case
    size = Size(height, width)
    np.testing.assert_array_equal(resize_images(images, size), tensorflow_does(images, size))


@given(cases())
@settings(max_examples=50)
def test_lanczos3_is_tensorflows_within_one(case: tuple[Array, int, int]) -> None:
    images, height, width = case
    size = Size(height, width, "lanczos3")
    made, wanted = resize_images(images, size), tensorflow_does(images, size)
    assert made.dtype == wanted.dtype
    if made.dtype.kind == "f":
        np.testing.assert_allclose(made, wanted, atol=1e-5)
    else:
        assert np.abs(made.astype(np.int64) - wanted).max() <= 1


@pytest.mark.parametrize(("height", "width", "to_height", "to_width"), CAMERAS)
def test_images_of_cameras_are_equal(height: int, width: int, to_height: int, to_width: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), np.uint8)
    by_area, by_lanczos = Size(to_height, to_width), Size(to_height, to_width, "lanczos3")
    np.testing.assert_array_equal(resize_images(images, by_area), tensorflow_does(images, by_area))
    apart = np.abs(resize_images(images, by_lanczos).astype(int) - tensorflow_does(images, by_lanczos))
    assert apart.max() <= 1
    assert np.mean(apart > 0) < 1e-4  # where the exact value is a half, up to an error of float32
