"""Files of statistics: this package's own, and those of LeRobot, openpi, OpenVLA and Octo.

| form | usual name | content |
| --- | --- | --- |
| `rlds2reverb` | any other | everything, histograms too, so that files of days and sets are merged with their quantiles |
| `lerobot` | `stats.json` | feature -> min, max, mean, std, count, q01, q10, q50, q90, q99, for each place of the last axis; images [channels, 1, 1] in [0, 1] |
| `openpi` | `norm_stats.json` | {"norm_stats": {key: mean, std, q01, q99}}; `state` and `actions`, other columns by their paths |
| `octo` | `dataset_statistics_HASH.json` | action, proprio: mean, std, max, min, q01, q99, mask where there is one; num_transitions, num_trajectories |
| `openvla` | `dataset_statistics.json` | dataset -> the same |

Sources: lerobot 0.6.1, compute_stats.py and io_utils.py; openpi, shared/normalize.py; openvla, vla/datasets/rlds/utils/data_utils.py.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Array, Notice
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.files import read_object, whole_or_none, writing
from rlds2reverb.numbers.columns import QUANTILES, ColumnStatistics, StatisticsContent, mask_of, quantile_name
from rlds2reverb.numbers.distributions import Histograms
from rlds2reverb.plain import members
from rlds2reverb.text import did_you_mean, shortened
from rlds2reverb.versions import FormatVersion, program_version

OWN, LEROBOT, OPENPI, OPENVLA, OCTO = "rlds2reverb", "lerobot", "openpi", "openvla", "octo"
FORMS = (OWN, LEROBOT, OPENPI, OPENVLA, OCTO)

_PROPRIO = "proprio"

_MOST_BYTES = 256 << 20
_SUMMARY = "statistics of rlds2reverb"
VERSION = FormatVersion("a file of statistics", 1, way_out="make the file anew")


def form_of(path: Path) -> str:
    """The form that a file of this name usually has."""
    if path.name == "stats.json":
        return LEROBOT
    if path.name == "norm_stats.json":
        return OPENPI
    if path.name == "dataset_statistics.json":
        return OPENVLA
    return OCTO if re.fullmatch(r"dataset_statistics_.+\.json", path.name) else OWN


def check_form(form: str) -> None:
    if form not in FORMS:
        raise ConfigError(f'form of statistics "{form}": expected one of {", ".join(FORMS)}{did_you_mean(form, FORMS)}')


def check_columns(form: str, paths: Collection[str], names: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raises `ConfigError` for a form that needs a column that is not among these, or does not have these names."""
    if names and form == OWN:
        raise ConfigError(
            f"names (--statistics-names): a file of the form {form} has all columns by their paths; leave them out"
        )
    if form in (OPENVLA, OCTO) and (unknown := sorted(names.keys() - {ACTION, _PROPRIO})):
        raise ConfigError(
            f"names (--statistics-names): {', '.join(unknown)}: statistics of OpenVLA and Octo are of {ACTION} and {_PROPRIO}"
            f"{did_you_mean(unknown[0], (ACTION, _PROPRIO))}"
        )
    for key, column in names.items():
        if column not in paths:
            raise ConfigError(
                f'names (--statistics-names): "{key}" is column "{column}", which has no statistics; there are {", ".join(paths)}{did_you_mean(column, paths)}'
            )
    if form in (OPENVLA, OCTO) and ACTION not in names and ACTION not in paths:
        raise ConfigError(
            f'statistics of OpenVLA and Octo need one column "{ACTION}"; there are {", ".join(paths)}: make it with a transform (join), or name '
            'the column: names={"action": PATH} (--statistics-names action=PATH)'
        )


def write_statistics(statistics: StatisticsContent, path: Path, form: str, names: Mapping[str, str]) -> None:
    """See `DatasetStatistics.write`."""
    chosen = form or form_of(path)
    check_form(chosen)
    check_columns(chosen, statistics.columns, names)
    document = _WRITERS[chosen](statistics, names)
    text = json.dumps(document, indent=None if chosen == OWN else 4, ensure_ascii=False, allow_nan=False)
    with writing(path, "choose another file for the statistics"), whole_or_none(path) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")


def write_datasets(statistics: Mapping[str, StatisticsContent], path: Path) -> None:
    """Writes the statistics of several datasets as OpenVLA keeps them, {name: action, proprio, ...}; raises as `write_statistics`."""
    for own in statistics.values():
        check_columns(OPENVLA, own.columns)
    document = {name: _octo_document(own, {}) for name, own in statistics.items()}
    text = json.dumps(document, indent=4, ensure_ascii=False, allow_nan=False)
    with writing(path, "choose another file for the statistics"), whole_or_none(path) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")


def read_statistics(path: Path, dataset: str = "") -> StatisticsContent:
    """See `DatasetStatistics.read`."""
    expected = "a file of statistics: rlds2reverb's, stats.json, norm_stats.json or dataset_statistics.json"
    document = read_object(path, expected, _MOST_BYTES)
    try:
        return _read_document(document, path, dataset, expected)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, zlib.error) as error:
        words = shortened(" ".join(f"{type(error).__name__}: {error}".split()))
        raise SourceError(f"{path}: no statistics ({words}); expected {expected}") from error


def _read_document(document: dict[str, Any], path: Path, dataset: str, expected: str) -> StatisticsContent:
    if _SUMMARY in document:
        return _read_own(document, path)
    if isinstance(document.get("norm_stats"), dict):
        read = _read_columns(document["norm_stats"], _OPENPI_PATHS.get)
        return StatisticsContent(read, path.stem)
    if "num_transitions" in document and isinstance(document.get("action"), dict):
        return _read_openvla(document, path.stem)
    are_sets = {
        name: entry
        for name, entry in document.items()
        if isinstance(entry, dict) and isinstance(entry.get("action"), dict) and "mean" in entry["action"]
    }
    if are_sets:
        if dataset not in are_sets and (dataset or len(are_sets) > 1):
            found = f'dataset "{dataset}" is not in it' if dataset else "several datasets"
            raise ConfigError(
                f"{path}: {found}; choose dataset=... of {', '.join(are_sets)}{did_you_mean(dataset, are_sets) if dataset else ''}"
            )
        name = dataset or next(iter(are_sets))
        return _read_openvla(are_sets[name], name)
    if document and all(isinstance(entry, dict) and "mean" in entry for entry in document.values()):
        return StatisticsContent(_read_columns(document, lambda name: _lerobot_path(name, document)), path.stem)
    raise SourceError(f"{path}: expected {expected}; found the keys {shortened(', '.join(document)) or 'of none'}")


# Ours.


def _own_document(statistics: StatisticsContent, _: Mapping[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = {_SUMMARY: VERSION.version, "program": program_version(), **members(statistics)}
    for path, column in statistics.columns.items():
        entry = document["columns"][path]
        if column.mask is not None:
            entry["mask"] = column.mask.ravel().tolist()
        if column.histograms is not None:
            entry["histogram"] = _histogram_document(column.histograms)
    document["left_out"] = [notice.as_dict() for notice in statistics.left_out]
    return document


def _histogram_document(histograms: Histograms) -> dict[str, Any]:
    """The counts as base64 of zlib of little-endian int64, the filled bins of one dimension after the other."""
    spans = []
    filled = []
    for counts in histograms.counts:
        places = np.flatnonzero(counts)
        start, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        spans.append([start, stop])
        filled.append(counts[start:stop])
    packed = zlib.compress(np.concatenate([np.zeros(0, np.int64), *filled]).astype("<i8").tobytes())
    return {
        "bins": histograms.bins,
        "is_whole": histograms.is_whole,
        "exponents": histograms.exponents.tolist(),
        "firsts": histograms.firsts.tolist(),
        "filled": spans,
        "counts": base64.b64encode(packed).decode(),
    }


def _read_own(document: dict[str, Any], path: Path) -> StatisticsContent:
    if refusal := VERSION.refusal(path, document[_SUMMARY], document.get("program")):
        raise SourceError(refusal)
    columns = {}
    for name, entry in document["columns"].items():
        column = _read_column(entry, tuple(map(int, entry["shape"])), entry["dtype"], bool(entry["is_image"]))
        if "histogram" in entry:
            column = replace(column, histograms=_read_histograms(entry["histogram"], column))
        columns[name] = column
    left_out = tuple(
        Notice(note["code"], note["text"], int(note["count"]), note["path"], is_note=True)
        for note in document["left_out"]
    )
    counts = int(document["trajectories"]), int(document["transitions"])
    return StatisticsContent(columns, str(document["source"]), str(document["view"]), *counts, left_out)


def _read_histograms(entry: Mapping[str, Any], column: ColumnStatistics) -> Histograms:
    dimensions = column.mean.size
    bins = int(entry["bins"])
    if not 2 <= bins <= 1 << 16 or bins & (bins - 1) or bins * dimensions > 1 << 27:
        raise ValueError(f"{bins} bins of {dimensions} dimensions")
    histograms = Histograms(dimensions, bool(entry["is_whole"]), bins)
    unpacked = zlib.decompressobj().decompress(base64.b64decode(entry["counts"]), 8 * bins * dimensions)
    counts, at = np.frombuffer(unpacked, "<i8").astype(np.int64), 0
    for dimension, (start, stop) in enumerate(entry["filled"]):
        histograms.counts[dimension, start:stop] = counts[at : at + stop - start]
        at += stop - start
    if at != len(counts) or (histograms.counts.sum(axis=1) != column.count.ravel()).any():
        raise ValueError("counts of a histogram are not those of its column")
    is_empty = column.count.ravel() == 0
    histograms.low = np.where(is_empty, np.inf, column.min.ravel())
    histograms.high = np.where(is_empty, -np.inf, column.max.ravel())
    histograms.exponents = np.array(entry["exponents"], np.int64).reshape(dimensions)
    histograms.firsts = np.array(entry["firsts"], np.int64).reshape(dimensions)
    return histograms


# LeRobot's.

_LEROBOT_NAMES = {OBSERVATION: "observation.state", REWARD: "next.reward"}


def lerobot_document(statistics: StatisticsContent, names: Mapping[str, str]) -> dict[str, Any]:
    """Feature -> statistic -> numbers, as meta/stats.json; `names`: feature -> column, where it is not the path with dots."""
    usual = {path: _LEROBOT_NAMES.get(path, path.replace("/", ".")) for path in statistics.columns}
    usual = {path: name for path, name in usual.items() if name not in names}
    usual |= {path: name for name, path in names.items()}
    return {
        name: _numbers_document(
            _by_last_axis(statistics.columns[path]), ("min", "max", "mean", "std", "count"), QUANTILES
        )
        for path, name in usual.items()
        if _is_known(statistics.columns[path])
    }


def _by_last_axis(column: ColumnStatistics) -> ColumnStatistics:
    """As LeRobot has them: for each place of the last axis; (1,) for one number; [channels, 1, 1] of images, which are in [0, 1]."""
    if column.is_image:
        scale = 255.0 if column.dtype == "uint8" else 1.0
        shape = (*column.shape, 1, 1)
    elif len(column.shape) > 1:
        flat = _with_shape(column, (math.prod(column.shape[:-1]), column.shape[-1]))
        return ColumnStatistics.merge([flat.at(row) for row in range(flat.shape[0])])
    else:
        scale, shape = 1.0, column.shape or (1,)
    return _with_shape(column, shape, scale)


def _with_shape(column: ColumnStatistics, shape: tuple[int, ...], scale: float = 1.0) -> ColumnStatistics:
    def shaped(values: Array) -> Array:
        return values.reshape(shape)

    return replace(
        column,
        mean=shaped(column.mean / scale),
        std=shaped(column.std / scale),
        min=shaped(column.min / scale),
        max=shaped(column.max / scale),
        quantile_error=shaped(column.quantile_error / scale),
        quantiles={share: shaped(values / scale) for share, values in column.quantiles.items()},
        count=shaped(column.count),
        not_finite=shaped(column.not_finite),
        mask=None if column.mask is None else shaped(column.mask),
    )


def _lerobot_path(name: str, names: Collection[str]) -> str | None:
    """As the source `lerobot:` calls the column: a feature below another feature keeps its dot."""
    if name == _LEROBOT_NAMES[REWARD]:
        return REWARD
    first, *below = name.split(".")
    if first not in (OBSERVATION, ACTION) or not all(below):
        return None
    path = upper = first
    for part in below:
        path += f"{'.' if upper in names else '/'}{part}"
        upper += f".{part}"
    return path


# openpi's.

_OPENPI_KEYS = {ACTION: "actions", f"{OBSERVATION}/state": "state"}
_OPENPI_PATHS = {key: path for path, key in _OPENPI_KEYS.items()}


def _openpi_document(statistics: StatisticsContent, names: Mapping[str, str]) -> dict[str, Any]:
    usual = dict(_OPENPI_KEYS)
    if usual[f"{OBSERVATION}/state"] not in names and f"{OBSERVATION}/state" not in statistics.columns:
        usual |= {_proprio(statistics): "state"}
    keys = {path: usual.get(path, path) for path in statistics.columns}
    keys = {path: key for path, key in keys.items() if key not in names} | {path: key for key, path in names.items()}
    return {
        "norm_stats": {
            key: _numbers_document(_by_last_axis(statistics.columns[path]), ("mean", "std"), (0.01, 0.99))
            for path, key in keys.items()
            if _is_known(statistics.columns[path]) and not statistics.columns[path].is_image
        }
    }


# OpenVLA's and Octo's.

_OPENVLA_PATHS = {_PROPRIO: f"{OBSERVATION}/{_PROPRIO}"}
_STATES = (f"{OBSERVATION}/{_PROPRIO}", f"{OBSERVATION}/state", OBSERVATION)
"""Columns that are a robot's state, the first that there is."""


def _proprio(statistics: StatisticsContent) -> str:
    return next((path for path in _STATES if path in statistics.columns and not statistics.columns[path].is_image), "")


def _octo_document(statistics: StatisticsContent, names: Mapping[str, str]) -> dict[str, Any]:
    action = names.get(ACTION, ACTION)
    proprio = names.get(_PROPRIO) or _proprio(statistics)
    columns = {ACTION: _by_last_axis(statistics.columns[action])}
    # Without a state OpenVLA's loader has zeros as wide as the action, and reads this entry.
    columns[_PROPRIO] = _by_last_axis(statistics.columns[proprio]) if proprio else _zeros_like(columns[ACTION])
    if empty := [key for key, column in columns.items() if not (column.count > 0).all()]:
        raise ConfigError(f"statistics of {', '.join(empty)}: no finite value in a dimension")
    return {
        **{
            key: {
                **_numbers_document(column, ("mean", "std", "max", "min"), (0.01, 0.99)),
                **({} if column.mask is None else {"mask": column.mask.tolist()}),
            }
            for key, column in columns.items()
        },
        "num_transitions": statistics.transitions,
        "num_trajectories": statistics.trajectories,
    }


def _zeros_like(column: ColumnStatistics) -> ColumnStatistics:
    zeros = np.zeros(column.shape)
    return replace(
        column, mean=zeros, std=zeros, min=zeros, max=zeros, quantiles=dict.fromkeys(QUANTILES, zeros), mask=None
    )


def _openvla_document(statistics: StatisticsContent, names: Mapping[str, str]) -> dict[str, Any]:
    name = re.split(r"[/\\:]", re.sub(r"[?#].*", "", statistics.source).rstrip("/\\"))[-1]
    return {name or "dataset": _octo_document(statistics, names)}


def _read_openvla(document: Mapping[str, Any], source: str) -> StatisticsContent:
    columns = {name: entry for name, entry in document.items() if isinstance(entry, dict) and "mean" in entry}
    counts = int(document.get("num_trajectories", 0)), int(document.get("num_transitions", 0))
    read = _read_columns(columns, _OPENVLA_PATHS.get, counts[1])
    return StatisticsContent(read, source, "", *counts)


# What they have in common.

Document = Callable[[StatisticsContent, Mapping[str, str]], dict[str, Any]]

_WRITERS: Mapping[str, Document] = {
    OWN: _own_document,
    LEROBOT: lerobot_document,
    OPENPI: _openpi_document,
    OPENVLA: _openvla_document,
    OCTO: _octo_document,
}


def _is_known(column: ColumnStatistics) -> bool:
    return bool(column.mean.size) and not np.isnan(column.mean).any()


def _numbers_document(column: ColumnStatistics, names: Sequence[str], shares: Sequence[float]) -> dict[str, Any]:
    quantiles = {
        quantile_name(share): column.quantiles[share].tolist()
        for share in shares
        if share in column.quantiles and np.isfinite(column.quantiles[share]).all()
    }
    numbers = {name: getattr(column, name) for name in names}
    if "count" in numbers:  # LeRobot's is one number for all dimensions
        numbers["count"] = column.count.max(keepdims=True).reshape(1)
        if not numbers["count"].any():  # not known, as of openpi's files
            del numbers["count"]
    return {**{name: values.tolist() for name, values in numbers.items() if np.isfinite(values).all()}, **quantiles}


def _read_columns(
    document: Mapping[str, Any], path_of: Callable[[str], str | None], count: int = 0
) -> dict[str, ColumnStatistics]:
    columns: dict[str, ColumnStatistics] = {}
    for name, entry in document.items():
        shape = np.asarray(entry["mean"], np.float64).shape
        is_image = len(shape) == 3 and shape[1:] == (1, 1)
        path = path_of(name) or name
        columns[path] = _read_column(entry, shape[:1] if is_image else shape, "float32", is_image, count)
    return columns


def _read_column(
    entry: Mapping[str, Any], shape: tuple[int, ...], dtype: str, is_image: bool, count: int = 0
) -> ColumnStatistics:
    def numbers(name: str) -> Array:
        found = entry.get(name)
        return np.full(shape, np.nan) if found is None else np.array(found, np.float64).reshape(shape)

    def counts(name: str, default: int) -> Array:
        values = np.array(entry.get(name, default), np.int64).reshape(-1)
        if (values < 0).any():
            raise ValueError(f"{name} below 0")
        return np.array(np.broadcast_to(values, math.prod(shape)) if len(values) == 1 else values).reshape(shape)

    quantiles = {share: numbers(quantile_name(share)) for share in QUANTILES if quantile_name(share) in entry}
    mask = entry.get("mask")
    return ColumnStatistics(
        mean=numbers("mean"),
        std=numbers("std"),
        min=numbers("min"),
        max=numbers("max"),
        quantile_error=numbers("quantile_error"),
        quantiles=quantiles,
        count=counts("count", count),
        not_finite=counts("not_finite", 0),
        dtype=str(dtype),
        is_image=is_image,
        mask=None if mask is None else mask_of("mask", np.reshape(mask, shape), shape),
    )
