"""What TFDS itself reads of a dataset that is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from rlds2reverb.episode import Array, metadata_path
from rlds2reverb.specs import flatten

_STEPS_AT_ONCE = 64  # TensorFlow allocates a whole batch, however few steps there are


def read_back(path: Path) -> Iterator[dict[str, Array]]:
    """The columns and features of every episode of the only split of a version directory."""
    builder = tfds.builder_from_directory(str(path))
    (split,) = builder.info.splits
    in_file_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    for episode in builder.as_dataset(split=split, shuffle_files=False, read_config=in_file_order):
        steps = episode.pop("steps")
        batches = [flatten(batch) for batch in steps.batch(_STEPS_AT_ONCE).as_numpy_iterator()]
        columns = {path: np.concatenate([batch[path] for batch in batches]) for path in batches[0]}
        features = {metadata_path(path): value.numpy() for path, value in flatten(episode).items()}
        yield {**columns, **features}
