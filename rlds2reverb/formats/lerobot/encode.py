"""An episode's rows as LeRobot stores them: Arrow's columns, tasks and statistics.

Statistics are those that LeRobot normalizes by: for each place of the last axis, over all rows and other axes; for each channel of an
image, [channels, 1, 1], over at most a hundred images and every few pixels of them, divided by 255. An episode's quantiles are exact;
those of the dataset are the episodes' averages, as in LeRobot. Source: compute_stats.py and feature_utils.py of lerobot 0.6.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rlds2reverb.encoding import png_files
from rlds2reverb.episode import IS_TERMINAL, OBSERVATION, Array, Episode, is_under, metadata_path
from rlds2reverb.formats.destination import LAST_ROW, Loss, UnfitEpisode, are_equal
from rlds2reverb.formats.lerobot import LOSSES
from rlds2reverb.formats.lerobot.features import DONE, FRAME_INDEX, LANGUAGE_INSTRUCTION, TEXT, TIMESTAMP
from rlds2reverb.formats.lerobot.meta import METADATA
from rlds2reverb.formats.lerobot.plan import DEFAULT_FPS, FILES, KEEP, MOST_INTEGER, PIXELS, LeRobotPlan, WrittenFeature
from rlds2reverb.formats.rows import row_behind
from rlds2reverb.images import decode_images

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
_MOST_IMAGES = 100  # of an episode, for its statistics
_SIDE = 150
_NAMES = tuple(f"q{round(100 * quantile):02d}" for quantile in _QUANTILES)

Stats = Mapping[str, Array]  # min, max, mean, std, count, q01, q10, q50, q90, q99


@dataclass(frozen=True)
class EncodedEpisode:
    """The part of an episode's rows that depends on no other episode.

    Attributes:
      columns: feature -> [rows], in the order of the table; without those that count through the dataset.
      tasks: the task of each row, or the one of all rows.
      metadata: further columns of meta/episodes.
      fps: rows per second, from the option or from this episode.
    """

    rows: int
    columns: Mapping[str, pa.Array]
    stats: Mapping[str, Stats]
    tasks: list[str]
    metadata: Mapping[str, Any]
    fps: int
    losses: tuple[Loss, ...]


def encode_episode(plan: LeRobotPlan, episode: Episode) -> EncodedEpisode:
    """Encodes what depends on this episode alone: its columns, statistics and tasks."""
    steps = episode.columns
    rows = len(episode) if plan.choices.last_step == KEEP else len(episode) - 1
    losses = [] if rows == len(episode) else list(_last_row_losses(steps, plan, rows))
    columns: dict[str, pa.Array] = {}
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
        columns[feature.name], is_changed = _arrow_column(feature, written)
        changed += [feature.path] if is_changed else []
        if feature.kind in (PIXELS, FILES):
            sample = written[np.unique(np.linspace(0, rows - 1, min(rows, _MOST_IMAGES)).round().astype(int))]
            pixels = sample if feature.kind == PIXELS else decode_images(sample, feature.spec, exact=True)
            stats[feature.name] = _stats_of_images(pixels)
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
    fps = plan.choices.fps or (_fps_of(episode) if plan.has_time else plan.fps)
    return EncodedEpisode(rows, columns, stats, tasks, metadata, fps, tuple(losses))


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


def _fps_of(episode: Episode) -> int:
    steps = np.diff(episode.columns[TIMESTAMP].astype(np.float64))
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    return max(1, round(1 / step)) if step and np.isfinite(step) else DEFAULT_FPS


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


def _stats_of_images(pixels: Array) -> dict[str, Array]:
    """Statistics of [n, height, width, channels] uint8: [channels, 1, 1]."""
    step = max(1, math.ceil(max(pixels.shape[1:3]) / _SIDE))
    stats = _stats(pixels[:, ::step, ::step].reshape(-1, pixels.shape[3]), len(pixels))
    return {name: values if name == "count" else values.reshape(-1, 1, 1) / 255 for name, values in stats.items()}


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
