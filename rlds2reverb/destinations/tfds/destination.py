"""A TFDS dataset to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlds2reverb.destinations.base import Content, Encode, Loss, State
from rlds2reverb.destinations.png import check_png_library
from rlds2reverb.destinations.tfds import LOSSES
from rlds2reverb.destinations.tfds.features import Choices, feature_of, is_drawn, tree_of
from rlds2reverb.destinations.tfds.files import check_libraries
from rlds2reverb.destinations.tfds.naming import Target
from rlds2reverb.destinations.tfds.records import Layout
from rlds2reverb.destinations.tfds.sink import TfdsSink
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.source_options import escaped
from rlds2reverb.specs import ArraySpec
from rlds2reverb.tfds_files.columns import Column, columns_of_feature
from rlds2reverb.tfds_files.features import Feature

_STEPS = "steps"


def open_tfds(text: str) -> TfdsDestination:
    """The destination of what stands behind "tfds:".

    Raises:
      ConfigError: it names no dataset, an option makes no sense, or a library is missing.
    """
    target = Target.parse(text)
    check_libraries(target.file_format)
    return TfdsDestination(target)


class TfdsDestination:
    """A version directory to be."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._choices = Choices(target.encoding, target.images)

    @property
    def name(self) -> str:
        """What people call it."""
        return self._target.people

    @property
    def path(self) -> Path:
        """The version directory."""
        return self._target.path

    def source(self, path: Path) -> str:
        """`tfds:PATH@SPLIT`."""
        return f"tfds:{escaped(path.absolute())}@{self._target.split}"

    @property
    def marks(self) -> Sequence[str]:
        """Those of a version directory."""
        return ("dataset_info.json", "*.json", "*.txt", "*-of-*", "*.tfrecord*")

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """Those of columns with one image per step; TensorFlow decodes by the fast DCT."""
        return {path: replace(image, is_accurate=False) for path, image in images.items() if not columns[path].shape}

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns that no feature holds."""
        lost = [
            Loss("text_of_free_sizes", f"{spec}: {LOSSES['text_of_free_sizes']}", path)
            for path, spec in (*content.columns.items(), *_named(content.metadata))
            if feature_of(spec, self._choices, not path.startswith("metadata/")) is None
        ]
        named = [
            Loss("name_of_steps", LOSSES["name_of_steps"], path) for path, _ in _named(content.metadata) if _hides(path)
        ]
        return [*named, *lost]

    @property
    def least_rows(self) -> int:
        """One: rows are steps."""
        return 1

    def flags(self, _: Episode) -> Mapping[str, Array]:
        """All are kept."""
        return {}

    def encoder(self, content: Content) -> Encode:
        """Makes records."""
        self._check_library(content)
        return self._layout(content).record

    def sink(self, work: Path, content: Content, state: State | None) -> TfdsSink:
        """Begins to write, or goes on."""
        self._check_library(content)
        return TfdsSink(work, self._target, self._layout(content).tree, state)

    def _check_library(self, content: Content) -> None:
        if any(is_drawn(spec, self._choices) for spec in (*content.columns.values(), *content.metadata.values())):
            check_png_library("images=tensor")

    def _layout(self, content: Content) -> Layout:
        return layout_of(content.columns, content.metadata, self._choices)


def layout_of(columns: Mapping[str, ArraySpec], metadata: Mapping[str, ArraySpec], choices: Choices) -> Layout:
    """How columns of steps, and features of an episode, are stored; without what no feature holds."""
    steps = dict(_features(columns, choices, in_steps=True))
    others = {
        path: feature
        for path, feature in _features(metadata, choices, in_steps=False)
        if not _hides(f"metadata/{path}")
    }
    files = {f"{_STEPS}/{path}": spec.image.format for path, spec in columns.items() if spec.image is not None}
    tree = tree_of({**others, **{f"{_STEPS}/{path}": one for path, one in steps.items()}}, files)
    return Layout(_stored(steps, (None,), _STEPS), _stored(others, (), ""), tree)


def _features(specs: Mapping[str, ArraySpec], choices: Choices, in_steps: bool) -> Iterator[tuple[str, Feature]]:
    for path, spec in specs.items():
        feature = feature_of(spec, choices, in_steps)
        if feature is not None:
            yield path, feature


def _named(metadata: Mapping[str, ArraySpec]) -> list[tuple[str, ArraySpec]]:
    return [(f"metadata/{path}", spec) for path, spec in metadata.items()]


def _hides(path: str) -> bool:
    """Whether a feature of the episode has the name of the steps."""
    return path.split("/")[1] == _STEPS


def _stored(features: Mapping[str, Feature], lengths: tuple[None, ...], prefix: str) -> list[Column]:
    """Where each column is stored, ordered by key, so that equal episodes are equal records."""
    return [
        column
        for path in sorted(features)
        for column in columns_of_feature(features[path], path, "the dataset to be", lengths, prefix)
    ]
