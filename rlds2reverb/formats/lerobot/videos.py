"""Frames of LeRobot's videos, and images in its tables.

A frame is chosen as in lerobot: the one nearest to the row's time, within a tolerance. A row's time in the video is its `timestamp`; in
version 3, plus the episode's `from_timestamp`. Frames are decoded in order from the key frame before the first row. Pixels are those of
PyAV's `to_ndarray("rgb24")`, as in lerobot's own backend "pyav". Videos of depth maps give the codes that were written, 0 to 4095.

Images are PNG and JPEG files, which LeRobot decodes by Pillow (the `Image` feature of Hugging Face's datasets), so with libjpeg's
accurate DCT, and turned by their EXIF orientation; and depth maps, which are TIFF files.
Sources: video_utils.py (`decode_video_frames_pyav`), dataset_reader.py (`_query_videos`) and image_writer.py
(`image_array_to_pil_image`, `save_kwargs_for_path`) of lerobot 0.6.1; features/image.py of datasets.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.buckets import for_library
from rlds2reverb.formats.lerobot.features import Feature
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.images import (
    AS_STORED,
    PILLOW_ERRORS,
    LazyImage,
    Size,
    decode_files,
    orientation_of,
    resize_images,
    turn_upright,
)
from rlds2reverb.specs import ImageSpec
from rlds2reverb.text import line_of

_MOST_BYTES = 1 << 34  # of the frames of one episode

_FORMATS = {".mp4": "mp4", ".mov": "mp4", ".m4v": "mp4", ".mkv": "matroska", ".webm": "matroska", ".avi": "avi"}
"""FFmpeg's names of formats. Other formats could make FFmpeg open further files."""
_CODECS = ("av1", "h264", "hevc", "vp8", "vp9", "mpeg4", "libdav1d", "libvpx", "libvpx-vp9", "libaom-av1")
_REORDERED = 32  # more frames than any codec stores before one that is shown earlier; H.264 and HEVC allow 16
_WORTH_THREADS = 16  # frames of a video that are decoded at once
_TICKS = 10_000
"""Parts of a second to which the times of rows are rounded before they are hashed: sums of seconds are not exact."""
_RGB, _DEPTH = "rgb24", "gray12le"


@dataclass(frozen=True)
class Clip:
    """The part of a video that belongs to an episode's rows; `seconds` [T] float64 are each row's time in the video."""

    feature: Feature
    path: Path
    seconds: Array
    tolerance: float

    def frames(self) -> Array:
        """The frames of the rows: [T, height, width, channels].

        Raises:
          BrokenEpisode: the file is missing, damaged, of another size or codec, or has no frame at a row's time.
        """
        feature, seconds = self.feature, self.seconds
        order = np.argsort(seconds, kind="stable")
        size = len(seconds) * feature.size * feature.dtype.itemsize
        try:
            with self._open() as (container, stream):
                stream.thread_type = "AUTO"
                if size > _MOST_BYTES:
                    raise self._broken(f"{len(seconds):,} frames of {feature.spec}: {size:,} bytes, which are too many")
                pictures = np.empty((len(seconds), *feature.shape), feature.dtype)
                for at, frame in choose_frames(
                    _decode_from(container, stream, seconds[order]), seconds[order], self.tolerance
                ):
                    pixels = frame.to_ndarray(format=_DEPTH if feature.is_depth else _RGB)
                    if pixels.shape[:2] != feature.shape[:2]:
                        raise self._broken(f"a frame of the shape {pixels.shape}; expected {feature.shape}")
                    pictures[order[at]] = pixels.reshape(feature.shape)
        except NoFrame as missing:
            raise self._no_frame(missing, order) from missing
        return pictures

    def lazy_frames(self) -> Array:
        """[T] of `LazyImage`: the frames of the rows, not decoded yet. Raises `BrokenEpisode` as `frames` does for what a look at the file shows."""
        with self._open():
            pass
        rows = np.empty(len(self.seconds), object)
        height, width, channels = self.feature.shape
        rows[:] = [LazyImage.of(self, row, (height, width, channels)) for row in range(len(rows))]
        return rows

    def load(self, images: Sequence[LazyImage], size: Size | None) -> None:
        """Decodes the frames of some rows, and the groups of pictures that these are in. Raises as `frames`."""
        of_row: dict[int, list[LazyImage]] = {}
        for image in images:
            of_row.setdefault(image.row, []).append(image)
        rows = np.array(sorted(of_row, key=lambda row: float(self.seconds[row])))
        seconds = self.seconds[rows]
        try:
            with self._open() as (container, stream):
                # Starting threads costs more than a few frames.
                stream.thread_type = "NONE" if len(rows) < _WORTH_THREADS else "AUTO"
                for at, shown in choose_frames(_decode_groups(container, stream, seconds), seconds, self.tolerance):
                    pixels = shown.to_ndarray(format=_RGB)
                    if pixels.shape != self.feature.shape:
                        raise self._broken(f"a frame of the shape {pixels.shape}; expected {self.feature.shape}")
                    pixels = pixels if size is None else resize_images(pixels[None], size)[0]
                    for image in of_row[int(rows[at])]:
                        image.pixels = pixels
        except NoFrame as missing:
            raise self._no_frame(missing, rows) from missing

    def add_to(self, digest: xxhash.xxh3_128) -> None:
        """Adds the rows' times, and the compressed frames from the key frame before the first row to the last row.

        Neither changes when videos are concatenated.
        """
        if not len(self.seconds):
            return
        digest.update(np.rint((self.seconds - self.seconds[0]) * _TICKS).astype("<i8"))
        with self._open() as (container, stream):
            half = float(0.5 / stream.average_rate) if stream.average_rate else 0.0
            first, last, late = float(self.seconds.min()) + half, float(self.seconds.max()) + half, 0
            packets: list[bytes] = []
            for packet in _packets_from(container, stream, float(self.seconds.min())):
                if packet.pts is None:
                    continue
                time = float(packet.pts * stream.time_base)
                late = late + 1 if time > last else 0
                if late > _REORDERED:
                    break
                if packet.is_keyframe and time <= first:
                    packets.clear()
                if time <= last:
                    packets.append(bytes(packet))
            for compressed in packets:
                digest.update(compressed)

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, Any]]:
        height, width, channels = self.feature.shape
        with _open_video(self.path, self.feature.path) as (container, stream):
            codec = stream.codec_context
            if (codec.height, codec.width) != (height, width):
                raise self._broken(f"frames of {codec.height} × {codec.width}; expected {height} × {width}")
            if channels != (1 if self.feature.is_depth else 3):
                raise self._broken(f"{channels} channels, which videos do not have")
            yield container, stream

    def _no_frame(self, missing: NoFrame, order: Array) -> BrokenEpisode:
        """`order` are the rows that were looked for."""
        row = int(order[missing.args[0]])
        return self._broken(
            f"no frame within {self.tolerance} s of row {row} at {self.seconds[row]:.6f} s; the nearest is at {missing.args[1]} s. "
            "Set tolerance=SECONDS behind the name if that is near enough"
        )

    def _broken(self, why: str) -> BrokenEpisode:
        return BrokenEpisode(self.feature.path, f"{self.path}: {why}")


def size_of(path: Path) -> tuple[int, int]:
    """Height and width of a video's frames. Raises `BrokenEpisode` if it cannot be opened, or has a codec that is not read."""
    check_library("decoding videos")
    with _open_video(path, "") as (_, stream):
        return stream.codec_context.height, stream.codec_context.width


def frames_from(path: Path, column: str, first: int, count: int, size: tuple[int, int]) -> Array:
    """[count, *size, 3] uint8: frames by their numbers, in the order in which they are shown. Raises `BrokenEpisode` if there are fewer, or it is damaged."""
    check_library("decoding videos")
    if count * size[0] * size[1] * 3 > _MOST_BYTES:
        raise BrokenEpisode(column, f"{path}: {count:,} frames of {size[0]} × {size[1]}, which are too many")
    pictures = np.empty((count, *size, 3), np.uint8)
    end = 0
    with _open_video(path, column) as (container, stream):
        stream.thread_type = "AUTO"
        for end, frame in enumerate(itertools.islice(container.decode(stream), first + count), start=1):
            if end > first:
                pixels = frame.to_ndarray(format=_RGB)
                if pixels.shape[:2] != size:
                    raise BrokenEpisode(column, f"{path}: a frame of the shape {pixels.shape}; expected {(*size, 3)}")
                pictures[end - 1 - first] = pixels
    if end < first + count:
        raise BrokenEpisode(column, f"{path}: {end:,} frames; expected {first + count:,}")
    return pictures


@contextmanager
def _open_video(path: Path, column: str) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream. Raises `BrokenEpisode` if it cannot be read, also for what goes wrong while it is open."""
    import av

    try:
        kind = _FORMATS.get(path.suffix.lower())
        if not path.is_file():
            raise BrokenEpisode(column, f"{path}: no such video")
        if kind is None:
            raise BrokenEpisode(column, f"{path}: expected a video of one of the kinds {', '.join(_FORMATS)}")
        with av.open(for_library(path.absolute()), format=kind) as container:
            stream = container.streams.video[0]
            codec = stream.codec_context
            if codec is None or codec.name not in _CODECS:
                raise BrokenEpisode(
                    column,
                    f"{path}: the codec {codec and codec.name} is not read; expected av1, h264, hevc, vp9 or mpeg4",
                )
            yield container, stream
    except (av.FFmpegError, OSError, ValueError, IndexError, OverflowError, MemoryError, TypeError) as error:
        raise BrokenEpisode(column, f"{path}: cannot be decoded: {line_of(error)}") from error


def check_library(purpose: str = "decoding the videos of a LeRobot dataset (videos=skip leaves them out)") -> None:
    """Raises `SourceError` if PyAV is missing."""
    with needing(purpose, "video", SourceError):
        import av  # noqa: F401


class NoFrame(Exception):
    """No frame is near enough to a row. Arguments: the row, and the time of the nearest frame."""


def _decode_from(container: Any, stream: Any, seconds: Array) -> Iterator[tuple[float, Any]]:
    """(time, frame), starting at the key frame before the first row."""
    if not len(seconds):
        return
    for packet in _packets_from(container, stream, float(seconds[0])):
        yield from _with_times(stream, packet.decode())


def _with_times(stream: Any, frames: Iterable[Any]) -> Iterator[tuple[float, Any]]:
    """(time, frame), without frames of which the file says no time."""
    return ((float(frame.pts * stream.time_base), frame) for frame in frames if frame.pts is not None)


def _decode_groups(container: Any, stream: Any, seconds: Array) -> Iterator[tuple[float, Any]]:
    """(time, frame) in ascending order, of the groups of pictures that frames near these ascending times are in; other groups are not decoded.

    A packet's time is that of its frame. If the times do not say which groups are needed, all are decoded.
    """
    packets, is_late, last = [], 0, float(seconds[-1])
    for packet in _packets_from(container, stream, float(seconds[0])):
        if packet.size:  # else it marks the end
            packets.append(packet)
        if packet.pts is not None:
            is_late = is_late + 1 if float(packet.pts * stream.time_base) > last else 0
        if is_late > _REORDERED:
            break
    needed = _needed_packets(packets, stream, seconds)
    for packet in itertools.compress(packets, needed):
        yield from _with_times(stream, packet.decode())
    yield from _with_times(stream, stream.codec_context.decode(None))  # what the decoder held back


def _needed_packets(packets: Sequence[Any], stream: Any, seconds: Array) -> Array:
    """[packets] bool: whether a packet is of a group with the frame nearest to one of these ascending times, as `choose_frames` chooses it."""
    pts = np.array([np.nan if packet.pts is None else float(packet.pts * stream.time_base) for packet in packets])
    is_key = np.array([packet.is_keyframe for packet in packets], bool)
    if np.isnan(pts).any() or not is_key[:1].any():
        return np.ones(len(packets), bool)
    groups = np.cumsum(is_key) - 1  # [packets]
    starts = pts[is_key]  # of groups
    order = np.argsort(pts, kind="stable")
    shown = pts[order]
    after = np.minimum(np.searchsorted(shown, seconds), len(shown) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(shown[before] - seconds) <= np.abs(shown[after] - seconds), before, after)
    needed = np.zeros(groups[-1] + 1, bool)
    needed[groups[order[nearest]]] = True
    # A frame that is shown before the key frame of its group refers to the group before.
    refers_back = np.zeros(len(needed), bool)
    refers_back[groups[pts < starts[groups]]] = True
    for group in np.flatnonzero(needed & refers_back)[::-1]:
        while group and refers_back[group]:
            group -= 1
            needed[group] = True
    is_needed: Array = needed[groups]
    return is_needed


_BACK = 0.5
"""Seconds by which a seek goes further back where the one before led too far; doubled each time."""


def _packets_from(container: Any, stream: Any, seconds: float) -> Iterator[Any]:
    """The packets of a container that was just opened, from a key frame that is shown at this time or before; else from the first.

    Containers seek by the times at which frames are decoded. A key frame is decoded before frames that refer to it and are shown earlier, so
    one that is found may be shown too late.
    """
    ticks, start = round(seconds / stream.time_base), stream.start_time or 0
    place, back, has_moved = ticks - 1, _BACK, False
    while place > start:
        _seek(container, stream, place)
        has_moved, packets = True, container.demux(stream)
        first = next(packets, None)
        if first is not None and first.is_keyframe:
            shown = first.dts if first.pts is None else first.pts
            if shown is not None and shown <= ticks:
                return itertools.chain([first], packets)
        place, back = ticks - 1 - round(back / stream.time_base), 2 * back
    if has_moved:
        import av

        try:  # in MP4, the first frame may be decoded before time 0
            _seek(container, stream, start - round(60 / stream.time_base))
        except av.FFmpegError:  # AVI refuses what is before the first entry of its index
            _seek(container, stream, start)
    return cast("Iterator[Any]", container.demux(stream))


def _seek(container: Any, stream: Any, ticks: int) -> None:
    container.seek(ticks, backward=True, any_frame=False, stream=stream)


def choose_frames(shown: Iterator[tuple[float, Any]], seconds: Array, tolerance: float) -> Iterator[tuple[int, Any]]:
    """(row, frame) for ascending times: the nearest of the frames up to the first one at or after the row's time."""
    before: tuple[float, Any] | None = None
    after = next(shown, None)
    for row, second in enumerate(seconds):
        while after is not None and after[0] < second:
            before, after = after, next(shown, None)
        near = [candidate for candidate in (before, after) if candidate is not None]
        if not near:
            raise NoFrame(row, None)
        time, frame = min(near, key=lambda candidate: abs(candidate[0] - second))
        if not abs(time - second) < tolerance:
            raise NoFrame(row, time)
        yield row, frame


_TIFF = (b"II*\0", b"MM\0*")


def check_libraries() -> None:
    """Raises `SourceError` if a library that decodes images is missing."""
    with needing("decoding the images of a LeRobot dataset", "images", SourceError):
        import imagecodecs  # noqa: F401
        import PIL  # noqa: F401
        import simplejpeg  # noqa: F401


def decode_pictures(feature: Feature, files: Sequence[bytes], where: str) -> Array:
    """[T, height, width, channels] of files of an image feature. Raises `BrokenEpisode` if a file is damaged, or of another kind."""
    if feature.dtype == np.float32 and any(file[:4] not in _TIFF for file in files):
        raise BrokenEpisode(feature.path, f"{where}: a depth map in metres that is no TIFF file")
    try:
        if files and all(file[:4] in _TIFF for file in files):
            return np.stack(
                [_decode_tiff(feature, file, f"{where}, image {number}") for number, file in enumerate(files)]
            )
        height, width, channels = feature.shape
        image = ImageSpec((height, width, channels), feature.dtype)
        orientations = [orientation_of(file, f"{where}, image {number}") for number, file in enumerate(files)]
        if set(orientations) <= {AS_STORED}:
            return decode_files(image, files, where, exact=True)
        # The feature has the shape of a picture as it is shown, so one that is stored on its side is decoded in any size, and turned.
        any_size, pictures = replace(image, shape=(None, None, channels)), []
        for number, (file, orientation) in enumerate(zip(files, orientations)):
            picture = turn_upright(
                decode_files(any_size, [file], f"{where}, image {number}", exact=True)[0], orientation
            )
            if picture.shape[:2] != (height, width):
                raise BrokenEpisode(
                    feature.path,
                    f"{where}, image {number}: has the size {picture.shape[:2]} as it is to be shown; expected {(height, width)}",
                )
            pictures.append(picture)
        return np.stack(pictures)
    except SourceError as error:
        raise BrokenEpisode(feature.path, str(error)) from error


def _decode_tiff(feature: Feature, file: bytes, where: str) -> Array:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(file), formats=["TIFF"]) as image:
            if (image.height, image.width) == feature.shape[:2]:
                pixels = np.asarray(image)
            else:  # is refused below, without decoding
                pixels = np.empty((image.height, image.width, len(image.getbands())), np.uint8)
    except (*PILLOW_ERRORS, Image.DecompressionBombError) as error:
        raise SourceError(f"{where}: a damaged TIFF file: {line_of(error)}") from error
    shape = pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)
    if shape != feature.shape or pixels.dtype.newbyteorder("=") != feature.dtype:
        raise SourceError(f"{where}: holds {pixels.dtype.name}{list(shape)}; expected {feature.spec}")
    return pixels.reshape(shape).astype(feature.dtype)
