"""Batches on devices: dtypes, what stays on the host, several devices and processes, ends and errors of the thread ahead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import flashbax
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import rlds2reverb
from rlds2reverb.adapters.jax import Placement, experience_pair, put_ahead, sample
from rlds2reverb.errors import ConfigError, Stalled
from rlds2reverb.learner.batch import Batch
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from tests.support.processes import eventually, free_port
from tests.support.project import ROOT
from tests.systems.learners.servers import batch_of, numbers, store_numbers

PATIENCE_SECONDS = 60


def sharding() -> NamedSharding:
    """Over the four devices that tests/systems/learners/conftest.py makes of the processor."""
    assert len(jax.devices()) == 4
    return NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (np.float64, "float32"),
        (np.float32, "float32"),
        (np.float16, "float16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.complex128, "complex64"),
        (np.bool_, "bool"),
        (np.int64, "int32"),
        (np.int8, "int8"),
        (np.uint64, "uint32"),
        (np.uint16, "uint16"),
    ],
)
@pytest.mark.parametrize("placing", [Placement(), "device", "sharding"])
def test_dtypes_are_those_that_jax_has(dtype: Any, wanted: str, placing: Any) -> None:
    places = {"device": lambda: Placement(device=jax.devices()[2]), "sharding": lambda: Placement(sharding=sharding())}
    placed = places[placing]() if isinstance(placing, str) else placing
    column = np.array([0, 1, 2, 3] if dtype is not np.bool_ else [0, 1, 0, 1]).astype(dtype)
    made = placed.put(batch_of({"x": column}, 4)).data["x"]
    assert isinstance(made, jax.Array)
    assert str(made.dtype) == wanted
    np.testing.assert_array_equal(np.asarray(made), column.astype(wanted))


def test_keys_stay_whole_and_on_the_host_and_the_rest_of_the_info_goes() -> None:
    masks = {"x": np.ones((3, 2), bool)}
    info = Placement().put(batch_of({}, 3, weight=np.ones(3, np.float32), masks=masks)).info
    assert isinstance(info.masks["x"], jax.Array)
    assert type(info.key) is np.ndarray
    assert info.key.tolist() == [2**64 - 1, 0, 1]
    assert info.mask is None
    for values in (info.probability, info.table_size, info.priority, info.times_sampled, info.weight):
        assert isinstance(values, jax.Array)


def test_with_x64_everything_stays_what_it_is() -> None:
    data = {"f": np.ones(2), "i": np.array([-(2**40), 2**40]), "u": np.array([0, 2**63], np.uint64)}
    with jax.enable_x64(True):
        made = Placement().put(batch_of(data, 2)).data
    for path, column in data.items():
        assert made[path].dtype == column.dtype
        np.testing.assert_array_equal(np.asarray(made[path]), column)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_number_that_does_not_fit_is_an_error_and_not_another_number(value: int) -> None:
    data = {"step": {"id": np.array([0, value])}}
    with pytest.raises(ConfigError, match=rf'"step/id" has values from .*{value}.*int32 cannot hold'):
        Placement().put(batch_of(data, 2))
    made = Placement(host=["step/id"]).put(batch_of(data, 2))
    assert made.data["step"]["id"] is data["step"]["id"]
    fits = np.array([-(2**31), 2**31 - 1])
    assert Placement().put(batch_of({"x": fits}, 2)).data["x"].tolist() == fits.tolist()


def test_text_stays_on_the_host_where_that_is_said_and_is_refused_otherwise() -> None:
    batch = batch_of({"text": np.array([b"a", b"b"], object), "x": np.ones(2)}, 2)
    with pytest.raises(ConfigError, match=r'"text" is text, which JAX does not have; name it in host='):
        Placement().put(batch)
    made = Placement(host=["text"]).put(batch).data
    assert made["text"] is batch.data["text"]
    assert isinstance(made["x"], jax.Array)
    with pytest.raises(ConfigError, match="host names txet; the columns are text, x"):
        Placement(host=["txet"]).put(batch)


def test_items_of_several_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match='ragged="pad"'):
        Placement().put(batch_of({"x": [np.ones(2), np.ones(3)]}, 4))


def test_a_place_is_a_device_or_a_sharding() -> None:
    with pytest.raises(ConfigError, match="expected one of them"):
        Placement(device=jax.devices()[0], sharding=sharding())


def test_the_values_are_those_that_were_sampled(client: rlds2reverb.Client) -> None:
    """A jitted function takes the batch as it is, whatever containers the table's signature has."""
    total = jax.jit(lambda data: jax.tree.map(jnp.sum, data))
    with client.sample("two_step", 16, samples=48) as sampler:
        seen: list[Batch] = []
        made = list(put_ahead((seen.append(batch) or batch for batch in sampler), ahead=1))
    assert len(made) == 3
    for ours, theirs in zip(made, seen):
        assert type(ours.data).__name__ == "Trajectory"
        for path, column in flatten(theirs.data).items():
            np.testing.assert_array_equal(np.asarray(flatten(ours.data)[path]), column)
        assert total(ours.data).reward == pytest.approx(theirs.data.reward.sum(), rel=1e-4)


def test_a_short_last_batch_is_left_out_unless_it_is_wanted(client: rlds2reverb.Client) -> None:
    sizes = [len(batch.info.key) for batch in sample(client, "transitions", 8, samples=20)]
    assert sizes == [8, 8]
    sizes = [len(batch.info.key) for batch in sample(client, "transitions", 8, samples=20, drop_last=False)]
    assert sizes == [8, 8, 4]


def test_devices_share_a_batch(client: rlds2reverb.Client) -> None:
    for batch in sample(client, "transitions", 8, Placement(sharding=sharding()), samples=16):
        for leaf in jax.tree.leaves(batch.data):
            assert [shard.data.shape[0] for shard in leaf.addressable_shards] == [2, 2, 2, 2]
        assert batch.info.priority.sharding == sharding()
        assert batch.info.key.shape == (8,)


def test_a_batch_that_the_devices_cannot_share_is_refused(client: rlds2reverb.Client) -> None:
    with pytest.raises(ConfigError, match="a batch of 6 over NamedSharding"):
        next(sample(client, "transitions", 6, Placement(sharding=sharding())))


def test_priorities_go_back_by_the_keys_on_the_host(client: rlds2reverb.Client) -> None:
    (batch,) = sample(client, "prioritized", 16, samples=16)
    client.update_priorities("prioritized", batch.info.key, jnp.full(16, 1e7, jnp.float32))
    (again,) = sample(client, "prioritized", 16, samples=16)
    client.update_priorities("prioritized", batch.info.key, 1.0)
    assert set(again.info.key.tolist()) <= set(batch.info.key.tolist())
    assert set(again.info.priority.tolist()) == {1e7}


# The thread ahead.


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rlds2reverb")]


def test_a_batch_that_is_there_is_not_held_back_for_the_next_one(numbered: str) -> None:
    """The table gives one batch, and then waits for what the learner would put in."""
    store_numbers(numbered, "one", 4)
    with rlds2reverb.connect(numbered) as client:
        made = sample(client, "one", 4, ahead=3)
        assert sorted(next(made).data["observation"].tolist()) == [0, 1, 2, 3]
        with rlds2reverb.connect(numbered) as other:
            other.push(numbers(4, 4), "one", view="transition")
        assert sorted(next(made).data["observation"].tolist()) == [4, 5, 6, 7]
        made.close()


def test_it_runs_ahead_as_far_as_it_is_told() -> None:
    taken: list[int] = []

    def source() -> Iterator[Batch]:
        for number in range(10):
            taken.append(number)
            yield batch_of({"x": np.full(1, number)}, 1)

    made = put_ahead(source(), ahead=2)
    assert taken == []  # nothing before it is asked for
    assert next(made).data["x"].tolist() == [0]
    eventually(lambda: _is(len(taken), 4))  # two wait on the device, the next one waits for room
    assert [batch.data["x"].item() for batch in made] == list(range(1, 10))


def _is(found: int, wanted: int) -> None:
    assert found == wanted


def test_an_error_comes_after_the_batches_before_it() -> None:
    def source() -> Iterator[Batch]:
        yield batch_of({"x": np.ones(1)}, 1)
        raise Stalled("nothing came")

    made = put_ahead(source())
    assert next(made).data["x"].tolist() == [1]
    with pytest.raises(Stalled, match="nothing came"):
        next(made)
    with pytest.raises(StopIteration):
        next(made)


def test_an_error_of_placing_is_raised_in_the_callers_thread(client: rlds2reverb.Client) -> None:
    with pytest.raises(ConfigError, match="host names nothing"):
        next(sample(client, "transitions", 4, Placement(host=["nothing"])))
    eventually(lambda: _is(len(threads()), 0))


def test_closing_and_dropping_ends_the_thread_and_the_stream(client: rlds2reverb.Client) -> None:
    made = sample(client, "transitions", 4)
    next(made)
    assert threads()
    made.close()
    eventually(lambda: _is(len(threads()), 0))
    for _ in sample(client, "transitions", 4):
        break
    eventually(lambda: _is(len(threads()), 0))


# Several servers.


SIGNATURE = {"x": ArraySpec((), np.dtype(np.int32))}


def group_of(*servers: MemoryServer) -> rlds2reverb.Client:
    """Of servers in memory."""
    return rlds2reverb.Client([MemoryTransport(server, f"server{number}:1") for number, server in enumerate(servers)])


def server_of(*values: int, times: int = 0) -> MemoryServer:
    """Items that leave after so many samples."""
    server = MemoryServer(replace(table_info("replay", SIGNATURE), max_times_sampled=times))
    for value in values:
        server.put("replay", value, (np.array(value, np.int32),))
    return server


def test_two_servers_are_sampled_as_one() -> None:
    with group_of(server_of(1, 2), server_of(3, 4)) as group:
        made = list(sample(group, "replay", 16, samples=128))
    assert [batch.data["x"].shape for batch in made] == [(16,)] * 8
    assert {int(value) for batch in made for value in batch.data["x"]} == {1, 2, 3, 4}
    for batch in made:
        assert isinstance(batch.info.source, jax.Array)
        np.testing.assert_array_equal(batch.info.source, (np.asarray(batch.data["x"]) - 1) // 2)


@pytest.mark.parametrize("is_over", [True, False])
def test_closing_ends_a_stream_of_two_servers(is_over: bool) -> None:
    """The thread waits for samples of tables that have none left, or reads ahead."""
    with group_of(*(server_of(*values, times=int(is_over)) for values in ((1, 2), (3, 4)))) as group:
        made = sample(group, "replay", 4)
        next(made)
        assert "rlds2reverb-jax" in threads()
        made.close()
        eventually(lambda: _is("rlds2reverb-jax" in threads(), False))


@pytest.mark.parametrize("ahead", [0, -1, 1.5, True, None])
def test_ahead_is_a_number_of_batches(ahead: Any) -> None:
    with pytest.raises(ConfigError, match="expected a whole number of at least 1"):
        put_ahead([], ahead=ahead)


# Flashbax.


def test_two_steps_are_the_pair_that_flashbax_returns(client: rlds2reverb.Client) -> None:
    buffer = flashbax.make_flat_buffer(max_length=64, min_length=2, sample_batch_size=8, add_batch_size=1)
    step = {"obs": jnp.zeros(17), "reward": jnp.zeros(())}
    state = buffer.init(step)
    for _ in range(4):
        state = buffer.add(state, jax.tree.map(lambda leaf: leaf[None], step))
    theirs = buffer.sample(state, jax.random.PRNGKey(0)).experience
    (batch,) = sample(client, "two_step", 8, samples=8)
    ours = experience_pair({"obs": batch.data.observation, "reward": batch.data.reward})
    assert ours._fields == ("first", "second")
    assert jax.tree.map(jnp.shape, ours.first) == jax.tree.map(jnp.shape, theirs.first)
    assert jax.tree.map(jnp.shape, ours.second) == jax.tree.map(jnp.shape, theirs.second)
    np.testing.assert_array_equal(ours.second["obs"], batch.data.observation[:, 1])
    with pytest.raises(ConfigError, match=r'"x" is .*two steps an item'):
        experience_pair({"x": np.ones((8, 3))})


# Several processes.


def test_two_processes_share_a_batch(numbered: str) -> None:
    """Each brings a half of every batch; what both compute of the whole is the same."""
    store_numbers(numbered, "one", 32)
    port = free_port()
    requests = [{"coordinator": f"localhost:{port}", "process": n, "server": numbered, "batch_size": 8} for n in (0, 1)]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.systems.learners.sharing", json.dumps(request)],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for request in requests
    ]
    try:
        outputs = [process.communicate(timeout=3 * PATIENCE_SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(running, outputs):
        assert process.returncode == 0, errors.decode()
    one, two = (json.loads(output.splitlines()[-1]) for output, _ in outputs)  # Gloo has its say before
    assert one["totals"] == two["totals"]
    assert one["shapes"] == two["shapes"] == [[8]] * 4
    assert [len(keys) for keys in (*one["local"], *two["local"])] == [4] * 8
    for total, first, second in zip(one["totals"], one["local"], two["local"]):
        assert total == sum(first) + sum(second)
    assert sorted(number for part in (*one["local"], *two["local"]) for number in part) == list(range(32))
    assert "a batch of 7 over 2 processes" in one["refused"]
