"""Images of another size, against the definition of each method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.images import METHODS, MOST_PIXELS, Size, resize_images
from rlds2reverb.specs import IMAGE_DTYPES
from tests.support import strategies

SIDES = st.integers(1, 12)


def overlap_weights(before: int, after: int) -> Array:
    """[after, before] the share of each output pixel that each input pixel covers, pixel by pixel."""
    weights = np.zeros((after, before))
    scale = before / after
    for out in range(after):
        for source in range(before):
            covered = min(source + 1, (out + 1) * scale) - max(source, out * scale)
            weights[out, source] = max(covered, 0) / scale
    return weights


def lanczos_weights(before: int, after: int) -> Array:
    """[after, before] the kernel's values at the distances between centres, normed."""
    scale = before / after
    widened = max(scale, 1.0)
    centres = (np.arange(after) + 0.5) * scale
    distances = np.abs(np.arange(before) + 0.5 - centres[:, None]) / widened
    values = np.sinc(distances) * np.sinc(distances / 3) * (distances < 3)
    return values / values.sum(axis=1, keepdims=True)


WEIGHTS = {"area": overlap_weights, "lanczos3": lanczos_weights}


def slowly(images: Array, size: Size) -> Array:
    """The same in float64, not rounded."""
    weights = WEIGHTS[size.method]
    rows, columns = weights(images.shape[1], size.height), weights(images.shape[2], size.width)
    return np.einsum("yh,xw,thwc->tyxc", rows, columns, images.astype(np.float64))


@st.composite
def images(draw: st.DrawFn) -> Array:
    shape = (draw(st.integers(0, 3)), draw(SIDES), draw(SIDES), draw(st.integers(0, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return strategies.array(rng, draw(st.sampled_from(IMAGE_DTYPES)), shape)


def sizes() -> st.SearchStrategy[Size]:
    return st.builds(Size, SIDES, SIDES, st.sampled_from(METHODS))


@given(images(), sizes())
def test_is_what_the_definition_says(given_images: Array, size: Size) -> None:
    made, exact = resize_images(given_images, size), slowly(given_images, size)
    assert made.dtype == given_images.dtype
    if made.dtype.kind == "f":
        np.testing.assert_allclose(made, exact, atol=2e-5)
        return
    limits = np.iinfo(made.dtype)
    exact = np.clip(exact, limits.min, limits.max)
    assert np.abs(made - exact).max(initial=0) <= 0.5 + 2e-6 * limits.max  # to the nearest, up to errors of float32


@given(images())
def test_of_the_same_size_is_the_same_image_by_area(given_images: Array) -> None:
    np.testing.assert_array_equal(
        resize_images(given_images, Size(given_images.shape[1], given_images.shape[2])), given_images
    )


@given(SIDES, SIDES, sizes(), st.integers(0, 255))
def test_one_grey_stays_that_grey(height: int, width: int, size: Size, grey: int) -> None:
    plain = np.full((1, height, width, 1), grey, np.uint8)
    assert (resize_images(plain, size) == grey).all()


@given(images(), sizes())
def test_steps_and_channels_do_not_touch_one_another(given_images: Array, size: Size) -> None:
    made = resize_images(given_images, size)
    for step in range(len(given_images)):
        for channel in range(given_images.shape[3]):
            alone = resize_images(given_images[step : step + 1, :, :, channel : channel + 1], size)
            np.testing.assert_array_equal(made[step : step + 1, :, :, channel : channel + 1], alone)


@given(images(), sizes())
def test_how_the_images_lie_in_memory_changes_nothing(given_images: Array, size: Size) -> None:
    made = resize_images(given_images, size)
    other_order = given_images.astype(given_images.dtype.newbyteorder())
    for same in (np.asfortranarray(given_images), other_order, given_images[::-1][::-1]):
        np.testing.assert_array_equal(resize_images(same, size), made)
    assert resize_images(other_order, size).dtype.isnative


def test_halves_go_to_the_even_number_and_overshoot_is_cut() -> None:
    pairs = np.array([[0, 1], [1, 2], [2, 3], [254, 255]], np.uint8).reshape(4, 1, 2, 1)
    assert resize_images(pairs, Size(1, 1)).ravel().tolist() == [0, 2, 2, 254]
    edge = np.repeat(np.array([0, 255], np.uint8), 8).reshape(1, 1, 16, 1)
    larger = slowly(edge, Size(1, 31, "lanczos3"))
    assert larger.min() < 0
    assert larger.max() > 255
    made = resize_images(edge, Size(1, 31, "lanczos3"))
    assert (made.min(), made.max()) == (0, 255)
    assert (made[larger < 0] == 0).all()


def test_pixels_that_are_not_finite_stay_so() -> None:
    picture = np.zeros((1, 4, 4, 1), np.float32)
    picture[0, 0, 0] = np.nan
    made = resize_images(picture, Size(2, 2))
    assert np.isnan(made[0, 0, 0, 0])
    assert made[0, 1:].tolist() == [[[0], [0]]]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256x320", Size(256, 320)),
        ("8 x 9", Size(8, 9, "area")),
        ("1x1:lanczos3", Size(1, 1, "lanczos3")),
        (f"{MOST_PIXELS}x1", Size(MOST_PIXELS, 1)),
    ],
)
def test_a_size_is_height_and_width(text: str, size: Size) -> None:
    assert Size.parse(text) == size
    assert Size.parse(str(size)) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0x5", "0x5: expected sides of 1 to 8192 pixels"),
        ("5x8193", "expected sides of 1 to 8192 pixels"),
        ("5x5:bilinear", 'method "bilinear": expected one of area, lanczos3'),
        ("5", "'5': expected HEIGHTxWIDTH or HEIGHTxWIDTH:METHOD"),
        ("-5x5", "expected HEIGHTxWIDTH"),
        ("9999999999x5", "expected HEIGHTxWIDTH"),
        ("٣x٣", "expected HEIGHTxWIDTH"),
        (256, "256: expected HEIGHTxWIDTH"),
        ([256, 256], "expected HEIGHTxWIDTH"),
        (None, "expected HEIGHTxWIDTH"),
    ],
)
def test_what_is_no_size_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Size.parse(text)
