"""Clips and files of them: which frame is shown when, and what encoders refuse."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

av = pytest.importorskip("av")

from rlds2reverb.errors import ConfigError, ConversionError
from rlds2reverb.formats.lerobot import clips
from rlds2reverb.formats.lerobot.clips import AV1, H264, VideoEncoding, check_encoder, encode_clip, join_clips
from tests.support.profiles import examples

CODECS = [codec for codec, encoder in clips.ENCODERS.items() if encoder in av.codecs_available]


def pictures(seed: int, rows: int, height: int = 32, width: int = 48) -> Any:
    """[rows, height, width, 3]: each of one colour of its own, with a mark."""
    rng = np.random.default_rng(seed)
    images = np.repeat(rng.integers(0, 256, (rows, 1, 1, 3), np.uint8), height, 1).repeat(width, 2)
    images[:, 4:12, 8:24] = rng.integers(0, 256, (rows, 1, 1, 3), np.uint8)
    return images


def decoded(file: Any) -> tuple[list[float], Any]:
    """The time of every frame, and the frames."""
    with av.open(file, format="mp4") as container:
        frames = [
            (float(frame.pts * frame.time_base), frame.to_ndarray(format="rgb24"))
            for frame in container.decode(video=0)
        ]
    return [time for time, _ in frames], np.stack([pixels for _, pixels in frames])


@pytest.mark.parametrize("codec", CODECS)
@examples(8)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), fps=st.integers(1, 120), g=st.integers(1, 12))
def test_frame_n_of_joined_clips_is_shown_at_n_over_fps(
    tmp_path_factory: pytest.TempPathFactory, codec: str, lengths: list[int], fps: int, g: int
) -> None:
    path = tmp_path_factory.mktemp("clips") / "videos/file-000.mp4"
    encoding = VideoEncoding(codec, g=g, crf=20)
    images = [pictures(number, rows) for number, rows in enumerate(lengths)]
    encoded = [encode_clip(encoding, rows, fps) for rows in images]
    assert encoded == [encode_clip(encoding, rows, fps) for rows in images]
    join_clips(encoding, iter(encoded), path, fps, sum(lengths))
    times, frames = decoded(str(path))
    np.testing.assert_allclose(times, np.arange(sum(lengths)) / fps, atol=1e-6)
    apart = np.concatenate([decoded(io.BytesIO(clip))[1] for clip in encoded])
    np.testing.assert_array_equal(frames, apart)
    errors = np.square(frames.astype(float) - np.concatenate(images)).mean((1, 2, 3))
    assert errors.max() < 2000  # a frame of another colour is some 10,000 away


@pytest.mark.parametrize("codec", CODECS)
def test_every_g_th_frame_is_a_key_frame(codec: str) -> None:
    clip = encode_clip(VideoEncoding(codec, g=3), np.repeat(pictures(1, 1), 10, 0), 10)
    with av.open(io.BytesIO(clip)) as container:
        keys = [packet.is_keyframe for packet in container.demux(video=0) if packet.dts is not None]
    assert keys == [number % 3 == 0 for number in range(10)]


def test_info_is_what_the_file_says() -> None:
    for codec in CODECS:
        encoding = VideoEncoding(codec, crf=33, preset="fast" if codec == H264 else "11")
        info = encoding.info((32, 48, 3), 7)
        with av.open(io.BytesIO(encode_clip(encoding, pictures(1, 3), 7))) as container:
            stream = container.streams.video[0]
            assert (info["video.height"], info["video.width"]) == (stream.height, stream.width)
            assert info["video.codec"] == stream.codec.canonical_name
            assert info["video.pix_fmt"] == stream.pix_fmt
            assert info["video.fps"] == stream.base_rate
        assert (info["video.g"], info["video.crf"]) == (2, 33)
        assert info["video.preset"] == ("fast" if codec == H264 else 11)


@pytest.mark.parametrize(
    ("codec", "settings", "said"), [(H264, {"crf": 52}, "0 \\(best\\) to 51"), (AV1, {"preset": "fast"}, "0 to 13")]
)
def test_settings_that_a_codec_lacks_are_refused(codec: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        VideoEncoding(codec, **settings)


def test_what_cannot_be_encoded_is_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    check_encoder(VideoEncoding(H264), {"image": (32, 48, 3)}, 10)
    with pytest.raises(ConfigError, match=r"observation/image, 31 × 48.*resize=observation/image"):
        check_encoder(VideoEncoding(H264), {"observation/image": (31, 48, 3)}, 10)
    monkeypatch.setattr(av, "codecs_available", {"libx264", "libx265"})
    with pytest.raises(ConfigError, match="without the encoder libsvtav1; it has video=h264"):
        check_encoder(VideoEncoding(AV1), {}, 10)
    monkeypatch.setattr(av, "codecs_available", set())
    with pytest.raises(ConfigError, match="neither"):
        check_encoder(VideoEncoding(H264), {}, 10)


def test_clips_that_do_not_fit_together_make_no_file(tmp_path: Path) -> None:
    clip = encode_clip(VideoEncoding(H264), pictures(1, 3), 10)
    with pytest.raises(ConversionError, match="3 of 4 frames"):
        join_clips(VideoEncoding(H264), [clip], tmp_path / "file.mp4", 10, 4)
    other = encode_clip(VideoEncoding(H264, preset="ultrafast"), pictures(1, 3), 10)
    with pytest.raises(ConversionError, match="same version of PyAV"):
        join_clips(VideoEncoding(H264), [clip, other], tmp_path / "file.mp4", 10, 6)
    assert not (tmp_path / "file.mp4").exists()
