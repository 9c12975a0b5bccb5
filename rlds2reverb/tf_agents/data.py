"""Makes the dataset that TF-Agents' functions take of anything that ours take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

import tensorflow as tf

from rlds2reverb.episodes import Episode
from rlds2reverb.sources import load
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.rlds import STEPS

RldsData = Union[tf.data.Dataset, str, Sequence[Episode], Source]
"""A dataset of RLDS episodes, or anything else that `open_source` takes."""


def as_dataset(rlds_data: RldsData) -> tf.data.Dataset:
    """A dataset of episodes, each with a dataset of steps. Any other `tf.data.Dataset` is left to TF-Agents' own checks.

    Raises:
      SourceError: as `open_source`.
    """
    spec = getattr(rlds_data, "element_spec", None)
    if spec is None:
        return load(rlds_data)
    has_columns = isinstance(spec, Mapping) and isinstance(spec.get(STEPS), Mapping)
    return load(rlds_data) if has_columns else rlds_data
