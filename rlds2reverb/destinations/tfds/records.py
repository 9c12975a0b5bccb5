"""An episode -> its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.destinations.tfds.example import entries_of, example
from rlds2reverb.episodes import Array, Episode
from rlds2reverb.errors import ConversionError
from rlds2reverb.tfds_files.columns import Column
from rlds2reverb.tfds_files.tfrecord import MOST_BYTES


@dataclass(frozen=True)
class Layout:
    """What the records hold.

    Attributes:
      steps, metadata: columns of the steps, and features of the episode.
      tree: what features.json says of both.
    """

    steps: Sequence[Column]
    metadata: Sequence[Column]
    tree: Mapping[str, Any]

    def record(self, episode: Episode) -> bytes:
        """The record of an episode.

        Raises:
          ConversionError: it is too large for one.
        """
        entries = [entry for column in self.steps for entry in entries_of(column, episode.columns[column.path])]
        for column in self.metadata:
            entries += entries_of(column, _item(episode.metadata[column.path], column))
        record = example(entries)
        if len(record) > MOST_BYTES:
            raise ConversionError(
                f"episode {episode.title}: a record of {len(record):,} bytes; TFDS reads at most {MOST_BYTES:,}: leave columns out "
                "(--transform drop=...), or cut the episode"
            )
        return record


def _item(value: Any, column: Column) -> Array:
    """[1, *shape] a feature of the episode, as the values of one step would be."""
    if column.leaf.dtype.kind == "O" and not column.spec.shape:
        item = np.empty(1, object)
        item[0] = value[()] if isinstance(value, np.ndarray) else value
        return item
    return np.asarray(value)[None]
