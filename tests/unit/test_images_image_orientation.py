"""Orientations of image files, as Pillow reads and applies them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageOps, PngImagePlugin

from rlds2reverb.errors import SourceError
from rlds2reverb.images import AS_STORED, decode_files, orientation_of, turn_upright
from rlds2reverb.specs import ImageSpec
from tests.support.raising import error_of

PIXELS = np.random.default_rng(3).integers(0, 255, (4, 6, 3), np.uint8)
FORMATS = ("PNG", "JPEG")


def written(kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, kind, **options)
    return file.getvalue()


def with_exif(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.Make] = "some camera"
    return written(kind, exif=exif)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("orientation", range(10))
def test_images_are_turned_as_pillow_turns_them(kind: str, orientation: int) -> None:
    file = with_exif(kind, orientation)
    image = Image.open(io.BytesIO(file))
    turned = turn_upright(np.asarray(image), orientation_of(file, "a file"))
    assert np.array_equal(turned, np.asarray(ImageOps.exif_transpose(image)))
    assert (orientation_of(file, "a file") == orientation) == (1 <= orientation <= 8)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_without_an_orientation_is_as_stored(kind: str) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "some camera"
    assert orientation_of(written(kind), "a file") == AS_STORED
    assert orientation_of(written(kind, exif=exif), "a file") == AS_STORED


@pytest.mark.full
@pytest.mark.parametrize("kind", FORMATS)
def test_tensorflow_does_not_turn_and_what_reads_its_datasets_does_not(kind: str) -> None:
    import tensorflow as tf

    file = with_exif(kind, 6)
    pixels = decode_files(ImageSpec((4, 6, 3), np.dtype(np.uint8)), [file], "a file")[0]
    assert np.array_equal(pixels, tf.io.decode_image(file, channels=3).numpy())


def test_xmp_says_it_too() -> None:
    said = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    texts = PngImagePlugin.PngInfo()
    texts.add_itxt("XML:com.adobe.xmp", said)
    file, part = written("JPEG"), b"http://ns.adobe.com/xap/1.0/\0" + said.encode()
    file = file[:2] + b"\xff\xe1" + (len(part) + 2).to_bytes(2, "big") + part + file[2:]
    image = Image.open(io.BytesIO(file))
    turned = ImageOps.exif_transpose(image)
    assert turned is not None
    is_turned = turned.size != image.size  # Pillow before 11 reads no XMP of JPEG
    assert orientation_of(file, "a file") == (6 if is_turned else 1)
    assert orientation_of(written("PNG", pnginfo=texts), "a file") == 6


@pytest.mark.parametrize("kind", FORMATS)
def test_it_is_found_behind_other_parts(kind: str) -> None:
    """In PNG also behind the pixels; in JPEG behind a long comment."""
    file = with_exif(kind, 8)
    if kind == "PNG":
        start = file.index(b"eXIf") - 4
        length = 12 + int.from_bytes(file[start : start + 4], "big")
        chunk, rest = file[start : start + length], file[:start] + file[start + length :]
        file = rest[:-12] + chunk + rest[-12:]
        assert file.index(b"IDAT") < file.index(b"eXIf")
    else:
        file = file[:2] + (b"\xff\xfe\xff\xff" + bytes(0xFFFD)) * 3 + file[2:]
    assert Image.open(io.BytesIO(file)).getexif()[ExifTags.Base.Orientation] == 8
    assert orientation_of(file, "a file") == 8


@given(st.binary(max_size=200), st.sampled_from([with_exif(kind, 6) for kind in FORMATS]), st.integers(0, 250))
def test_any_bytes_have_an_orientation_or_an_error_of_ours(noise: bytes, file: bytes, place: int) -> None:
    for damaged in (noise, file[:place], file[:place] + noise + file[place + len(noise) :], file[:4] + noise):
        found: list[int] = []
        error = error_of(SourceError, lambda: found.append(orientation_of(damaged, "a file")))  # noqa: B023
        assert str(error).startswith("a file: ") if error is not None else found[0] in range(1, 9)
