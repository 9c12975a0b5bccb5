"""What encoded images decode to, in the name of a spec and back."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.specs import FORMATS, IMAGE_DTYPES, ArraySpec, ImageSpec, differences

SIZES = st.none() | st.integers(0, 999_999_999)
IMAGES = st.builds(
    ImageSpec, st.tuples(SIZES, SIZES, SIZES), st.sampled_from(IMAGE_DTYPES), st.sampled_from(("", *FORMATS))
)
TENSORFLOW_TAKES = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")

UINT8 = np.dtype(np.uint8)


@given(IMAGES)
def test_a_name_tells_the_image_again(image: ImageSpec) -> None:
    assert ImageSpec.of_name(image.name) == image
    assert ArraySpec.of_images(image).image == image
    assert TENSORFLOW_TAKES.fullmatch(image.name)


@given(st.text() | IMAGES.map(lambda image: image.name + "0x") | IMAGES.map(lambda image: f" {image.name}"))
def test_other_names_tell_none(name: str) -> None:
    assert ImageSpec.of_name(name) is None


@pytest.mark.parametrize("size", ["1" * 10, "\u0663", "+1", "-1", ""])
def test_sizes_of_hostile_names_are_refused(size: str) -> None:
    assert ImageSpec.of_name(f"encoded_image.png.uint8.{size}x1x1") is None


def test_only_text_is_an_image() -> None:
    image = ImageSpec((1, 2, 3), UINT8)
    assert ArraySpec((), UINT8, image.name).image is None
    assert ArraySpec((), np.dtype(object)).image is None


@pytest.mark.parametrize(
    ("shape", "dtype", "format_", "message"),
    [
        ((1, 2), "uint8", "", "expected height, width and channels"),
        ((1, 2, -3), "uint8", "", "expected height, width and channels"),
        ((1, 2, 3), "float64", "", "float64: expected one of uint8, uint16, float32"),
        ((1, 2, 3), "uint8", "gif", '"gif": expected one of jpeg, png'),
    ],
)
def test_what_is_no_image_is_refused(shape: tuple[int, ...], dtype: str, format_: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSpec(shape, np.dtype(dtype), format_)  # type: ignore[arg-type]


@given(st.tuples(*[st.integers(0, 99)] * 3), st.sampled_from(IMAGE_DTYPES))
def test_bytes_of_a_decoded_image(shape: tuple[int, int, int], dtype: np.dtype) -> None:
    assert ImageSpec(shape, dtype).nbytes == np.zeros(shape, dtype).nbytes
    assert ImageSpec((None, *shape[1:]), dtype).nbytes is None


TEXT = ArraySpec((2,), np.dtype(object))
JPEG = ArraySpec.of_images(ImageSpec((4, 5, 3), UINT8, "jpeg"), (2,))
ANY = ArraySpec.of_images(ImageSpec((None, None, 3), UINT8), (None,))


@pytest.mark.parametrize(
    ("items", "table", "fits"),
    [
        (JPEG, JPEG, True),
        (JPEG, ANY, True),
        (ANY, JPEG, False),
        (JPEG, TEXT, True),  # a table that somebody made for text takes files
        (TEXT, JPEG, False),
        (TEXT, TEXT, True),
        (ArraySpec.of_images(ImageSpec((4, 5, 3), UINT8, "png"), (2,)), JPEG, False),
        (ArraySpec.of_images(ImageSpec((4, 6, 3), UINT8, "jpeg"), (2,)), JPEG, False),
        (ArraySpec.of_images(ImageSpec((4, 5, 3), np.dtype(np.uint16), "jpeg"), (2,)), JPEG, False),
        (ArraySpec((2, 4, 5, 3), UINT8), JPEG, False),
    ],
)
def test_which_items_a_table_takes(items: ArraySpec, table: ArraySpec, fits: bool) -> None:
    lines = differences({"a": items}, {"a": table})
    assert lines == ([] if fits else [f"a: items have {items}, table has {table}"])


def test_people_see_what_it_is() -> None:
    assert str(JPEG) == "string[2] (jpeg of uint8[4, 5, 3])"
    assert str(ANY) == "string[?] (jpeg or png of uint8[?, ?, 3])"
