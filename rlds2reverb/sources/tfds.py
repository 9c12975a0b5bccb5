"""TFDS datasets by name or by directory.

`tfds:NAME[/CONFIG][:VERSION][@SPLIT]` reads a dataset that TFDS has prepared; `tfds:/path/to/version_dir[@SPLIT]` reads
a directory with a `dataset_info.json`. SPLIT is any TFDS split (`train`, `train[:10%]`, `train+test`), `train` by default.

Episodes are named by their place in the dataset's files (TFDS's own example id), so a slice and the whole dataset give
the same episode the same name.

A dataset may come from anywhere. So what TFDS would import, and what TensorFlow would die of, is refused before either
sees it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import naming, read_only_builder
from tensorflow_datasets.core.utils import error_utils

from rlds2reverb.errors import SourceError
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.sources.base import columns_of
from rlds2reverb.sources.explain import source_errors
from rlds2reverb.sources.rlds import STEPS, RldsSource
from rlds2reverb.sources.tfds_metadata import check_metadata
from rlds2reverb.tfds_files.tfrecord import check_records

_ID_FEATURE = "tfds_id"

_STORED_AS_IS = (tfds.features.FeaturesDict, tfds.features.Tensor, tfds.features.Scalar, tfds.features.Text)
"""Features that need no decoding: their steps are read as whole columns, which costs less."""

_MOST_VALUES = 1 << 31
"""Most values of one step's feature: a record has no more bytes than that, and TensorFlow dies of sizes whose product overflows."""

_FILES_AT_ONCE = 16
"""How many are looked into in parallel: where files are far away, each look is a wait."""


@dataclass(frozen=True)
class TfdsName:
    """A parsed source name: `dataset` is a TFDS name or a directory."""

    dataset: str
    split: str

    @staticmethod
    def parse(text: str) -> TfdsName:
        """From "NAME[/CONFIG][:VERSION][@SPLIT]" or "/path[@SPLIT]".

        Raises:
          SourceError: nothing before the "@".
        """
        dataset, _, split = text.partition("@")
        if not dataset:
            raise SourceError(f'"tfds:{text}": expected tfds:NAME[/CONFIG][:VERSION][@SPLIT] or tfds:/path[@SPLIT]')
        return TfdsName(dataset, split or "train")

    @property
    def is_directory(self) -> bool:
        """Whether it names a directory rather than a registered dataset."""
        return self.dataset.startswith(("/", "./", "../", "~"))

    @property
    def hint(self) -> str:
        """What to do when it cannot be opened."""
        if self.is_directory:
            return "expected a version directory with dataset_info.json and features.json"
        return "prepare it first (`tfds build`), or name its directory: tfds:/path/to/version_dir"


def open_tfds(text: str, name_for_people: str = "") -> RldsSource:
    """Opens the part of a source name after "tfds:".

    Args:
      text: "NAME[/CONFIG][:VERSION][@SPLIT]" or "/path[@SPLIT]".
      name_for_people: what messages and reports call it; by default "tfds:" and the text.

    Raises:
      SourceError: no such dataset, version or split here, a file of it is missing or damaged, it would import code,
        or it is not in RLDS form.
    """
    name, people = TfdsName.parse(text), name_for_people or f"tfds:{text}"
    with _opening(name):
        builder = _directory_builder(name) if name.is_directory else _prepared_builder(name)
        fingerprint, as_is = _fingerprint(builder), _columns_are_stored_as_is(builder)
    _check_shapes(builder, people)
    _check_files(builder, name, people)
    decoders = {STEPS: tfds.decode.SkipDecoding()} if as_is else None
    return TfdsSource(builder, name.split, fingerprint, people, decoders)


class TfdsSource(RldsSource):
    """A split of a TFDS dataset.

    Args:
      builder: the dataset's.
      split: any that TFDS has.
      fingerprint, name: as for `RldsSource`.
      decoders: as TFDS takes them.
      images: path -> what it decodes to, of the columns that the decoders leave encoded.

    Raises:
      SourceError: TFDS cannot read the split, or it is not in RLDS form.
    """

    def __init__(
        self,
        builder: Any,
        split: str,
        fingerprint: str,
        name: str,
        decoders: Any = None,
        images: Mapping[str, ImageSpec] = MappingProxyType({}),
    ) -> None:
        read_config = tfds.ReadConfig(add_tfds_id=True, try_autocache=False)
        with source_errors(f'{name}: split "{split}" cannot be read'):
            dataset = builder.as_dataset(split=split, shuffle_files=False, read_config=read_config, decoders=decoders)
        super().__init__(dataset, fingerprint, name, _ID_FEATURE, images)
        self._builder, self._split = builder, split

    def images(self) -> dict[str, ImageSpec]:
        """The Image features of its steps, those below sequences left out."""
        steps = getattr(self._builder.info.features[STEPS], "feature", None)
        return {path: image for path, image in _images(steps, "") if path not in self._images}

    def encoded(self, paths: Collection[str]) -> TfdsSource:
        """The same split with the bytes of these images' files."""
        images = {**self._images, **{path: image for path, image in self.images().items() if path in paths}}
        decoders: dict[str, Any] = {}
        for path in images:
            level = decoders
            *parents, leaf = path.split("/")
            for parent in parents:
                level = level.setdefault(parent, {})
            level[leaf] = tfds.decode.SkipDecoding()
        return TfdsSource(self._builder, self._split, self._fingerprint, self.name, {STEPS: decoders}, images)


def _images(feature: Any, path: str) -> Iterator[tuple[str, ImageSpec]]:
    """Path -> image of every Image feature in nested dicts of features."""
    if isinstance(feature, tfds.features.FeaturesDict):
        for name, child in feature.items():
            yield from _images(child, f"{path}/{name}" if path else name)
    elif type(feature) is tfds.features.Image:
        yield path, ImageSpec(feature.shape, np.dtype(feature.np_dtype), feature.encoding_format or "")


@contextmanager
def _opening(name: TfdsName) -> Iterator[None]:
    with source_errors(f"tfds:{name.dataset}: cannot be opened", name.hint):
        yield


def _directory_builder(name: TfdsName) -> Any:
    directory = Path(name.dataset).expanduser()
    check_metadata(directory, _known_classes())
    return tfds.builder_from_directory(str(directory))


def _prepared_builder(name: TfdsName) -> Any:
    dataset, _ = naming.parse_builder_name_kwargs(name.dataset)
    if dataset.namespace:
        raise SourceError(
            f"tfds:{name.dataset}: datasets of a namespace come with code to run, which is not accepted; {name.hint}"
        )
    with error_utils.record_error_context():  # which the function below needs
        # Where tfds.builder finds the files; without files it takes the features from TFDS's own code.
        directory = read_only_builder._find_builder_dir(name.dataset)
    if directory is not None:
        check_metadata(Path(directory), _known_classes())
    builder = tfds.builder(name.dataset, try_gcs=False)
    if not builder.info.splits:
        raise SourceError(f"tfds:{name.dataset}: not prepared in {builder.data_dir}; {name.hint}")
    return builder


def _known_classes() -> set[str]:
    """Full names of the feature classes that are loaded: those of TFDS, and the program's own.

    A class that has moved is known by its former names (`ALIASES`), too.
    """
    return set(_names_below(tfds.features.FeatureConnector))


def _names_below(kind: Any) -> Iterator[str]:
    for child in kind.__subclasses__():
        yield f"{child.__module__}.{child.__name__}"
        yield from vars(child).get("ALIASES", ())
        yield from _names_below(child)


def _check_shapes(builder: Any, people: str) -> None:
    """Refuses sizes of which TensorFlow 2.15 dies when it parses a record."""
    with source_errors(f"{people}: features cannot be read"):
        stored = columns_of(builder.info.features.get_serialized_info(), people)
    for path, info in stored.items():
        known = [size for size in info.shape if size is not None]
        is_list = len(known) < len(info.shape)
        if math.prod(known) > _MOST_VALUES or (is_list and 0 in known):
            raise SourceError(f'{people}: feature "{path}" has the shape {info.shape}, which TensorFlow cannot read')


def _check_files(builder: Any, name: TfdsName, people: str) -> None:
    """Looks at the records' lengths in all files of a split that are on this machine."""
    splits = ", ".join(sorted(builder.info.splits)) or "none"
    with source_errors(f'{people}: split "{name.split}" cannot be read', f"there are: {splits}"):
        parts = list(builder.info.splits[name.split].file_instructions)
    if builder.info.file_format not in (None, tfds.core.FileFormat.TFRECORD):
        return  # only what is read as TFRecords has their lengths
    local = [part for part in parts if "://" not in str(part.filename)]
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        list(pool.map(_check_part, local))


def _check_part(part: Any) -> None:
    check_records(Path(part.filename), None if part.takes_all else part.skip + part.take)


def _fingerprint(builder: Any) -> str:
    """Names the data, not the place: full name and version, and the size and shards of every split."""
    splits = ",".join(
        f"{split.name}:{split.num_bytes:d}:{'-'.join(map(str, split.shard_lengths))}"
        for split in sorted(builder.info.splits.values(), key=lambda split: str(split.name))
    )
    return f"{builder.info.full_name}[{splits}]"


def _columns_are_stored_as_is(builder: Any) -> bool:
    features = builder.info.features
    steps = features[STEPS] if isinstance(features, tfds.features.FeaturesDict) and STEPS in features else None
    if not isinstance(steps, tfds.features.Dataset):
        return False
    raw = tf.nest.map_structure(lambda info: (info.shape, info.dtype), steps.feature.get_serialized_info())
    decoded = tf.nest.map_structure(lambda info: (info.shape, info.dtype), steps.feature.get_tensor_info())
    return raw == decoded and all(type(feature) in _STORED_AS_IS for feature in _features(steps.feature))


def _features(feature: Any) -> list[Any]:
    if isinstance(feature, tfds.features.FeaturesDict):
        return [feature, *(leaf for child in feature.values() for leaf in _features(child))]
    return [feature]
