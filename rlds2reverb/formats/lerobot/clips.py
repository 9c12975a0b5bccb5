"""Frames of episodes to the video files of a LeRobot dataset.

A clip is an MP4 file in memory: the frames of one episode and one camera. One thread encodes it, so its bytes depend on the frames and on the
versions of PyAV and its encoders, and not on the number of processors or workers. `join_clips` copies the compressed frames of clips one
behind the other into a file, without encoding them again.

Encoders, their settings, and what info.json says of them are LeRobot's: configs/video.py, and video_utils.py (`encode_video_frames`,
`concatenate_video_files`, `get_video_info`), of lerobot 0.6.1.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, ConversionError
from rlds2reverb.extras import needing
from rlds2reverb.files import whole
from rlds2reverb.text import line_of

H264, AV1 = "h264", "av1"
ENCODERS = {H264: "libx264", AV1: "libsvtav1"}
MOST_CRF = {H264: 51, AV1: 63}
# SVT-AV1 refuses more; beyond 10,000 the next frame, too, is within the 0.0001 s by which LeRobot lets a frame be away from its row.
MOST_FPS = {H264: 10_000, AV1: 240}
_MOST_G = 1_000_000
PRESETS = {
    H264: ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow", "placebo"),
    AV1: tuple(str(number) for number in range(14)),
}
_AV1_PRESET = "12"
_PIXEL_FORMAT = "yuv420p"
_SMALL = 64  # pixels


@dataclass(frozen=True)
class VideoEncoding:
    """How frames are encoded.

    Attributes:
      codec: "h264" or "av1".
      g: the distance of key frames; readers in random order decode up to so many frames for one.
      crf: quality; a smaller number gives better pictures and larger files.
      preset: the encoder's speed; "" for LeRobot's choice: 12 of SVT-AV1, the encoder's own of x264.

    Raises:
      ConfigError: the codec has no such crf, g or preset.
    """

    codec: str
    g: int = 2
    crf: int = 30
    preset: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.crf <= MOST_CRF[self.codec]:
            raise ConfigError(f"crf={self.crf}: {self.codec} has 0 (best) to {MOST_CRF[self.codec]}")
        if not 1 <= self.g <= _MOST_G:
            raise ConfigError(f"g={self.g}: expected 1 to {_MOST_G:,} frames between key frames")
        if self.preset not in ("", *PRESETS[self.codec]):
            presets = PRESETS[self.codec]
            raise ConfigError(
                f'preset "{self.preset}": {self.codec} has {presets[0]} to {presets[-1]}: {", ".join(presets)}'
            )

    @property
    def encoder(self) -> str:
        return ENCODERS[self.codec]

    def options(self, height: int, width: int) -> dict[str, str]:
        """The encoder's options for frames of a size, in FFmpeg's words, for one thread."""
        options = {"g": str(self.g), "crf": str(self.crf)}
        if self.codec == AV1:
            return {**options, "preset": self.preset or _AV1_PRESET, "svtav1-params": "fast-decode=0:lp=1"}
        # x264's macroblock tree reads beyond pictures of 2 by 2 macroblocks: one clip of them in a hundred came out otherwise.
        small = {"x264-params": "mbtree=0"} if min(height, width) < _SMALL else {}
        return {**options, **({"preset": self.preset} if self.preset else {}), **small, "threads": "1"}

    @property
    def reordered(self) -> int:
        """The most frames that are decoded before one that is shown earlier. x264 has two, of its pyramid of B-frames; groups of two frames have no B-frames."""
        return 2 if self.codec == H264 and self.g > 2 else 0

    def info(self, shape: tuple[int, ...], fps: int) -> dict[str, Any]:
        """What `info` of a feature says of its videos."""
        preset = (int(self.preset or _AV1_PRESET)) if self.codec == AV1 else self.preset or None
        return {
            "video.height": shape[0],
            "video.width": shape[1],
            "video.codec": self.codec,
            "video.pix_fmt": _PIXEL_FORMAT,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
            "video.g": self.g,
            "video.crf": self.crf,
            "video.preset": preset,
            "video.fast_decode": 0,
            "video.video_backend": "pyav",
            "video.extra_options": {},
            "is_depth_map": False,
        }


def check_encoder(encoding: VideoEncoding, shapes: Mapping[str, tuple[int, ...]], fps: int) -> None:
    """Encodes a frame of each column, before anything is written.

    Args:
      shapes: path of a column -> its height, width and channels.
      fps: rows per second.

    Raises:
      ConfigError: PyAV is not installed or has no such encoder, or the encoder takes no frames of that size or rate.
    """
    with needing(f"writing videos (video={encoding.codec})", "video", ConfigError):
        import av
    if encoding.encoder not in av.codecs_available:
        there = [codec for codec, encoder in ENCODERS.items() if encoder in av.codecs_available]
        instead = (
            " or ".join(f"video={codec}" for codec in there) or "neither of the two that are used here; leave video out"
        )
        raise ConfigError(
            f"video={encoding.codec}: PyAV {av.__version__} here was built without the encoder {encoding.encoder}; it has {instead}. The wheels of "
            "PyAV have both: reinstall it with --force-reinstall --only-binary av"
        )
    if fps > MOST_FPS[encoding.codec]:
        taking = [f"video={codec}" for codec, most in MOST_FPS.items() if fps <= most]
        raise ConfigError(
            f"video={encoding.codec}: {fps:,} rows per second; expected at most {MOST_FPS[encoding.codec]:,}: "
            f"{''.join(f'{other}, or ' for other in taking)}fps=N in DEST, with --transform drop=timestamp where there is such a column"
        )
    for path, shape in shapes.items():
        height, width = shape[:2]
        try:
            encode_clip(encoding, np.zeros((1, *shape), np.uint8), fps)
        except (av.FFmpegError, ValueError) as error:
            resize = f"--transform resize={path}:HEIGHTxWIDTH, or leave video out"
            is_odd = encoding.codec == H264 and (height % 2 or width % 2)
            remedy = f"Sizes must be even for h264: video=av1, {resize}" if is_odd else f"Another size: {resize}"
            raise ConfigError(
                f"video={encoding.codec}: {encoding.encoder} refuses frames of {path}, {height} × {width}, at {fps} per second: "
                f"{line_of(error)}. {remedy}"
            ) from error


def encode_clip(encoding: VideoEncoding, frames: Array, fps: int) -> bytes:
    """[T, height, width, 3] of uint8 -> a clip, in which frame t is shown at t / fps seconds."""
    import av

    os.environ.setdefault("SVT_LOG", "1")  # else SVT-AV1 prints its settings to the standard error, for each clip
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        height, width = frames.shape[1:3]
        stream = container.add_stream(encoding.encoder, fps, options=encoding.options(height, width))
        stream.height, stream.width = height, width
        stream.pix_fmt = _PIXEL_FORMAT
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def join_clips(encoding: VideoEncoding, clips: Iterable[bytes], path: Path, fps: int, count: int) -> None:
    """Writes the frames of clips into one file, whole or not at all: frame n of all is shown at n / fps seconds.

    Raises:
      ConversionError: the clips have not `count` frames, or were encoded in different ways.
      OSError: the disk is full, say.
    """
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    stream: Any = None
    frames, head = 0, b""  # `head` has the encoder's settings, which a file of MP4 has once
    with whole(path) as unfinished:
        # The table of frames moves to the front, so that a reader over the network needs no look at the end.
        with av.open(str(unfinished), "w", format="mp4", options={"movflags": "faststart"}) as joined:
            for clip in clips:
                with av.open(io.BytesIO(clip), format="mp4") as container:
                    source: Any = container.streams.video[0]
                    if stream is None:
                        stream = joined.add_stream_from_template(source, opaque=True)
                        stream.time_base, head = source.time_base, source.codec_context.extradata
                    elif source.codec_context.extradata != head:
                        raise ConversionError(
                            f"{path}: its clips were encoded in different ways; every worker needs the same version of PyAV"
                        )
                    ticks, first = int(1 / (fps * source.time_base)), frames
                    for packet in container.demux(source):
                        if packet.dts is None:  # the end
                            continue
                        # Times of decoding are made anew: those that encoders choose overlap where a clip is very short.
                        packet.pts += first * ticks
                        packet.dts = (frames - encoding.reordered) * ticks
                        packet.stream = stream
                        joined.mux(packet)
                        frames += 1
        if frames != count:
            raise ConversionError(
                f"{path}: {frames:,} of {count:,} frames were encoded; this is a fault of the encoder"
            )
