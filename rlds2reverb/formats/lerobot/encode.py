"""An episode's rows as LeRobot stores them: Arrow's columns, tasks and statistics.

Statistics are those that LeRobot normalizes by: for each place of the last axis, over all rows and other axes; for each channel of an
image, [channels, 1, 1], over the images and pixels that LeRobot samples, divided by 255. An episode's quantiles are exact, where LeRobot's
are those of a histogram of 5,000 bins; those of the dataset are the episodes' averages, as in LeRobot.
Source: compute_stats.py and feature_utils.py of lerobot 0.6.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from rlds2reverb.encoding import png_files
from rlds2reverb.episode import IS_TERMINAL, OBSERVATION, Array, Episode, is_under, metadata_path
from rlds2reverb.formats.destination import LAST_ROW, Loss, UnfitEpisode, are_equal
from rlds2reverb.formats.lerobot import LOSSES
from rlds2reverb.formats.lerobot.clips import VideoEncoding, encode_clip
from rlds2reverb.formats.lerobot.features import DONE, FRAME_INDEX, LANGUAGE_INSTRUCTION, TEXT, TIMESTAMP, VIDEO
from rlds2reverb.formats.lerobot.meta import METADATA
from rlds2reverb.formats.lerobot.plan import FILES, KEEP, MOST_INTEGER, PIXELS, LeRobotPlan, WrittenFeature
from rlds2reverb.formats.rows import row_behind
from rlds2reverb.images import decode_images
from rlds2reverb.text import line_of

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
# Of an episode's images and their pixels, for its statistics: as in LeRobot.
_FEWEST_IMAGES, _MOST_IMAGES, _POWER = 100, 10_000, 0.75
_SIDE, _WHOLE_BELOW = 150, 300
_LEVELS = 256
_ROUNDED = 1e-6  # of a count: a product such as 0.1 * 30, which is a little above 3
_TOLERANCE = 1e-4  # seconds by which LeRobot lets a frame be away from its row
_NAMES = tuple(f"q{round(100 * quantile):02d}" for quantile in _QUANTILES)

Stats = Mapping[str, Array]  # min, max, mean, std, count, q01, q10, q50, q90, q99


@dataclass(frozen=True)
class EncodedEpisode:
    """The part of an episode's rows that depends on no other episode.

    Attributes:
      columns: feature -> [rows], in the order of the table; without those that count through the dataset.
      clips: feature -> the frames of all rows, encoded; see `clips`.
      tasks: the task of each row, or the one of all rows.
      metadata: further columns of meta/episodes.
    """

    rows: int
    columns: Mapping[str, pa.Array]
    stats: Mapping[str, Stats]
    tasks: list[str]
    metadata: Mapping[str, Any]
    losses: tuple[Loss, ...]
    clips: Mapping[str, bytes] = field(default_factory=dict)


def encode_episode(plan: LeRobotPlan, episode: Episode) -> EncodedEpisode:
    """Encodes what depends on this episode alone: its columns, statistics and tasks."""
    steps = episode.columns
    rows = len(episode) if plan.choices.last_step == KEEP else len(episode) - 1
    losses = [] if rows == len(episode) else list(_last_row_losses(steps, plan, rows))
    if plan.videos and plan.has_time:
        _check_times(steps[TIMESTAMP][:rows], plan.fps)
    columns: dict[str, pa.Array] = {}
    clips: dict[str, bytes] = {}
    stats: dict[str, Stats] = {}
    changed: list[str] = []
    for feature in plan.features:
        written = steps[feature.path][:rows]
        if written.dtype == np.uint64 and written.size and int(written.max()) > MOST_INTEGER:
            raise UnfitEpisode(
                feature.path,
                f"has {written.max():,}, and LeRobot reads whole numbers below 2^63 only; on_invalid=skip (--on-invalid skip) leaves such "
                f"episodes out, --transform drop={feature.path} --restart the column",
            )
        if feature.kind == VIDEO and plan.choices.video is not None:
            clips[feature.name] = _encode_video(plan.choices.video, feature.path, written, plan.fps)
        else:
            columns[feature.name], is_changed = _arrow_column(feature, written)
            changed += [feature.path] if is_changed else []
        if feature.kind in (PIXELS, FILES, VIDEO):
            sample = sample_rows(rows)
            if feature.kind == FILES:
                images: Iterable[Array] = decode_images(written[sample], feature.spec, exact=True)
            else:
                images = (written[row] for row in sample)  # one at a time: all of them would be copied
            stats[feature.name] = _stats_of_images(images)
        elif feature.kind != TEXT:
            stats[feature.name] = stats_of_numbers(written)
    counted = {DONE: np.asarray(steps[IS_TERMINAL][1:], bool)} if plan.done else {}
    evenly = (np.arange(rows) / plan.fps).astype(np.float32)
    counted |= {TIMESTAMP: steps[TIMESTAMP][:rows] if plan.has_time else evenly, FRAME_INDEX: np.arange(rows)}
    for name, numbers in counted.items():
        columns[name], stats[name] = arrow_numbers(numbers), stats_of_numbers(numbers)
    texts = steps[plan.task][:rows] if plan.task else episode.metadata.get(plan.task_feature, b"")
    is_column = isinstance(texts, np.ndarray) and texts.ndim
    tasks, is_changed = _as_texts(list(texts) if is_column else [_plain(texts)])
    if is_changed and plan.is_task_only:
        changed.append(plan.task)
    elif is_changed and plan.task_feature == LANGUAGE_INSTRUCTION:
        changed.append(metadata_path(plan.task_feature))
    metadata: dict[str, Any] = {}
    for path in plan.metadata:
        value = _plain(episode.metadata[path])
        if isinstance(value, (bytes, str)):
            (value,), is_changed = _as_texts([value])
            changed += [metadata_path(path)] if is_changed else []
        metadata[METADATA + path] = value
    losses += [Loss("text", LOSSES["text"], path) for path in changed]
    return EncodedEpisode(rows, columns, stats, tasks, metadata, tuple(losses), clips)


def _encode_video(encoding: VideoEncoding, path: str, frames: Array, fps: int) -> bytes:
    from av import FFmpegError

    try:
        return encode_clip(encoding, frames, fps)
    except FFmpegError as error:
        if isinstance(error, MemoryError):
            raise
        raise UnfitEpisode(path, f"{encoding.encoder} refuses its frames: {line_of(error)}") from error


def _check_times(times: Array, fps: int) -> None:
    """Raises `UnfitEpisode` for rows whose time no frame of a video has, in which frame n is shown at n / fps seconds."""
    shown = (np.arange(len(times)) / fps).astype(np.float32)
    late = ~(np.abs(times.astype(np.float64) - shown) < _TOLERANCE)
    if late.any():
        row = int(np.argmax(late))
        raise UnfitEpisode(
            TIMESTAMP,
            f"row {row} is at {times[row]:.6f} s, and the frame of a video with {fps} per second is at {shown[row]:.6f} s: LeRobot allows {_TOLERANCE} s "
            f"between them, and all videos of a dataset have one rate; --transform drop={TIMESTAMP} --restart has rows evenly spaced in time, fps=N in DEST then says how",
        )


def _last_row_losses(columns: Mapping[str, Array], plan: LeRobotPlan, rows: int) -> Iterator[Loss]:
    odd = [path for path in plan.paths if not are_equal(columns[path][rows:], row_behind(path, columns[path][:rows]))]
    if any(is_under(path, OBSERVATION) for path in odd):
        yield Loss("last_observation", LOSSES["last_observation"], OBSERVATION, LAST_ROW)
    for path in odd:
        if not is_under(path, OBSERVATION):
            yield Loss("last_row", LOSSES["last_row"], path, LAST_ROW)


def _plain(value: Any) -> Any:
    """A text as it is or as a Python object, numbers as an array."""
    if isinstance(value, (bytes, str)):
        return value
    array = np.asarray(value)
    return array if array.dtype.kind in "biuf" else array.item()


def _arrow_column(feature: WrittenFeature, values: Array) -> tuple[pa.Array, bool]:
    """[T, ...] as a column; and whether a text was changed because it is not UTF-8."""
    if feature.kind in (PIXELS, FILES):
        files = pa.array(png_files(values) if feature.kind == PIXELS else list(values), pa.binary())
        return pa.StructArray.from_arrays([files, pa.nulls(len(files), pa.string())], fields=list(_IMAGE)), False
    if feature.kind == TEXT:
        texts, is_changed = _as_texts(values)
        return pa.array(texts, pa.string()), is_changed
    return arrow_numbers(values.reshape(len(values), *feature.shape)), False


def arrow_numbers(values: Array) -> pa.Array:
    """[T, ...] -> a plain column for one value per row, lists of a fixed size for one axis, nested lists for more."""
    flat = pa.array(np.ascontiguousarray(values.reshape(-1), values.dtype.newbyteorder("=")))
    *inner, last = values.shape[1:] or (1,)
    if values.size == len(values) and values.ndim <= 2:
        return flat
    if not inner:
        return pa.FixedSizeListArray.from_arrays(flat, last)
    for size in reversed(values.shape[1:]):
        flat = pa.ListArray.from_arrays(np.arange(0, len(flat) + 1, size, dtype=np.int32), flat)
    return flat


def _as_texts(values: Iterable[Any]) -> tuple[list[str], bool]:
    """Texts as `str`; and whether one was changed because it is not UTF-8."""
    values = list(values)
    texts = [
        bytes(value).decode(errors="backslashreplace") if not isinstance(value, str) else value for value in values
    ]
    return texts, any(not isinstance(value, str) and text.encode() != value for text, value in zip(texts, values))


def stats_of_numbers(values: Array) -> dict[str, Array]:
    return _stats(values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1), len(values))


def sample_rows(rows: int) -> Array:
    """The rows whose images LeRobot takes for an episode's statistics."""
    count = max(min(rows, _FEWEST_IMAGES), min(int(rows**_POWER), _MOST_IMAGES))
    return np.asarray(np.round(np.linspace(0, rows - 1, count)), int)


def _stats_of_images(images: Iterable[Array]) -> dict[str, Array]:
    """Statistics of images [height, width, channels] of uint8: [channels, 1, 1]. Pixels are counted by their level, which is exact and needs no sort."""
    counts, count = np.zeros((0, _LEVELS), np.int64), 0
    for count, image in enumerate(images, 1):
        side = max(image.shape[:2])
        step = 1 if side < _WHOLE_BELOW else side // _SIDE
        levels = [
            np.bincount(channel.ravel(), minlength=_LEVELS) for channel in np.moveaxis(image[::step, ::step], -1, 0)
        ]
        counts = np.stack(levels) if count == 1 else counts + levels
    stats = [_stats_of_levels(levels) for levels in counts]
    columns = {name: np.array([of_channel[name] for of_channel in stats]).reshape(-1, 1, 1) / 255 for name in stats[0]}
    return {**columns, "count": np.array([count])}


def _stats_of_levels(counts: Array) -> dict[str, float]:
    """Statistics of values 0, 1, 2, ... by how often each is there."""
    levels, below, count = np.arange(len(counts)), np.cumsum(counts), counts.sum()
    mean = float((levels * counts).sum() / count)
    seen = np.flatnonzero(counts)
    quantiles = np.searchsorted(below, np.maximum(1, np.ceil(np.array(_QUANTILES) * count - _ROUNDED)))
    moments = {"min": float(seen[0]), "max": float(seen[-1]), "mean": mean}
    # Sums, for a product of vectors may round in another way where they lie elsewhere in memory; the same episode gives the same bytes.
    deviation = float(np.sqrt(((levels - mean) ** 2 * counts).sum() / count))
    return {**moments, "std": deviation, **dict(zip(_NAMES, quantiles.astype(float)))}


def _stats(values: Array, count: int) -> dict[str, Array]:
    exact = values.astype(np.float64)
    with np.errstate(all="ignore"):
        moments = {"min": exact.min(0), "max": exact.max(0), "mean": exact.mean(0), "std": exact.std(0)}
        quantiles = np.quantile(exact, _QUANTILES, axis=0, method="inverted_cdf")
    return {**moments, "count": np.array([count]), **dict(zip(_NAMES, quantiles))}


def merge_stats(many: Sequence[Stats]) -> dict[str, Array]:
    stacked = {name: np.stack([np.asarray(stats[name]) for stats in many]) for name in many[0]}
    counts = stacked["count"].reshape(-1)
    weights = (counts / counts.sum()).reshape(-1, *[1] * (stacked["mean"].ndim - 1))
    with np.errstate(all="ignore"):
        mean = (stacked["mean"] * weights).sum(0)
        variance = ((stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2) * weights).sum(0)
        moments = {"min": stacked["min"].min(0), "max": stacked["max"].max(0), "mean": mean, "std": np.sqrt(variance)}
        quantiles = {name: (stacked[name] * weights).sum(0) for name in _NAMES}
    return {**moments, "count": np.array([counts.sum()]), **quantiles}
