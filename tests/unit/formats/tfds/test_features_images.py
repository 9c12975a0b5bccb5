"""Images without TensorFlow: what is decoded into what, and files that are damaged, hostile or of another kind."""

from __future__ import annotations

import struct
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.images import decode_files
from rlds2reverb.specs import ImageSpec
from tests.support.profiles import scaled
from tests.support.raising import outcome_of
from tests.support.strategies import array

imagecodecs = pytest.importorskip("imagecodecs")
simplejpeg = pytest.importorskip("simplejpeg")

ANY = ImageSpec((None, None, 3), np.dtype(np.uint8))


def png(pixels: np.ndarray) -> bytes:
    return bytes(imagecodecs.png_encode(pixels[..., 0] if pixels.shape[2] == 1 else pixels))


def jpeg(pixels: np.ndarray) -> bytes:
    return bytes(simplejpeg.encode_jpeg(pixels, colorspace="GRAY" if pixels.shape[2] == 1 else "RGB"))


def random(shape: tuple[int, ...], dtype: str = "uint8") -> np.ndarray:
    return array(np.random.default_rng(3), np.dtype(dtype), shape)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("count", [1, 40])
def test_png_files_come_back_to_the_bit(dtype: str, channels: int, count: int) -> None:
    pixels = random((count, 17, 33, channels), dtype)
    for shape in ((17, 33, channels), (None, None, None), (17, None, channels)):
        found = decode_files(ImageSpec(shape, np.dtype(dtype)), list(map(png, pixels)), "here")
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, pixels)


def test_images_of_floats_are_four_bytes_a_pixel() -> None:
    pixels = random((3, 4, 5, 1), "float32")
    files = [png(pixel.view(np.uint8)) for pixel in pixels]
    found = decode_files(ImageSpec((4, 5, 1), np.dtype(np.float32)), files, "here")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, pixels)


def test_no_images_are_an_empty_column() -> None:
    assert decode_files(ANY, [], "here").shape == (0, 0, 0, 3)


def test_kinds_of_files_may_be_mixed() -> None:
    pixels = random((2, 8, 8, 3))
    found = decode_files(ANY, [png(pixels[0]), jpeg(pixels[1])], "here")
    np.testing.assert_array_equal(found[0], pixels[0])
    np.testing.assert_array_equal(found[1], simplejpeg.decode_jpeg(jpeg(pixels[1]), fastdct=True))


@pytest.mark.parametrize(("have", "want"), [(1, 3), (3, 4), (4, 3), (1, 4), (2, 3), (2, 1), (2, 4)])
def test_other_channels_are_dropped_repeated_or_opaque(have: int, want: int) -> None:
    pixels = random((1, 3, 4, have))
    found = decode_files(ImageSpec((3, 4, want), np.dtype(np.uint8)), [png(pixels[0])], "here")
    colours = pixels[..., :-1] if have in (2, 4) else pixels
    alpha = pixels[..., -1:] if have in (2, 4) else np.full((1, 3, 4, 1), 255, np.uint8)
    wanted = np.broadcast_to(colours, (1, 3, 4, min(want, 3)))
    np.testing.assert_array_equal(found, np.concatenate([wanted, alpha], 3) if want == 4 else wanted)


def test_other_depths_are_widened_and_cut() -> None:
    small, large = random((2, 3, 3)), random((2, 3, 3), "uint16")
    deep = ImageSpec((2, 3, 3), np.dtype(np.uint16))
    np.testing.assert_array_equal(decode_files(deep, [png(small)], "here")[0], small.astype(np.uint16) * 257)
    np.testing.assert_array_equal(decode_files(ANY, [png(large)], "here")[0], large >> 8)


def header(height: int, width: int) -> bytes:
    """A PNG that claims a size, and has nothing of it."""
    size = struct.pack(">II5B", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"")
    parts = [(b"IHDR", size), (b"IDAT", data), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


CMYK = bytes(imagecodecs.jpeg8_encode(random((8, 8, 4)), colorspace="CMYK", outcolorspace="CMYK"))
GOOD = random((8, 8, 3))
WRONG = {
    "empty": (b"", "an empty file"),
    "text": (b"hello, world", "no image file: it begins with b'hello, w'"),
    "gif": (b"GIF89a" + bytes(20), "a GIF file; only PNG and JPEG"),
    "bmp": (b"BM" + bytes(20), "a BMP file; only PNG and JPEG"),
    "only a signature": (b"\x89PNG\r\n\x1a\n", r"claims 0 × 0 pixels in 8 bytes"),
    "huge png": (header(1 << 30, 1 << 30), r"claims 1073741824 × 1073741824 pixels"),
    "empty png": (header(9, 9), "cannot be decoded"),
    "cut png": (png(GOOD)[:-40], "cannot be decoded"),
    "cut jpeg": (jpeg(GOOD)[:-40], "cannot be decoded"),
    "only a jpeg's begin": (b"\xff\xd8\xff", "cannot be decoded"),
    "cmyk": (CMYK, "a JPEG of the colours (CMYK|YCCK)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_decoded_is_named(name: str) -> None:
    file, said = WRONG[name]
    with pytest.raises(SourceError, match=f"here, image 1: .*{said}"):
        decode_files(ANY, [png(GOOD), file] if name != "empty png" else [png(random((9, 9, 3))), file], "here")


def test_images_of_other_sizes_are_refused() -> None:
    with pytest.raises(SourceError, match=r"here, image 0: has the size \(8, 8\); expected \(8, 9\)"):
        decode_files(ImageSpec((8, 9, 3), np.dtype(np.uint8)), [png(GOOD)], "here")
    with pytest.raises(SourceError, match=r"here: images of different sizes, \(8, 8\) and \(4, 8\)"):
        decode_files(ANY, [png(GOOD), png(GOOD[:4])], "here")


def test_what_tensorflow_makes_otherwise_is_refused() -> None:
    with pytest.raises(SourceError, match="is not read here as"):
        decode_files(ImageSpec((8, 8, 1), np.dtype(np.uint8)), [png(GOOD)], "here")
    with pytest.raises(SourceError, match="a JPEG has 1 or 3 channels; expected 4"):
        decode_files(ImageSpec((8, 8, 4), np.dtype(np.uint8)), [jpeg(GOOD)], "here")
    with pytest.raises(SourceError, match="a PNG of grey with alpha is not read here"):
        decode_files(ImageSpec((8, 8, None), np.dtype(np.uint8)), [png(random((8, 8, 2)))], "here")


@settings(max_examples=scaled(150))
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 1 << 12), st.binary(max_size=3)), min_size=1, max_size=3))
def test_damage_gives_an_image_or_our_error_and_asks_for_little(is_png: bool, damage: list[tuple[int, bytes]]) -> None:
    file = png(GOOD) if is_png else jpeg(GOOD)
    for place, data in damage:
        file = file[: place % len(file)] + data + file[place % len(file) + len(data) :]
    tracemalloc.start()
    found = outcome_of(SourceError, lambda: decode_files(ANY, [file], "here"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 26
    assert isinstance(found, SourceError) or found.dtype == np.uint8


@pytest.mark.parametrize(("library", "file"), [("simplejpeg", jpeg(GOOD)), ("imagecodecs", png(GOOD))])
def test_a_missing_library_is_named(library: str, file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SourceError, match=f"decoding images needs {library}"):
        decode_files(ANY, [file], "here")
