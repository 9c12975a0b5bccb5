"""Rendezvous hashing: even shares, and a server that is added or leaves moves its own share only."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.push.keys import Placement

ADDRESSES = st.lists(
    st.from_regex(r"[a-z]{1,8}(-[0-9])?:[0-9]{2,5}", fullmatch=True), min_size=1, max_size=7, unique=True
)
NAMES = [f"dataset/train/{number}" for number in range(2000)]


@given(ADDRESSES, st.text())
def test_the_order_of_the_servers_does_not_matter(addresses: list[str], name: str) -> None:
    placed = Placement(addresses).of(name)
    assert placed in addresses
    assert Placement(addresses[::-1]).of(name) == placed


@given(ADDRESSES, st.data(), st.lists(st.text(), max_size=20))
def test_no_episode_moves_between_the_servers_that_stay(
    addresses: list[str], data: st.DataObject, names: list[str]
) -> None:
    added = data.draw(st.sampled_from(addresses))
    before = [address for address in addresses if address != added]
    after = Placement(addresses)
    if before:
        for name in names:
            assert after.of(name) in (added, Placement(before).of(name))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_server_that_is_added_takes_its_share(count: int) -> None:
    """Of 2,000 names, expected 2,000 / count; within five standard deviations of a binomial."""
    addresses = [f"replay-{number}.replay:8000" for number in range(count)]
    counts = Counter(map(Placement(addresses).of, NAMES))
    share = len(NAMES) / count
    deviation = 5 * (share * (1 - 1 / count)) ** 0.5
    assert all(abs(counts[address] - share) < deviation for address in addresses)
    before, after = Placement(addresses[:-1]), Placement(addresses)
    moved = [name for name in NAMES if before.of(name) != after.of(name)]
    assert abs(len(moved) - share) < deviation
    assert all(after.of(name) == addresses[-1] for name in moved)
