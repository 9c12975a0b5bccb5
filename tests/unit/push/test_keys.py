"""Items have the same names exactly when the same data is pushed the same way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.preparation import Output
from rlds2reverb.push.keys import ItemNames, Placement
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import AcrossEpisodes, SequenceView, WholeEpisode, two_step
from tests.support import strategies

CUT = two_step().cut(strategies.episode(np.random.default_rng(0), 4))


def names_of(
    view: View = two_step(),
    tables: tuple[str] = ("t",),
    conventions: Conventions = Conventions(),
    again: int | None = None,
) -> ItemNames:
    return ItemNames(Output(tables, view), conventions.label, again)


def test_outputs_share_an_identity_exactly_when_their_items_are_the_same() -> None:
    same = [names_of(), names_of(tables=("other",)), names_of(SequenceView(2))]
    others = [
        names_of(SequenceView(3)),
        names_of(WholeEpisode()),
        names_of(conventions=Conventions(terminal_discount="transition")),
        names_of(conventions=Conventions(last_reward="shift")),
        names_of(conventions=Conventions(last_observation="repeat")),
        names_of(conventions=Conventions(last_observation="drop")),
    ]
    assert len({names.identity for names in same}) == 1
    assert len({names.identity for names in (same[0], *others)}) == 1 + len(others)
    assert len({names.part(CUT).push_seed for names in same}) == 1
    assert len({names.part(CUT).push_seed for names in (same[0], *others)}) == 1 + len(others)


def test_a_push_that_stores_everything_once_more_has_a_seed_of_its_own() -> None:
    assert names_of(again=7).part(CUT).push_seed == 7 != names_of().part(CUT).push_seed


def test_items_of_an_episode_are_named_by_it_alone() -> None:
    names = names_of()
    for key_name in ("a", "b", "a"):
        names.take_in(key_name)
        assert names.part(CUT).key_name == key_name


@pytest.mark.parametrize("other", [("a", "b"), ("b", "a", "c"), ("a", "b", "b", "c")])
def test_items_of_a_stream_are_named_by_all_episodes_before(other: tuple[str, ...]) -> None:
    made = []
    for order in (("a", "b", "c"), ("a", "b", "c"), other):
        names = names_of(AcrossEpisodes(3))
        for key_name in order:
            names.take_in(key_name)
        made.append(names.part(CUT).key_name)
    assert made[0] == made[1] != made[2]


# Rendezvous hashing: even shares, and a server that is added or leaves moves its own share only.

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
