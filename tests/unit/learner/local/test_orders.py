"""The shuffle buffer: every epoch a permutation, every place equally likely, and drawn again from any place on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.learner.local.orders import ShuffleBuffer


def drawn(buffer: ShuffleBuffer[int], items: Iterator[int]) -> Iterator[tuple[int, int]]:
    while (one := buffer.next(lambda: next(items, None))) is not None:
        yield one


@given(st.integers(0, 40), st.integers(0, 60), st.integers(0, 3), st.integers(0, 3))
def test_it_gives_each_item_once_and_none_too_early(size: int, count: int, seed: int, epoch: int) -> None:
    out = list(drawn(ShuffleBuffer(size, seed, epoch), iter(range(count))))
    assert sorted(item for item, _ in out) == list(range(count))
    for place, (item, among) in enumerate(out):
        assert item - place < max(1, size)
        assert among == min(max(1, size), count - place)
    if size < 2:
        assert [item for item, _ in out] == list(range(count))


@given(st.integers(1, 20), st.integers(0, 50), st.data())
def test_what_it_holds_and_how_many_it_gave_is_all_there_is_to_it(size: int, count: int, data: st.DataObject) -> None:
    items, buffer = iter(range(count)), ShuffleBuffer[int](size, 3, 1)
    for _ in range(data.draw(st.integers(0, count))):
        buffer.next(lambda: next(items, None))
    rest = list(items)
    again = ShuffleBuffer(size, 3, 1, list(buffer.held), buffer.drawn)
    assert list(drawn(again, iter(rest))) == list(drawn(buffer, iter(rest)))


def test_all_places_are_equally_likely() -> None:
    """Chi-squared of 49 degrees of freedom is over 100 in one of 50,000 cases."""
    counts = np.zeros((8, 8))
    for epoch in range(800):
        for place, (item, _) in enumerate(drawn(ShuffleBuffer(8, 0, epoch), iter(range(8)))):
            counts[item, place] += 1
    assert (np.square(counts - 100) / 100).sum() < 100
