"""Batches as tensors: values and dtypes, workers of every kind, shares, ends, priorities."""

from __future__ import annotations

import functools
import json
import pickle
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

import rlds2reverb
from rlds2reverb.adapters.torch import TableDataset, TensorBatch, batches, tensors, update_priorities
from rlds2reverb.errors import ConfigError, Stalled, TransportError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.specs import flatten
from rlds2reverb.wire.codec import NUMPY_DTYPES
from tests.support.processes import eventually
from tests.support.project import ROOT
from tests.systems.learners.conftest import StartServer
from tests.systems.learners.loading import loaded, loader
from tests.systems.learners.servers import batch_of, numbers, signature_of, store_numbers

WAYS = ["fork", "forkserver", "spawn"]


def sampled(client: rlds2reverb.Client, table: str, count: int) -> TensorBatch:
    """One batch."""
    with client.sample(table, count, samples=count) as sampler:
        (batch,) = batches(sampler)
        return batch


def array_of(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Random bits."""
    size = int(np.prod(shape)) * dtype.itemsize
    bits = np.random.default_rng(0).integers(0, 2 if dtype == bool else 256, size, np.uint8)
    return bits.view(dtype).reshape(shape)


def new_key_bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else tensor.numpy().tobytes()


@pytest.mark.parametrize(
    "dtype", [numpy_dtype for numpy_dtype in NUMPY_DTYPES.values() if numpy_dtype != object], ids=str
)
@pytest.mark.parametrize("shape", [(3, 4), (3, 0), (3,), (1, 2, 5)], ids=str)
def test_every_dtype_comes_over_the_same_memory(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    column = array_of(dtype, shape)
    tensor = tensors(batch_of({"x": column}, shape[0])).data["x"]
    assert str(tensor.dtype) == f"torch.{dtype.name}"
    assert tensor.shape == shape
    assert new_key_bits(tensor) == column.tobytes()
    assert not column.size or tensor.data_ptr() == column.ctypes.data


def test_what_cannot_be_written_to_is_copied() -> None:
    column = np.arange(6.0)
    column.flags.writeable = False
    turned = np.arange(6)[::-1]
    made = tensors(batch_of({"fixed": column, "turned": turned}, 6)).data
    assert made["fixed"].tolist() == column.tolist()
    assert made["turned"].tolist() == [5, 4, 3, 2, 1, 0]
    made["fixed"][0] = 7
    assert column[0] == 0


def test_text_stays_numpy_and_ragged_columns_stay_lists() -> None:
    text = np.array([b"one", b"two"], object)
    made = tensors(batch_of({"text": text, "ragged": [np.arange(2), np.arange(3)]}, 2)).data
    assert made["text"] is text
    assert [values.tolist() for values in made["ragged"]] == [[0, 1], [0, 1, 2]]


def test_keys_keep_their_bits_and_what_is_not_there_stays_none() -> None:
    info = tensors(batch_of({}, 3, weight=np.ones(3, np.float32))).info
    assert info.key.tolist() == [-1, 0, 1]
    assert info.weight.dtype is torch.float32
    assert info.mask is None
    masks = tensors(batch_of({}, 3, masks={"x": np.ones((3, 2), bool)})).info.masks
    assert masks["x"].dtype is torch.bool


def test_one_sample_without_the_axis_of_a_batch_becomes_tensors_too(client: rlds2reverb.Client) -> None:
    made = tensors(client.sample_one("transitions"))
    assert made.data["observation"].shape == (4,)
    assert made.data["action"].shape == ()
    assert made.info.key.dtype is torch.int64


def test_a_device_takes_all_but_keys_and_text() -> None:
    made = tensors(batch_of({"x": np.ones(2), "text": np.array([b"", b""], object)}, 2), "meta")
    assert made.data["x"].device.type == made.info.priority.device.type == "meta"
    assert isinstance(made.data["text"], np.ndarray)
    assert made.info.key.device.type == "cpu"


def test_to_cuda_it_goes_by_way_of_pinned_memory_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such device is here: what would be asked of PyTorch is looked at."""
    asked: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (asked.append("pin"), self)[1])
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **how: (asked.append((str(device), how)), self)[1])
    tensors(batch_of({"x": np.ones(2)}, 2), "cuda:1")
    assert asked == ["pin", ("cuda:1", {"non_blocking": True})] * 5  # the column, and four of the info


def test_sampled_tensors_are_what_was_sampled(client: rlds2reverb.Client) -> None:
    with client.sample("two_step", 16, samples=32) as sampler:
        seen: list[Batch] = []
        made = list(batches(seen.append(batch) or batch for batch in sampler))
    assert [len(batch.info.key) for batch in made] == [16, 16]
    for ours, theirs in zip(made, seen):
        assert type(ours.data).__name__ == "Trajectory"
        for path, column in flatten(theirs.data).items():
            np.testing.assert_array_equal(flatten(ours.data)[path].numpy(), column)


def test_priorities_go_back_by_keys_as_they_came(client: rlds2reverb.Client) -> None:
    batch = sampled(client, "prioritized", 32)
    losses = torch.linspace(1, 2, 32, dtype=torch.bfloat16, requires_grad=True)
    update_priorities(client, "prioritized", batch.info.key, losses[:, None])
    update_priorities(client, "prioritized", batch.info.key[:1], np.array([1e7]))
    wanted = dict(zip(batch.info.key.tolist(), losses.tolist()))
    wanted[batch.info.key[0].item()] = 1e7
    with client.sample("prioritized", 200, samples=200) as sampler:  # most of the probability is on one item
        again = next(batches(sampler)).info
    found = {key: priority for key, priority in zip(again.key.tolist(), again.priority.tolist()) if key in wanted}
    assert batch.info.key[0].item() in found
    assert found.items() <= wanted.items()
    client.update_priorities("prioritized", batch.info.key, 1.0)  # the tensor itself does as well


def test_options_are_looked_at_before_a_worker_starts() -> None:
    with pytest.raises(ConfigError, match="prefetch 0"):
        TableDataset("localhost:1", "replay", prefetch=0)
    with pytest.raises(TypeError, match="no_such_option"):
        TableDataset("localhost:1", "replay", no_such_option=1)  # type: ignore[call-arg]


def test_it_pickles_and_asks_no_server_before_it_is_iterated() -> None:
    dataset = pickle.loads(pickle.dumps(TableDataset("localhost:1", "replay", 4, samples=8)))
    assert (dataset.server, dataset.table, dataset.batch_size, dataset.options) == (
        "localhost:1",
        "replay",
        4,
        {"samples": 8},
    )
    with pytest.raises(TransportError, match="localhost:1"):
        next(iter(dataset))


def test_an_open_client_is_sampled_in_this_process_only(client: rlds2reverb.Client) -> None:
    dataset = TableDataset(client, "transitions", 4, samples=8)
    assert [len(batch.info.key) for batch in DataLoader(dataset, batch_size=None)] == [4, 4]
    assert client.tables()  # it stays open
    with pytest.raises(ConfigError, match="an open client cannot be pickled for workers"):
        next(iter(loader(dataset, "spawn", 1)))


def loaded_elsewhere(way: str, server: str | list[str], **more: Any) -> list[list[int]]:
    """As `loaded`, in a process in which nothing has connected."""
    request = json.dumps({"way": way, "server": server, **more})
    done = subprocess.run(
        [sys.executable, "-m", "tests.systems.learners.loading", request],
        cwd=ROOT,
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: list[list[int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_workers_share_out_a_table_that_hands_out_items_once(numbered: str, way: str) -> None:
    """One worker more than samples would need: it brings none."""
    store_numbers(numbered, "one", 50)
    found = loaded_elsewhere(way, numbered, table="one", workers=2, batch_size=8, samples=33)
    assert sorted(len(batch) for batch in found) == [1, 8, 8, 8, 8]  # 17 and 16
    taken = sorted(number for batch in found for number in batch)
    assert taken == list(range(33))  # what was not asked for is still there
    with rlds2reverb.connect(numbered) as client:
        assert client.tables()["one"].current_size == 17


@pytest.mark.parametrize("way", ["forkserver", "spawn"])
def test_workers_of_a_process_that_has_connected(numbered: str, way: str) -> None:
    store_numbers(numbered, "keep", 50)
    found = loaded(way, numbered, "keep", 2, batch_size=8, samples=32)
    assert [len(batch) for batch in found] == [8, 8, 8, 8]
    assert {number for batch in found for number in batch} <= set(range(50))


@pytest.mark.parametrize("size", [{}, {"batch_size": 32}])
def test_a_loader_that_would_join_batches_says_what_to_do(client: rlds2reverb.Client, size: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"DataLoader\(dataset, batch_size=None\)"):
        next(iter(DataLoader(TableDataset(client, "transitions", 4, samples=8), **size)))


def test_a_forked_worker_of_such_a_process_says_what_to_do(numbered: str) -> None:
    """The test stores with a client of its own, in the middle of a stream."""
    store_numbers(numbered, "keep", 5)
    with rlds2reverb.connect(numbered) as client, client.sample("keep", 1) as sampler:
        sampler.next_batch()
        with pytest.raises(TransportError, match=r'DataLoader: multiprocessing_context="forkserver"'):
            next(iter(loader(TableDataset(numbered, "keep", 1), "fork", 1)))
        assert sampler.next_batch() is not None


def test_more_workers_than_samples(numbered: str) -> None:
    store_numbers(numbered, "one", 5)
    assert sorted(loaded_elsewhere("fork", numbered, table="one", workers=3, batch_size=4, samples=2)) == [[0], [1]]


def test_persistent_workers_bring_as_many_in_every_epoch(numbered: str) -> None:
    store_numbers(numbered, "one", 40)
    epochs = loader(TableDataset(numbered, "one", 4, samples=16), "forkserver", persistent_workers=True)
    first, second = ([number for batch in epochs for number in batch.data["observation"].tolist()] for _ in range(2))
    assert sorted(first) == list(range(16))
    assert sorted(second) == list(range(16, 32))


def test_an_epoch_that_ends_early_leaves_no_stream(numbered: str) -> None:
    """A stream that stays would take samples that are put in later."""
    store_numbers(numbered, "one", 8)
    dataset = TableDataset(numbered, "one", 4, prefetch=1)
    for batch in loader(dataset, "forkserver", 1, prefetch_factor=1):
        assert batch.data["observation"].tolist() == [0, 1, 2, 3]
        break
    with rlds2reverb.connect(numbered) as client:
        eventually(lambda: _takes_all(client, numbered))


def _takes_all(client: rlds2reverb.Client, address: str) -> None:
    """Whether nobody else takes what is put in."""
    store_numbers(address, "one", 20)
    with client.sample("one", 20, samples=20, end_after_seconds=1) as sampler:
        taken = sampler.next_batch()
    assert taken is not None
    assert sorted(taken.data["observation"].tolist()) == list(range(20))


def test_in_this_process_an_early_end_closes_the_stream_at_once(numbered: str) -> None:
    store_numbers(numbered, "one", 8)
    for _ in DataLoader(TableDataset(numbered, "one", 4, prefetch=1), batch_size=None):
        break
    with rlds2reverb.connect(numbered) as client:
        eventually(lambda: _takes_all(client, numbered))
    assert not [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-receive"]


def test_a_workers_error_comes_with_its_type_and_words(numbered: str) -> None:
    with pytest.raises(ConfigError, match="no_such_table"):
        next(iter(loader(TableDataset(numbered, "no_such_table"), "forkserver", 1)))
    store_numbers(numbered, "one", 1)
    waiting = TableDataset(numbered, "one", 4, timeout_seconds=2.0)
    with pytest.raises(Stalled, match="one"):
        list(loader(waiting, "forkserver", 1))


def test_epochs_are_for_one_worker(numbered: str) -> None:
    store_numbers(numbered, "one", 6)
    found = [
        batch.data["observation"].tolist()
        for batch in loader(TableDataset(numbered, "one", 4, epochs=1), "forkserver", 1)
    ]
    assert found == [[0, 1, 2, 3], [4, 5]]
    with pytest.raises(ConfigError, match="epochs, with 2 workers"):
        next(iter(loader(TableDataset(numbered, "one", 4, epochs=1), "forkserver", 2)))


def test_a_worker_samples_several_servers(numbered: str, start_server: StartServer) -> None:
    other = start_server({"name": "keep", "signature": signature_of(numbers(1), "transition")}).address
    store_numbers(numbered, "keep", 10)
    store_numbers(other, "keep", 10, start=100)
    found = loaded_elsewhere("fork", [numbered, other], table="keep", workers=1, batch_size=16, samples=256)
    seen = {number for batch in found for number in batch}
    assert seen & set(range(10))
    assert seen & set(range(100, 110))
    assert seen <= {*range(10), *range(100, 110)}


def test_a_function_connects_where_an_address_is_not_enough(numbered: str) -> None:
    store_numbers(numbered, "keep", 5)
    connecting = functools.partial(rlds2reverb.connect, numbered, metadata=(("who", "test"),))
    (batch,) = loader(TableDataset(connecting, "keep", 4, samples=4), "forkserver", 1)
    assert batch.data["observation"].shape == (4,)


def test_pinning_leaves_the_structure_alone(client: rlds2reverb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What DataLoader(pin_memory=True) does where there is a device to pin for."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: self.clone())
    made = sampled(client, "two_step", 4)
    pinned = pin_memory(made)
    assert type(pinned) is Batch
    assert type(pinned.data) is type(made.data)
    assert pinned.data.observation is not made.data.observation
    assert pinned.info.weight is None
    for path, column in flatten(made.data).items():
        assert torch.equal(flatten(pinned.data)[path], column)
