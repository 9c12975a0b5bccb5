"""What `inspect` counts is what a push makes."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.inspection import inspect_source
from rlds2reverb.outputs import outputs_of
from rlds2reverb.sources.base import EpisodeList
from rlds2reverb.views.registry import view_of
from tests import strategies
from tests.in_memory import Server, episodes, in_memory, push_to, table  # noqa: F401

VIEWS = {
    "pairs": "two_step",
    "long": "sequence:length=4",
    "whole": "episode:max_length=6",
    "across": "across_episodes:length=3",
    "fragments": "fragments:length=3",
}


def inspected(source, views, limit=None):
    return inspect_source(EpisodeList(source, "test"), {name: view_of(view) for name, view in views.items()}, limit)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.sets(st.sampled_from(sorted(VIEWS)), min_size=1))
@settings(max_examples=40, deadline=None)
def test_items_refusals_and_leftovers_are_those_of_a_push(lengths, names):
    source = [strategies.episode(np.random.default_rng(seed), rows) for seed, rows in enumerate(lengths)]
    source = [dataclasses.replace(episode, id=f"e{number}") for number, episode in enumerate(source)]
    views = {name: VIEWS[name] for name in sorted(names)}
    report = push_to(Server({name: table(name) for name in views}), source, outputs_of(views), on_invalid="skip")
    inspection = inspected(source, views)
    needs = inspection.tables
    assert {name: need.items for name, need in needs.items() if need.items} == report.items_made
    assert {name: need.without_items for name, need in needs.items() if need.without_items} == report.without_items
    assert {name: need.left_over for name, need in needs.items() if need.left_over} == report.left_over
    assert {code: inspection.findings.episodes[code] for code in inspection.findings.codes()} == report.rejected


def test_an_episode_that_a_view_refuses_is_named_and_counts_for_no_table():
    short, long = episodes(1, rows=3), [dataclasses.replace(episodes(1, rows=9)[0], id="long one")]
    inspection = inspected([*short, *long], {"pairs": "two_step", "whole": "episode:max_length=6"})
    assert {name: need.items for name, need in inspection.tables.items()} == {"pairs": 2, "whole": 1}
    ((episode, problem),) = inspection.findings.examples["view_refused"]
    assert episode == "long one"
    assert "longer than max_length 6" in problem.detail


def test_only_a_view_with_priorities_from_the_data_asks_for_a_sampler_that_heeds_them():
    needs = inspected(episodes(1), {"plain": "two_step:priority=2", "weighed": "two_step:priority=reward"}).tables
    assert (needs["plain"].by_priority, needs["weighed"].by_priority) == (False, True)
