"""Features of all kinds, as TFDS writes them, read here and through TFDS: the same values, dtypes and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.specs import flatten
from tests.support.profiles import scaled
from tests.support.raising import outcome_of

tfds = pytest.importorskip("tensorflow_datasets")

from tests.support.formats import tfds_features as kinds
from tests.support.formats.tfds_features import F, Kind, assert_same, read_here, through_tfds


def serialized(steps: Kind, metadata: dict[str, Kind], sizes: list[list[int]], seed: int) -> tuple[Any, list[bytes]]:
    """TFDS features of episodes, and a record for each list of sizes: one size per step."""
    rng = np.random.default_rng(seed)
    whole = {"steps": F.Dataset(steps.feature), **{name: kind.feature for name, kind in metadata.items()}}
    features = F.FeaturesDict(whole)
    records = [
        features.serialize_example(
            {
                "steps": [steps.value(rng, size) for size in count],
                **{name: kind.value(rng, len(count)) for name, kind in metadata.items()},
            }
        )
        for count in sizes
    ]
    return features, records


def assert_read_alike(features: Any, records: list[bytes]) -> None:
    here_spec, here = read_here(features, records)
    found = outcome_of(SourceError, lambda: through_tfds(features, records))
    if isinstance(found, SourceError):  # a sequence without elements of free sizes, which TensorFlow cannot stack
        assert "elements of an empty list" in str(found)
        return
    spec, wanted = found
    assert flatten(here_spec) == flatten(spec)
    assert len(here) == len(wanted)
    for episode, other in zip(here, wanted):
        assert_same(dict(episode.columns), dict(other.columns))
        assert_same(dict(episode.metadata), dict(other.metadata))


EVERY: dict[str, Kind] = {
    **{f"plain {dtype}": kinds.tensor(dtype, (2,)) for dtype in (*kinds.PLAIN, "string")},
    **{f"bytes {dtype}": kinds.tensor(dtype, (), "bytes") for dtype in kinds.ENCODED},
    **{f"zlib {dtype}": kinds.tensor(dtype, (2, 2), "zlib") for dtype in ("bool", "uint8", "float64")},
    "free": kinds.tensor("int16", (None, 2), "bytes"),
    "dynamic": kinds.tensor("float32", (None, 2, None), "zlib"),
    "text": kinds.text(),
    "label": kinds.label(),
    "slash/image": kinds.image("uint8", 3, free=False),
    "jpeg": kinds.image("uint8", 3, free=True, encoding="jpeg"),
    "depth": kinds.image("uint16", 1, free=True),
    "metres": kinds.image("float32", 1, free=False),
    "video": kinds.video(),
    "numbers": kinds.sequence(kinds.tensor("float32", (3,))),
    "texts": kinds.sequence(kinds.text()),
    "blobs": kinds.sequence(kinds.tensor("uint8", (None, None), "zlib")),
    "nested": kinds.together({"a": kinds.text(), "b": kinds.together({"c": kinds.tensor("int8", ())})}),
}


def test_every_kind_of_feature_in_steps_is_read_as_through_tfds() -> None:
    assert_read_alike(*serialized(kinds.together(EVERY), {}, [[2, 2, 2], [1]], 1))


def test_every_kind_of_feature_beside_the_steps_is_read_as_through_tfds() -> None:
    beside = {
        **EVERY,
        "rows": kinds.sequence(kinds.sequence(kinds.tensor("int64", ()))),
        "list": kinds.tensor("float64", (2, None)),
    }
    assert_read_alike(*serialized(kinds.together({"a": kinds.text()}), beside, [[0, 0], [0]], 2))


def test_what_is_optional_and_missing_is_filled_as_through_tfds() -> None:
    optional = {
        dtype: F.Tensor(shape=shape, dtype=np.str_ if dtype == "string" else np.dtype(dtype), optional=True)
        for dtype in (*kinds.PLAIN, "string")
        for shape in ((2,) if dtype == "int16" else (),)
    }
    features = F.FeaturesDict({"steps": F.Dataset({"a": F.Text()}), **optional})
    assert_read_alike(features, [features.serialize_example({"steps": [{"a": "x"}], **dict.fromkeys(optional)})])


@settings(max_examples=scaled(18))
@given(
    kinds.step_features(),
    kinds.episode_features(),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4)).map(lambda one: [one[0]] * one[1]), min_size=1, max_size=3
    ),
    st.integers(0, 1 << 20),
)
def test_random_features_are_read_as_through_tfds(
    steps: Kind, metadata: dict[str, Kind], sizes: list[list[int]], seed: int
) -> None:
    assert_read_alike(*serialized(steps, metadata, sizes, seed))


FREE = {
    "sequence": kinds.sequence(kinds.tensor("int32", ())),
    "texts": kinds.sequence(kinds.text()),
    "bytes": kinds.tensor("float32", (None, 2), "bytes"),
    "zlib": kinds.tensor("float32", (2, None), "zlib"),
    "dynamic": kinds.tensor("uint8", (None, None), "zlib"),
    "image": kinds.image("uint8", 3, free=True),
    "video": kinds.video(),
    "sequence of free sizes": kinds.sequence(kinds.tensor("int16", (None,), "bytes")),
}


@pytest.mark.parametrize("name", FREE)
def test_steps_of_different_sizes_are_refused_as_through_tfds(name: str) -> None:
    features, records = serialized(kinds.together({"a": FREE[name]}), {}, [[2, 3]], 0)
    for read in (through_tfds, read_here):
        with pytest.raises(SourceError, match='"a"'):
            read(features, records)
