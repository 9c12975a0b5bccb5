"""A `tf.data.Dataset` of RLDS episodes as a source; `loading` is the way back.

Steps are batched inside the pipeline, one batch per episode: one Python call per step is what makes other converters slow;
see docs/benchmarks.md. At most two episodes are in memory beside the one in use.
Source of the form: https://github.com/google-research/rlds, "Dataset format".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.episode import Episode, KnownEpisode, Notice
from rlds2reverb.errors import Rlds2ReverbError, SourceError
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.source import ENDLESS, About, IsKnown, Source, check_shard, columns_of, unless_known
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_with_path
from rlds2reverb.text import shortened

STEPS = "steps"

_PREFETCHED_EPISODES = 1

_MADE_PLAIN = {
    "RaggedTensorSpec": "pad it with a map (`to_tensor`), or leave it out",
    "SparseTensorSpec": "make it dense with a map (`tf.sparse.to_dense`), or leave it out",
}
"""Kind of spec -> how to continue."""


class RldsSource(Source):
    """A `tf.data.Dataset` of RLDS episodes as a source.

    Args:
      dataset: elements are dicts with "steps" (a dataset of step dicts, or columns [T, ...] already batched)
        and any episode metadata.
      name: for messages.
      place_feature: an episode feature that says where the episode is stored; for messages.
      files: those that the dataset reads, which are compared when it has been read.
      read_about: reads what the dataset says of itself as a whole; nothing by default.
      dataset_of: the place of an episode -> what it calls its dataset; by default "".

    Raises:
      SourceError: the dataset is not in RLDS form; says what was found.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        name: str = "dataset",
        place_feature: str = "",
        files: DatasetFiles | None = None,
        read_about: Callable[[], About] = About,
        dataset_of: Callable[[str], str] = lambda _place: "",
    ) -> None:
        self._dataset, self._files, self._read_about = dataset, files or DatasetFiles(), read_about
        self._place_feature, self._dataset_of = place_feature, dataset_of
        self._numbers = range(ENDLESS)
        self.name = name
        self._steps_spec, self._batched = _steps_spec(dataset.element_spec, name)

    @property
    def episode_count(self) -> int | None:
        count = int(self._dataset.cardinality())
        return count if count >= 0 else None

    def spec(self) -> Nest:
        """The steps' spec, from the dataset's element spec; nothing is read.

        Raises:
          SourceError: a step feature cannot be stored (ragged, sparse, a dataset, of unknown rank), or two have the same name.
        """
        columns_of(self._steps_spec, self.name)  # refuses two of one path
        return map_with_path(self._step_feature, self._steps_spec)

    @property
    def about(self) -> About:
        return self._read_about()

    def metadata_spec(self) -> Nest:
        """The episodes' metadata, from the dataset's element spec; nothing is read.

        Features that no column can hold (ragged, sparse, of unknown rank) are not among them.
        """
        hidden = (STEPS, self._place_feature)
        features = {name: nest for name, nest in self._dataset.element_spec.items() if name not in hidden}
        return {
            path: array_spec(leaf, path)
            for path, leaf in columns_of(features, self.name).items()
            if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank is not None
        }

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        """See `Source.read`; no columns are made of episodes before the first."""
        return unless_known(self._watched(start, stop), is_known)

    def check_files(self) -> None:
        self._files.check()

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._files.notices

    def _watched(self, start: int, stop: int | None) -> Iterator[Episode]:
        with self._files.reading(is_whole=True):
            yield from self._episodes(start, stop)

    def _episodes(self, start: int, stop: int | None) -> Iterator[Episode]:
        features = list(flatten(self.spec()))  # what cannot be stored is refused before anything is read
        for path, leaf in columns_of({**self._dataset.element_spec, STEPS: ()}, self.name).items():
            if isinstance(leaf, tf.data.DatasetSpec):
                raise SourceError(f'{self.name}: episode feature "{path}" is a dataset; leave it out with a map')
        with source_errors(f"{self.name}: cannot be read"):
            batched = self._dataset.skip(start)
            if not self._batched:
                batched = batched.map(lambda element: {**element, STEPS: batch_steps(element[STEPS])})
            episodes = batched.prefetch(_PREFETCHED_EPISODES)
            elements = iter(without_tuning(episodes).as_numpy_iterator())
        for number in self._numbers[start:stop]:
            with source_errors(f"{self.name}, episode {number}: cannot be read", features=features):
                element = next(elements, None)
            if element is None:
                return
            steps = flatten(element.pop(STEPS))
            metadata = flatten(element)
            place = metadata.pop(self._place_feature).decode() if self._place_feature else f"{number}"
            yield Episode(steps, metadata, where=f"{self.name}#{place}", dataset=self._dataset_of(place))

    def dataset(self) -> tf.data.Dataset:
        """The data as RLDS writes it: every episode with a dataset of steps, and its metadata."""
        if not self._batched:
            return self._dataset
        return self._dataset.map(with_single_steps)

    def shard(self, index: int, count: int) -> RldsSource:
        check_shard(index, count)
        if count == 1:
            return self
        part = RldsSource(
            self._dataset.shard(count, index),
            f"{self.name}[{index}/{count}]",
            self._place_feature,
            self._files,
            dataset_of=self._dataset_of,
        )
        part._numbers = self._numbers[index::count]
        return part

    def _step_feature(self, path: str, leaf: Any) -> ArraySpec:
        where = f'{self.name}: step feature "{path}"'
        spec = array_spec(leaf, where)
        if not self._batched:
            return spec
        if not spec.shape:
            raise SourceError(f"{where} has no time axis: columns of steps must have the shape [T, ...]")
        return ArraySpec(spec.shape[1:], spec.dtype, spec.name)


def with_single_steps(element: dict[str, Any]) -> dict[str, Any]:
    """An episode whose steps are columns [T, ...] -> one with a dataset of steps; in the graph."""
    return {**element, STEPS: tf.data.Dataset.from_tensor_slices(element[STEPS])}


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without tf.data's tuner, which measures every element and starts threads that the server would need."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def batch_steps(steps: tf.data.Dataset) -> Any:
    """All steps of one episode as columns [T, ...]; in the graph; T may be 0."""
    empty = tf.nest.map_structure(
        lambda spec: tf.zeros((0, *(size or 0 for size in spec.shape.as_list())), spec.dtype), steps.element_spec
    )
    batched = steps.batch(ENDLESS)
    # An episode without steps gives no batch; the empty columns stand in for it.
    return batched.concatenate(tf.data.Dataset.from_tensors(empty)).take(1).get_single_element()


def array_spec(spec: Any, where: str) -> ArraySpec:
    """A tf.TensorSpec -> `ArraySpec`; messages begin with `where`.

    Raises:
      SourceError: not a plain tensor (ragged, sparse, nested dataset), or of unknown rank.
    """
    if not isinstance(spec, tf.TensorSpec):
        kind = type(spec).__name__
        hint = _MADE_PLAIN.get(kind, "leave it out with a map")
        raise SourceError(f"{where} is a {kind}; only plain tensors can be stored: {hint}")
    if spec.shape.rank is None:
        raise SourceError(f"{where} has unknown rank; set its shape with a map (tf.ensure_shape)")
    dtype = np.dtype(object) if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype)
    return ArraySpec(
        tuple(spec.shape.as_list()),
        dtype,
        spec.name or "",
        getattr(spec, "minimum", None),
        getattr(spec, "maximum", None),
    )


def _steps_spec(element_spec: Any, name: str) -> tuple[Nest, bool]:
    """The spec of a step, and whether the dataset's steps are already batched."""
    if not isinstance(element_spec, Mapping) or STEPS not in element_spec:
        keys = sorted(element_spec) if isinstance(element_spec, Mapping) else type(element_spec).__name__
        raise SourceError(f'{name}: not RLDS: an episode needs a feature "{STEPS}"; found {keys}')
    steps = element_spec[STEPS]
    if isinstance(steps, tf.data.DatasetSpec):
        steps, batched = steps.element_spec, False
    else:
        batched = True
    if not isinstance(steps, Mapping):
        raise SourceError(f"{name}: not RLDS: a step must be a dict of features, found {type(steps).__name__}")
    return steps, batched


# Errors of TensorFlow and TFDS as one line for people.
#
# On a broken file TFDS raises any error (KeyError, TypeError, AssertionError, protobuf's ParseError, RecursionError, ...), and
# TensorFlow adds node names and tracebacks to a message. So where only their code runs, every error is the source's, and only
# the first line of its text stays.

_NODE = re.compile(r" for '\{\{node .*|\{\{[^{}]*\}\}\s*|\s*\[Op:\w*\].*")
_COMPONENT = re.compile(r"\bcomponent (\d+)")
_SAYS_ENOUGH = (OSError, ValueError, NotImplementedError)
"""Errors whose text is a sentence. Before the text of any other ("'content'") stands its kind."""


@contextmanager
def source_errors(where: str, way_out: str = "", features: Sequence[str] = ()) -> Iterator[None]:
    """Turns what TensorFlow or TFDS raises inside into a `SourceError` of one line; put nothing else inside.

    Args:
      where: the sentence's beginning, "tfds:x: cannot be opened".
      way_out: its end.
      features: names of an element's leaves, which TensorFlow numbers: "component 0", "component 1", ...
    """
    try:
        yield
    except Rlds2ReverbError:
        raise
    except Exception as error:
        named = {f"component {number}": f'feature "{feature}"' for number, feature in enumerate(features)}
        reason = _COMPONENT.sub(lambda match: named.get(f"component {int(match[1])}", match[0]), one_line(error))
        sentence = f"{where}: {reason}"
        raise SourceError(f"{sentence.removesuffix('.')}; {way_out}" if way_out else sentence) from error


def one_line(error: Exception) -> str:
    """An error's message on one line, without node names and without what TensorFlow appends."""
    message = getattr(error, "message", None)  # of TensorFlow's errors; str() would append the operation
    text = _NODE.sub("", message if isinstance(message, str) else str(error))
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not isinstance(message, str) and not isinstance(error, _SAYS_ENOUGH):
        first = f"{type(error).__name__}: {first}".removesuffix(": ")
    return shortened(first or type(error).__name__)
