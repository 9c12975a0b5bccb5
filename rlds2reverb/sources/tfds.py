"""TFDS datasets by name or by directory.

`tfds:NAME[/CONFIG][:VERSION][@SPLIT]` reads a dataset that TFDS has prepared; `tfds:/path/to/version_dir[@SPLIT]` reads
a directory with a `dataset_info.json`. SPLIT is any TFDS split (`train`, `train[:10%]`, `train+test`), `train` by default.

Episodes are named by their place in the dataset's files (TFDS's own example id), so a slice and the whole dataset give
the same episode the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.errors import SourceError
from rlds2reverb.sources.rlds import STEPS, RldsSource

_ID_FEATURE = "tfds_id"

_STORED_AS_IS = (tfds.features.FeaturesDict, tfds.features.Tensor, tfds.features.Scalar, tfds.features.Text)
"""Features that need no decoding: their steps are read as whole columns, which costs less."""


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


def open_tfds(text: str, name_for_people: str = "") -> RldsSource:
    """Opens the part of a source name after "tfds:".

    Args:
      text: "NAME[/CONFIG][:VERSION][@SPLIT]" or "/path[@SPLIT]".
      name_for_people: what messages and reports call it; by default "tfds:" and the text.

    Raises:
      SourceError: no such dataset, version or split here, or it is not in RLDS form.
    """
    name = TfdsName.parse(text)
    builder = _builder(name)
    read_config = tfds.ReadConfig(add_tfds_id=True, try_autocache=False)
    decoders = {STEPS: tfds.decode.SkipDecoding()} if _columns_are_stored_as_is(builder) else None
    try:
        dataset = builder.as_dataset(split=name.split, shuffle_files=False, read_config=read_config, decoders=decoders)
    except (ValueError, KeyError, AssertionError, tf.errors.OpError) as error:
        splits = ", ".join(sorted(builder.info.splits)) or "none"
        raise SourceError(
            f'tfds:{text}: split "{name.split}" cannot be read ({_first_line(error)}); there are: {splits}'
        ) from error
    return RldsSource(dataset, _fingerprint(builder), name_for_people or f"tfds:{text}", _ID_FEATURE)


def _builder(name: TfdsName) -> Any:
    try:
        if name.is_directory:
            return tfds.builder_from_directory(str(Path(name.dataset).expanduser()))
        builder = tfds.builder(name.dataset, try_gcs=False)
    except (OSError, ValueError, RuntimeError, tf.errors.OpError, tfds.core.DatasetNotFoundError) as error:
        raise SourceError(f"tfds:{name.dataset}: cannot be opened: {_first_line(error)}; {_hint(name)}") from error
    if not builder.info.splits:
        raise SourceError(f"tfds:{name.dataset}: not prepared in {builder.data_dir}; {_hint(name)}")
    return builder


def _hint(name: TfdsName) -> str:
    if name.is_directory:
        return "expected a version directory with dataset_info.json and features.json"
    return "prepare it first (`tfds build`), or name its directory: tfds:/path/to/version_dir"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


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
