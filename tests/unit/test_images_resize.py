"""Images of bytes are resized by the compiled library as by numpy, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import images
from rlds2reverb.compiled import load_library
from rlds2reverb.images import METHODS, Size, resize_images
from tests.support.project import ROOT

SIDES = st.integers(1, 70)


@pytest.mark.skipif(images.LIBRARY is None, reason="was not compiled")
@given(
    st.tuples(st.integers(0, 2), SIDES, SIDES, st.integers(0, 5)),
    st.builds(Size, SIDES, SIDES, st.sampled_from(METHODS)),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_compiled_is_equal_to_numpy(shape: tuple[int, ...], size: Size, is_extreme: bool, seed: int) -> None:
    """Black and white pixels make `lanczos3` overshoot on both sides."""
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    pixels = np.where(pixels > 127, 255, 0).astype(np.uint8) if is_extreme else pixels
    compiled = resize_images(pixels, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "LIBRARY", None)
        np.testing.assert_array_equal(compiled, resize_images(pixels, size))


def test_a_library_of_another_source_is_not_used(tmp_path: Path) -> None:
    source = tmp_path / "images.c"
    source.write_bytes((ROOT / "rlds2reverb" / "images.c").read_bytes() + b"\n")
    compiled = ROOT / "rlds2reverb" / "images.compiled"
    assert load_library(source, {}, compiled) is None
