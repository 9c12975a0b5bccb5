"""Frames of videos, found as lerobot finds them: the frame nearest to the row's time, no further away than a tolerance.

A row's time in the video is its `timestamp`, in version 3 behind the episode's `from_timestamp`. Frames are decoded one after the
other from the key frame before the first row. Pixels are those of PyAV's `to_ndarray("rgb24")`, which lerobot's own backend "pyav"
takes too. Videos of depth maps give the codes that were written, 0 to 4095.
Source: video_utils.py of lerobot 0.6.1 (`decode_video_frames_pyav`), dataset_reader.py (`_query_videos`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.readers.lerobot.features import Feature
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.wording import line_of

_MOST_BYTES = 1 << 34
"""Of the frames of one episode."""

_FORMATS = {".mp4": "mp4", ".mov": "mp4", ".m4v": "mp4", ".mkv": "matroska", ".webm": "matroska", ".avi": "avi"}
"""FFmpeg's names; any other would let a file name further ones."""
_CODECS = ("av1", "h264", "hevc", "vp8", "vp9", "mpeg4", "libdav1d", "libvpx", "libvpx-vp9", "libaom-av1")
_RGB, _DEPTH = "rgb24", "gray12le"


def frames(feature: Feature, path: Path, seconds: Array, tolerance: float) -> Array:
    """The frames of an episode's rows.

    Args:
      feature: of the video.
      path: the file.
      seconds: [T] float64, each row's time in the video.
      tolerance: seconds.

    Returns:
      [T, height, width, channels].

    Raises:
      BrokenEpisode: the file is missing, damaged, of another size or codec, or has no frame at a row's time.
    """
    import av

    order = np.argsort(seconds, kind="stable")
    try:
        if not path.is_file():
            raise BrokenEpisode(feature.path, f"{path}: no such video")
        with av.open(str(path.absolute()), format=_format(feature, path)) as container:
            stream = container.streams.video[0]
            _check(feature, path, stream)
            stream.thread_type = "AUTO"
            found = _room(feature, len(seconds), path)
            for at, frame in chosen(_shown(container, stream, seconds[order]), seconds[order], tolerance):
                found[order[at]] = _pixels(feature, frame, path)
    except (av.FFmpegError, OSError, ValueError, IndexError, OverflowError, MemoryError, TypeError) as error:
        raise BrokenEpisode(feature.path, f"{path}: cannot be decoded: {line_of(error)}") from error
    except NoFrame as missing:
        row = int(order[missing.args[0]])
        raise BrokenEpisode(
            feature.path,
            f"{path}: no frame within {tolerance} s of row {row} at {seconds[row]:.6f} s; the nearest is at {missing.args[1]} s. "
            "Set tolerance=SECONDS behind the name if that is near enough",
        ) from missing
    return found


def check_library() -> None:
    """Raises `SourceError` where PyAV is missing."""
    with needing("decoding the videos of a LeRobot dataset (videos=skip leaves them out)", "video", SourceError):
        import av  # noqa: F401


class NoFrame(Exception):
    """At a row, and the nearest frame's time."""


def _format(feature: Feature, path: Path) -> str:
    known = _FORMATS.get(path.suffix.lower())
    if known is None:
        raise BrokenEpisode(feature.path, f"{path}: expected a video of one of the kinds {', '.join(_FORMATS)}")
    return known


def _check(feature: Feature, path: Path, stream: Any) -> None:
    codec = stream.codec_context
    if codec is None or codec.name not in _CODECS:
        raise BrokenEpisode(
            feature.path,
            f"{path}: the codec {codec and codec.name} is not read; expected av1, h264, hevc, vp9 or mpeg4",
        )
    if (codec.height, codec.width) != feature.shape[:2]:
        raise BrokenEpisode(
            feature.path,
            f"{path}: frames of {codec.height} × {codec.width}; expected {feature.shape[0]} × {feature.shape[1]}",
        )
    if feature.shape[2] != (1 if feature.is_depth else 3):
        raise BrokenEpisode(feature.path, f"{path}: {feature.shape[2]} channels, which videos do not have")


def _room(feature: Feature, rows: int, path: Path) -> Array:
    size = rows * feature.size * feature.dtype.itemsize
    try:
        if size <= _MOST_BYTES:
            return np.empty((rows, *feature.shape), feature.dtype)
    except MemoryError:
        pass
    raise BrokenEpisode(feature.path, f"{path}: no memory for {rows:,} frames of {feature.spec}: {size:,} bytes")


def _shown(container: Any, stream: Any, seconds: Array) -> Iterator[tuple[float, Any]]:
    """(time, frame), from the key frame before the first row on."""
    if not len(seconds):
        return
    container.seek(round(float(seconds[0]) / stream.time_base) - 1, backward=True, any_frame=False, stream=stream)
    for frame in container.decode(stream):
        if frame.pts is not None:
            yield float(frame.pts * stream.time_base), frame


def chosen(shown: Iterator[tuple[float, Any]], seconds: Array, tolerance: float) -> Iterator[tuple[int, Any]]:
    """(row, frame) for ascending times: of the frames until the first one that is not before a row, the nearest."""
    before: tuple[float, Any] | None = None
    after = next(shown, None)
    for row, wanted in enumerate(seconds):
        while after is not None and after[0] < wanted:
            before, after = after, next(shown, None)
        near = [one for one in (before, after) if one is not None]
        if not near:
            raise NoFrame(row, None)
        time, frame = min(near, key=lambda one: abs(one[0] - wanted))
        if not abs(time - wanted) < tolerance:
            raise NoFrame(row, time)
        yield row, frame


def _pixels(feature: Feature, frame: Any, path: Path) -> Array:
    pixels: Array = frame.to_ndarray(format=_DEPTH if feature.is_depth else _RGB)
    if pixels.shape[:2] != feature.shape[:2]:
        raise BrokenEpisode(feature.path, f"{path}: a frame of the shape {pixels.shape}; expected {feature.shape}")
    return pixels.reshape(feature.shape)
