"""Random TFDS features with data for them, written by TFDS's own serializer, and read by TFDS and here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from google.protobuf import json_format
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.formats.rlds import RldsSource
from rlds2reverb.formats.tfds.columns import EpisodeFeatures
from rlds2reverb.specs import Nest
from tests.support import strategies

F = tfds.features

WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
PLAIN = (*WHOLE, "float16", "float32", "float64")
ENCODED = (*(name for name in PLAIN if name != "uint32"), "bfloat16", "complex64", "complex128")
"""TensorFlow cannot decode the bytes of uint32."""


def tree_of(features: Any) -> dict[str, Any]:
    """What features.json holds of these features, as TFDS writes it."""
    return json.loads(json.dumps(json_format.MessageToDict(features.to_proto())))


def through_tfds(features: Any, records: Sequence[bytes]) -> tuple[Nest, list[Episode]]:
    """Spec and episodes of records as TFDS and tf.data read them."""
    dataset = tf.data.Dataset.from_tensor_slices(tf.constant(list(records), tf.string))
    source = RldsSource(dataset.map(features.deserialize_example), "through TFDS")
    return source.spec(), list(source)


def read_here(features: Any, records: Sequence[bytes]) -> tuple[Nest, list[Episode]]:
    """Spec and episodes of records as this package reads them."""
    reader = EpisodeFeatures.from_json(tree_of(features), "here")
    episodes = [Episode(*reader.read(record, f"record {number}"), "x") for number, record in enumerate(records)]
    return reader.steps_spec, episodes


def assert_same(one: Any, other: Any, path: str = "") -> None:
    """Equal in kind, dtype, shape and values; NaN equals NaN."""
    if isinstance(one, Mapping):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
        return
    assert type(one) is type(other), path
    if isinstance(one, bytes):
        assert one == other, path
        return
    assert one.dtype == other.dtype, path
    assert one.shape == other.shape, path
    if one.dtype != object:
        assert one.tobytes() == other.tobytes(), path
        return
    for left, right in zip(one.ravel(), other.ravel()):
        assert_same(left, right, path)


@dataclass(frozen=True)
class Kind:
    """A feature, and how values of it are made.

    Attributes:
      feature: of TFDS.
      value: of a generator and a size (for what is free) -> what TFDS's serializer takes.
    """

    feature: Any
    value: Any


def tensor(dtype: str, shape: tuple[int | None, ...], encoding: str = "none") -> Kind:
    kind = np.str_ if dtype == "string" else tf.dtypes.as_dtype(dtype).as_numpy_dtype
    made = np.dtype(object if dtype == "string" else kind)

    def value(rng: np.random.Generator, size: int) -> Any:
        return strategies.array(rng, made, tuple(size if count is None else count for count in shape))

    return Kind(F.Tensor(shape=shape, dtype=kind, encoding=encoding), value)


def text() -> Kind:
    return Kind(F.Text(), lambda rng, _: bytes(rng.integers(0, 256, rng.integers(0, 9), np.uint8)))


def label() -> Kind:
    return Kind(F.ClassLabel(num_classes=5), lambda rng, _: int(rng.integers(-1, 5)))


def image(dtype: str, channels: int, free: bool, encoding: str | None = None) -> Kind:
    kind = np.dtype(dtype)

    def value(rng: np.random.Generator, size: int) -> Any:
        return strategies.array(rng, kind, (size + 1 if free else 3, 5, channels))

    shape = (None, None, channels) if free else (3, 5, channels)
    return Kind(F.Image(shape=shape, dtype=kind, encoding_format=encoding), value)


def video() -> Kind:
    feature = F.Video(shape=(None, 2, 3, 3))
    return Kind(feature, lambda rng, size: strategies.array(rng, np.dtype(np.uint8), (size, 2, 3, 3)))


def sequence(inner: Kind) -> Kind:
    def value(rng: np.random.Generator, size: int) -> Any:
        return [inner.value(rng, size) for _ in range(size)]

    return Kind(F.Sequence(inner.feature), value)


def together(kinds: Mapping[str, Kind]) -> Kind:
    def value(rng: np.random.Generator, size: int) -> Any:
        return {name: kind.value(rng, size) for name, kind in kinds.items()}

    return Kind(F.FeaturesDict({name: kind.feature for name, kind in kinds.items()}), value)


_SIZES = st.lists(st.integers(1, 3), max_size=2).map(tuple)
_FREE = st.sampled_from([(None,), (None, 2), (2, None), (None, None), (None, 2, None)])
_CODES = st.sampled_from(["bytes", "zlib"])


def numbers() -> st.SearchStrategy[Kind]:
    """Tensors of known shape in all encodings, and of free sizes in those that keep a shape."""
    return st.one_of(
        st.builds(tensor, st.sampled_from([*PLAIN, "string"]), _SIZES),
        st.builds(tensor, st.sampled_from(ENCODED), _SIZES, _CODES),
        st.builds(tensor, st.sampled_from(ENCODED), _FREE, _CODES),
    )


def images() -> st.SearchStrategy[Kind]:
    """PNGs of every dtype and number of channels."""
    return st.one_of(
        st.builds(image, st.just("uint8"), st.sampled_from([1, 3, 4]), st.booleans()),
        st.builds(image, st.just("uint16"), st.sampled_from([1, 3, 4]), st.booleans()),
        st.builds(image, st.just("float32"), st.just(1), st.booleans()),
    )


def leaves() -> st.SearchStrategy[Kind]:
    """Everything but sequences and dicts."""
    return st.one_of(numbers(), numbers(), st.builds(text), st.builds(label), images())


def step_features() -> st.SearchStrategy[Kind]:
    """Dicts of leaves, sequences and dicts; some names with a "/"."""
    inner = st.one_of(leaves(), leaves().map(sequence), st.builds(video))
    names = st.sampled_from(["a", "b", "c/d", "observation", "e"])
    nested = st.one_of(inner, st.dictionaries(names, inner, max_size=2).map(together))
    return st.dictionaries(names, nested, min_size=1, max_size=4).map(together)


def episode_features() -> st.SearchStrategy[dict[str, Kind]]:
    """What an episode may have beside its steps: also sequences of sequences."""
    inner = st.one_of(leaves(), leaves().map(sequence), leaves().map(sequence).map(sequence))
    free = st.builds(tensor, st.sampled_from(PLAIN), st.sampled_from([(None,), (2, None)]))
    return st.dictionaries(st.sampled_from(["x", "y", "z/w"]), st.one_of(inner, free), max_size=2)
