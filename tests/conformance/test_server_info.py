"""What ServerInfo says of real tables, decoded by us, is what Reverb's own client makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from tests.support.forks import Embedded

reverb = pytest.importorskip("reverb")

import tensorflow as tf
from replay_server import TableConfig
from replay_server.tables import MinSize, SampleToInsertRatio
from tensorflow.core.protobuf import struct_pb2
from tensorflow.python.saved_model import nested_structure_coder

import rlds2reverb
from rlds2reverb.formats.rlds import array_spec
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves, named_tuple_type
from rlds2reverb.wire.codec import decode_signature, encode_signature
from rlds2reverb.wire.messages import insert_wait, inserts_needed, sample_wait, samples_needed, sentence
from rlds2reverb.wire.schema import message_class
from tests.support import strategies
from tests.support.forks import Forks
from tests.support.rlds_data import once, tensor_spec

FLOAT32 = np.dtype(np.float32)


def leaf(dtype: Any, *shape: int | None, name: str = "", bounds: tuple[Any, Any] | None = None) -> ArraySpec:
    minimum, maximum = bounds or (None, None)
    return ArraySpec(shape, np.dtype(dtype), name, minimum, maximum)


def random_nest(rng: np.random.Generator, depth: int = 0) -> Nest:
    """A nest of every kind of container and leaf."""
    kind = rng.integers(4 if depth < 3 else 1)
    children = [random_nest(rng, depth + 1) for _ in range(rng.integers(1, 4))] if kind else []
    if kind == 1:
        return {f"key{number}": child for number, child in enumerate(children)}
    if kind == 2:
        return tuple(children)
    if kind == 3:
        return named_tuple_type(f"Kind{depth}", tuple(f"field{number}" for number in range(len(children))))(*children)
    shape = tuple(None if size == 5 else int(size) for size in rng.integers(0, 6, rng.integers(0, 4)))
    dtype = strategies.DTYPES[rng.integers(len(strategies.DTYPES))]
    if dtype == FLOAT32:
        return leaf(dtype, *shape, bounds=(np.float32(-1.5), np.float32(2)))
    return leaf(dtype, *shape, name=f"leaf{rng.integers(9)}")


SIGNATURES: dict[str, Nest] = {
    "one_leaf": leaf(np.float32, 3),
    "dict": {"b": leaf(np.int64, None), "a": {"z": leaf(object), "y": leaf(ml_dtypes.bfloat16, 2, None)}},
    "tuple": (leaf(np.bool_), (leaf(np.uint8, 0),)),
    "bounded": {
        "scalar": leaf(np.float32, None, name="discount", bounds=(np.float32(0), np.float32(1))),
        "each": leaf(np.float64, 2, bounds=(np.array([-1.0, -2.0]), np.array([1.0, 2.0]))),
        "whole": leaf(np.int32, 3, bounds=(np.int32(-5), np.int32(5))),
    },
    "empty_part": named_tuple_type("Pair", ("here", "nothing"))(leaf(np.int8), ()),
    **{f"random{seed}": random_nest(np.random.default_rng(seed)) for seed in range(30)},
}

SELECTORS = {
    "uniform": "uniform",
    "fifo": "fifo",
    "lifo": "lifo",
    "max_heap": "max_heap",
    "min_heap": "min_heap",
    "prioritized": "prioritized(0.25)",
}

TABLES = [
    *(TableConfig(name, nest) for name, nest in SIGNATURES.items()),
    *(
        TableConfig(f"by_{name}", sampler=cast(Any, name), remover=cast(Any, name), priority_exponent=0.25)
        for name in SELECTORS
    ),
    TableConfig("unsigned", max_size=12, max_times_sampled=3, rate_limiter=MinSize(min_size=2)),
    TableConfig("ratio", rate_limiter=SampleToInsertRatio(samples_per_insert=2.5, error_buffer=10.0, min_size=3)),
    TableConfig.queue("queue", 4),
    once("counted"),
]


@pytest.fixture(scope="module")
def address(forks: Forks) -> Iterator[str]:
    with forks.embedded(TABLES) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[rlds2reverb.Client]:
    with rlds2reverb.connect(address) as connected:
        yield connected


@pytest.fixture
def theirs(address: str) -> Any:
    return reverb.Client(address)


def same_bound(ours: Any, theirs: Any, shape: tuple[int, ...]) -> bool:
    """A decoded bound is flat, and one value where it is the same everywhere."""
    wanted = np.broadcast_to(theirs, shape).ravel()
    return ours.ndim == 1 and len(ours) in (1, len(wanted)) and bool(np.all(ours == wanted))


@pytest.mark.parametrize("nest", SIGNATURES.values(), ids=SIGNATURES)
def test_a_signature_that_we_encode_is_what_tensorflow_encodes(nest: Nest) -> None:
    proto = struct_pb2.StructuredValue.FromString(encode_signature(nest).SerializeToString())
    found, wanted = nested_structure_coder.decode_proto(proto), map_leaves(tensor_spec, nest)
    tf.nest.assert_same_structure(found, wanted, expand_composites=True)
    assert found == wanted  # names and bounds, too


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_the_nest_it_was_made_of(client: rlds2reverb.Client, theirs: Any, name: str) -> None:
    found = client.server_info().tables[name].signature
    wanted = flatten(SIGNATURES[name])
    assert flatten(found) == wanted
    assert list(flatten(found)) == list(wanted)
    decoded = flatten(map_leaves(lambda spec: array_spec(spec, name), theirs.server_info()[name].signature))
    for path, spec in flatten(found).items():
        assert spec.name == wanted[path].name == decoded[path].name
        assert (spec.minimum is None) == (wanted[path].minimum is None)
        if spec.minimum is not None:
            shape = tuple(size or 1 for size in spec.shape)
            assert same_bound(spec.minimum, wanted[path].minimum, shape)
            assert same_bound(spec.maximum, wanted[path].maximum, shape)


@pytest.mark.parametrize("name", SIGNATURES)
def test_containers_keep_their_kinds_and_fields(client: rlds2reverb.Client, name: str) -> None:
    def kinds(nest: Nest) -> Any:
        if hasattr(nest, "_fields"):
            return type(nest).__name__, nest._fields, [kinds(child) for child in nest]
        if isinstance(nest, dict):
            return {key: kinds(child) for key, child in nest.items()}
        return tuple(kinds(child) for child in nest) if isinstance(nest, tuple) else "leaf"

    assert kinds(client.server_info().tables[name].signature) == kinds(SIGNATURES[name])


def test_every_number_is_that_of_reverbs_own_client(client: rlds2reverb.Client, theirs: Any) -> None:
    ours, other = client.server_info().tables, theirs.server_info()
    assert list(ours) and set(ours) == set(other) == {table.name for table in TABLES}
    for name, table in ours.items():
        found = other[name]
        assert (table.name, table.max_size, table.current_size) == (found.name, found.max_size, found.current_size)
        assert table.max_times_sampled == found.max_times_sampled
        assert (table.episodes, table.deleted_episodes) == (found.num_episodes, found.num_deleted_episodes)
        limiter, their_limiter = table.rate_limiter, found.rate_limiter_info
        assert limiter.samples_per_insert == their_limiter.samples_per_insert
        assert (limiter.min_diff, limiter.max_diff) == (their_limiter.min_diff, their_limiter.max_diff)
        assert limiter.min_size_to_sample == their_limiter.min_size_to_sample
        assert limiter.inserts == their_limiter.insert_stats.completed
        assert limiter.samples == their_limiter.sample_stats.completed


@pytest.mark.parametrize(("selector", "word"), SELECTORS.items())
def test_selectors_are_called_by_their_config_names(client: rlds2reverb.Client, selector: str, word: str) -> None:
    table = client.server_info().tables[f"by_{selector}"]
    assert (table.sampler, table.remover) == (word, word)


def test_options_of_tables_come_through(client: rlds2reverb.Client) -> None:
    tables = client.server_info().tables
    unsigned, queue = tables["unsigned"], tables["queue"]
    assert unsigned.signature is None
    assert (unsigned.max_size, unsigned.max_times_sampled, unsigned.rate_limiter.min_size_to_sample) == (12, 3, 2)
    assert (queue.max_size, queue.max_times_sampled, queue.sampler, queue.remover) == (4, 1, "fifo", "fifo")
    assert tables["ratio"].rate_limiter.samples_per_insert == 2.5


def test_counts_follow_inserts_samples_and_evictions(client: rlds2reverb.Client, theirs: Any) -> None:
    episode = strategies.episode(np.random.default_rng(0), 6)
    before = client.server_info().tables["counted"]
    assert (before.current_size, before.rate_limiter.inserts, before.rate_limiter.samples) == (0, 0, 0)
    client.push([episode], "counted")
    stored = client.server_info().tables["counted"]
    assert (stored.current_size, stored.episodes, stored.rate_limiter.inserts) == (5, 1, 5)
    list(theirs.sample("counted", 2, emit_timesteps=False))
    sampled = client.server_info().tables["counted"]
    assert (sampled.current_size, sampled.rate_limiter.inserts, sampled.rate_limiter.samples) == (3, 5, 2)
    assert sampled.unique_samples == theirs.server_info()["counted"].num_unique_samples
    client.push([episode], "unsigned", again=True)
    client.push([episode] * 3, "unsigned", again=True, allow_eviction=True)
    assert client.server_info().tables["unsigned"].current_size == 12


def test_the_state_id_is_that_of_the_server_process(client: rlds2reverb.Client, server: Embedded) -> None:
    assert client.server_info().state_id == client.server_info().state_id > 0
    with rlds2reverb.connect(server.address) as other:
        assert other.server_info().state_id != client.server_info().state_id


def test_the_limiter_says_how_many_inserts_it_will_take(client: rlds2reverb.Client, theirs: Any) -> None:
    """Items go in one by one until one does not: the limiter's own account must foretell it, insert by insert."""
    theirs.reset("ratio")
    episode = strategies.episode(np.random.default_rng(1), 2)
    taken = 0
    while not samples_needed(client.server_info().tables["ratio"]):
        client.push([episode], "ratio", again=True, stall_seconds=60)
        taken += 1
        assert taken < 50
    table = client.server_info().tables["ratio"]
    assert (table.current_size, inserts_needed(table)) == (taken, 0)
    assert "may be taken" in sentence(sample_wait(table))
    needed = samples_needed(table)
    assert f"waits for {needed} more samples" in sentence(insert_wait(table))
    with pytest.raises(rlds2reverb.Rlds2ReverbError, match=f"waits for {needed} more samples"):
        client.push([episode], "ratio", again=True, stall_seconds=0.1)
    list(theirs.sample("ratio", needed, emit_timesteps=False))
    # The insert that had to wait went in when the samples were taken, or is gone with its stream: ask anew.
    assert client.server_info().tables["ratio"].rate_limiter.samples == needed


def test_bounds_that_tensorflow_writes_in_short_are_read() -> None:
    """TensorFlow writes a bound of equal values as one value."""
    written = nested_structure_coder.encode_structure(map_leaves(tensor_spec, SIGNATURES["bounded"]))
    specs = flatten(decode_signature(message_class("StructuredValue").FromString(written.SerializeToString())))
    assert specs["whole"] == array_spec(tf.TensorSpec((3,), tf.int32), "whole")
    assert {int(value) for value in specs["whole"].minimum} == {-5}
    assert specs["each"].minimum.tolist() == [-1.0, -2.0]
    assert specs["scalar"].maximum.tolist() == [1.0]
