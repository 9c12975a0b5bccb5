"""Items have the same names exactly when the same data is pushed the same way."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.preparation import Output
from rlds2reverb.push.keys import ItemNames
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
