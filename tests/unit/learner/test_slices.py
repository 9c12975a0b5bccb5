"""Slices of sampled episodes: what they hold, how likely they are, what is filled up, what is refused."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import mix
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.options import SampleOptions, SliceSpec
from rlds2reverb.learner.slices import CutBatch, CutItems, CutRows, Cutting, Slicing, picks, uniforms
from rlds2reverb.specs import ArraySpec, map_leaves
from rlds2reverb.testing import MemoryServer, table_info
from rlds2reverb.wire.sample.batches import Column, FlatBatch, SampleInfo
from tests.support.learner.stored import STEPS, connected, episodes_of, server_of

INT, TEXT = np.dtype(np.int64), np.dtype(object)


def drawn(lengths: list[int], spec: SliceSpec, count: int, weights: Any = None) -> Counter[tuple[int, int]]:
    """How often each (episode, start) came among so many slices, of episodes drawn alike or with weights."""
    items, rng = episodes_of(lengths), np.random.default_rng(7)
    table = table_info(signature=STEPS, sampler="uniform" if weights is None else "prioritized(1)")
    shares = np.ones(len(lengths)) / len(lengths) if weights is None else np.array(weights) / np.sum(weights)
    taken = iter(range(10**9))

    def samples() -> FlatBatch:
        chosen = rng.choice(len(lengths), 200, p=shares)
        size, times = np.full(200, len(lengths)), np.array([next(taken) for _ in chosen], np.int32)
        info = SampleInfo(chosen.astype(np.uint64), shares[chosen], size, np.ones(200), times)
        return FlatBatch(tuple([items[item][column] for item in chosen] for column in range(2)), info)

    cutting = Cutting("replay", Slicing(table, STEPS, spec), 1000)
    found: Counter[tuple[int, int]] = Counter()
    while found.total() < count:
        batch = cutting.next(samples)
        assert isinstance(batch, CutBatch)
        found.update(zip([int(row[0]) for row in batch.columns[0]], batch.start.tolist()))
    return found


def assert_shares(found: Counter[tuple[int, int]], shares: dict[tuple[int, int], float]) -> None:
    """Each within 8 standard deviations of a draw for itself; rounding and several of an episode add less than that."""
    assert set(found) <= set(shares)
    total = found.total()
    for key, share in shares.items():
        spread = (total * share * (1 - share)) ** 0.5
        assert abs(found[key] - total * share) < 8 * spread, (key, found[key], total * share)


LENGTHS = [3, 5, 12, 7]
STARTS = [(episode, start) for episode, length in enumerate(LENGTHS) for start in range(length - 3)]
"""Of slices of 4 rows; episode 0 has none."""


@pytest.mark.parametrize("per_episode", [1, 3])
def test_by_trajectory_each_episode_and_each_start_in_it_is_equally_likely(per_episode: int) -> None:
    found = drawn(LENGTHS, SliceSpec(4, per_episode), 6_000)
    assert_shares(found, {(episode, start): 1 / 3 / (LENGTHS[episode] - 3) for episode, start in STARTS})


@pytest.mark.parametrize("every", [None, 0.7, 10])
def test_by_step_each_start_is_equally_likely(every: float | None) -> None:
    found = drawn(LENGTHS, SliceSpec(4, by="step", every=every), 6_000)
    assert_shares(found, dict.fromkeys(STARTS, 1 / len(STARTS)))


def test_by_step_makes_up_for_priorities() -> None:
    weights = [1.0, 3.0, 1.0, 2.0]
    found = drawn(LENGTHS, SliceSpec(4, by="step"), 6_000, weights)
    assert_shares(found, dict.fromkeys(STARTS, 1 / len(STARTS)))
    by_chance = drawn(LENGTHS, SliceSpec(4), 6_000, weights)
    assert by_chance[(1, 0)] > 1.5 * 6_000 / len(STARTS)


def test_priorities_that_are_the_numbers_of_starts_make_steps_equally_likely_by_trajectory() -> None:
    found = drawn(LENGTHS, SliceSpec(4), 6_000, [max(0, length - 3) for length in LENGTHS])
    assert_shares(found, dict.fromkeys(STARTS, 1 / len(STARTS)))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from(["zero", "last"]),
    st.integers(1, 7),
)
def test_slices_are_rows_of_their_episodes(
    lengths: list[int], length: int, per_episode: int, fill: str, batch_size: int
) -> None:
    """Observations have a row more than actions; an item's own column stays whole."""
    signature = {
        "a_observation": ArraySpec((None, 2), np.dtype(np.float32)),
        "b_action": ArraySpec((None,), TEXT),
        "c_number": ArraySpec((), INT),
    }
    rng = np.random.default_rng(length)
    items = [
        (
            rng.normal(size=(rows + 1, 2)).astype(np.float32),
            np.array([b"%d" % row for row in range(rows)], object),
            np.array(number),
        )
        for number, rows in enumerate(lengths)
    ]
    spec = SliceSpec(length, per_episode, strict=False, fill=fill)
    with (
        connected(server_of(signature, items)) as client,
        client.sample("replay", batch_size, slices=spec, samples=9) as sampler,
    ):
        batches = list(sampler)
    assert sum(batch.size for batch in batches) == 9 * per_episode
    assert {batch.size for batch in batches[:-1]} <= {batch_size}
    for data, info in batches:
        assert info.start is not None
        assert info.mask is not None
        assert info.ends is not None
        assert data["a_observation"].shape == (len(info.key), length + 1, 2)
        assert data["b_action"].shape == info.mask.shape == (len(info.key), length)
        for row, start in enumerate(info.start):
            observation, action, number = items[int(info.key[row]) - 1]
            assert data["c_number"][row] == number
            for column, found in ((observation, data["a_observation"][row]), (action, data["b_action"][row])):
                there = column[start : start + len(found)]
                assert np.array_equal(found[: len(there)], there)
                filler = column[-1] if fill == "last" else np.zeros_like(column[:1])[0] if column.ndim > 1 else b""
                assert all(np.array_equal(filled, filler) for filled in found[len(there) :])
            assert info.mask[row].tolist() == [start + step < len(action) for step in range(length)]
            assert np.flatnonzero(info.ends[row]).tolist() == [min(length, len(action) - start) - 1]


@pytest.mark.parametrize("fill", ["zero", "last"])
def test_slices_of_columns_that_differ_in_more_than_rows_keep_dtypes_and_shapes(fill: str) -> None:
    items: list[list[Array]] = [[], [], []]
    for number, (dtype, width) in enumerate([(np.int64, 2), (np.float32, 2), (np.int64, 3)]):
        items[0].append(np.full((2 + number, width), 2**53 + 1, np.int64).astype(dtype))
        items[1].append(np.arange(2 + number))
        items[2].append(np.full(width, number, dtype))
    ones = np.ones(3)
    flat = FlatBatch(
        (*items,), SampleInfo(np.arange(3).astype(np.uint64), ones, np.full(3, 3), ones, ones.astype("i4"))
    )
    structure = {"a": ArraySpec((None, None), INT), "b": ArraySpec((None,), INT), "c": ArraySpec((2,), INT)}
    cutter = Slicing(table_info(), structure, SliceSpec(4, 3, strict=False, fill=fill))
    batch = Cutting("replay", cutter, 9).next(lambda: flat)
    assert isinstance(batch, CutBatch)
    values, steps, whole = batch.columns
    assert isinstance(values, list)
    assert isinstance(steps, np.ndarray)
    assert isinstance(whole, list)
    for row, start in enumerate(batch.start):
        number = row // 3
        for found, item in ((values[row], items[0][number]), (steps[row], items[1][number])):
            there = item[start : start + 4]
            wanted = [*there, *[item[-1] if fill == "last" else np.zeros_like(item[0])] * (4 - len(there))]
            assert found.dtype == item.dtype
            np.testing.assert_array_equal(found, wanted)
        assert whole[row].dtype == items[2][number].dtype
        np.testing.assert_array_equal(whole[row], items[2][number])


@pytest.mark.parametrize("ragged", [True, False])
def test_slices_share_no_memory_with_their_episodes(ragged: bool) -> None:
    """Several slices may have one row, and each learner's batch is its own."""
    episodes = np.arange(24).reshape(2, 12)
    column: Column = list(episodes) if ragged else episodes
    ones = np.ones(2)
    flat = FlatBatch(
        (column, np.arange(2)), SampleInfo(np.arange(2).astype("u8"), ones, np.full(2, 2), ones, ones.astype("i4"))
    )
    structure = {"a": ArraySpec((None,), INT), "b": ArraySpec((), INT)}
    cutting = Cutting("replay", Slicing(table_info(), structure, SliceSpec(12, 2)), 1)
    for number in range(4):
        batch = cutting.next(lambda: flat)
        assert batch is not None
        assert np.array_equal(batch.columns[0], episodes[number // 2][None])
        batch.columns[0][0][:] = -1
    assert episodes.min() == 0


def test_strict_slices_end_with_their_last_row() -> None:
    with connected(server_of(STEPS, episodes_of([9]))) as client:
        _, info = next(iter(client.sample("replay", 3, slices=SliceSpec(4))))
    assert info.mask is not None
    assert info.ends is not None
    assert info.mask.all()
    assert info.ends.tolist() == [[False, False, False, True]] * 3


def test_the_order_in_which_samples_come_does_not_matter() -> None:
    """Two streams race; the slices of an item's n-th sample are the same."""

    def slices(streams: int) -> set[tuple[int, int, int]]:
        server = server_of(STEPS, episodes_of([20, 30, 40]), sampler="fifo", max_times_sampled=50)
        with (
            connected(server) as client,
            client.sample("replay", 10, streams=streams, samples=150, slices=SliceSpec(4, seed=3)) as sampler,
        ):
            return {
                (int(key), int(times), int(start))
                for _, info in sampler
                for key, times, start in zip(info.key, info.times_sampled, np.asarray(info.start))
            }

    assert len(slices(1)) == 150
    assert slices(1) == slices(3)


def test_slices_of_fixed_windows_are_cut_from_all_columns() -> None:
    windows = {"a": ArraySpec((6, 2), INT), "b": ArraySpec((6,), INT)}
    items = [(np.arange(12).reshape(6, 2), np.arange(6))]
    for signature, structure in ((windows, windows), (None, None)):
        with connected(server_of(signature, items)) as client:
            data, info = next(iter(client.sample("replay", 4, slices=SliceSpec(3))))
        assert info.start is not None
        first, second = (data["a"], data["b"]) if structure else data
        assert np.array_equal(second, info.start[:, None] + np.arange(3))
        assert np.array_equal(first[:, :, 0], 2 * second)


FREE, ONE, SIX, SEVEN = (ArraySpec(shape, INT) for shape in ((None,), (), (6,), (7,)))


@pytest.mark.parametrize(
    ("structure", "rows"),
    [
        ({"a": FREE, "b": FREE}, {"a": (None,), "b": (None,)}),  # one of them may have a row more
        ({"a": FREE, "b": ONE}, {"a": (3,), "b": ()}),
        ({"a": FREE, "b": SIX}, {"a": (3,), "b": (6,)}),
        ({"a": SIX, "b": SEVEN}, {"a": (3,), "b": (4,)}),
        ({"a": SIX, "b": "anything"}, {"a": (None,), "b": "anything"}),
        (["x"], ["x"]),
        (None, None),
    ],
)
def test_the_structure_tells_the_rows_of_slices_where_they_are_known(structure: Any, rows: Any) -> None:
    found = Slicing(table_info(signature=None), structure, SliceSpec(3)).signature
    assert (found and map_leaves(lambda leaf: leaf if isinstance(leaf, str) else leaf.shape, found)) == rows


def test_slices_of_columns_that_are_only_named() -> None:
    with connected(server_of(None, episodes_of([9]))) as client:
        data, info = next(iter(client.sample("replay", 4, spec=["x", "y"], slices=SliceSpec(3))))
    assert info.start is not None
    assert np.array_equal(data[1], info.start[:, None] + np.arange(3))


def test_slices_with_a_row_more_are_mixed_with_others_like_them() -> None:
    """What the structure told was refused beside what came."""
    items = [(np.arange(9), np.arange(10))]
    with connected(server_of(STEPS, items)) as client, connected(server_of(None, items)) as other:
        parts = [(client.sample("replay", 4, slices=SliceSpec(3)), 1)]
        parts.append((other.sample("replay", 4, spec={"episode": "", "step": ""}, slices=SliceSpec(3)), 1))
        with mix(parts, 16) as made:
            data, _ = next(made)
    assert (data["episode"].shape, data["step"].shape) == ((16, 3), (16, 4))


@pytest.mark.parametrize("spec", [SliceSpec(4), SliceSpec(1, by="step", every=1e12)])
def test_a_table_that_gives_no_slice_is_told(spec: SliceSpec) -> None:
    with (
        connected(server_of(STEPS, episodes_of([3, 2]))) as client,
        pytest.raises(ConfigError, match=r'table "replay": 1,\d+ samples in a row gave nothing: they are shorter than'),
    ):
        next(iter(client.sample("replay", 4, slices=spec)))


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([(np.arange(4), np.arange(6))], r'rows differ between columns: column "episode" 4, column "step" 6'),
        ([(np.arange(4), np.arange(5)), (np.arange(4), np.arange(4))], "and so in all items"),
        ([(np.array(1), np.arange(4))], 'column "episode" has no rows'),
    ],
)
def test_items_that_are_no_episodes_are_refused(items: Any, words: str) -> None:
    with (
        connected(server_of(STEPS, items, sampler="fifo", max_times_sampled=1)) as client,
        pytest.raises(ConfigError, match=words),
    ):
        next(iter(client.sample("replay", len(items), slices=SliceSpec(2))))


@pytest.mark.parametrize("sampler", ["lifo", "max_heap", "min_heap"])
def test_steps_cannot_be_equally_likely_where_a_sampler_prefers_items(sampler: str) -> None:
    with (
        connected(server_of(STEPS, [], sampler=sampler)) as client,
        pytest.raises(ConfigError, match=f"its sampler {sampler} prefers some items for good"),
    ):
        client.sample("replay", slices=SliceSpec(2, by="step"))


def test_an_item_that_would_have_to_give_endless_slices_is_refused() -> None:
    table = {"sampler": "prioritized(1)", "priorities": [1e-12, 1.0]}
    server = server_of(STEPS, episodes_of([9, 9]), **table)
    with connected(server) as client, client.sample("replay", slices=SliceSpec(2, by="step")) as sampler:
        next(iter(sampler))
    with (
        connected(server_of(STEPS, episodes_of([9]))) as client,
        pytest.raises(ConfigError, match="wants 8e\\+09 slices"),
    ):
        next(iter(client.sample("replay", slices=SliceSpec(2, by="step", every=1e-9))))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0}, "slices: length 0"),
        ({"length": 2, "per_episode": 0}, "slices: per_episode 0"),
        ({"length": 2, "by": "row"}, "slices: by 'row': expected one of trajectory, step"),
        ({"length": 2, "fill": "first"}, "slices: fill 'first'"),
        ({"length": 2, "strict": 1}, "slices: strict 1"),
        ({"length": 2, "seed": 0.5}, "slices: seed 0.5"),
        ({"length": 2, "by": "step", "per_episode": 2}, "takes every"),
        ({"length": 2, "every": 2}, 'by="step" beside it'),
        ({"length": 2, "by": "step", "every": 0}, "every 0"),
        ({"length": 2, "by": "step", "every": float("nan")}, "every nan"),
        ({"length": 2, "by": "step", "every": True}, "every True"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SliceSpec(**options)


def test_slices_go_with_what_does_not_say_the_opposite() -> None:
    by_step = SliceSpec(2, by="step")
    with pytest.raises(ConfigError, match="give one of them"):
        SampleOptions(slices=by_step, weights="batch_max", beta=0.5)
    with pytest.raises(ConfigError, match="give one of them"):
        SampleOptions(slices=by_step, view="n_step")
    with pytest.raises(ConfigError, match=r"expected SliceSpec\(length=...\)"):
        SampleOptions(slices=16)  # type: ignore[arg-type]
    assert SampleOptions(100, slices=SliceSpec(2, 3)).request_size == 34
    assert SampleOptions(100, slices=by_step).request_size == 8
    assert SampleOptions(3, view="n_step").request_size == 3


# Draws: a function of what they are for, and even.

ANY_KEY = st.integers(0, 2**64 - 1)


def slow_uniform(seed: int, *numbers: int) -> float:
    """SplitMix64 in whole numbers of any size."""
    bits = 2**64
    state = seed % bits
    for number in numbers:
        state = ((state ^ (number % bits)) + 0x9E3779B97F4A7C15) % bits
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % bits
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % bits
        state ^= state >> 31
    return (state >> 11) / 2**53


@given(st.integers(), st.lists(st.tuples(ANY_KEY, st.integers(1, 2**31 - 1), st.integers(-1, 100)), min_size=1))
def test_draws_are_those_of_whole_numbers(seed: int, rows: list[tuple[int, int, int]]) -> None:
    keys, times, ranks = (list(column) for column in zip(*rows))
    drawn = uniforms(seed, np.array(keys, np.uint64), np.array(times, np.int32), np.array(ranks, np.int64))
    assert drawn.tolist() == [slow_uniform(seed, *row) for row in rows]


@given(st.integers(), st.lists(st.tuples(ANY_KEY, st.integers(1, 9), st.integers(0, 5), st.integers(1, 50))))
def test_picks_do_not_depend_on_what_stands_beside_them(seed: int, rows: list[tuple[int, int, int, int]]) -> None:
    columns = list(zip(*rows)) or [(), (), (), ()]
    keys, times, counts, among = (np.array(column, kind) for column, kind in zip(columns, ("u8", "i4", "i8", "i8")))
    found = picks(seed, keys, times, counts, among) if rows else []
    for (key, time, count, below), drawn in zip(rows, found):
        assert drawn.tolist() == [int(slow_uniform(seed, key, time, rank) * below) for rank in range(count)]


def test_picks_are_even() -> None:
    """36,000 picks among 36: each cell's share is within 6 standard deviations, for neighbouring keys and times."""
    keys, times = np.divmod(np.arange(3600), 60)
    found = picks(0, keys.astype(np.uint64), times + 1, np.full(3600, 10), np.full(3600, 36))
    counts = np.bincount(np.concatenate(found), minlength=36)
    assert np.abs(counts - 1000).max() < 6 * np.sqrt(1000)
    pairs = np.bincount([6 * (pick[0] // 6) + pick[1] // 6 for pick in found], minlength=36)
    assert np.abs(pairs - 100).max() < 6 * np.sqrt(100)


def test_another_seed_draws_otherwise() -> None:
    keys, ones = np.arange(100, dtype=np.uint64), np.ones(100, np.int64)
    one, other = (np.concatenate(picks(seed, keys, ones, ones, 1000 * ones)) for seed in (0, 1))
    assert np.count_nonzero(one == other) < 10


# Batches of what is cut out of samples: their sizes, their ends, and that no item is lost or comes twice.


class Counted:
    """A sample that holds the number n gives the items n00, n01, ...: as many as `counts` says."""

    signature = None
    nothing = "there are none"

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts

    def items(self, flat: FlatBatch) -> CutItems:
        values = np.array(flat.columns[0])
        counts = np.array([self._counts[value] for value in values], np.int64)

        def rows(samples: Array, numbers: Array) -> CutRows:
            assert len(samples)
            assert (np.diff(samples) >= 0).all()
            assert (numbers < counts[samples]).all()
            return CutRows([100 * values[samples] + numbers], numbers)

        return CutItems(counts, rows)


def flats(sizes: Sequence[int]) -> Iterator[FlatBatch]:
    """Samples 0, 1, 2, ... in batches of such sizes."""
    first = 0
    for size in sizes:
        numbers: Array = np.arange(first, first + size)
        first += size
        ones = np.ones(size)
        yield FlatBatch(
            (numbers,), SampleInfo(numbers.astype(np.uint64), ones, np.full(size, 9), ones, ones.astype("i4"))
        )


@given(
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=9),
    st.integers(1, 9),
    st.booleans(),
)
def test_batches_hold_all_items_in_order(came: list[list[int]], batch_size: int, drop_last: bool) -> None:
    """Samples come in batches of other sizes, and each gives other numbers of items."""
    counts = [count for batch in came for count in batch]
    source = flats(list(map(len, came)))
    cutting = Cutting("replay", Counted(counts), batch_size, drop_last)
    batches = list(iter(lambda: cutting.next(lambda: next(source, None)), None))
    expected = [(number, item) for number, count in enumerate(counts) for item in range(count)]
    left = len(expected) % batch_size if drop_last else 0
    assert all(isinstance(batch, CutBatch) for batch in batches)
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    found = [
        (int(key), int(start), int(value))
        for batch in batches
        if isinstance(batch, CutBatch)
        for key, start, value in zip(batch.info.key, batch.start, batch.columns[0])
    ]
    assert found == [(number, item, 100 * number + item) for number, item in expected[: len(expected) - left]]
    assert (cutting.held > 0) == (left > 0)


def once(lengths: list[int]) -> MemoryServer:
    return server_of(STEPS, episodes_of(lengths), sampler="fifo", max_times_sampled=1)


def slices_of(batches: Sequence[Batch]) -> Counter[int]:
    return Counter(key for _, info in batches for key in info.key.tolist())


def test_drain_hands_out_all_slices() -> None:
    server = once([9] * 20)
    with connected(server) as client:
        sampler = client.sample("replay", 5, slices=SliceSpec(4, per_episode=3), prefetch=2)
        found = [next(sampler), *sampler.drain(0.2)]
        assert sampler.lost_at_most == 0
    taken = 20 - len(server.contents())
    assert slices_of(found) == dict.fromkeys(range(1, taken + 1), 3)
    assert taken > 1


def test_drain_hands_out_short_batches_with_drop_last_too() -> None:
    server = once([9])
    with connected(server) as client:
        sampler = client.sample("replay", 2, slices=SliceSpec(4, per_episode=3), prefetch=1, drop_last=True)
        server.until(lambda: server.tables["replay"].samples == 1)
        assert [batch.size for batch in sampler.drain(0.1)] == [2, 1]


def test_drain_right_after_a_quiet_end_hands_out_what_came_since() -> None:
    server = once([9])
    with connected(server) as client:
        sampler = client.sample("replay", 2, slices=SliceSpec(4, per_episode=3), end_after_seconds=0.1)
        first = [next(sampler), next(sampler)]
        assert [batch.size for batch in first] == [2, 1]
        server.put("replay", 2, episodes_of([9])[0])
        server.until(lambda: server.tables["replay"].samples == 2)
        found = [*first, *sampler.drain(0.2)]
    assert slices_of(found) == {1: 3, 2: 3}


def test_a_closed_sampler_counts_the_episodes_that_have_slices_left() -> None:
    with connected(once([9])) as client:
        sampler = client.sample("replay", 2, slices=SliceSpec(4, per_episode=3), samples=1)
        next(sampler)
        assert sampler.lost_at_most == 0
        sampler.close()
        assert sampler.lost_at_most == 1


def test_after_a_quiet_end_it_goes_on() -> None:
    server = once([9] * 3)
    with connected(server) as client:
        sampler = client.sample("replay", 4, slices=SliceSpec(4), end_after_seconds=0.2)
        assert slices_of(list(sampler)) == {1: 1, 2: 1, 3: 1}
        for key, values in enumerate(episodes_of([9] * 4), 10):
            server.put("replay", key, values)
        assert set(slices_of(list(sampler))) <= {10, 11, 12, 13}


@pytest.mark.parametrize("threads", [1, 4])
def test_several_threads_share_the_slices(threads: int) -> None:
    with connected(once([9] * 40)) as client:
        sampler = client.sample("replay", 7, slices=SliceSpec(4, per_episode=2), samples=40)
        found: list[Batch] = []
        running = [threading.Thread(target=lambda: found.extend(sampler)) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
    assert slices_of(found) == dict.fromkeys(range(1, 41), 2)
