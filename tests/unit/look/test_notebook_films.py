"""Film strips: which columns have one, of which rows, and never more bytes than there is room for."""

from __future__ import annotations

import base64
import sys

import numpy as np
import pytest

from rlds2reverb.episode import Array
from rlds2reverb.images import image_size, png_files
from rlds2reverb.look import notebook
from rlds2reverb.look.notebook import FRAMES, MOST_STRIPS, PIXELS, is_images, strips
from tests.support.look.held import images
from tests.support.look.pages import Page


def files(pixels: Array) -> Array:
    column = np.empty(len(pixels), object)
    column[:] = png_files(pixels)
    return column


def decoded(picture: str) -> tuple[int, int]:
    size = image_size(base64.b64decode(picture.partition(",")[2]))
    assert size is not None
    return size


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((40, 20, 30, 3), (20, 30)),
        ((40, 20, 30, 1), (20, 30)),
        ((40, 20, 30, 4), (20, 30)),
        ((40, 84, 84), (72, 72)),
        ((40, 2, 84, 84, 3), (72, 72)),  # two cameras: the first
        ((40, 480, 640, 3), (54, 72)),
        ((40, 8, 100_000), (1, 72)),
    ],
)
def test_a_strip_is_a_few_small_pictures_over_the_whole_episode(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    html = strips({"image": np.zeros(shape, np.uint8)}, "step")
    page = Page(html)
    assert page.text == f"image {FRAMES} of 40 steps"
    assert 'alt="step 0"' in html
    assert 'alt="step 39" title="step 39 (index 0 to 39)"' in html
    assert [decoded(one) for one in page.pictures] == [size] * FRAMES
    assert max(size) <= PIXELS


@pytest.mark.parametrize(
    "column",
    [
        np.zeros((5, 20), np.uint8),
        np.zeros((5, 4, 4, 3), np.uint8),
        np.zeros((0, 20, 30, 3), np.uint8),
        np.zeros((5, 0, 30, 3), np.uint8),
        np.array([b"text", b""], object),
        np.array([None, 3], object),
    ],
)
def test_what_is_no_picture_has_none(column: Array) -> None:
    assert not is_images(column)
    assert strips({"column": column}, "step") == ""


def test_small_files_are_shown_as_they_are_and_large_ones_made_smaller() -> None:
    small, noise = files(images(3)), np.random.default_rng(0).integers(0, 256, (3, 200, 100, 3), np.uint8)
    assert [decoded(one) for one in Page(strips({"a": small}, "step")).pictures] == [(20, 30)] * 3
    assert [decoded(one) for one in Page(strips({"a": files(noise)}, "step")).pictures] == [(72, 36)] * 3


def test_rows_without_a_file_are_passed_over() -> None:
    column = files(images(4))
    column[1], column[2] = b"", None
    assert len(Page(strips({"a": column}, "step")).pictures) == 2


def test_a_damaged_file_is_said() -> None:
    column = files(np.random.default_rng(0).integers(0, 256, (2, 100, 100, 3), np.uint8))
    column[1] = column[1][:9_000]
    page = Page(strips({"a": column}, "step"))
    assert page.pictures == []
    assert page.text.startswith('a its pictures cannot be shown: column "a"')


def test_a_file_that_claims_to_be_huge_is_not_decoded() -> None:
    column = files(images(1))
    column[0] = column[0][:16] + (100_000).to_bytes(4, "big") * 2 + column[0][24:]
    assert "one of 100,000 x 100,000 pixels" in Page(strips({"a": column}, "step")).text


def test_all_strips_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_PICTURES", 100_000)
    noise = np.random.default_rng(0).integers(0, 256, (9, 72, 72, 3), np.uint8)
    columns = {f"camera{number}": noise for number in range(100)}
    html = strips(columns, "step")
    page = Page(html)
    assert len(html) < 105_000
    assert len(page.pictures) == FRAMES
    assert page.text.count("its pictures are too large for a notebook") == MOST_STRIPS - 1
    assert page.text.endswith("and 96 more image columns")


def test_without_the_libraries_pixels_are_shown_and_large_files_say_which_extra_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = files(np.random.default_rng(0).integers(0, 256, (1, 100, 100, 3), np.uint8))
    for library in ("PIL", "imagecodecs"):
        monkeypatch.setitem(sys.modules, library, None)
    assert len(Page(strips({"a": images(2)}, "step")).pictures) == 2
    assert "[images]" in Page(strips({"a": large}, "step")).text
