"""Batches of what is cut out of samples: their sizes, their ends, and that no item is lost or comes twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.options import SliceSpec
from rlds2reverb.learner.slices import CutBatch, CutItems, CutRows, Cutting
from rlds2reverb.testing import MemoryServer
from rlds2reverb.wire.sample.batches import FlatBatch, SampleInfo
from tests.support.learner.stored import STEPS, connected, episodes_of, server_of


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
        for one in running:
            one.start()
        for one in running:
            one.join(60)
    assert slices_of(found) == dict.fromkeys(range(1, 41), 2)
