"""How near frames are, and which frames are not those of their rows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.conversion.frames import FrameErrors
from rlds2reverb.formats.lerobot.clips import AV1, H264, MOST_CRF, VideoEncoding, encode_clip


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


def arm_before_noise(seed: int, rows: int, step: int) -> Any:
    """A small square that moves before a ground of great variance."""
    rng = np.random.default_rng(seed)
    ground = np.clip(rng.normal(128, 40, (24, 32, 3)), 0, 255).repeat(4, 0).repeat(4, 1).astype(np.uint8)
    images = np.stack([ground] * rows)
    for row in range(rows):
        images[row, 40:52, 4 + step * row : 16 + step * row] = 255
    return images


ORDERS = {
    "1 earlier": lambda rows: np.maximum(rows - 1, 0),
    "1 later": lambda rows: np.minimum(rows + 1, rows[-1]),
    "5 earlier": lambda rows: np.maximum(rows - 5, 0),
    "in reverse": lambda rows: rows[::-1],
    "all of row 0": lambda rows: rows * 0,
    "all of row 19": lambda rows: rows * 0 + rows[-1],
    "1 later, from the middle on": lambda rows: np.minimum(rows + (rows >= len(rows) // 2), rows[-1]),
}


@given(
    seed=st.integers(0, 99),
    step=st.integers(1, 5),
    noise=st.floats(0, 14),
    order=st.sampled_from(sorted(ORDERS)),
    with_encoder=st.booleans(),
)
@settings(max_examples=40)
def test_frames_of_other_rows_are_found_under_noise(
    seed: int, step: int, noise: float, order: str, with_encoder: bool
) -> None:
    """What is found of the whole picture by no row alone: coding errs more than the arm's way."""
    written = arm_before_noise(seed, 20, step)
    if with_encoder:
        pytest.importorskip("av")
        read = decoded(encode_clip(VideoEncoding(H264), written, 10))
    else:
        read = np.clip(written + np.random.default_rng(seed).normal(0, noise, written.shape), 0, 255).astype(np.uint8)
    assert list(FrameErrors().add(written, read)) == []
    assert list(FrameErrors().add(written, read[ORDERS[order](np.arange(20))])) or (step == 1 and "later" in order)


@given(
    codec=st.sampled_from([H264, AV1]),
    g=st.sampled_from([2, 5, 30]),
    share=st.floats(0.5, 1),
    amplitude=st.integers(2, 20),
    kind=st.sampled_from(["flicker", "ramp", "arm"]),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_no_strength_of_compression_is_taken_for_a_fault(
    codec: str, g: int, share: float, amplitude: int, kind: str, seed: int
) -> None:
    pytest.importorskip("av")
    y, x = np.mgrid[:64, :96]
    smooth = (100 + 40 * np.sin(y / 9) + 30 * np.sin(x / 7))[..., None].repeat(3, 2)
    light = {"flicker": lambda row: amplitude * (row % 2), "ramp": lambda row: amplitude * row / 2}
    if kind == "arm":
        written = arm_before_noise(seed, 20, 1 + amplitude // 5)
    else:
        written = np.clip(np.stack([smooth + light[kind](row) for row in range(20)]), 0, 255).astype(np.uint8)
    encoding = VideoEncoding(codec, g, int(share * MOST_CRF[codec]))
    assert list(FrameErrors().add(written, decoded(encode_clip(encoding, written, 10)))) == []


def decoded(clip: bytes) -> Any:
    import av

    with av.open(io.BytesIO(clip)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_noise_that_no_encoder_keeps_is_no_fault() -> None:
    written = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3), np.uint8)
    read = np.full_like(written, 128)
    assert list(FrameErrors().add(written, read)) == []
