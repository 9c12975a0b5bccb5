"""Encoded images of samples, decoded in batches; what is no image is told by column and index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, DecodeError
from rlds2reverb.specs import ArraySpec, ImageSpec, named_tuple_type
from tests.support.pictures import IMAGE, files, png

pytest.importorskip("imagecodecs")
simplejpeg = pytest.importorskip("simplejpeg")

from rlds2reverb.images import (
    FILE,
    FIRST,
    LAST,
    METHODS,
    PLANE,
    Size,
    decode_columns,
    decode_images,
    kind,
    kind_of,
    resize_images,
)

UINT8 = np.dtype(np.uint8)
FREE = ImageSpec((None, None, None), UINT8)
SHAPE = (9, 12, 3)


def some(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *SHAPE), np.uint8)


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.data(),
    st.sampled_from([IMAGE, ArraySpec.of_images(IMAGE), SHAPE, FREE]),
    st.none() | st.integers(1, 4),
)
def test_a_batch_of_any_axes_is_what_was_encoded(
    shape: tuple[int, ...], data: Any, image: Any, threads: int | None
) -> None:
    count = int(np.prod(shape))
    pixels, batch = some(count), files(some(count))
    for number in data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=max(0, count - 1))):
        pixels[number], batch[number] = 0, b""
    if image is FREE and not count:
        return
    found = decode_images(batch.reshape(shape), image, threads)
    assert found.shape == (*shape, *SHAPE)
    assert found.dtype == np.uint8
    assert np.array_equal(found.reshape(pixels.shape), pixels)


class TestSizes:
    """Images decoded to another size than that of their files."""

    @settings(max_examples=25, deadline=None)
    @given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(METHODS), st.booleans())
    def test_of_png_are_the_whole_image_resized(self, height: int, width: int, method: str, is_text: bool) -> None:
        pixels = np.random.default_rng(height).integers(0, 256, (3, 24, 32, 3), np.uint8)
        size = Size(height, width, method)
        found = decode_images(list(map(png, pixels)), (24, 32, 3), size=str(size) if is_text else size)
        assert np.array_equal(found, resize_images(pixels, size))

    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize(
        ("height", "width"), [(12, 16), (20, 20), (48, 64), (60, 80), (96, 128), (130, 200), (7, 9)]
    )
    def test_of_jpeg_differ_little_from_the_whole_image_resized(self, height: int, width: int, channels: int) -> None:
        rows, columns = np.mgrid[:96, :128]
        smooth = (
            128
            + 60 * np.sin(rows / 17)[..., None]
            + 50 * np.cos(columns / 23 + np.arange(channels)[:, None, None]).transpose(1, 2, 0)
        )
        pixels = np.ascontiguousarray(smooth, np.uint8)
        file = simplejpeg.encode_jpeg(pixels, colorspace="RGB" if channels == 3 else "GRAY", quality=95)
        found = decode_images([file, b""], (96, 128, channels), size=(height, width))
        assert found.shape == (2, height, width, channels)
        assert not found[1].any()
        whole = resize_images(decode_images([file], (96, 128, channels)), Size(height, width))
        assert np.abs(found[:1].astype(int) - whole).max() <= 6

    def test_files_of_several_sizes_make_one_batch(self) -> None:
        free = ImageSpec((None, None, 3), UINT8)
        batch = [png(np.full(shape, 7, np.uint8)) for shape in ((9, 12, 3), (30, 20, 3))]
        assert decode_images(batch, free, size=(6, 5)).tolist() == np.full((2, 6, 5, 3), 7).tolist()
        assert decode_images([b"", b""], free, size=(6, 5)).shape == (2, 6, 5, 3)

    def test_images_of_16_bits_are_resized_as_such(self) -> None:
        image = ImageSpec((16, 16, 1), np.dtype(np.uint16))
        grey = simplejpeg.encode_jpeg(np.full((16, 16, 1), 100, np.uint8), colorspace="GRAY", quality=100)
        assert decode_images([grey], image, size=(4, 4)).tolist() == np.full((1, 4, 4, 1), 25600).tolist()

    @pytest.mark.parametrize("size", [(0, 3), (3,), (3, 4, 5), ("3", 4), (True, 3), "3", "3x4:cubic", 7, (9000, 9000)])
    def test_that_make_no_sense_are_refused(self, size: Any) -> None:
        with pytest.raises(ConfigError):
            decode_images(files(some(1)), SHAPE, size=size)

    def test_of_images_of_floats_are_refused(self) -> None:
        with pytest.raises(DecodeError, match="leave out the size"):
            decode_images([b""], ImageSpec((4, 4, 1), np.dtype(np.float32)), size=(2, 2))

    def test_a_damaged_file_is_named(self) -> None:
        whole = simplejpeg.encode_jpeg(some(1)[0], quality=90)
        with pytest.raises(DecodeError, match=r'column "images", index \[1\]'):
            decode_images([whole, whole[: len(whole) // 2]], SHAPE, size=(4, 4))


def test_jpeg_and_png_may_stand_in_one_batch() -> None:
    flat = np.full(SHAPE, 200, np.uint8)
    found = decode_images([png(flat), simplejpeg.encode_jpeg(flat, quality=100)], SHAPE)
    assert np.abs(found.astype(int) - 200).max() <= 1


def test_a_batch_may_be_a_list_or_of_fixed_width() -> None:
    batch = files(some(3))
    for given_ in (batch.tolist(), batch.astype("S")):
        assert np.array_equal(decode_images(given_, IMAGE), some(3))


def test_images_of_several_sizes_make_no_batch() -> None:
    batch = [png(np.zeros(SHAPE, np.uint8)), png(np.zeros((9, 13, 3), np.uint8))]
    with pytest.raises(DecodeError, match=r'column "images".*\(9, 12\).*\(9, 13\)'):
        decode_images(batch, FREE)
    with pytest.raises(DecodeError, match=r'column "images", index \[1\].*\(9, 13\)'):
        decode_images(batch, IMAGE)


PNG = png(some(1)[0])
JPEG = simplejpeg.encode_jpeg(np.random.default_rng(1).integers(0, 256, (64, 48, 3), np.uint8))


@pytest.mark.parametrize(
    ("value", "image"),
    [
        (PNG[:-30], IMAGE),
        (PNG[:20], IMAGE),
        (PNG[:50] + b"\0" * 20 + PNG[70:], IMAGE),
        (PNG[:16] + b"\xff" * 8 + PNG[24:], FREE),  # claims 4 billion by 4 billion pixels
        (JPEG[: len(JPEG) // 2], ImageSpec((64, 48, 3), UINT8)),
        (JPEG[:100], FREE),
        (JPEG, IMAGE),
        (b"pick up the spoon", IMAGE),
        (b"GIF89a" + bytes(100), IMAGE),
        ("text", IMAGE),
        (3, IMAGE),
        (None, IMAGE),
    ],
)
@pytest.mark.parametrize("threads", [None, 2])
def test_what_cannot_be_decoded_is_named(value: Any, image: ImageSpec, threads: int | None) -> None:
    batch = np.empty((2, 3), object)
    batch[:] = PNG if image is IMAGE else b""
    batch[1, 2] = value
    with pytest.raises(DecodeError, match=r'^column "observation/image", index \[1, 2\]: '):
        decode_images(batch, image, threads, "observation/image")


@pytest.mark.parametrize(
    ("batch", "image", "options", "message"),
    [
        ([1.5], IMAGE, {}, r"expected encoded images \(bytes\), got float64\[1\]"),
        ([b""], FREE, {}, "none in the batch that shows its size"),
        ([b""], 5, {}, r"image 5: expected an image spec, or \(height, width, channels\)"),
        ([b""], (1, 2), {}, "expected an image spec"),
        ([b""], ArraySpec((), np.dtype(object)), {}, "this one is of something else"),
        ([b""], IMAGE, {"threads": 0}, "threads 0: expected a whole number of at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(batch: Any, image: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode_images(batch, image, **options)


Pair = named_tuple_type("Pair", ("picture", "number"))
SIGNATURE = Pair(
    ArraySpec.of_images(IMAGE, (2,)), {"text": ArraySpec((2,), np.dtype(object)), "x": ArraySpec((2,), UINT8)}
)
BATCH = Pair(files(some(6)).reshape(3, 2), {"text": np.full((3, 2), b"", object), "x": np.ones((3, 2), np.uint8)})


def test_all_encoded_columns_of_a_batch_are_decoded_and_nothing_else() -> None:
    nest = decode_columns(BATCH, SIGNATURE)
    flat = decode_columns([BATCH.picture, BATCH.number["text"], BATCH.number["x"]], SIGNATURE)
    for picture, text, number in ((nest.picture, nest.number["text"], nest.number["x"]), flat):
        assert np.array_equal(picture, some(6).reshape(3, 2, *SHAPE))
        assert text is BATCH.number["text"]
        assert number is BATCH.number["x"]
    assert type(nest) is Pair


class TheirSpec:
    """What a leaf of `reverb.Client`'s signatures has, too."""

    def __init__(self, name: str | None) -> None:
        self.name = name


def test_a_signature_as_reverb_has_it_will_do() -> None:
    signature = {"text": TheirSpec(None), "picture": TheirSpec(IMAGE.name)}
    batch = {"text": np.full(6, b"", object), "picture": files(some(6))}
    found = decode_columns(batch, signature)
    assert found["text"] is batch["text"]
    assert np.array_equal(found["picture"], some(6))


def test_a_batch_of_another_structure_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"batch: expected the columns \['picture', .*, got \['picture'\]"):
        decode_columns({"picture": BATCH.picture}, SIGNATURE)
    spoiled = BATCH._replace(picture=np.full((1, 2), b"x", object))
    with pytest.raises(DecodeError, match=r'column "picture", index \[0, 0\]'):
        decode_columns(spoiled, SIGNATURE)


@pytest.mark.parametrize(
    ("shape", "dtype", "wanted"),
    [
        ((64, 64, 3), "uint8", LAST),
        ((64, 48, 4), "float32", LAST),
        ((None, None, None), "uint8", LAST),
        ((3, 64, 64), "uint8", FIRST),
        ((1, 64, 64), "float64", FIRST),
        ((480, 640), "uint16", PLANE),
        ((8, 8), "bool", PLANE),
        ((None, 8), "float32", PLANE),
        ((4, 4), "float32", ""),
        ((7, 64, 3), "uint8", ""),
        ((64, 64, 2), "uint8", ""),
        ((5, 64, 64, 3), "uint8", ""),
        ((64, 64, 3), "complex64", ""),
        ((), "object", ""),
    ],
)
def test_the_kind_of_an_image_follows_from_the_spec(shape: tuple[int | None, ...], dtype: str, wanted: str) -> None:
    assert kind(ArraySpec(shape, np.dtype(dtype))) == wanted
    if None not in shape and dtype != "object":
        assert kind_of(np.zeros((2, *shape), dtype)) == wanted  # type: ignore[arg-type]


def test_files_are_images_by_their_spec_or_by_their_first_bytes() -> None:
    assert kind(ArraySpec.of_images(IMAGE)) == kind_of(files(some(2))) == FILE
    assert kind_of(np.array([b"a text"], object)) == kind_of(np.zeros((0, 64, 64, 3), np.uint8)) == ""
