"""How near frames are, and which frames are not those of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.conversion.verify import FrameErrors


def images(seed: int, rows: int) -> Any:
    """A picture that moves, with noise."""
    rng = np.random.default_rng(seed)
    picture = rng.integers(0, 256, (6, 8, 3)).repeat(8, 0).repeat(8, 1)
    moved = np.stack([np.roll(picture, 3 * row, 1) for row in range(rows)])
    return np.clip(moved + rng.normal(0, 4, moved.shape), 0, 255).astype(np.uint8)


@given(seed=st.integers(0, 99), rows=st.integers(1, 6), noise=st.floats(0, 12))
def test_psnr_is_that_of_the_squared_errors(seed: int, rows: int, noise: float) -> None:
    written = images(seed, rows)
    read = np.clip(written + np.random.default_rng(seed).normal(0, noise, written.shape), 0, 255).astype(np.uint8)
    errors = FrameErrors()
    assert list(errors.add(written, read)) == []
    squared = np.square(written.astype(float) - read).mean((1, 2, 3))
    nearness = errors.nearness()
    assert nearness.frames == rows
    with np.errstate(divide="ignore"):
        assert nearness.mean == pytest.approx(min(100, 10 * np.log10(255**2 / squared.mean())), abs=0.01)
        assert nearness.least == pytest.approx(min(100, 10 * np.log10(255**2 / squared.max())), abs=0.01)


def test_frames_of_other_rows_and_no_pictures_are_found() -> None:
    written = images(1, 5)
    late = written[[0, 1, 1, 3, 4]]
    assert [why.partition(":")[0] for why in FrameErrors().add(written, late)] == ["row 2 of 5"]
    swapped = written[[0, 2, 1, 3, 4]]
    assert len(list(FrameErrors().add(written, swapped))) == 2
    black = written.copy()
    black[3] = 0
    (why,) = FrameErrors().add(written, black)
    assert "row 3 of 5: the frame is no picture of it" in why
    (why,) = FrameErrors().add(written, written[:-1])
    assert "expected uint8[5," in why


def test_rows_that_are_alike_may_have_each_others_frames() -> None:
    written = np.repeat(images(1, 1), 4, 0)
    written[2, 0, 0] ^= 3
    assert list(FrameErrors().add(written, written[[1, 0, 3, 2]])) == []


def test_noise_that_no_encoder_keeps_is_no_fault() -> None:
    written = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3), np.uint8)
    read = np.full_like(written, 128)
    assert list(FrameErrors().add(written, read)) == []
