"""Datasets and mixes for a DataLoader: one order with any number of workers, resumed anywhere, shared out to ranks that are killed."""

from __future__ import annotations

import copy
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, get_worker_info

import rlds2reverb
from rlds2reverb import Episode
from rlds2reverb.adapters.torch import LocalDataset, MixDataset, TableDataset, passes
from rlds2reverb.errors import ConfigError, SourceError
from tests.support import strategies
from tests.support.project import ROOT
from tests.systems.learners.loading import SECONDS, loader
from tests.systems.learners.servers import store_numbers

SOURCE, OTHER = "bundled:cartpole@train[:4]", "bundled:cartpole@train[4:6]"
SHUFFLES = [0, 40, "global"]


def keys_of(batches: Any) -> list[list[int]]:
    return [batch.info.key.tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain(*batches))


def dataset_of(shuffle: Any = "global", **options: Any) -> LocalDataset:
    return LocalDataset(SOURCE, "transition", 16, shuffle=shuffle, **options)


def expected(shuffle: Any = "global", **options: Any) -> list[list[int]]:
    """The batches of `local`, in this process."""
    batches = rlds2reverb.local(SOURCE, "transition", 16, shuffle=shuffle, **options)
    return [batch.info.key.view("int64").tolist() for batch in batches]


def load(dataset: Any, workers: int, **more: Any) -> DataLoader:
    if not workers:
        return DataLoader(dataset, batch_size=None)
    return loader(dataset, more.pop("way", "fork"), workers, **more)


def in_a_worker(batch: Any) -> dict[str, Any]:
    """What a user's function may do."""
    worker = get_worker_info()
    return {
        "mean": batch.data["observation"].double().mean(0),
        "keys": batch.info.key,
        "worker": -1 if worker is None else worker.id,
    }


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_those_of_local_in_its_order_and_every_pass_is_an_epoch(shuffle: Any, workers: int) -> None:
    batches = load(dataset_of(shuffle), workers)
    two = expected(shuffle, epochs=2)
    first, second = keys_of(batches), keys_of(batches)
    assert first == expected(shuffle)
    assert flat(second) == flat(two)[len(flat(first)) :]
    if workers:
        with pytest.raises(ConfigError, match=r"state_dict\(batches=number\)"):
            batches.dataset.state_dict()
    else:
        assert batches.dataset.state_dict()["samples"] == 16 * len(second)


@pytest.mark.parametrize("way", ["forkserver", "spawn"])
def test_workers_of_other_kinds_and_persistent_ones_know_the_epoch(way: str) -> None:
    dataset = dataset_of()
    batches = load(dataset, 2, way=way, persistent_workers=True)
    first, second = keys_of(batches), keys_of(batches)
    assert first == expected()
    dataset.set_epoch(1)
    assert keys_of(batches) == second
    dataset.set_epoch(0)
    assert keys_of(batches) == first


def test_an_epoch_that_ends_early_is_behind_as_well() -> None:
    batches = load(dataset_of(), 2)
    first = keys_of(itertools.islice(batches, 2))
    assert first == expected()[:2]
    assert keys_of(batches) == keys_of(load_epoch(1))


def test_a_position_that_this_process_does_not_know_is_not_guessed() -> None:
    dataset = dataset_of()
    assert dataset.state_dict()["at"] is None
    here = keys_of(load(dataset, 0))
    assert dataset.state_dict()["samples"] == 16 * len(here)
    there = keys_of(itertools.islice(load(dataset, 1), 2))
    with pytest.raises(ConfigError, match=r"state_dict\(batches=number\)"):
        dataset.state_dict()
    again = dataset_of()
    again.load_state_dict(dataset.state_dict(batches=2))
    assert [*there, *keys_of(load(again, 0))] == keys_of(load_epoch(1))


@pytest.mark.parametrize("workers", [(0, 1, 3, 2), (1, 2, 0, 2)])
def test_passes_of_any_numbers_of_workers_are_each_of_one_epoch(workers: tuple[int, ...]) -> None:
    dataset = dataset_of()
    next(iter(dataset))  # what shape has it?
    for epoch, number in enumerate(workers, 1):
        assert keys_of(load(dataset, number)) == keys_of(load_epoch(epoch))


def test_passes_of_a_loader_that_is_seeded_anew_are_other_epochs() -> None:
    dataset = dataset_of()
    for epoch in range(2):
        torch.manual_seed(7)
        assert keys_of(load(dataset, 2)) == keys_of(load_epoch(epoch))


def test_two_iterators_at_once_are_an_epoch_each() -> None:
    batches = load(dataset_of(), 2)
    pairs = list(zip(batches, batches))
    assert keys_of(first for first, _ in pairs) == keys_of(load_epoch(0))
    assert keys_of(second for _, second in pairs) == keys_of(load_epoch(1))


def start_slowly(worker: int) -> None:
    while worker and not SLOW.exists():
        time.sleep(0.01)


SLOW = Path(tempfile.gettempdir()) / f"rlds2reverb-slow-{os.getpid()}"
"""A worker that starts slowly waits for this file."""


def test_a_pass_that_ends_before_a_worker_begins_is_one_pass() -> None:
    dataset = dataset_of()
    iterator = iter(load(dataset, 2, worker_init_fn=start_slowly))
    try:
        assert next(iterator).info.key.tolist() == expected()[0]
        SLOW.touch()
    finally:
        del iterator
        SLOW.unlink(missing_ok=True)
    assert keys_of(load(dataset, 2)) == keys_of(load_epoch(1))


@pytest.mark.parametrize("copied", [lambda dataset: pickle.loads(pickle.dumps(dataset)), copy.deepcopy])
def test_a_copy_counts_its_own_passes(copied: Any) -> None:
    original = dataset_of()
    assert keys_of(load(original, 0)) == keys_of(load_epoch(0))
    batches = load(copied(original), 2)
    assert [keys_of(batches) for _ in range(2)] == [keys_of(load_epoch(epoch)) for epoch in (1, 2)]
    assert keys_of(load(original, 1)) == keys_of(load_epoch(1))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_position_is_for_one_pass(workers: int) -> None:
    whole, state = expected(), stopped_after(5)
    dataset = dataset_of()
    dataset.load_state_dict(state)
    batches = load(dataset, workers)
    for _ in range(2):
        dataset.set_epoch(0)  # as of a DistributedSampler, in every epoch: the position that was loaded stays
        assert keys_of(batches) == whole[5:]
        dataset.set_epoch(0)
        assert keys_of(batches) == whole
        dataset.load_state_dict(state)
    dataset.set_epoch(1)  # another one does not
    assert keys_of(batches) == keys_of(load_epoch(1))


def stopped_after(batches: int, **options: Any) -> Any:
    dataset = dataset_of(**options)
    for _ in zip(range(batches), iter(dataset)):
        pass
    return dataset.state_dict()


def test_workers_that_run_already_refuse_a_position_that_they_have_not_got() -> None:
    dataset = dataset_of()
    batches = load(dataset, 2, persistent_workers=True)
    keys_of(batches)
    dataset.load_state_dict(stopped_after(5))
    with pytest.raises(ConfigError, match="persistent workers of the DataLoader run already"):
        keys_of(batches)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", ["local", "mix"])
def test_the_state_of_a_whole_pass_begins_the_next_one(kind: str, drop_last: bool) -> None:
    def make() -> Any:
        return dataset_of(drop_last=drop_last) if kind == "local" else mix_of(drop_last=drop_last)

    dataset = make()
    first, second, third = [keys_of(load(dataset, 0)) for _ in range(3)]
    dataset.set_epoch(0)
    assert keys_of(load(dataset, 2)) == first
    by_count = dataset.state_dict(batches=len(first))
    again = make()
    assert keys_of(load(again, 0)) == first
    for state in (by_count, again.state_dict()):
        for workers in (0, 3):
            resumed = make()
            resumed.load_state_dict(state)
            assert [keys_of(load(resumed, workers)) for _ in range(2)] == [second, third]


def fail_at_the_second(batch: Any) -> Any:
    CALLS.append(0)
    if len(CALLS) == 2:
        raise ValueError("a map")
    return batch


CALLS: list[int] = []


def test_a_batch_whose_map_fails_did_not_come() -> None:
    whole = expected()
    CALLS.clear()
    dataset = dataset_of(map=fail_at_the_second)
    batches = iter(dataset)
    assert next(batches).info.key.tolist() == whole[0]
    with pytest.raises(ValueError, match="a map"):
        next(batches)
    again = dataset_of()
    again.load_state_dict(dataset.state_dict())
    assert keys_of(again) == whole[1:]
    assert keys_of(batches) == whole[2:]


def test_ranks_and_batches_of_another_size_go_on_with_each_sample_once(caplog: pytest.LogCaptureFixture) -> None:
    whole = flat(expected())
    ranks = [dataset_of(rank=rank, world_size=2) for rank in range(2)]
    taken = [flat(keys_of(itertools.islice(load(dataset, 2), 2))) for dataset in ranks]
    assert sorted(itertools.chain(*taken)) == sorted(whole[:64])
    wider = LocalDataset(SOURCE, "transition", 24, shuffle="global")
    wider.load_state_dict(ranks[0].state_dict(batches=2))
    assert "batch_size=16, world_size=2 continues with batch_size=24, world_size=1" in caplog.text
    assert flat(keys_of(load(wider, 2))) == whole[64:]


def mixed_of_ranks(rank: int, world_size: int, batch_size: int) -> MixDataset:
    sources = {"bundled:cartpole@train[4:10]": 2, "bundled:cartpole@train[10:14]": 1}
    parts = [(LocalDataset(source, "transition", shuffle="global"), weight) for source, weight in sources.items()]
    return MixDataset(parts, batch_size, samples=240, seed=5, rank=rank, world_size=world_size)


@pytest.mark.parametrize(("before", "after"), [((2, 8), (1, 20)), ((1, 8), (3, 5)), ((3, 4), (2, 6))])
@pytest.mark.parametrize("is_counted", [True, False])
def test_a_mix_goes_on_with_other_ranks_where_each_part_stands(
    before: tuple[int, int], after: tuple[int, int], is_counted: bool
) -> None:
    """Numbers of ranks, and of samples of their batches. The parts have more items than a pass takes, so no key comes twice."""
    keys: list[int] = []
    for rank in range(before[0]):
        dataset = mixed_of_ranks(rank, *before)
        keys += flat(keys_of(itertools.islice(iter(dataset), 4)))
        state = dataset.state_dict(batches=4) if is_counted else dataset.state_dict()
    assert len(set(keys)) == len(keys) == 4 * before[0] * before[1]
    for rank in range(after[0]):
        dataset = mixed_of_ranks(rank, *after)
        dataset.load_state_dict(json.loads(json.dumps(state)))
        keys += flat(keys_of(dataset))
    assert 240 - after[0] < len(keys) <= 240
    assert len(set(keys)) == len(keys)


def load_epoch(epoch: int) -> DataLoader:
    dataset = dataset_of()
    dataset.set_epoch(epoch)
    return load(dataset, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_function_runs_in_the_workers_and_only_its_result_comes(workers: int) -> None:
    results = list(load(dataset_of(map=in_a_worker), workers))
    assert [result["keys"].tolist() for result in results] == expected()
    turns = itertools.cycle(range(workers)) if workers else itertools.repeat(-1)
    assert [result["worker"] for result in results] == list(itertools.islice(turns, len(results)))
    assert results[0]["mean"].shape == (4,)


def shift(episode: Episode) -> Episode:
    columns = {**episode.columns, "observation": episode.columns["observation"] + np.float32(100)}
    return replace(episode, columns=columns)


def test_a_function_of_episodes_is_another_one() -> None:
    batch = next(iter(load(dataset_of(map=in_a_worker, map_episodes=shift), 1)))
    plain = next(iter(load(dataset_of(map=in_a_worker), 0)))
    torch.testing.assert_close(batch["mean"], plain["mean"] + 100, rtol=0, atol=1e-3)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 0), (0, 2)])
def test_the_rest_of_an_epoch_comes_once_with_any_number_of_workers(shuffle: Any, before: int, after: int) -> None:
    """A loop that counts its batches, stopped twice: the second state stands behind a state, too."""
    keys: list[list[int]] = []
    state: Any = None
    for workers, count in ((before, 3), (after, 4), (before, 1000)):
        dataset = dataset_of(shuffle, epochs=2)
        if state is not None:
            dataset.load_state_dict(state)
        came = keys_of(itertools.islice(load(dataset, workers), count))
        state = json.loads(json.dumps(dataset.state_dict(batches=len(came))))
        keys += came
    assert keys == expected(shuffle, epochs=2)


@pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not installed")
@pytest.mark.parametrize("kind", ["local", "mix"])
@pytest.mark.parametrize(
    ("before", "after", "every"), [(0, 0, 1), (2, 2, 1), (2, 2, 3), (2, 3, 1), (2, 0, 3), (0, 2, 1)]
)
def test_a_stateful_loader_resumes_it_also_with_other_workers(kind: str, before: int, after: int, every: int) -> None:
    stateful = import_module("torchdata.stateful_dataloader").StatefulDataLoader

    def stopped(workers: int, state: Any, count: int) -> tuple[list[list[int]], Any, Any]:
        dataset = dataset_of(epochs=2) if kind == "local" else mix_of()
        is_for_the_dataset = state is not None and before != after
        if is_for_the_dataset:
            dataset.load_state_dict(state)
        batches = stateful(dataset, batch_size=None, num_workers=workers, snapshot_every_n_steps=every)
        if state is not None and not is_for_the_dataset:
            batches.load_state_dict(state)
        first = keys_of(itertools.islice(batches, count))
        return first, pickle.loads(pickle.dumps(batches.state_dict())), batches

    whole = expected(epochs=2) if kind == "local" else keys_of(load(mix_of(), 0))
    first, state, _ = stopped(before, None, 4)
    rest, _, batches = stopped(after, state, 1000)
    assert first + rest == whole
    next_pass = keys_of(batches)
    assert len(next_pass) == len(whole)  # the next pass is a whole one
    assert stopped(after, stopped(before, None, 1000)[1], 1000)[0] == next_pass  # and so it is after a pass that ended


class FakeWorker(NamedTuple):
    """What `get_worker_info` says."""

    id: int
    num_workers: int
    seed: int = 0


def loop(dataset: Any, workers: int, count: int) -> tuple[list[list[int]], Any]:
    """At most `count` batches by workers that take turns in this process, and what a StatefulDataLoader keeps of them."""
    if not workers:
        keys = keys_of(itertools.islice(iter(dataset), count))
        return keys, {"dataset": dataset.state_dict()}
    copies, iterators, states = [], [], []
    for worker in range(workers):
        with mock.patch.object(passes, "get_worker_info", lambda at=worker: FakeWorker(at, workers)):
            copies.append(pickle.loads(pickle.dumps(dataset)))
            iterators.append(iter(copies[-1]))
            states.append(copies[-1].state_dict())
    keys = []
    for worker in itertools.islice(itertools.cycle(range(workers)), count):
        with mock.patch.object(passes, "get_worker_info", lambda at=worker: FakeWorker(at, workers)):
            batch = next(iterators[worker], None)
            states[worker] = copies[worker].state_dict()
        if batch is None:
            break
        keys.append(batch.info.key.tolist())
    return keys, {"workers": {f"worker_{number}": {"state": state} for number, state in enumerate(states)}}


NUMBERED = [8, 3, 9, 5, 2, 6, 7]
"""Rows of the episodes of the property below; each has an item less."""


def numbered_episodes(bad: frozenset[int] = frozenset()) -> list[Episode]:
    episodes = [strategies.episode(np.random.default_rng(number), rows) for number, rows in enumerate(NUMBERED)]
    return [
        episode.with_columns(is_last=np.zeros(len(episode), bool)) if number in bad else episode
        for number, episode in enumerate(episodes)
    ]


def places_of(shuffle: Any, bad: frozenset[int]) -> list[int | None]:
    """The keys of one epoch in the order of a single process; with a random order None where the item is of a bad episode."""
    keys = [key for batch in rlds2reverb.local(numbered_episodes()) for key in batch.info.key.view("int64").tolist()]
    owner = dict(zip(keys, [number for number, rows in enumerate(NUMBERED) for _ in range(rows - 1)], strict=True))
    if shuffle != "global":
        batches = rlds2reverb.local(numbered_episodes(bad), shuffle=shuffle, on_invalid="skip")
        return [key for batch in batches for key in batch.info.key.view("int64").tolist()]
    order = [key for batch in rlds2reverb.local(numbered_episodes(), shuffle="global") for key in batch.info.key]
    return [None if owner[key] in bad else key for key in np.array(order).view("int64").tolist()]


def batches_of_rank(
    places: list[int | None], start: int, rank: int, world_size: int, batch_size: int
) -> list[list[int]]:
    """What a rank gets of the places from a position on: dealt like cards, and a batch's gaps filled with its next item."""
    rounds = (len(places) - start) // world_size
    own = places[start + rank : start + rounds * world_size : world_size]
    first = next((key for key in places if key is not None), None)
    batches = []
    for at in range(0, len(own), batch_size):
        batch = own[at : at + batch_size]
        filled = [
            next((key for key in [*batch[place:], *batch] if key is not None), first) for place in range(len(batch))
        ]
        batches.append([key for key in filled if key is not None])
    return batches


runs = st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 3), st.integers(1, 4), st.booleans())


@given(st.sampled_from([0, 5, "global"]), st.frozensets(st.integers(0, 6), max_size=6), st.lists(runs, max_size=4))
@settings(max_examples=25, deadline=None)
def test_stopped_and_resumed_with_any_workers_ranks_and_sizes_it_is_the_list_of_items_of_one_process(
    shuffle: Any, bad: frozenset[int], stops: list[tuple[int, int, int, int, bool]]
) -> None:
    """A run has so many workers, batches of each rank, ranks, samples per batch; and a loop that counts, or what a StatefulDataLoader asks."""
    places, behind, state = places_of(shuffle, bad), 0, None
    for workers, count, world_size, batch_size, is_counted in [*stops, (2, 1000, 1, 3, True)]:
        if len(places) - behind < world_size:  # what is left of a round goes to nobody, and the next epoch begins
            return
        states = []
        for rank in range(world_size):
            dataset = LocalDataset(
                numbered_episodes(bad),
                batch_size=batch_size,
                shuffle=shuffle,
                on_invalid="skip",
                allow=("last_observation_shared",),
                rank=rank,
                world_size=world_size,
            )
            if state is not None:
                dataset.load_state_dict(json.loads(json.dumps(state)))
            keys, of_workers = loop(dataset, workers, count)
            assert keys == batches_of_rank(places, behind, rank, world_size, batch_size)[:count]
            states.append(dataset.state_dict(batches=len(keys)) if is_counted and workers else of_workers)
        state = states[-1]
        behind = min(len(places), behind + len(keys) * batch_size * world_size)
        if len(keys) < count:  # the pass was at its end
            return


def mix_of(**options: Any) -> MixDataset:
    parts = [(dataset_of("global"), 2), (LocalDataset(OTHER, "transition", shuffle=10), 1)]
    return MixDataset(parts, 16, samples=200, seed=5, **options)


def test_a_mix_is_that_of_one_process_with_any_number_of_workers() -> None:
    parts = [(rlds2reverb.local(SOURCE, "transition", shuffle="global"), 2)]
    parts.append((rlds2reverb.local(OTHER, "transition", shuffle=10), 1))
    with rlds2reverb.mix(parts, 16, samples=200, seed=5) as mixed:
        whole = [batch.info.key.view("int64").tolist() for batch in mixed]
    for workers in (0, 1, 2, 3):
        batches = load(mix_of(), workers)
        assert keys_of(batches) == whole
        assert keys_of(batches) != whole  # another epoch
    nested = MixDataset([(mix_of(), 1), (OTHER, 1)], 8, samples=64)
    with pytest.raises(rlds2reverb.Rlds2ReverbError, match="differ"):  # another view
        next(iter(nested))


def test_a_mixture_file_is_that_of_one_process_and_counts_nothing_in_workers(tmp_path: Path) -> None:
    file = tmp_path / "soup.yaml"
    sets = [{"source": SOURCE, "where": "length>=20"}, {"source": OTHER, "weight": 2}]
    normalize = {"mode": "quantiles", "columns": ["observation"]}
    file.write_text(
        json.dumps(
            {
                "sets": sets,
                "balance": True,
                "seed": 5,
                "view": "transition",
                "shuffle": "global",
                "normalize": normalize,
            }
        )
    )
    with rlds2reverb.mix(file, 16, samples=200) as mixed:
        whole = [batch.info.key.view("int64").tolist() for batch in mixed]
    mixture = rlds2reverb.Mixture.read(file)
    mixture.normalizers()  # counts
    with mock.patch.object(rlds2reverb.hooks, "statistics_of", side_effect=AssertionError("counted once more")):
        for workers, way in ((0, "fork"), (2, "fork"), (2, "forkserver")):
            assert keys_of(load(MixDataset(mixture, 16, samples=200), workers, way=way)) == whole
    assert keys_of(load(MixDataset(str(file), 16, samples=200), 0)) == whole


def test_parts_of_a_mix_have_its_ranks() -> None:
    ranked = dataset_of(rank=1, world_size=2)
    with pytest.raises(ConfigError, match="part 0 is of rank=1, world_size=2, and the mix of rank=0, world_size=1"):
        MixDataset([(ranked, 1)], 16)
    with pytest.raises(ConfigError, match="part 1 is of rank=0, world_size=2"):
        MixDataset([(SOURCE, 1), (TableDataset("localhost:1", "replay", rank=0, world_size=2), 1)], 16)
    inner = MixDataset([(ranked, 1)], 16, rank=1, world_size=2)
    with pytest.raises(ConfigError, match="part 0 is of rank=1, world_size=2"):
        MixDataset([(inner, 1)], 16)
    both = [MixDataset([(dataset_of(), 1)], 16, samples=64, rank=rank, world_size=2) for rank in range(2)]
    keys = [flat(keys_of(iter(dataset))) for dataset in both]
    assert sorted(itertools.chain(*keys)) == sorted(flat(expected())[:64])
    assert keys[1] == flat(keys_of(iter(MixDataset([(ranked, 1)], 16, samples=64, rank=1, world_size=2))))


def test_a_part_that_is_named_twice_is_refused() -> None:
    part = dataset_of()
    with pytest.raises(ConfigError, match="a part is named twice"):
        MixDataset([(part, 1), (MixDataset([(part, 1)]), 1)])


def test_seeds_of_a_mix_do_not_repeat_each_other_an_epoch_later() -> None:
    def parts_drawn(seed: int, epoch: int) -> list[int]:
        mixed = MixDataset([(dataset_of(), 1), (OTHER_PART, 1)], 16, samples=64, seed=seed)
        mixed.set_epoch(epoch)
        return [part for batch in mixed for part in batch.info.source.tolist()]

    assert parts_drawn(1, 0) != parts_drawn(0, 1)
    assert parts_drawn(0, 0) == [*np.random.RandomState(0).randint(2, size=64)]


OTHER_PART = LocalDataset(OTHER, "transition", shuffle="global")


def test_passes_that_begin_at_the_front_again_and_again_are_told(caplog: pytest.LogCaptureFixture) -> None:
    MixDataset([(dataset_of("global"), 1)], 16, samples=32)
    MixDataset([(dataset_of(5), 1)], 16)
    assert not caplog.records
    MixDataset([(dataset_of(5), 1)], 16, samples=32)
    assert f"each pass of samples=32 begins {SOURCE} at the front" in caplog.text


def test_a_mix_with_a_table_samples_it_in_every_worker(numbered: str) -> None:
    store_numbers(numbered, "keep", 50)
    mixed = MixDataset([(TableDataset(numbered, "keep", 8), 1), (OTHER, 1)], 8, samples=32)
    with pytest.raises(rlds2reverb.Rlds2ReverbError):  # items of another kind
        next(iter(mixed))
    only = MixDataset([(TableDataset(numbered, "keep", 8), 1)], 8, samples=32)
    batches = list(load(only, 2, way="forkserver"))
    assert [len(batch.info.key) for batch in batches] == [8] * 4
    assert {number for batch in batches for number in batch.data["observation"].tolist()} <= set(range(50))


def test_a_table_gives_what_a_function_makes_of_it_and_the_rest_of_its_samples(numbered: str) -> None:
    store_numbers(numbered, "keep", 50)
    dataset = TableDataset(numbered, "keep", 8, map=in_a_worker, samples=80, rank=1, world_size=2)
    passes = iter(DataLoader(dataset, batch_size=None))
    assert next(passes)["keys"].shape == (8,)
    again = TableDataset(numbered, "keep", 8, samples=80, rank=1, world_size=2)
    again.load_state_dict(dataset.state_dict())
    assert [len(batch.info.key) for batch in DataLoader(again, batch_size=None)] == [8] * 4
    assert [len(batch.info.key) for batch in DataLoader(again, batch_size=None)] == [8] * 5
    with pytest.raises(ConfigError, match="table was 'keep', is 'one'"):
        TableDataset(numbered, "one").load_state_dict(dataset.state_dict())


@pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not installed")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_of_a_table_gives_as_many_samples_as_were_asked_for(numbered: str, workers: int) -> None:
    stateful = import_module("torchdata.stateful_dataloader").StatefulDataLoader
    store_numbers(numbered, "keep", 50)
    multiprocessing.set_forkserver_preload(["rlds2reverb.adapters.torch"])

    def loader_at(state: Any = None, loads_dataset: bool = False) -> Any:
        dataset = TableDataset(numbered, "keep", 8, samples=80)
        if loads_dataset:
            dataset.load_state_dict(state)
        way = {"multiprocessing_context": "forkserver"} if workers else {}
        batches = stateful(dataset, batch_size=None, num_workers=workers, **way)
        if state is not None and not loads_dataset:
            batches.load_state_dict(state)
        return batches

    def size(batches: Any) -> int:
        return sum(len(batch.info.key) for batch in batches)

    batches = loader_at()
    assert size(itertools.islice(batches, 3)) == 24
    state = batches.state_dict()
    again = loader_at(state)
    iter(again)
    assert size(loader_at(again.state_dict())) == 56  # saved again before a batch came
    to_the_dataset = loader_at(state, loads_dataset=True)
    assert [size(to_the_dataset), size(to_the_dataset)] == [56, 80]
    assert size(batches) == 80
    at_the_end = loader_at(batches.state_dict())
    assert [size(at_the_end), size(at_the_end)] == [80, 80]


def test_what_makes_no_sense_is_refused_before_a_worker_starts() -> None:
    with pytest.raises(ConfigError, match="batch_size 0"):
        LocalDataset(SOURCE, batch_size=0)
    with pytest.raises(ConfigError, match="no_such: no such option"):
        LocalDataset(SOURCE, no_such=1)
    with pytest.raises(ConfigError, match="rank 2 of world_size=2"):
        LocalDataset(SOURCE, rank=2, world_size=2)
    with pytest.raises(rlds2reverb.Rlds2ReverbError, match="no_view"):
        LocalDataset(SOURCE, "no_view")
    with pytest.raises(ConfigError, match="map 3: expected a function"):
        LocalDataset(SOURCE, map=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="part 0 has a map"):
        MixDataset([(dataset_of(map=in_a_worker), 1)])
    with pytest.raises(ConfigError, match="part 1 is a Local, which is open in this process"):
        MixDataset([(SOURCE, 1), (rlds2reverb.local(SOURCE), 1)])
    with pytest.raises(ConfigError, match="weight -1"):
        MixDataset([(SOURCE, -1)])
    with pytest.raises(ConfigError, match="epoch -1"):
        dataset_of().set_epoch(-1)
    with pytest.raises(ConfigError, match="epoch True"):
        dataset_of().set_epoch(True)
    with pytest.raises(ConfigError, match=r"batches 1\.5"):
        dataset_of().state_dict(batches=1.5)  # type: ignore[arg-type]
    dataset_of().set_epoch(np.int64(1))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected what state_dict"):
        dataset_of().load_state_dict({"step": 1})


def test_a_state_of_other_data_is_refused() -> None:
    dataset = dataset_of()
    list(itertools.islice(load(dataset, 0), 2))
    other = LocalDataset(OTHER, "transition", 16, shuffle="global")
    for state in (dataset.state_dict(), dataset.state_dict(batches=1)):
        with pytest.raises(ConfigError, match="source was"):
            other.load_state_dict(state)
        same_name = LocalDataset(SOURCE, "transition", 16, shuffle="global", table="other")
        same_name.load_state_dict(state)
        with pytest.raises(ConfigError, match=r"table was .replay., is .other.|other data under the same name"):
            next(iter(load(same_name, 1)))
    with pytest.raises(SourceError, match="no_such_dataset"):
        next(iter(load(LocalDataset("bundled:no_such_dataset"), 0)))


def test_an_open_iterator_says_what_a_loader_takes() -> None:
    for loading in (DataLoader(rlds2reverb.local(SOURCE)), DataLoader(rlds2reverb.local(SOURCE), batch_size=None)):
        with pytest.raises(TypeError, match="LocalDataset"):
            list(loading)
    with pytest.raises(ConfigError, match=r"LocalDataset\(..., batch_size=\)"):
        next(iter(DataLoader(dataset_of())))


# Ranks.


def test_ranks_with_workers_share_out_an_epoch() -> None:
    ranks = [keys_of(load(dataset_of(rank=rank, world_size=2), 2)) for rank in range(2)]
    assert [list(map(len, batches)) for batches in ranks] == [list(map(len, ranks[0]))] * 2
    one_by_one = [key for keys in zip(*map(flat, ranks)) for key in keys]
    assert one_by_one == flat(expected())[: len(one_by_one)]


def train(folder: Path, world_size: int, **options: Any) -> list[int]:
    """Runs the ranks of `training` to their ends; their exit codes."""
    errors = (folder / "errors").open("w")  # closed with the ranks
    meeting = folder / f"meeting-{world_size}-{options.get('resumed', False)}"
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.systems.learners.training",
                json.dumps(
                    {"folder": str(folder), "meeting": str(meeting), "rank": rank, "world_size": world_size, **options}
                ),
            ],
            cwd=ROOT,
            stderr=errors,  # not a pipe: the workers of a killed rank would keep it open for a while
        )
        for rank in range(world_size)
    ]
    try:
        codes = [rank.wait(SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        errors.close()
    assert set(codes) <= {0, -signal.SIGKILL}, (folder / "errors").read_text()
    return codes


def given_in(folder: Path, before: int) -> list[list[dict[str, Any]]]:
    """For each rank, the steps of the run that began after step `before`."""
    logs = sorted(folder.glob(f"given-{before}-*.jsonl"))
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]


@pytest.mark.parametrize(
    ("shuffle", "before", "after"),
    [("global", (2, 2), (2, 1)), (40, (2, 1), (1, 2)), ("global", (1, 2), (2, 0))],
    ids=str,
)
def test_killed_in_the_middle_of_an_epoch_it_goes_on_with_each_sample_once(
    tmp_path: Path, shuffle: Any, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """Before and after are numbers of ranks, and of workers of each. The global batch stays, and so do its sums."""
    options: dict[str, Any] = {"source": "bundled:cartpole@train[:12]", "shuffle": shuffle}
    batches = rlds2reverb.local(options["source"], "transition", 24, shuffle=shuffle, seed=3)
    whole = [(batch.info.key.view("int64").tolist(), batch.data["observation"].astype("f8").sum()) for batch in batches]
    runs: list[tuple[tuple[int, int], dict[str, Any]]] = [(before, {"killed_after": 5}), (after, {"resumed": True})]
    for (world_size, workers), more in runs:
        codes = train(tmp_path, world_size, workers=workers, batch_size=24 // world_size, **options, **more)
        assert set(codes) == ({0} if "resumed" in more else {-signal.SIGKILL})
    keys, totals = [], []
    for ranks in (given_in(tmp_path, 0), given_in(tmp_path, 5)):
        for steps in zip(*ranks, strict=True):  # as many of each rank
            keys += [key for of_ranks in zip(*(step["keys"] for step in steps), strict=True) for key in of_ranks]
            totals.append(steps[0]["total"])
    all_keys = [key for batch_keys, _ in whole for key in batch_keys]
    assert keys == all_keys[: len(keys)]
    assert len(all_keys) - len(keys) < max(before[0], after[0])
    torch.testing.assert_close(totals[:-1], [total for _, total in whole][: len(totals) - 1])
