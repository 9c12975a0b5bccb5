"""Sizes from the headers of JPEG and PNG files."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rlds2reverb.images import image_size
from tests.support.pictures import png

FRAMES = sorted(set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC})
SEGMENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([0xC4, 0xDB, 0xDD, 0xE0, 0xE1, 0xFE]), st.binary(max_size=40)).map(
            lambda one: bytes((0xFF, one[0])) + struct.pack(">H", len(one[1]) + 2) + one[1]
        ),
        st.sampled_from([b"\xff", b"\xff\x01", b"\xff\xd3"]),  # a fill byte; markers without a length
    ),
    max_size=6,
).map(b"".join)
SIZES = st.integers(1, 65_535)


def jpeg_head(segments: bytes, frame: int, height: int, width: int) -> bytes:
    return b"\xff\xd8" + segments + bytes((0xFF, frame)) + struct.pack(">HBHH", 17, 8, height, width)


@given(SEGMENTS, st.sampled_from(FRAMES), SIZES, SIZES)
def test_the_size_of_a_jpeg(segments: bytes, frame: int, height: int, width: int) -> None:
    head = jpeg_head(segments, frame, height, width)
    data = head + b"\xff\xc0" + struct.pack(">HBHH", 17, 8, 1, 1)  # what follows does not count
    assert image_size(data) == (height, width)
    for end in range(len(head)):
        assert image_size(head[:end]) is None


@given(st.integers(1, 30), st.integers(1, 30))
def test_the_size_of_a_png(height: int, width: int) -> None:
    data = png(np.zeros((height, width, 3), np.uint8))
    assert image_size(data) == (height, width)
    for end in range(33):
        assert image_size(data[:end]) is None


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"]))
@example(b"\xda" + bytes(20), b"\xff\xd8\xff")
@example(b"\xe0\0\0" * 9, b"\xff\xd8\xff")  # a length that leads nowhere
@example(b"", b"GIF89a" + bytes(40))
def test_any_bytes_have_a_size_or_none(data: bytes, start: bytes) -> None:
    size = image_size(start + data)
    assert size is None or all(0 <= length <= 2**32 for length in size)
