"""Any `tf.data.Dataset` in RLDS form: a dataset of episodes, each with a dataset of steps.

Steps are batched inside the pipeline, one batch an episode, because one Python call a step is what makes other
converters slow; see docs/benchmarks.md, "Reading". At most two episodes are in memory beside the one in use.
Source of the form: https://github.com/google-research/rlds, "Dataset format".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import Episode, content_digest
from rlds2reverb.errors import SourceError
from rlds2reverb.sources.base import check_shard
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves

STEPS = "steps"

_WHOLE_EPISODE = 1 << 62
"""A batch size that no episode reaches."""

_PREFETCHED_EPISODES = 1


class RldsSource:
    """A `tf.data.Dataset` of RLDS episodes as a source.

    Args:
      dataset: elements are dicts with "steps" (a dataset of step dicts, or columns [T, ...] already batched)
        and any episode metadata.
      fingerprint: what the data is, stable across runs; episodes are then named by it and their number. Without
        one, an episode's name also depends on its content, so that two datasets never share item keys.
      name: for messages.
      id_feature: an episode feature that names the episode within `fingerprint`, instead of its number.

    Raises:
      SourceError: the dataset is not in RLDS form; says what was found.
    """

    def __init__(
        self, dataset: tf.data.Dataset, fingerprint: str = "", name: str = "dataset", id_feature: str = ""
    ) -> None:
        self._dataset = dataset
        self._fingerprint = fingerprint
        self._id_feature = id_feature
        self.name = name
        self._steps_spec, self._batched = _steps_spec(dataset.element_spec, name)

    @property
    def episode_count(self) -> int | None:
        """Its cardinality where TensorFlow knows it."""
        count = int(self._dataset.cardinality())
        return count if count >= 0 else None

    @property
    def step_count(self) -> int | None:
        """Unknown: the steps must be read to be counted."""
        return None

    def spec(self) -> Nest:
        """The steps' spec, from the dataset's element spec; nothing is read."""
        spec = map_leaves(lambda leaf: array_spec(leaf, self.name), self._steps_spec)
        if self._batched:
            spec = map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype, leaf.name), spec)
        flatten(spec)  # refuses two columns of one path
        return spec

    def __iter__(self) -> Iterator[Episode]:
        episodes = self._dataset.map(self._batch_steps).prefetch(_PREFETCHED_EPISODES)
        elements = iter(without_tuning(episodes).as_numpy_iterator())
        number = 0
        while True:
            try:
                element = next(elements)
            except StopIteration:
                return
            except tf.errors.OpError as error:
                raise SourceError(f"{self.name}, episode {number}: cannot be read: {error.message}") from error
            yield self._episode(number, element)
            number += 1

    def shard(self, index: int, count: int) -> RldsSource:
        """Every `count`-th episode; episodes named by number keep a name of their own per shard."""
        check_shard(index, count)
        if count == 1:
            return self
        fingerprint = self._fingerprint and (
            self._fingerprint if self._id_feature else f"{self._fingerprint}[{index}/{count}]"
        )
        return RldsSource(
            self._dataset.shard(count, index), fingerprint, f"{self.name}[{index}/{count}]", self._id_feature
        )

    def _batch_steps(self, element: dict[str, Any]) -> dict[str, Any]:
        return element if self._batched else {**element, STEPS: batch_steps(element[STEPS])}

    def _episode(self, number: int, element: dict[str, Any]) -> Episode:
        steps = flatten(element.pop(STEPS))
        metadata = flatten(element)
        return Episode(steps, metadata, self._id(number, steps, metadata))

    def _id(self, number: int, steps: Mapping[str, Any], metadata: dict[str, Any]) -> str:
        if self._id_feature:
            return f"{self._fingerprint}#{metadata.pop(self._id_feature).decode()}"
        if self._fingerprint:
            return f"{self._fingerprint}#{number}"
        return f"content:{content_digest(steps)}#{number}"


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without tf.data's tuner, which measures every element and starts threads that the server would need."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def batch_steps(steps: tf.data.Dataset) -> Any:
    """All steps of one episode as columns [T, ...]; in the graph; T may be 0."""
    empty = tf.nest.map_structure(lambda spec: tf.zeros((0, *_known(spec.shape)), spec.dtype), steps.element_spec)
    batched = steps.batch(_WHOLE_EPISODE)
    # An episode without steps gives no batch; the empty columns stand in for it.
    return batched.concatenate(tf.data.Dataset.from_tensors(empty)).take(1).get_single_element()


def _known(shape: tf.TensorShape) -> list[int]:
    return [size or 0 for size in shape.as_list()]


def array_spec(spec: Any, where: str) -> ArraySpec:
    """A tf.TensorSpec -> `ArraySpec`.

    Raises:
      SourceError: not a plain tensor (ragged, sparse, nested dataset), or of unknown rank.
    """
    if not isinstance(spec, tf.TensorSpec):
        raise SourceError(f"{where}: a step feature is a {type(spec).__name__}; only plain tensors can be stored")
    if spec.shape.rank is None:
        raise SourceError(f'{where}: step feature "{spec.name}" has unknown rank; set its shape with a map')
    dtype = np.dtype(object) if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype)
    return ArraySpec(
        tuple(spec.shape.as_list()),
        dtype,
        spec.name or "",
        getattr(spec, "minimum", None),
        getattr(spec, "maximum", None),
    )


def _steps_spec(element_spec: Any, name: str) -> tuple[Nest, bool]:
    """The spec of a step, and whether the steps come batched already."""
    if not isinstance(element_spec, Mapping) or STEPS not in element_spec:
        found = sorted(element_spec) if isinstance(element_spec, Mapping) else type(element_spec).__name__
        raise SourceError(f'{name}: not RLDS: an episode needs a feature "{STEPS}"; found {found}')
    steps = element_spec[STEPS]
    if isinstance(steps, tf.data.DatasetSpec):
        steps, batched = steps.element_spec, False
    else:
        batched = True
    if not isinstance(steps, Mapping):
        raise SourceError(f"{name}: not RLDS: a step must be a dict of features, found {type(steps).__name__}")
    return steps, batched
