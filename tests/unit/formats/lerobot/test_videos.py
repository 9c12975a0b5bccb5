"""Clips of videos hold the frames that decoding from the first frame gives, wherever they begin and whatever the container."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from rlds2reverb.episode import Array
from rlds2reverb.formats.lerobot.features import Feature
from rlds2reverb.formats.lerobot.videos import Clip
from rlds2reverb.images import Size, decode_images, load_images, resize_images

av = pytest.importorskip("av")

RATE, FRAMES, BETWEEN_KEYS = 10, 13, 4
SIZE = (48, 64, 3)
FEATURE = Feature("observation.images.top", "video", "observation/images/top", SIZE, np.dtype(np.uint8))
ENDINGS = {"mp4": "mp4", "mkv": "matroska", "webm": "webm", "avi": "avi"}
CASES = [
    ("avi", "mpeg4", 0),  # refuses a seek before its first frame
    ("avi", "mpeg4", 2),
    ("avi", "libx264", 0),
    ("mkv", "mpeg4", 2),  # has no time of decoding of its first frames
    ("mkv", "libx264", 2),
    ("mkv", "libx264", 0),
    ("webm", "libvpx-vp9", 0),
    ("mp4", "mpeg4", 0),
    ("mp4", "mpeg4", 2),  # decodes a key frame before frames that are shown earlier; the first one before time 0
    ("mp4", "libx264", 2),
]


def write_video(path: Path, codec: str, reordered: int, first: int = 0) -> None:
    """Writes frames in which a bar grows, of which `reordered` in a row may be stored behind a later one; the first is shown at frame `first`."""
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV does not write {codec}")
    with av.open(str(path), "w", format=ENDINGS[path.suffix[1:]]) as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.height, stream.width, stream.pix_fmt = SIZE[0], SIZE[1], "yuv420p"
        stream.gop_size, stream.max_b_frames = BETWEEN_KEYS, reordered
        for number in range(FRAMES):
            pixels = np.full(SIZE, 40, np.uint8)
            pixels[:, : 4 * (number + 1)] = 200
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = first + number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def decode_from_the_start(path: Path) -> tuple[list[float], list[Array]]:
    """The times and the pixels of all frames."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    return [float(frame.pts * frame.time_base) for frame in frames], [
        frame.to_ndarray(format="rgb24") for frame in frames
    ]


def check_all_clips(path: Path) -> None:
    times, pixels = decode_from_the_start(path)
    assert len(times) >= FRAMES - 1  # AVI has no place for a first frame that is shown late
    names = set()
    for start in range(len(times)):
        clip = Clip(FEATURE, path, np.array(times[start : start + 3]), 1e-4)
        assert np.array_equal(clip.frames(), np.stack(pixels[start : start + 3]))
        digest = xxhash.xxh3_128()
        clip.add_to(digest)
        names.add(digest.hexdigest())
    assert len(names) > 1
    check_lazy_frames(path, times, pixels)


def check_lazy_frames(path: Path, times: list[float], pixels: list[Array]) -> None:
    """Any rows of an episode, in any order, some of them twice; every frame is decoded once."""
    rng = np.random.default_rng(len(times))
    for count in (1, 1, 2, 2, 3, 5, len(times)):
        rows = rng.integers(0, len(times), count)
        clip = Clip(FEATURE, path, np.array(times)[rng.permutation(len(times))] + 1e-6 * rng.uniform(-1, 1), 1e-4)
        frames = clip.lazy_frames()
        picked = frames[rows].tolist()
        at = np.abs(clip.seconds[rows, None] - np.array(times)).argmin(1)
        for size in (None, Size(7, 9)):
            expected = np.stack([pixels[place] for place in at])
            decoded = decode_images(np.array(picked, object), SIZE, size=size)
            assert np.array_equal(decoded, expected if size is None else resize_images(expected, size))
            assert [frame.pixels for frame in picked] == [None] * count
        loaded = load_images(picked, None)
        assert len(loaded) == len(set(rows.tolist()))
        assert load_images(picked, None) == []


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(("ending", "codec", "reordered"), CASES)
def test_a_clip_has_the_frames_that_decoding_from_the_start_gives(
    tmp_path: Path, ending: str, codec: str, reordered: int, first: int
) -> None:
    path = tmp_path / f"video.{ending}"
    write_video(path, codec, reordered, first)
    check_all_clips(path)


@pytest.mark.parametrize("reordered", [0, 2])
def test_mp4_whose_edit_list_begins_between_key_frames(tmp_path: Path, reordered: int) -> None:
    """Cutting without encoding keeps the frames from the key frame on, and hides some of them by an edit list."""
    path, cut = tmp_path / "whole.mp4", tmp_path / "cut.mp4"
    write_video(path, "libx264", reordered)
    hidden = 2
    with av.open(str(path)) as source, av.open(str(cut), "w", options={"avoid_negative_ts": "disabled"}) as container:
        stream: Any = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is None:
                continue
            shift = round(hidden / RATE / packet.time_base)
            packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, stream
            container.mux(packet)
    times, pixels = decode_from_the_start(cut)
    shown = [number for number, time in enumerate(times) if time >= 0]
    assert len(shown) == FRAMES - hidden
    for start in shown:
        rows = slice(start, start + 3)
        assert np.array_equal(Clip(FEATURE, cut, np.array(times[rows]), 1e-4).frames(), np.stack(pixels[rows]))
