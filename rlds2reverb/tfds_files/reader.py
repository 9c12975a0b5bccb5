"""Records of a TFDS dataset of RLDS episodes -> columns [T, ...] and metadata, with numpy alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.episodes import FLAGS, Array
from rlds2reverb.errors import SourceError, SpecError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.tfds_files.columns import Column, columns_of_feature
from rlds2reverb.tfds_files.example import features_of
from rlds2reverb.tfds_files.features import (
    DictFeature,
    Feature,
    SequenceFeature,
)
from rlds2reverb.tfds_files.features_json import parse_features
from rlds2reverb.tfds_files.images import NotReadHere

STEPS = "steps"


@dataclass(frozen=True)
class EpisodeFeatures:
    """How the episodes of a dataset are read from its records.

    Attributes:
      steps_spec: a step: a nest of `ArraySpec` without time axis, as `Source.spec()` has it.
      metadata_spec: what an episode has beside its steps: a nest of `ArraySpec`.
      steps_length: how many steps every episode has, where the features say so.
    """

    steps_spec: Nest
    metadata_spec: Nest
    steps_length: int | None
    _steps: tuple[Column, ...]
    _metadata: tuple[Column, ...]

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: str) -> EpisodeFeatures:
        """From what features.json holds.

        Args:
          tree: the JSON object.
          where: what messages call the dataset or the file.

        Raises:
          NotReadHere: a feature that only TFDS can read; names it and its class.
          SourceError: the features make no sense, are absurdly large, or are not of RLDS episodes.
        """
        top = parse_features(tree, where)
        steps = _steps_of(top, where)
        return cls(
            _nest(steps.feature),
            _nest(_without_steps(top)),
            steps.length,
            tuple(_of_steps(steps, where)),
            tuple(_of_metadata(top, where)),
        )

    @property
    def images(self) -> dict[str, ArraySpec]:
        """The step columns that are stored as PNG or JPEG files: path -> shape and dtype of a step, decoded."""
        return {column.path: column.step_spec for column in self._steps if isinstance(column.leaf, ImageSpec)}

    @cached_property
    def _ragged(self) -> tuple[Column, ...]:
        return tuple(column for column in self._steps if column.row_keys)

    def encoded(self, paths: Collection[str]) -> EpisodeFeatures:
        """The same features where these columns of images stay the bytes of their files: columns of objects.

        Raises:
          SourceError: a path that is no column of images.
        """
        images = self.images
        for path in paths:
            if path not in images:
                raise SourceError(f'"{path}": not a column of images; there are: {", ".join(images) or "none"}')
        columns = tuple(column.encoded() if column.path in paths else column for column in self._steps)
        specs = {column.path: column.step_spec for column in columns}
        return replace(self, steps_spec=_with_specs(self.steps_spec, specs), _steps=columns)

    def read(self, record: bytes, where: str) -> tuple[dict[str, Array], dict[str, Any]]:
        """One episode.

        Args:
          record: a serialized `tf.train.Example`.
          where: what messages call it: the file and the record's number.

        Returns:
          The columns of steps, path -> [T, ...], and the metadata, path -> array, number or bytes; both in the order of
          their specs.

        Raises:
          SourceError: the record is damaged or does not fit the features; names the feature.
        """
        features = features_of(record, where)
        columns = {column.path: column.read(features, where) for column in self._steps}
        self._check(columns, where)
        return columns, {column.path: column.read(features, where) for column in self._metadata}

    def length_of(self, record: bytes, where: str) -> int | None:
        """How many steps an episode has, by one of its flags; None where there is none. Nothing else is decoded. Arguments and errors as `read`."""
        flag = next((column for column in self._steps if column.path in FLAGS), None)
        return None if flag is None else len(flag.read(features_of(record, where), where))

    def _check(self, columns: dict[str, Array], where: str) -> None:
        """All columns of one length; those without values have any."""
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            self._fill(columns)
            lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1 or (lengths and self.steps_length not in (None, *lengths)):
            told = ", ".join(f"{path}: {len(column):,}" for path, column in columns.items())
            raise SourceError(f"{where}: the columns of steps have different lengths, or others than expected: {told}")
        for column in self._ragged:
            if columns[column.path].ndim != 1 + len(column.step_spec.shape):
                raise SourceError(
                    f'{where}, feature "{column.path}": steps of different lengths; all of an episode must have one'
                )

    def _fill(self, columns: dict[str, Array]) -> None:
        """Columns whose steps have no values are as long as the others."""
        steps = max(map(len, columns.values()))
        for column in self._steps:
            shape = columns[column.path].shape[1:]
            if 0 in column.step_spec.shape:
                columns[column.path] = np.zeros((steps, *shape), column.leaf.dtype)


def _steps_of(top: Feature, where: str) -> SequenceFeature:
    features = top.features if isinstance(top, DictFeature) else {}
    if STEPS not in features:
        raise SourceError(f'{where}: not RLDS: an episode needs a feature "{STEPS}"; found {sorted(features)}')
    steps = features[STEPS]
    if not isinstance(steps, SequenceFeature) or not isinstance(steps.feature, DictFeature):
        raise SourceError(f'{where}: not RLDS: "{STEPS}" must be a dataset of dicts of features')
    return steps


def _without_steps(top: Feature) -> Feature:
    features = top.features if isinstance(top, DictFeature) else {}
    return DictFeature({name: feature for name, feature in features.items() if name != STEPS})


def _of_steps(steps: SequenceFeature, where: str) -> list[Column]:
    found = list(columns_of_feature(steps.feature, "", where, (steps.length,), STEPS))
    for column in found:
        if len(column.lengths) > 2:
            raise NotReadHere(f'{where}: step feature "{column.path}": a sequence of sequences in a step is ragged')
    return _in_order(found, _nest(steps.feature), where)


def _of_metadata(top: Feature, where: str) -> list[Column]:
    rest = _without_steps(top)
    for name, feature in rest.features.items() if isinstance(rest, DictFeature) else ():
        if isinstance(feature, SequenceFeature) and feature.is_dataset:
            raise NotReadHere(f'{where}: episode feature "{name}" is a dataset')
    return _in_order(list(columns_of_feature(rest, "", where)), _nest(rest), where)


def _in_order(columns: list[Column], nest: Nest, where: str) -> list[Column]:
    try:
        order = list(flatten(nest))
    except SpecError as error:
        raise SourceError(f"{where}: {error}; rename it in the dataset") from error
    return sorted(columns, key=lambda column: order.index(column.path))


def _nest(feature: Feature, lengths: tuple[int | None, ...] = ()) -> Nest:
    """The specs of a feature's leaves."""
    if isinstance(feature, DictFeature):
        return {name: _nest(child, lengths) for name, child in feature.features.items()}
    if isinstance(feature, SequenceFeature):
        return _nest(feature.feature, (*lengths, feature.length))
    return ArraySpec((*lengths, *feature.shape), feature.dtype)


def _with_specs(nest: Nest, specs: Mapping[str, ArraySpec], path: str = "") -> Nest:
    if isinstance(nest, Mapping):
        return {name: _with_specs(child, specs, f"{path}/{name}" if path else name) for name, child in nest.items()}
    return specs[path]
