"""Ranks of a mix, and of a table: disjoint where a part has epochs, equally many batches, and resumed with any other number of ranks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Client, Mix, local, mix
from rlds2reverb.errors import ConfigError
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from tests.support.profiles import examples
from tests.unit.learner.test_mix import of_lengths

PARTS = [of_lengths(9, 4, 12, 7), of_lengths(30, 11, first=4)]


def keys_by_part(batches: Any) -> list[list[int]]:
    """For each part of `PARTS`, the keys of its samples, in their order."""
    keys: list[list[int]] = [[] for _ in PARTS]
    for batch in batches:
        for key, part in zip(batch.info.key.tolist(), batch.info.source.tolist()):
            keys[part].append(key)
    return keys


def mixed(rank: int, world_size: int, batch_size: int, **options: Any) -> Mix:
    ranks: dict[str, Any] = {"rank": rank, "world_size": world_size}
    parts = [(local(part, shuffle=options.get("shuffle", 0), **ranks), weight) for part, weight in zip(PARTS, (2, 1))]
    return mix(parts, batch_size, by=options.get("by", "item"), samples=options.get("samples"), **ranks)


@given(
    st.integers(2, 4),
    st.integers(1, 4),
    st.integers(0, 2),
    st.sampled_from([0, 5, "global"]),
    st.sampled_from(["item", "batch"]),
)
@examples(15, 60)
def test_each_part_is_dealt_to_the_ranks_and_the_rest_of_it_to_any_other_number(
    before: int, after: int, batches: int, shuffle: Any, by: str
) -> None:
    first, states = [], []
    for rank in range(before):
        ranked = mixed(rank, before, 2, shuffle=shuffle, by=by)
        first.append(keys_by_part(itertools.islice(ranked, batches)))
        states.append(ranked.state())
    assert (
        all(state == states[0] for state in states) or shuffle == "global"
    )  # there a rank knows the ids of its own items only
    rest = []
    for rank in range(after):
        ranked = mixed(rank, after, 2, shuffle=shuffle, by=by)
        ranked.restore(states[rank % before])
        rest.append(keys_by_part(itertools.islice(ranked, 2)))
    for number, part in enumerate(PARTS):
        whole = [key for batch in local(part, shuffle=shuffle) for key in batch.info.key.tolist()]
        dealt = [
            key
            for ranks in (first, rest)
            for keys in zip(*(rank[number] for rank in ranks), strict=True)
            for key in keys
        ]
        assert dealt[: len(whole) - 3] == whole[: len(dealt)][: len(whole) - 3]


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([0, 5, "global"]),
    st.sampled_from(["item", "batch"]),
    st.integers(0, 2),
)
@examples(15, 60)
def test_workers_that_skip_each_others_batches_give_those_of_a_single_one(
    workers: int, world_size: int, shuffle: Any, by: str, epoch: int
) -> None:
    def batches(worker: int, workers: int) -> list[list[list[int]]]:
        ranked = mixed(0, world_size, 4, shuffle=shuffle, by=by, samples=36 * world_size)
        ranked.begin_epoch(epoch)
        skipped = [ranked.skip(4) for _ in range(worker)]
        keys = []
        while (batch := ranked.next_batch()) is not None:
            keys.append(keys_by_part([batch]))
            skipped += [ranked.skip(4) for _ in range(workers - 1)]
        assert sum(skipped) + 4 * len(keys) == 36
        return keys

    whole = batches(0, 1)
    assert [batches(worker, workers) for worker in range(workers)] == [
        whole[worker::workers] for worker in range(workers)
    ]


def test_samples_are_those_of_all_ranks_together() -> None:
    ranked = [list(mixed(rank, 3, 4, samples=40)) for rank in range(3)]
    assert [[batch.size for batch in batches] for batches in ranked] == [[4, 4, 4, 1]] * 3
    with pytest.raises(ConfigError, match="samples 2, for all ranks together: expected at least world_size=3"):
        mixed(0, 3, 4, samples=2)


def test_a_part_of_another_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"part 0 .* is of rank=0, world_size=1, and the mix of rank=1, world_size=2"):
        mix([(local(PARTS[0]), 1)], 4, rank=1, world_size=2)
    with pytest.raises(ConfigError, match="mix: rank 2 of world_size=2"):
        mix([(PARTS[0], 1)], 4, rank=2, world_size=2)
    batch = next(mix([(PARTS[0], 1)], 4, rank=1, world_size=2))  # opened here, it is of the same rank
    assert batch.info.key.tolist() == [key for once in local(PARTS[0]) for key in once.info.key.tolist()][1:8:2]


def test_ranks_of_a_table_take_equally_many_samples_and_each_item_of_a_queue_once() -> None:
    info = table_info("replay", local(PARTS[0]).structure, max_size=10_000, sampler="fifo")
    server = MemoryServer(replace(info, max_times_sampled=1))
    with Client(MemoryTransport(server)) as client:
        client.push(PARTS[0], "replay")
        keys = []
        for rank in range(2):
            with client.sample("replay", 4, samples=21, rank=rank, world_size=2) as batches:
                keys.append([key for batch in batches for key in batch.info.key.tolist()])
        assert list(map(len, keys)) == [10, 10]
        assert len({*keys[0], *keys[1]}) == 20
        with pytest.raises(ConfigError, match="epochs, with world_size=2"):
            client.sample("replay", 4, epochs=1, world_size=2)
        with pytest.raises(ConfigError, match="samples 1, for all ranks together"):
            client.sample("replay", 4, samples=1, world_size=2)
        with pytest.raises(ConfigError, match="sample: rank 2 of world_size=2"):
            client.sample("replay", 4, rank=2, world_size=2)


def test_samples_are_counted_on_for_all_ranks_and_the_epoch_stays() -> None:
    batches = mixed(0, 3, 4, samples=60)
    batches.begin_epoch(2)
    next(batches)
    state = batches.state()
    assert (state["given"], state["samples"], state["epoch"]) == (4, 12, 2)
    whole = [batch.info.source.tolist() for batch in batches]
    again = mixed(0, 3, 4, samples=60)
    again.restore(state)
    assert [batch.info.source.tolist() for batch in again] == whole
    wider = mixed(0, 2, 4, samples=60)
    wider.restore(state)
    assert sum(batch.size for batch in wider) == 24  # of each rank: 48 of 60 are left
    earlier = {name: value for name, value in state.items() if name not in ("samples", "epoch")}
    again.restore(earlier)
    assert sum(batch.size for batch in again) == 16
