"""Ranks and workers share out what a single learner reads: each item once, equally many batches, and resumed with any other number of them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Local, local
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.local.options import LocalOptions
from rlds2reverb.learner.local.shares import Share
from rlds2reverb.prepare.preparation import Preparation, outputs_of
from tests.support.profiles import examples
from tests.unit.learner.local.test_local import bad, keys_of, of_lengths

SHUFFLES: st.SearchStrategy[int | str] = st.sampled_from([0, 5, "global"])


def places_one_by_one(share: Share, stop: int) -> list[int]:
    """The places below `stop`, by dealing them to all ranks and workers like cards."""
    learners = [
        (rank, worker)
        for worker in range(share.workers)
        for _ in range(share.batch_size)
        for rank in range(share.world_size)
    ]
    return [
        place for place, learner in zip(range(stop), itertools.cycle(learners)) if learner == (share.rank, share.worker)
    ]


shares = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 11)).map(
    lambda sizes: Share(sizes[3] % sizes[0], sizes[0], sizes[3] % sizes[1], sizes[1], sizes[2])
)


@given(shares, st.integers(0, 90), st.integers(0, 90))
def test_places_are_those_that_cards_would_be_dealt_to(share: Share, start: int, stop: int) -> None:
    all_places = places_one_by_one(share, 400)
    before = [place for place in all_places if place < stop]
    assert share.count(stop) == len(before)
    assert share.between(start, stop).tolist() == [place for place in before if place >= start]
    assert share.at(np.arange(8)).tolist() == all_places[:8]
    third = [place for place in all_places if place >= start][2]
    assert share.end_of(start, 3) == (third // share.world_size + 1) * share.world_size


def worker_of(source: Any, worker: int, workers: int, **options: Any) -> Local:
    """What a worker of a DataLoader reads."""
    chosen = LocalOptions(**options)
    share = Share(chosen.rank, chosen.world_size, worker, workers, chosen.batch_size)
    return Local(Preparation.open(source, chosen, outputs_of(chosen.table, "two_step")), chosen, share)


@given(st.data())
@examples(20, 100)
def test_ranks_give_the_stream_of_a_single_learner_and_equally_many_batches(data: st.DataObject) -> None:
    source = of_lengths(*data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=6)))
    world_size, batch_size = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 5))
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": data.draw(SHUFFLES),
        "epochs": data.draw(st.integers(1, 3)),
        "shuffle_bytes": data.draw(st.sampled_from([1, 700, 1 << 20])),
    }
    whole = keys_of(local(source, **options))
    ranks = [list(local(source, rank=rank, world_size=world_size, **options)) for rank in range(world_size)]
    sizes = [[batch.size for batch in batches] for batches in ranks]
    assert all(rank_sizes == sizes[0] for rank_sizes in sizes)
    assert set(sizes[0][:-1]) <= {batch_size}
    rounds = list(zip(*map(keys_of, ranks), strict=True))
    assert [key for round_keys in rounds for key in round_keys] == whole[: len(whole) // world_size * world_size]


@given(st.data())
@examples(20, 100)
def test_workers_give_the_batches_of_a_rank_in_turn(data: st.DataObject) -> None:
    source = of_lengths(*data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=6)))
    workers, world_size = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    options: dict[str, Any] = {
        "batch_size": data.draw(st.integers(1, 5)),
        "shuffle": data.draw(SHUFFLES),
        "epochs": data.draw(st.integers(1, 3)),
        "rank": world_size - 1,
        "world_size": world_size,
    }
    batches = [batch.info.key.tolist() for batch in local(source, **options)]
    for worker in range(workers):
        dealt = worker_of(source, worker, workers, **options)
        assert [batch.info.key.tolist() for batch in dealt] == batches[worker::workers]


@given(st.data())
@examples(20, 100)
def test_the_rest_goes_to_any_other_number_of_ranks_each_item_once(data: st.DataObject) -> None:
    source = of_lengths(*data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=6)))
    before, after = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    options: dict[str, Any] = {"shuffle": data.draw(SHUFFLES), "epochs": 2, "shuffle_bytes": 900}
    stopped_after, batch_size = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 4))
    whole = keys_of(local(source, **options))
    first_keys: list[list[int]] = []
    states = []
    for rank in range(before):
        batches = local(source, batch_size=batch_size, rank=rank, world_size=before, **options)
        first_keys.append(keys_of(itertools.islice(batches, stopped_after)))
        states.append(json.loads(json.dumps(batches.state())))
    behind = sum(map(len, first_keys))
    resumed = []
    for rank in range(after):
        batches = local(source, batch_size=batch_size + 1, rank=rank, world_size=after, **options)
        batches.restore(states[rank % before])  # any rank's
        resumed.append(keys_of(batches))
    dealt = [key for keys in zip(*resumed, strict=True) for key in keys]
    if behind + before <= len(whole):  # a last round that is not whole is behind for all, and nobody's
        assert dealt == whole[behind : behind + (len(whole) - behind) // after * after]
    assert sorted([*itertools.chain(*first_keys), *dealt]) == sorted({*itertools.chain(*first_keys), *dealt}) or (
        len(set(whole)) < len(whole)
    )


@pytest.mark.parametrize("shuffle_bytes", [400, 1 << 20])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_with_episodes_left_out_all_ranks_give_equally_many_batches(
    world_size: int, workers: int, shuffle_bytes: int
) -> None:
    """In a random order a place without an item repeats another one; read in order there is no such place."""
    good = [*of_lengths(8, 7), bad(2), *of_lengths(9, 5, 6)[2:], *of_lengths(12)]
    items = set(keys_of(local(good, on_invalid="skip")))
    options: dict[str, Any] = {
        "on_invalid": "skip",
        "allow": ("last_observation_shared",),
        "shuffle": "global",
        "shuffle_bytes": shuffle_bytes,
        "batch_size": 3,
        "world_size": world_size,
    }
    sizes, keys, repeated = set(), [], 0
    for rank in range(world_size):
        in_turn = [worker_of(good, worker, workers, rank=rank, **options) for worker in range(workers)]
        batches = [list(part) for part in in_turn]
        sizes.add(str([[batch.size for batch in part] for part in batches]))
        keys += [key for part in batches for key in keys_of(part)]
        repeated += sum(part.repeated for part in in_turn)
    assert len(sizes) == 1
    assert set(keys) <= items
    # A last round that is not whole goes to nobody; a repeated item in it was counted.
    assert 0 <= repeated - (len(keys) - len(set(keys))) < world_size
    assert len(items - set(keys)) < world_size


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_rank_all_of_whose_places_are_bad_gives_items_of_other_ranks(seed: int, world_size: int) -> None:
    source = [*of_lengths(4, 5), bad(2)]
    options: dict[str, Any] = {"on_invalid": "skip", "allow": ("last_observation_shared",), "shuffle": "global"}
    counts = {
        sum(1 for _ in local(source, "episode", batch_size=1, seed=seed, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    }
    assert counts == {3 // world_size}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank 2 of world_size=2"),
        ({"rank": 1}, "rank 1 of world_size=1"),
        ({"rank": -1, "world_size": 2}, "rank -1"),
        ({"rank": True, "world_size": 2}, "rank True"),
        ({"world_size": 0}, "world_size 0"),
        ({"rank": 0.0, "world_size": 2}, "rank 0.0"),
    ],
    ids=str,
)
def test_a_rank_outside_the_world_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        local("bundled:cartpole", **options)


def test_another_number_of_ranks_is_told_with_what_stays_exact(caplog: pytest.LogCaptureFixture) -> None:
    source = of_lengths(9)
    state = local(source, world_size=2).state()
    local(source, rank=1, world_size=2).restore(state)
    assert not caplog.records
    local(source).restore(state)
    assert "a state of 2 ranks continues with 1: exact is that each item of the rest comes once" in caplog.text


def test_numbers_of_numpy_are_numbers() -> None:
    rank: Any = np.int64(1)
    batches = local(of_lengths(9), batch_size=rank + 1, shuffle="global", rank=rank, world_size=rank + 1)
    assert len(next(batches).info.key) == 2
    assert json.loads(json.dumps(batches.state()))["world_size"] == 2


def test_a_round_may_begin_in_one_epoch_and_end_in_the_next() -> None:
    source = of_lengths(4)  # three items
    whole = keys_of(local(source, epochs=2))
    ranks = [local(source, batch_size=1, epochs=2, rank=rank, world_size=2) for rank in range(2)]
    states = []
    for batches in ranks:
        next(batches)
        next(batches)
        states.append(batches.state())
    assert states[0] == states[1]
    assert (states[0]["epoch"], states[0]["item"]) == (1, 1)
    assert [key for keys in zip(*map(keys_of, ranks), strict=True) for key in keys] == whole[4:]


@given(st.data())
@examples(20, 100)
def test_what_is_skipped_is_missing_and_nothing_else(data: st.DataObject) -> None:
    source = of_lengths(*data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=6)))
    rank, world_size = data.draw(st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]))
    options: dict[str, Any] = {"shuffle": data.draw(SHUFFLES), "epochs": 2, "rank": rank, "world_size": world_size}
    whole = keys_of(local(source, **options))
    batches, expected, keys = local(source, **options), [], []
    place = 0
    while place < len(whole):
        count, is_skipped = data.draw(st.integers(1, 7)), data.draw(st.booleans())
        next_keys = whole[place : place + count]
        if is_skipped:
            assert batches.skip(count) == len(next_keys)
        else:
            expected += next_keys
            batch = batches.take(count)
            assert batch is not None
            keys += batch.info.key.tolist()
        place += count
    assert keys == expected
    assert batches.skip(1) == 0
    assert batches.next_batch() is None


def test_an_epoch_of_any_number_can_be_begun() -> None:
    source = of_lengths(5, 7)
    whole = keys_of(local(source, shuffle="global", epochs=3))
    batches = local(source, shuffle="global")
    batches.begin_epoch(2)
    assert keys_of(batches) == whole[20:]
    batches.restart()
    assert keys_of(batches) == keys_of(local(source, shuffle="global", epochs=4))[30:]


@pytest.mark.parametrize("take", [len, iter])
def test_a_loader_that_asks_for_a_length_is_led_to_the_adapter(take: Any) -> None:
    batches = local("bundled:cartpole")
    assert batches
    if take is iter:
        assert len(list(batches)) > 1
        return
    with pytest.raises(
        TypeError, match=r"LocalDataset.* rlds2reverb.adapters.torch, with DataLoader\(dataset, batch_size=None\)"
    ):
        take(batches)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 3, 40])
def test_what_stands_in_depends_on_the_batch_alone(world_size: int, batch_size: int) -> None:
    source = [*of_lengths(8, 7), bad(2), *of_lengths(9, 5, 6)[2:], bad(5), *of_lengths(12)]
    options: dict[str, Any] = {
        "on_invalid": "skip",
        "allow": ("last_observation_shared",),
        "shuffle": "global",
        "batch_size": batch_size,
        "rank": world_size - 1,
        "world_size": world_size,
    }
    whole = [batch.info.key.tolist() for batch in worker_of(source, 0, 1, **options)]
    for workers, shuffle_bytes in itertools.product((1, 2, 3), (1, 400, 1 << 20)):
        for worker in range(workers):
            dealt = worker_of(source, worker, workers, shuffle_bytes=shuffle_bytes, **options)
            assert [batch.info.key.tolist() for batch in dealt] == whole[worker::workers]


@given(st.data())
@examples(20, 100)
def test_what_other_ranks_took_is_passed_over_and_the_rest_dealt_anew(data: st.DataObject) -> None:
    source = of_lengths(*data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=6)))
    shuffle, before, after = data.draw(SHUFFLES), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    count = data.draw(st.integers(1, 9))
    whole = keys_of(local(source, shuffle=shuffle))
    ranks = [worker_of(source, 0, 1, shuffle=shuffle, rank=rank, world_size=after) for rank in range(after)]
    passed = min(count, len(whole) // before)
    assert [batches.pass_over(count, before) for batches in ranks] == [passed] * after
    if passed == count:
        left = whole[count * before :]
        dealt = [key for keys in zip(*map(keys_of, ranks), strict=True) for key in keys]
        assert dealt == left[: len(left) // after * after]
