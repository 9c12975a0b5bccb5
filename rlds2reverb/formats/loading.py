"""The way back: any source as the `tf.data.Dataset` of RLDS episodes that TF-Agents' and RLDS' own functions take (`rlds2reverb.load`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.rlds import STEPS, RldsSource, with_single_steps
from rlds2reverb.formats.source import Source, checked_spec
from rlds2reverb.formats.tfds.read import TfdsSource
from rlds2reverb.specs import ArraySpec, Nest, column_spec, differences, flatten, map_leaves, map_with_path


def rlds_dataset(source: Source) -> tf.data.Dataset:
    """A source as RLDS writes it. A source that is neither RLDS nor TFDS gives its steps without metadata.

    Raises:
      SourceError: there is no spec, or an episode of a list has other columns. An episode of another source with other columns, or
        with ragged metadata, ends the iteration with a `tf.errors.OpError` that names it.
    """
    if isinstance(source, RldsSource):
        return source.dataset()
    spec = checked_spec(source)
    leaves = flatten(spec)
    if isinstance(source, EpisodeList):
        for episode in source:
            _check_columns(episode, leaves, source.name)

    metadata = source.metadata_spec() if isinstance(source, TfdsSource) else {}
    count = source.episode_count if isinstance(source, TfdsSource) else None

    def elements() -> Iterator[Any]:
        for episode in source:
            _check_columns(episode, leaves, source.name)
            for path, leaf in flatten(
                metadata
            ).items():  # sequences of sequences whose lengths differ are arrays of arrays
                value = np.asarray(episode.metadata[path])
                if value.dtype == object and (leaf.dtype != object or value.ndim != len(leaf.shape)):
                    raise SourceError(
                        f'{source.name}, episode {episode.id}: metadata "{path}" is ragged, and tensors are not; TFDS can make a '
                        'RaggedTensor of it: write "?reader=tfds" behind the name'
                    )
            yield {**_nest(episode.metadata, metadata), STEPS: _nest(episode.columns, spec)}

    steps = map_leaves(lambda leaf: tf.TensorSpec((None, *leaf.shape), _tf_dtype(leaf.dtype)), spec)
    features = map_leaves(lambda leaf: tf.TensorSpec(leaf.shape, _tf_dtype(leaf.dtype)), metadata)
    columns = tf.data.Dataset.from_generator(elements, output_signature={**features, STEPS: steps})
    if count is not None:
        columns = columns.apply(tf.data.experimental.assert_cardinality(count))
    return columns.map(with_single_steps)


def _nest(columns: Mapping[str, Any], spec: Nest) -> Nest:
    return map_with_path(lambda path, _: columns[path], spec)


def _tf_dtype(dtype: np.dtype[Any]) -> tf.DType:
    return tf.string if dtype == object else tf.dtypes.as_dtype(dtype)


def _check_columns(episode: Episode, leaves: Mapping[str, ArraySpec], name: str) -> None:
    specs = {path: column_spec(column) for path, column in episode.columns.items()}
    odd = [
        f'column "{path}": expected {leaves.get(path, "none")}, got {specs.get(path, "none")}'
        for path in {**leaves, **specs}
        if path not in leaves or path not in specs or differences({path: specs[path]}, {path: leaves[path]})
    ]
    rows = {path: len(column) for path, column in episode.columns.items()}
    odd += [f"columns of unequal length: {rows}"] if len(set(rows.values())) > 1 else []
    if odd:
        raise SourceError(f"{name}, episode {episode.id}: {'; '.join(odd)}")
