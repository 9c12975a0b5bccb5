"""Image files that are made here, against Pillow's."""

from __future__ import annotations

import io
import multiprocessing
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image

from rlds2reverb import encoding as encoding_module
from rlds2reverb.encoding import SUBSAMPLINGS, Encoding, encode_again, encode_images, png_files
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.images import Size, decode_files, decode_images, resize_images
from rlds2reverb.specs import ArraySpec, ImageSpec

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

QUALITIES = st.integers(1, 100)
SIDES = st.integers(1, 40)


def pixels(seed: int, *shape: int, dtype: Any = np.uint8) -> Array:
    """Smooth images, as a camera's are, with noise."""
    rng = np.random.default_rng(seed)
    height, width, channels = shape[1:]
    waves = (
        np.sin(np.arange(height)[:, None, None] / 5 + np.arange(width)[:, None] / 7 + np.arange(channels)) * 100 + 120
    )
    noise = rng.integers(0, 20, shape)
    return (waves + noise).astype(dtype) * dtype(1 if dtype is np.uint8 else 257)


def opened(file: bytes) -> Array:
    return np.asarray(Image.open(io.BytesIO(file)))


@given(
    st.integers(0, 9),
    st.integers(0, 3),
    SIDES,
    SIDES,
    st.sampled_from([1, 3]),
    QUALITIES,
    st.sampled_from(SUBSAMPLINGS),
)
def test_jpeg_files_are_pillows(
    seed: int, count: int, height: int, width: int, channels: int, quality: int, subsampling: str
) -> None:
    images = pixels(seed, count, height, width, channels)
    files = encode_images(images, Encoding("jpeg", quality, subsampling))
    assert files.dtype == object
    assert len(files) == count
    for image, file in zip(images, files):
        expected = io.BytesIO()
        plain = image[..., 0] if channels == 1 else image
        sampling = "4:4:4" if channels == 1 else f"4:{subsampling[1]}:{subsampling[2]}"
        Image.fromarray(plain).save(expected, "JPEG", quality=quality, subsampling=sampling)
        assert file == expected.getvalue()


@given(st.integers(0, 9), st.integers(0, 3), SIDES, SIDES, st.sampled_from([1, 3, 4]))
def test_png_files_lose_nothing(seed: int, count: int, height: int, width: int, channels: int) -> None:
    images = pixels(seed, count, height, width, channels)
    files = encode_images(images, Encoding("png"))
    assert files.tolist() == png_files(images)
    assert [np.array_equal(opened(file).reshape(image.shape), image) for image, file in zip(images, files)] == [
        True
    ] * count


@pytest.mark.parametrize("count", [1, 7, 8, 9, 33])
def test_threads_change_neither_files_nor_their_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pixels(0, count, 64, 64, 3)
    for worth_a_thread in (0, 1 << 40):
        monkeypatch.setattr(encoding_module, "_WORTH_A_THREAD", worth_a_thread)
        files = encode_images(images, Encoding("jpeg"))
        assert files.tolist() == [encode_images(images[n : n + 1], Encoding("jpeg"))[0] for n in range(count)]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_module, "_WORTH_A_THREAD", 0)
    images = pixels(0, 9, 16, 16, 3)
    files = encode_images(images, Encoding("png")).tolist()
    forked = multiprocessing.get_context("fork")
    reading, writing = forked.Pipe(duplex=False)
    child = forked.Process(target=lambda: writing.send(encode_images(images, Encoding("png")).tolist()), daemon=True)
    child.start()
    try:
        assert reading.poll(30), "the forked process waits for threads that it has not"
        assert reading.recv() == files
    finally:
        child.kill()
        child.join()


def test_sixteen_bits_of_either_byte_order_stay() -> None:
    images = pixels(0, 2, 9, 8, 3, dtype=np.uint16)
    image = ImageSpec((9, 8, 3), np.dtype(np.uint16), "png")
    for dtype in ("<u2", ">u2"):
        files = encode_images(images.astype(dtype), Encoding("png"))
        assert np.array_equal(decode_files(image, files.tolist(), "images"), images)


@given(
    st.integers(0, 9),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([1, 3]),
    st.sampled_from(SUBSAMPLINGS),
    st.sampled_from([1, 2, 4, 8]),
)
def test_smaller_pixels_of_jpeg_files_are_those_of_pillows_draft_mode(
    seed: int, rows: int, columns: int, channels: int, subsampling: str, part: int
) -> None:
    height, width = 8 * rows, 8 * columns
    files = encode_images(pixels(seed, 1, height, width, channels), Encoding("jpeg", subsampling=subsampling))
    size = (height // part, width // part)
    with Image.open(io.BytesIO(files[0])) as image:
        image.draft(None, size[::-1])
        expected = np.asarray(image).reshape(*size, channels)
    assert np.array_equal(decode_images(files, (height, width, channels), exact=True, size=size)[0], expected)


@given(st.integers(0, 40), st.sampled_from(["png", "jpeg:quality=80"]), st.sampled_from(["12x8", "30x31:lanczos3"]))
def test_files_are_decoded_resized_and_encoded(count: int, text: str, size: str) -> None:
    image, encoding = ImageSpec((20, 16, 3), np.dtype(np.uint8)), Encoding.of(text)
    files = encode_images(pixels(count, count, 20, 16, 3), Encoding("jpeg"))
    whole = decode_files(image, files.tolist(), "images") if count else np.zeros((0, 20, 16, 3), np.uint8)
    expected = encode_images(resize_images(whole, Size.parse(size)), encoding)
    assert encode_again(files, image, Size.parse(size), encoding, "images").tolist() == expected.tolist()


def test_a_damaged_file_is_named() -> None:
    files = encode_images(pixels(0, 20, 16, 16, 3), Encoding("jpeg"))
    files[18] = files[18][:99]
    with pytest.raises(SourceError, match="observation/image, from image 16, image 2: "):
        encode_again(
            files, ImageSpec((16, 16, 3), np.dtype(np.uint8)), Size(8, 8), Encoding("png"), "observation/image"
        )


def test_a_file_that_is_to_be_turned_is_refused() -> None:
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(pixels(0, 1, 16, 16, 3)[0]).save(turned, "JPEG", exif=exif)
    files = encode_images(pixels(0, 2, 16, 16, 3), Encoding("jpeg"))
    files[1] = turned.getvalue()
    with pytest.raises(SourceError, match=r"camera, image 1: has an orientation \(EXIF\), which a new file would lose"):
        encode_again(files, ImageSpec((16, 16, 3), np.dtype(np.uint8)), Size(8, 8), Encoding("png"), "camera")


@given(QUALITIES, st.sampled_from(SUBSAMPLINGS))
def test_what_is_written_is_read_back(quality: int, subsampling: str) -> None:
    encoding = Encoding("jpeg", quality, subsampling)
    assert Encoding.of(str(encoding)) == encoding
    assert Encoding.of(f"jpeg : subsampling={subsampling} : quality = {quality}") == encoding


@pytest.mark.parametrize(
    "text",
    ["", "webp", "jpg", "png:quality=3", "jpeg:", "jpeg:quality", "jpeg:quality=0", "jpeg:quality=101", "jpeg:quality=²",
     "jpeg:quality=9:quality=9", "jpeg:subsampling=411", "jpeg:speed=1", None, 95],
)  # fmt: skip
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="expected png, jpeg, jpeg:quality="):
        Encoding.of(text)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 2), (8, 8, None), (3, 8, 8), (2, 8, 8, 3)], ids=str)
@pytest.mark.parametrize("text", ["png", "jpeg"])
def test_only_images_of_known_channels_are_encoded(text: str, shape: tuple[int | None, ...]) -> None:
    assert "is made of images" in str(Encoding.of(text).problem(ArraySpec(shape, np.dtype(np.uint8))))


def test_a_spec_says_what_files_decode_to() -> None:
    spec = ArraySpec((None, 8, 3), np.dtype(">u2"))
    assert Encoding.of("png").problem(spec) is None
    assert str(Encoding.of("png").spec(spec)) == "string[] (png of uint16[?, 8, 3])"
    assert "of uint8" in str(Encoding.of("jpeg").problem(spec))
