"""Mixture files: which datasets are mixed, by which weights, and what makes them alike.

```yaml
sets:
  - {source: "tfds:bridge_dataset", name: bridge_orig, weight: 1.0, transform: open_x/bridge_orig}
  - {source: "tfds:taco_play", name: taco_play, weight: 2.0, transform: open_x/taco_play, where: "length>=10"}
balance: true
last_step: repeat
transform: {resize: {observation/image_primary: "224x224:lanczos3"}}
normalize: {by: set, mode: quantiles, clip: true}
view: "chunk:history=2,horizon=16"
```

A set's share of the samples is its weight, times its number of transitions with `balance`, divided by the sum over all sets, as in OpenVLA and Octo
(`make_interleaved_dataset`; prismatic/vla/datasets/rlds/dataset.py, octo/data/dataset.py). Transitions are those that learners see: the rows without
the last one of each episode. Episodes that validation refuses count as well: they are found while they are read, and what becomes of them
(`on_invalid`) is not the mixture's to say.

A mixture is read in two ways. As a source (`Mixture.source`, the name `mix:FILE.yaml`) episodes are drawn so that transitions have these shares:
`formats.mix` with weights of episodes. A learner's mix (`learner.mix`) draws each sample by the shares themselves.

What is done to a set, in this order: its filters, `map`, its own transform, the transform of all sets, `last_step`, `reward_last` of the
transforms, and normalisation.

Of a set whose columns are changed here (transform, map, normalisation) episodes have a digest of that behind their names, so that the keys of
items differ where the items do. The numbers that normalise are part of it: with statistics that are counted anew a grown set gets other names. All episodes have the metadata `dataset_name`, the name of their set.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlds2reverb import hooks
from rlds2reverb.episode import (
    ACTION,
    OBSERVATION,
    Array,
    Episode,
    KnownEpisode,
    Notice,
    is_under,
    note,
)
from rlds2reverb.errors import ConfigError, SourceError, ViewError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import Rules, filtered, share_findings
from rlds2reverb.formats.last_step import LAST_STEP, LastStep, decides_last_row, has_added_row
from rlds2reverb.formats.mapped import mapped
from rlds2reverb.formats.mix import COLUMNS, EQUAL, Draw, MixedSource
from rlds2reverb.formats.options import (
    read_options,
    split_options,
    unescape_text,
    whole_number,
    words,
)
from rlds2reverb.formats.source import Finding, IsKnown, Source, Without, Wrapper, columns_of
from rlds2reverb.formats.transform import AS_RECORDED, SHIFT, SHIPPED, Transform, TransformLike, transform_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.images import kind
from rlds2reverb.numbers.forms import write_datasets
from rlds2reverb.numbers.normalizer import MEAN_STD, MODES, ColumnNormalizer, Normalizer
from rlds2reverb.numbers.statistics import DatasetStatistics
from rlds2reverb.prepare.checks import check_first_reward
from rlds2reverb.prepare.conventions import LAST_STEPS, REPEAT, ConventionKeywords, Conventions
from rlds2reverb.prepare.options import ReadingOptions
from rlds2reverb.specs import ArraySpec, Nest, flatten, is_float, nested
from rlds2reverb.text import counted, did_you_mean, shortened
from rlds2reverb.views import view_from
from rlds2reverb.views.base import View

T = TypeVar("T")

_KNOWN = "_known"

BY_SET = "set"
NORMALIZED_BY = (BY_SET, "merged")

DATASET_NAME = "dataset_name"
"""Metadata of every episode of a mixture, as Octo and OpenVLA call it."""

_CONVENTIONS = frozenset(ConventionKeywords.__annotations__)
_READING = (
    LAST_STEP,
    *(option.name for option in fields(ReadingOptions) if option.name not in _CONVENTIONS),
)
_OF_ALL_SETS = ("transform", "statistics", *_READING)
_OF_A_SET = ("source", "name", "weight", *_OF_ALL_SETS)
_OF_A_MIXTURE = ("sets", "balance", "normalize", "seed", "length", "columns", "view", "shuffle", *_OF_ALL_SETS)


def _number_of(value: Any) -> float:
    """A number of a file as a float: NaN for what is no number, infinity for a whole number beyond every float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _are_paths(value: Any) -> bool:
    return bool(value) and all(isinstance(path, str) and path for path in value)


_NORMALIZED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "mode": ("a mode, or at least one column: mode", lambda value: isinstance(value, str) or _are_paths(value)),
    "columns": (
        "the path of a column, or a list of paths",
        lambda value: isinstance(value, (str, list, tuple)) and _are_paths(value),
    ),
    "masks": (
        "column: list of true and false",
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(path, str) and isinstance(mask, (list, tuple)) for path, mask in value.items())
        ),
    ),
    "clip": (
        "true, false or a number above 0",
        lambda value: isinstance(value, bool) or 0 < _number_of(value) < math.inf,
    ),
    "epsilon": ("a number of at least 0", lambda value: 0 <= _number_of(value) < math.inf),
}
"""Options of `Normalization` -> what is expected, and whether a value is that; `by` and the names of modes have their own words."""


@dataclass(frozen=True)
class Normalization:
    """How columns are normalised before the sets are mixed; see `Normalizer` for the rest.

    Attributes:
      by: "set": each set by its own statistics; "merged": all by the statistics of all values together.
      mode, columns, masks, clip, epsilon: of `Normalizer`.
    """

    by: str = BY_SET
    mode: str | Mapping[str, str] = MEAN_STD
    columns: tuple[str, ...] | None = None
    masks: Mapping[str, Any] = field(default_factory=dict)
    clip: bool | float = False
    epsilon: float = 1e-8

    @staticmethod
    def of(written: Any, where: str) -> Normalization:
        """From what YAML gives: "set" or "merged" alone, or a mapping. Raises ConfigError."""
        written = {"by": written} if isinstance(written, str) else written
        _check_keys(written, tuple(option.name for option in fields(Normalization)), where)
        values = dict(written)
        if values.get("by", BY_SET) not in NORMALIZED_BY:
            raise ConfigError(
                f"{where}.by: {values['by']!r}: expected one of {', '.join(NORMALIZED_BY)}{did_you_mean(str(values['by']), NORMALIZED_BY)}"
            )
        mode = values.get("mode", MEAN_STD)
        for name in mode.values() if isinstance(mode, Mapping) else [mode]:
            if name not in MODES:
                raise ConfigError(
                    f"{where}.mode: {name!r}: expected one of {', '.join(MODES)}{did_you_mean(str(name), MODES)}"
                )
        columns = values.get("columns")
        if columns is not None and isinstance(mode, Mapping):
            raise ConfigError(f"{where}.columns: mode names the columns already; leave one of them out")
        for key, (expected, fits) in _NORMALIZED.items():
            if key in values and not fits(values[key]):
                raise ConfigError(f"{where}.{key}: expected {expected}, got {shortened(repr(values[key]))}")
        if columns is not None:
            values["columns"] = _texts_of(columns)
        return Normalization(**values)

    def paths(self, columns: Mapping[str, ArraySpec]) -> tuple[str, ...]:
        """The columns that are normalised, of steps of these; by default actions and observations of floats that are no images."""
        if isinstance(self.mode, Mapping):
            return tuple(self.mode)
        if self.columns is not None:
            return self.columns
        return tuple(
            path
            for path, spec in columns.items()
            if (is_under(path, ACTION) or is_under(path, OBSERVATION)) and is_float(spec.dtype) and not kind(spec)
        )

    def make(self, statistics: DatasetStatistics, paths: Sequence[str]) -> Normalizer:
        if isinstance(self.mode, str):
            return Normalizer(statistics, self.mode, list(paths), self.masks, self.clip, self.epsilon)
        return Normalizer(statistics, self.mode, None, self.masks, self.clip, self.epsilon)


@dataclass(frozen=True)
class MixtureSet:
    """One dataset of a mixture.

    Attributes:
      name: in messages, in the metadata `dataset_name`, and in files of statistics.
      source: the name of the dataset.
      weight: as written.
      options: filters, map and last_step.
      transforms: of its columns, one after the other: its own, and that of all sets.
      statistics: a file of them; None where they are counted when they are needed.
    """

    name: str
    source: str
    weight: float = 1.0
    options: ReadingOptions = ReadingOptions()
    transforms: tuple[Transform, ...] = ()
    statistics: Path | None = None

    @property
    def shifts_rewards(self) -> bool:
        """Whether a transform says that rewards are recorded with the observation that they led to."""
        return any(transform.reward_last == SHIFT for transform in self.transforms)

    @property
    def columns_label(self) -> str:
        """What is done to columns, beside `last_step`, which names episodes itself; "" for nothing."""
        labels = [transform.label for transform in self.transforms if transform.changes_columns]
        labels += [f"reward_last={SHIFT}"] if self.shifts_rewards else []
        function = self.options.chosen_map
        return json.dumps([None if function is None else function.label, *labels]) if function or labels else ""

    @property
    def label(self) -> str:
        """Equal where the same is read."""
        return json.dumps([self.source, self.options.filter_label, self.options.last_step, self.columns_label])


@dataclass(frozen=True)
class Mixture:
    """Datasets that are mixed, as a file or a mapping says it.

    >>> import rlds2reverb
    >>> mixture = rlds2reverb.Mixture.of({"sets": [{"source": "bundled:cartpole"}, {"source": "bundled:cartpole@train[:5]", "weight": 2}]})
    >>> {name: round(share, 2) for name, share in mixture.shares().items()}
    {'bundled:cartpole': 0.33, 'bundled:cartpole@train[:5]': 0.67}

    Attributes:
      where: the file, or what messages call the mapping.
      sets: in their order.
      balance: whether weights are multiplied by the sets' numbers of transitions.
      normalization: before the sets are mixed; None to leave values as they are.
      seed: of the draws.
      length: of the source: so many episodes, sets beginning again at their ends; None for every episode once.
      columns: "equal", or "common" for the columns that all sets have alike, see `MixedSource`.
      view: of the items; None where the file says none.
      shuffle: of each set in a learner's mix, as of `local`.
      statistics: a file with the statistics of all sets, by their names, or merged; None where each set says, or they are counted.
    """

    where: str
    sets: tuple[MixtureSet, ...]
    balance: bool = False
    normalization: Normalization | None = None
    seed: int = 0
    length: int | None = None
    columns: str = EQUAL
    view: View | None = None
    shuffle: int | bool | str = 0
    statistics: Path | None = None

    @staticmethod
    def read(path: str | Path) -> Mixture:
        """Reads a mixture file, also by its name `mix:FILE.yaml?OPTIONS`; opens no dataset.

        Raises:
          ConfigError: it cannot be read, or makes no sense; says where, what was expected and what came.
        """
        if isinstance(path, Path):
            return _of_file(path, {})
        text, options = split_options(path.removeprefix("mix:"))
        values = read_options(path, options, _OPTIONS, ConfigError)
        return _of_file(_expanded(unescape_text(text), path), values)

    @staticmethod
    def of(config: Mapping[str, Any], where: str = "mixture", folder: str | Path = ".") -> Mixture:
        """From what such a file holds. Raises as `read`.

        Args:
          config: keys as in a file.
          where: what messages call it.
          folder: that the names of transforms, `keep_ranges`, `exclude` and `statistics` are relative to. A `source`, and the module of `map` or
            `filter`, are relative to the process's folder, as on a command line.
        """
        return _of_mapping(config, where, Path(folder))

    def __getstate__(self) -> dict[str, Any]:
        """For workers: what was found out comes with it, and each opens the sets anew."""
        findings = self._opened.store.all if "_opened" in vars(self) else vars(self).get(_KNOWN, {})
        return {**{option.name: getattr(self, option.name) for option in fields(self)}, _KNOWN: findings}

    @cached_property
    def _opened(self) -> _OpenMixture:
        return _OpenMixture(self)

    def source(self) -> MixedSource:
        """The episodes of all sets, mixed, as a push of `mix:FILE.yaml` reads them.

        Raises:
          SourceError: a set cannot be opened.
        """
        return MixtureSource(self._opened)

    def sources(self) -> dict[str, Source]:
        """Name -> the episodes of a set as they are mixed: filtered, transformed, normalised."""
        return {part.name: part for part in self._opened.parts}

    def shares(self) -> dict[str, float]:
        """Name -> share of the samples.

        Raises:
          SourceError: a set has no transitions, or its steps differ from those of the others; the message says in which columns.
        """
        self.source().spec()
        return dict(zip(self._opened.names, self._opened.shares))

    def transitions(self) -> dict[str, int]:
        """Name -> number of transitions that learners see, with those of bad episodes, which may be left out later (`on_invalid`). Raises as `shares`."""
        return {part.name: transitions for part, (_, transitions) in zip(self._opened.parts, self._opened.counts)}

    def normalizers(self) -> dict[str, Normalizer]:
        """Name -> what a set is normalised by, and a policy's actions are brought back by; {} without `normalize`. Counts statistics that no file has."""
        return {part.name: part.normalizer for part in self._opened.parts if part.normalizer is not None}

    def dataset_statistics(self) -> dict[str, DatasetStatistics]:
        """Name -> the statistics of a set before it is normalised; counts those that no file has."""
        return {part.name: part.statistics for part in self._opened.parts}

    def write_statistics(self, path: str | Path) -> None:
        """Writes the statistics that sets are normalised by, which the key `statistics` reads: of each set as OpenVLA keeps them (dataset_statistics.json),
        or the merged ones. Counts those that no file has.

        Raises:
          ConfigError: a set has no column `action`, which OpenVLA's form needs.
          WriteError: the file cannot be written.
        """
        if self.normalization is not None and self.normalization.by != BY_SET:
            self._opened.merged.write(path)
        else:
            write_datasets(self.dataset_statistics(), Path(path))


_OPTIONS = {"seed": whole_number, "length": whole_number, "columns": words(*COLUMNS), LAST_STEP: words(*LAST_STEPS)}
"""The options of a mixture in its name, which go before those in the file."""


def open_mixture(name: str) -> MixedSource:
    """Opens `mix:FILE.yaml?OPTIONS`. Raises `SourceError`, which says what makes no sense."""
    try:
        mixture = Mixture.read(name)
        with _opening(mixture.where):
            return mixture.source()
    except (ConfigError, ViewError) as error:
        raise SourceError(str(error)) from error


# By context: two threads may open one file at the same time, which is no file within itself.
_being_opened: ContextVar[tuple[Path, ...]] = ContextVar("being_opened", default=())


@contextmanager
def _opening(where: str) -> Iterator[None]:
    """While the sets of a mixture file are opened. Raises `SourceError` where that is being done already: the file is one of its own sets."""
    file, around = Path(where).resolve(), _being_opened.get()
    if file in around:
        chain = " > ".join(map(str, (*around[around.index(file) :], file)))
        raise SourceError(f"{where}: contains itself: {chain}; take one of these sets out of its file")
    token = _being_opened.set((*around, file))
    try:
        yield
    finally:
        _being_opened.reset(token)


# Reading the file.


def _of_file(path: Path, options: Mapping[str, Any]) -> Mixture:
    shipped = SHIPPED / "open_x" / "mixtures" / path.name
    # A file of this name goes before the shipped one, as with transforms.
    if path.parent == Path("open_x") and not _exists(path) and _exists(shipped):
        path = shipped
    from rlds2reverb import strict_yaml  # loads PyYAML

    config = strict_yaml.read(path, "; expected a YAML file of a mixture")
    if isinstance(config, Mapping):
        config = {**config, **options}
    return _of_mapping(config, str(path), path.parent)


def _check_keys(config: Any, keys: Collection[str], where: str) -> None:
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where}: expected a mapping with {', '.join(keys)}, got {shortened(repr(config))}")
    for key, value in config.items():
        if key not in keys:
            raise ConfigError(
                f'{where}: unknown key "{key}"; there are: {", ".join(keys)}{did_you_mean(str(key), keys)}'
            )
        if value is None:
            raise ConfigError(f"{where}: {key} has no value; leave it out")


def _of_mapping(config: Any, where: str, folder: Path) -> Mixture:
    _check_keys(config, _OF_A_MIXTURE, where)
    sets = config.get("sets")
    if not isinstance(sets, (list, tuple)) or not sets:
        raise ConfigError(
            f"{where}: sets: expected a list of one set or more, each with source: NAME; got {shortened(repr(sets))}"
        )
    for_all = {key: config[key] for key in (*_READING, "transform") if key in config}
    parts = tuple(_set_of(entry, for_all, f"{where}: sets[{number}]", folder) for number, entry in enumerate(sets))
    names, labels = [part.name for part in parts], [part.label for part in parts]
    for number, (name, label) in enumerate(zip(names, labels)):
        if name in names[:number] or label in labels[:number]:
            first = parts[names.index(name) if name in names[:number] else labels.index(label)]
            raise ConfigError(
                f'{where}: sets[{number}]: "{name}" is there twice ({first.source}); give one entry the weight of both, or other filters and names'
            )
    values: dict[str, Any] = {}
    for key, (expected, fits) in _PLAIN.items():
        if key in config:
            if not fits(config[key]):
                raise ConfigError(f"{where}: {key}: expected {expected}, got {shortened(repr(config[key]))}")
            values[key] = config[key]
    if "normalize" in config:
        values["normalization"] = Normalization.of(config["normalize"], f"{where}: normalize")
    if "view" in config:
        try:
            values["view"] = view_from(config["view"])
        except ViewError as error:
            raise ViewError(f"{where}: {error}") from error
    statistics = _file_beside(config["statistics"], folder, f"{where}: statistics") if "statistics" in config else None
    normalization: Normalization | None = values.get("normalization")
    for place, file in ((where, statistics), *((f'{where}: set "{part.name}"', part.statistics) for part in parts)):
        if file is None:
            continue
        if normalization is None:
            raise ConfigError(f"{place}: statistics go with normalize, which says how; leave one out or add the other")
        if statistics not in (None, file) and normalization.by != BY_SET:
            raise ConfigError(
                f"{place}: statistics: those of the mixture are the merged ones already; leave one of the two out"
            )
    return Mixture(where, parts, statistics=statistics, **values)


_LEAST_WEIGHT, _MOST_WEIGHT = 1e-100, 1e100
"""Of a set, so that with any numbers of transitions each share of the samples is above 0, and their sum finite."""


def _set_of(entry: Any, for_all: Mapping[str, Any], where: str, folder: Path) -> MixtureSet:
    entry = {"source": entry} if isinstance(entry, str) else entry
    _check_keys(entry, _OF_A_SET, where)
    values = {**for_all, **entry}
    written = [entry.get("transform", ()), for_all.get("transform", ())]
    source, weight = values.get("source"), values.get("weight", 1.0)
    if not isinstance(source, str) or not source:
        raise ConfigError(f"{where}: source: expected the name of a dataset, such as tfds:NAME, got {source!r}")
    if not _LEAST_WEIGHT <= _number_of(weight) <= _MOST_WEIGHT:
        raise ConfigError(
            f"{where} ({source}): weight {shortened(repr(weight))}: expected a number above 0, from {_LEAST_WEIGHT} to {_MOST_WEIGHT}; "
            "leave out a set that is not wanted"
        )
    name = values.get("name", source)
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError(f"{where}: name: expected a text, got {name!r}")
    if values.get(LAST_STEP, AS_RECORDED) not in LAST_STEPS:
        raise ConfigError(f"{where}: {LAST_STEP}: expected {' or '.join(LAST_STEPS)}, got {values[LAST_STEP]!r}")
    reading = {key: values[key] for key in _READING if key in values}
    for key in _LISTS:
        if key in reading:
            if not isinstance(reading[key], (str, list, tuple)):
                raise ConfigError(
                    f"{where} ({name}): {key}: expected a text, or a list of texts, got {shortened(repr(reading[key]))}"
                )
            reading[key] = _texts_of(reading[key])
    for key in _TEXTS:
        if not isinstance(reading.get(key, ""), str):
            raise ConfigError(f"{where} ({name}): {key}: expected a text, got {shortened(repr(reading[key]))}")
    if isinstance(reading.get("keep_ranges"), str):
        reading["keep_ranges"] = _file_beside(reading["keep_ranges"], folder, f"{where}: keep_ranges")
    if "exclude" in reading:
        reading["exclude"] = [_entry_beside(text, folder, where) for text in reading["exclude"]]
    try:
        options = ReadingOptions(**reading)
        _ = options.rules, options.chosen_map  # refuses what makes no sense
        transforms = tuple(transform_of(_transform_beside(like, folder, where)) for like in written)
    except ConfigError as error:
        raise ConfigError(f"{where} ({name}): {error}") from error
    statistics = _file_beside(values["statistics"], folder, f"{where}: statistics") if "statistics" in values else None
    return MixtureSet(name, source, float(weight), options, transforms, statistics)


_LISTS = ("where", "where_step", "exclude")
_TEXTS = ("split", "split_by", "keep_by", "idle", "map", "filter")


def _texts_of(written: Any) -> tuple[Any, ...]:
    return (written,) if isinstance(written, str) else tuple(written)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_PLAIN: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "balance": ("true or false", lambda value: isinstance(value, bool)),
    "seed": ("a whole number from 0 to 2**32 - 1", lambda value: _is_whole(value) and 0 <= value < 1 << 32),
    "length": ("a number of episodes, at least 1", lambda value: _is_whole(value) and value >= 1),
    "columns": (" or ".join(COLUMNS), lambda value: value in COLUMNS),
    "shuffle": (
        'a number of items of at least 0, true, false or "global"',
        lambda value: isinstance(value, bool) or (_is_whole(value) and value >= 0) or value == "global",
    ),
}
"""Keys of a mixture with plain values -> what is expected, and whether a value is that."""


def _expanded(text: str, where: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no such user
        raise ConfigError(f"{where}: {shortened(repr(text))}: {error}") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


def _file_beside(text: Any, folder: Path, where: str) -> Path:
    if not isinstance(text, (str, Path)) or not str(text):
        raise ConfigError(f"{where}: expected the name of a file, got {shortened(repr(text))}")
    return folder / _expanded(str(text), where)


def _entry_beside(entry: Any, folder: Path, where: str) -> Any:
    is_file = isinstance(entry, str) and entry.startswith("@")
    return f"@{_file_beside(entry[1:], folder, f'{where}: exclude')}" if is_file else entry


def _transform_beside(written: Any, folder: Path, where: str) -> TransformLike:
    """Names of files are relative to the folder of the mixture file; text with options, and mappings, stay."""
    if isinstance(written, (list, tuple)):
        return [_transform_beside(part, folder, where) for part in written]
    if isinstance(written, str) and "=" not in written:
        beside = _file_beside(written, folder, f"{where}: transform")
        return beside if _exists(beside) or not written.startswith("open_x/") else written
    like: TransformLike = written
    return like


# Opened.


class _Once(Finding[T]):
    """What a function finds out, once."""

    def __init__(self, store: Rules, key: Hashable, find: Callable[[], T]) -> None:
        super().__init__(store)
        self._key, self._find = key, find

    @property
    def key(self) -> Hashable:
        return self._key

    def find(self) -> T:
        return self._find()


class _OpenMixture:
    """The sets of a mixture, opened, and what reading them finds out."""

    def __init__(self, mixture: Mixture) -> None:
        # Without a rule, only as a store: workers get from it what the sets' own rules found out, and counts and statistics.
        self.mixture, self.store = mixture, Rules()
        self.store.known = vars(mixture).get(_KNOWN, {})
        self.parts = [SetSource.open(self, entry) for entry in mixture.sets]
        self.names = [part.name for part in self.parts]

    @property
    def counts(self) -> list[tuple[int, int]]:
        """Of each set: episodes and transitions. Raises `SourceError` for a set without any."""
        return [part.counts for part in self.parts]

    @cached_property
    def shares(self) -> list[float]:
        """Of the samples, adding up to 1."""
        counts = [transitions if self.mixture.balance else 1 for _, transitions in self.counts]
        products = [entry.weight * count for entry, count in zip(self.mixture.sets, counts)]
        return [product / sum(products) for product in products]

    @property
    def episode_weights(self) -> list[float]:
        """Weights of draws of episodes, by which transitions have the shares: a set of long episodes is drawn less often."""
        return [share * episodes / transitions for share, (episodes, transitions) in zip(self.shares, self.counts)]

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Columns that are normalised, of all sets."""
        normalization = self.mixture.normalization
        if normalization is None:
            return ()
        paths = [normalization.paths(part.recorded_columns) for part in self.parts]
        for part, paths_of_set in zip(self.parts, paths):
            if missing := [path for path in paths_of_set if path not in part.recorded_columns]:
                there = ", ".join(part.recorded_columns)
                raise SourceError(
                    f'{self.mixture.where}: normalize: set "{part.name}": no column "{missing[0]}"{did_you_mean(missing[0], part.recorded_columns)}; there are: {there}'
                )
        return tuple(path for path in paths[0] if all(path in paths_of_set for paths_of_set in paths))

    @cached_property
    def merged(self) -> DatasetStatistics:
        """The statistics of the normalised columns of all sets together."""
        if self.mixture.statistics is not None:
            return DatasetStatistics.read(self.mixture.statistics)
        statistics = [part.statistics for part in self.parts]
        return DatasetStatistics.merge(
            [replace(of_set, columns={path: of_set[path] for path in self.paths}) for of_set in statistics]
        )


class ShiftedRewards(Wrapper):
    """The episodes of a source, every reward one step back, as `reward_last=shift` of a transform asks for; they keep their names.

    One that would lose a first reward has that among its faults, so that validation refuses it as in a push.
    """

    def encoded(self, paths: Collection[str]) -> ShiftedRewards:
        return ShiftedRewards(self._source.encoded(paths), self.name)

    def without(self, paths: Collection[str]) -> ShiftedRewards:
        return ShiftedRewards(self._source.without(paths), self.name)

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        for episode in self._source.read(start, stop, is_known):
            yield episode if isinstance(episode, KnownEpisode) else self._shifted(episode)

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return ((number, self._shifted(episode)) for number, episode in self._source.at(numbers))

    def metadata_of(self, number: int) -> Mapping[str, Any] | None:
        return self._source.metadata_of(number)

    @staticmethod
    def _shifted(episode: Episode) -> Episode:
        lost = tuple((problem.path, f"reward_last=shift: {problem.fact}") for problem in check_first_reward(episode))
        return replace(Conventions(last_reward=SHIFT).apply(episode), faults=(*episode.faults, *lost))


class SetSource(Wrapper):
    """The episodes of one set of a mixture, normalised, with its name among their metadata.

    Args:
      source: filtered and transformed.
      whole: the mixture.
      entry: what the mixture says of the set.
      findings: counts and statistics, shared by all that are made of the set.
      first: the set with all its columns, by which it is normalised and named; None for itself.
    """

    def __init__(
        self,
        source: Source,
        whole: _OpenMixture,
        entry: MixtureSet,
        findings: tuple[_Once[tuple[int, int]], _Once[DatasetStatistics]],
        first: SetSource | None = None,
    ) -> None:
        super().__init__(source, entry.name)
        self._whole, self._entry, self._findings = whole, entry, findings
        self._first = first or self

    @staticmethod
    def open(whole: _OpenMixture, entry: MixtureSet) -> SetSource:
        try:
            opened = mapped(filtered(open_source(entry.source), entry.options.rules), entry.options.chosen_map)
        except (SourceError, ConfigError) as error:
            raise SourceError(f'{whole.mixture.where}: set "{entry.name}": {error}') from error
        source: Source = opened
        for transform in entry.transforms:
            # Whichever of them says that rewards move, to each of them the last row's belongs to the row before.
            source = transformed(source, replace(transform, reward_last=SHIFT) if entry.shifts_rewards else transform)
        source = LastStep(source) if entry.options.last_step == REPEAT else source
        source = ShiftedRewards(source) if entry.shifts_rewards else source
        share_findings(source, whole.store)
        counts = _Once(whole.store, ("counts", entry.label), lambda: _count(source))
        statistics = _Once(whole.store, ("statistics", entry.label), lambda: hooks.statistics_of(source))
        return SetSource(source, whole, entry, (counts, statistics))

    def __reduce__(self) -> tuple[Any, ...]:
        # With its mixture, for the statistics of other sets may normalise it.
        return _open_set, (self._whole.mixture, self.name)

    def _of(self, source: Source) -> SetSource:
        return SetSource(source, self._whole, self._entry, self._findings, self._first)

    @property
    def findings(self) -> tuple[Finding[Any], ...]:
        return (*super().findings, *self._findings)

    @cached_property
    def recorded_columns(self) -> Mapping[str, ArraySpec]:
        """Before they are normalised. Raises `SourceError`, which names the set."""
        with self._naming():
            columns: Mapping[str, ArraySpec] = columns_of(self._source.spec(), self.name)
        return columns

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Puts the file and the set before the errors of a block."""
        where = f'{self._whole.mixture.where}: set "{self.name}"'
        try:
            yield
        except (SourceError, ConfigError) as error:
            if where in str(error):
                raise
            raise SourceError(f"{where}: {error}") from error

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Episodes and transitions. Raises `SourceError` without any."""
        with self._naming():
            episodes, transitions = self._findings[0].value
        if not episodes or not transitions:
            raise SourceError(
                f'{self._whole.mixture.where}: set "{self.name}" ({self._entry.source}): expected at least one transition, found '
                f"{counted(episodes, 'episode')} without any; leave the set out"
            )
        return episodes, transitions

    @cached_property
    def statistics(self) -> DatasetStatistics:
        """Before it is normalised."""
        file, common = self._entry.statistics, self._whole.mixture.statistics
        with self._naming():
            if file is not None:
                return DatasetStatistics.read(file)
            normalization = self._whole.mixture.normalization
            if common is not None and normalization is not None and normalization.by == BY_SET:
                return DatasetStatistics.read(common, self.name)
            return replace(self._findings[1].value, source=self.name)

    @cached_property
    def normalizer(self) -> Normalizer | None:
        if self._first is not self:
            return self._first.normalizer
        normalization = self._whole.mixture.normalization
        if normalization is None:
            return None
        with self._naming():
            statistics = self.statistics if normalization.by == BY_SET else self._whole.merged
            normalizer = normalization.make(statistics, self._whole.paths)
            for path in normalizer.columns:
                shape, expected = self.recorded_columns[path].shape, statistics[path].shape
                if shape != expected:
                    raise SourceError(
                        f'statistics of another signature: column "{path}" has rows of {list(shape)}, the statistics {list(expected)}'
                    )
        return normalizer

    @cached_property
    def suffix(self) -> str:
        """Behind the names of episodes; "" where their columns are as the source gives them."""
        if self._first is not self:
            return self._first.suffix
        normalizer = self.normalizer
        if not self._entry.columns_label and normalizer is None:
            return ""
        digest = hashlib.sha256(self._entry.columns_label.encode())
        for path, column in _columns_of(normalizer):
            for values in (column.center, column.scale, column.low, column.high, column.mask):
                # As text, which has every bit of a float64 and no byte order.
                digest.update(f"{path}|{np.asarray(values, np.float64).tolist()}".encode())
        return f"|set={digest.hexdigest()[:12]}"

    def spec(self) -> Nest:
        columns = {
            path: _normal_spec(leaf) if path in self._whole.paths else leaf
            for path, leaf in self.recorded_columns.items()
        }
        return nested(columns) if self._whole.paths else self._source.spec()

    def metadata_spec(self) -> Nest:
        with self._naming():
            recorded = flatten(self._source.metadata_spec())
        return {DATASET_NAME: ArraySpec((), np.dtype(object)), **recorded}

    def encoded(self, paths: Collection[str]) -> SetSource:
        return self._of(self._source.encoded(paths))

    def without(self, paths: Collection[str]) -> Source:
        if not self._whole.paths:
            return self._of(self._source.without(paths))
        # Actions and rewards say whether the last row was added, whose action stays as it is.
        deciding = {path for path in paths if path in self.recorded_columns and decides_last_row(path)}
        lighter = self._of(self._source.without(set(paths) - deciding))
        return Without(lighter, deciding) if deciding else lighter

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        suffix = self.suffix
        for episode in self._source.read(
            start, stop, None if is_known is None else lambda name: is_known(f"{name}{suffix}")
        ):
            yield KnownEpisode(f"{episode.id}{suffix}") if isinstance(episode, KnownEpisode) else self._normal(episode)

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return ((number, self._normal(episode)) for number, episode in self._source.at(numbers))

    def metadata_of(self, number: int) -> Mapping[str, Any] | None:
        return self._source.metadata_of(number)

    def _normal(self, episode: Episode) -> Episode:
        metadata = {DATASET_NAME: self.name.encode(), **episode.metadata}
        columns = {**episode.columns, **self._normal_columns(episode)}
        return replace(episode, columns=columns, metadata=metadata, id=f"{episode.id}{self.suffix}")

    def _normal_columns(self, episode: Episode) -> dict[str, Array]:
        """The columns that are normalised; validation judges those that are missing, or unlike what the dataset says."""
        recorded, columns = self._first.recorded_columns, episode.columns
        normal = {
            path: normalizer.normalize(columns[path])
            for path, normalizer in _columns_of(self.normalizer)
            if path in columns
            and columns[path].shape[1:] == recorded[path].shape
            and columns[path].dtype == recorded[path].dtype
        }
        is_whole = len({len(column) for column in columns.values()}) == 1 and len(episode) > 0
        if normal and is_whole and has_added_row(episode):
            for path, column in normal.items():
                if is_under(path, ACTION):  # a row without an action stays one
                    column[-1:] = columns[path][-1:]
        return normal


def _open_set(mixture: Mixture, name: str) -> Source:
    return mixture.sources()[name]


def _columns_of(normalizer: Normalizer | None) -> list[tuple[str, ColumnNormalizer]]:
    return [] if normalizer is None else [(path, normalizer[path]) for path in normalizer.columns]


def _normal_spec(leaf: ArraySpec) -> ArraySpec:
    return ArraySpec(leaf.shape, leaf.dtype if is_float(leaf.dtype) else np.dtype(np.float32))


def _count(source: Source) -> tuple[int, int]:
    lengths = source.count_lengths()
    return len(lengths), sum(max(0, rows - 1) for rows in lengths)


class MixtureSource(MixedSource):
    """The episodes of a mixture."""

    def __init__(self, opened: _OpenMixture, parts: Sequence[Source] | None = None) -> None:
        mixture = opened.mixture
        super().__init__(
            opened.parts if parts is None else parts, None, mixture.seed, length=mixture.length, columns=mixture.columns
        )
        self._opened, self.name = opened, f"mix:{mixture.where}"

    @property
    def mixture(self) -> Mixture:
        return self._opened.mixture

    def __reduce__(self) -> tuple[Any, ...]:
        return Mixture.source, (self.mixture,)

    @cached_property
    def _draw(self) -> Draw:
        return Draw(tuple(self._opened.episode_weights), self.mixture.seed, self.mixture.length)

    def spec(self) -> Nest:
        """As `MixedSource.spec`. Raises `SourceError` for a set without transitions, too."""
        _ = self._opened.counts
        return super().spec()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The sets', and their shares."""
        shares = "; ".join(
            f"{name} {share:.2%} (weight {entry.weight:g}, {counted(transitions, 'transition')})"
            for name, share, entry, (_, transitions) in zip(
                self._opened.names, self._opened.shares, self.mixture.sets, self._opened.counts
            )
        )
        how = (
            "drawn in these shares"
            if self.mixture.length is not None
            else "each episode comes once, in an order of these shares; length=N draws by them"
        )
        return (*super().notices, note("shares", f"{shares}: {how}"))

    def _with_parts(self, parts: Sequence[Source]) -> MixtureSource:
        mix = MixtureSource(self._opened, parts)
        mix._readings = self._readings
        return mix
