"""PNG and JPEG files decoded here and by TensorFlow: equal to the bit, or refused here."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rlds2reverb.errors import SourceError
from rlds2reverb.images import decode_files
from rlds2reverb.specs import ImageSpec
from tests.support.profiles import scaled
from tests.support.raising import outcome_of

tf = pytest.importorskip("tensorflow")
pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""A PNG's kind of colours -> the bits that it may have."""
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def decoded(file: bytes, channels: int | None, dtype: str) -> Any:
    """The image as read here, or the error."""
    image = ImageSpec((None, None, channels), np.dtype(dtype))
    return outcome_of(SourceError, lambda: decode_files(image, [file], "here")[0])


def by_tensorflow(file: bytes, channels: int | None, dtype: str) -> Any:
    return tf.io.decode_image(file, channels=channels, dtype=dtype).numpy()


def picture(seed: int, height: int, width: int, smooth: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if not smooth:
        return rng.integers(0, 256, (height, width, 3), np.uint8)
    y, x = np.mgrid[:height, :width]
    waves = np.sin(rng.uniform(0, 0.3, 3) * y[..., None] + rng.uniform(0, 0.3, 3) * x[..., None])
    return (128 + 100 * waves + rng.normal(0, 5, waves.shape)).clip(0, 255).astype(np.uint8)


@settings(max_examples=scaled(100))
@given(
    st.tuples(st.integers(0, 1 << 20), st.integers(1, 70), st.integers(1, 70), st.booleans()),
    st.sampled_from(["RGB", "L"]),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    st.integers(5, 100),
    st.sampled_from([None, 1, 3]),
)
def test_jpeg_files_are_decoded_to_the_bit(
    drawn: tuple[int, int, int, bool],
    mode: str,
    subsampling: int,
    progressive: bool,
    quality: int,
    channels: int | None,
) -> None:
    out = io.BytesIO()
    image = Image.fromarray(picture(*drawn)).convert(mode)
    image.save(out, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive)
    for dtype in ("uint8", "uint16"):
        found = decoded(out.getvalue(), channels, dtype)
        np.testing.assert_array_equal(found, by_tensorflow(out.getvalue(), channels, dtype), strict=True)


@pytest.mark.parametrize("options", [(), ("rst",), ("optimize",)])
def test_a_large_jpeg_is_decoded_to_the_bit(options: tuple[str, ...]) -> None:
    pixels = picture(5, 480, 641, smooth=True)
    file = tf.io.encode_jpeg(
        pixels, optimize_size="optimize" in options, chroma_downsampling="rst" not in options
    ).numpy()
    np.testing.assert_array_equal(decoded(file, 3, "uint8"), by_tensorflow(file, 3, "uint8"), strict=True)


def part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(seed: int, colours: int, depth: int, filtered: int, transparent: bool) -> bytes:
    """A PNG of any kind; its lines use one of the five filters."""
    rng = np.random.default_rng(seed)
    height, width = (int(size) for size in rng.integers(1, 20, 2))
    length = -(-width * SAMPLES[colours] * depth // 8)
    lines = rng.integers(0, 256, (height, 1 + length), np.uint8)
    lines[:, 0] = filtered if colours != 3 else 0
    extra = part(b"PLTE", rng.integers(0, 256, 3 << depth, np.uint8).tobytes()) if colours == 3 else b""
    if transparent and colours in (0, 2, 3):
        size = 1 << depth if colours == 3 else 2 * SAMPLES[colours]
        extra += part(b"tRNS", bytes([0] * size) if colours != 3 else rng.integers(0, 256, size, np.uint8).tobytes())
    head = struct.pack(">II5B", width, height, depth, colours, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", head)
        + extra
        + part(b"IDAT", zlib.compress(lines.tobytes()))
        + part(b"IEND", b"")
    )


@pytest.mark.parametrize(("colours", "depth"), [(colours, depth) for colours in DEPTHS for depth in DEPTHS[colours]])
@pytest.mark.parametrize("transparent", [False, True])
def test_png_files_of_every_kind_are_decoded_to_the_bit_or_refused(colours: int, depth: int, transparent: bool) -> None:
    for filtered in range(5):
        file = png(filtered, colours, depth, filtered, transparent)
        for channels in (None, 1, 3, 4):
            for dtype in ("uint8", "uint16"):
                found = decoded(file, channels, dtype)
                if isinstance(found, SourceError):
                    assert is_refused(colours, depth, channels), found
                else:
                    np.testing.assert_array_equal(found, by_tensorflow(file, channels, dtype), strict=True)


def is_refused(colours: int, depth: int, channels: int | None) -> bool:
    """Colours for one channel, fewer than eight bits for four, grey with alpha for any."""
    return (
        (channels == 1 and colours in (2, 3, 6)) or (channels == 4 and depth < 8) or (channels is None and colours == 4)
    )
