"""What `inspect` counts is what a push makes."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2reverb
from rlds2reverb import Episode, cli
from rlds2reverb.errors import ConfigError, SourceError, ViewError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import LAST_REWARDS
from rlds2reverb.inspection.inspection import Inspection, inspect_source
from rlds2reverb.plain import members
from rlds2reverb.prepare.conventions import LAST_OBSERVATIONS, LAST_STEPS, TERMINAL_DISCOUNTS
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import outputs_of
from rlds2reverb.views import view_of
from tests.support import strategies
from tests.support.push.in_memory import Server, episodes, push_to, table_info
from tests.unit.prepare.test_endings import poisoned

VIEWS = {
    "pairs": "two_step",
    "long": "sequence:length=4",
    "whole": "episode:max_length=6",
    "across": "across_episodes:length=3",
    "fragments": "fragments:length=3",
}


def inspected(
    source: list[Episode], views: dict[str, str], limit: Any = None, options: EpisodeOptions = EpisodeOptions()
) -> Inspection:
    chosen = {name: view_of(view) for name, view in views.items()}
    return inspect_source(EpisodeList(source, "test"), chosen, limit, options)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.sets(st.sampled_from(sorted(VIEWS)), min_size=1))
@settings(max_examples=40, deadline=None)
def test_items_refusals_and_leftovers_are_those_of_a_push(lengths: list[int], names: set[str]) -> None:
    source = [strategies.episode(np.random.default_rng(seed), rows) for seed, rows in enumerate(lengths)]
    source = [dataclasses.replace(episode, id=f"e{number}") for number, episode in enumerate(source)]
    views = {name: VIEWS[name] for name in sorted(names)}
    report = push_to(Server({name: table_info(name) for name in views}), source, outputs_of(views), on_invalid="skip")
    inspection = inspected(source, views)
    needs = inspection.outputs
    assert {name: need.items_per_table for name, need in needs.items() if need.items_per_table} == report.items_made
    assert {name: need.without_items for name, need in needs.items() if need.without_items} == report.without_items
    assert {name: need.left_over for name, need in needs.items() if need.left_over} == report.left_over
    assert {code: inspection.findings.episodes[code] for code in inspection.findings.codes()} == report.rejected


@given(
    rewards=st.lists(
        st.lists(st.sampled_from([0, 1, -1, np.nan]), min_size=2, max_size=4).map(
            lambda some: np.array(some, np.float32)
        ),
        min_size=1,
        max_size=5,
    ),
    options=st.builds(
        EpisodeOptions,
        on_invalid=st.just("skip"),
        terminal_discount=st.sampled_from(TERMINAL_DISCOUNTS),
        last_reward=st.sampled_from(LAST_REWARDS),
        last_observation=st.sampled_from(LAST_OBSERVATIONS),
        last_step=st.sampled_from(LAST_STEPS),
    ),
    view=st.sampled_from(["two_step", "sequence:length=3", "two_step:priority=reward"]),
)
@settings(max_examples=60, deadline=None)
def test_what_conventions_spoil_is_what_a_push_would_reject(
    rewards: list[np.ndarray], options: EpisodeOptions, view: str
) -> None:
    """A shift loses first rewards, brings in last ones, and changes priorities that come from rewards."""
    source = [
        strategies.episode(np.random.default_rng(number), len(reward), episode_id=f"e{number}").with_columns(
            reward=reward
        )
        for number, reward in enumerate(rewards)
    ]
    named = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    report = push_to(Server({"t": table_info("t")}), source, outputs_of({"t": view}), **named)
    inspection = inspected(source, {"t": view}, options=options)
    rejected: dict[str, int] = {}
    for episode in source:
        found = inspected([episode], {"t": view}, options=options).findings
        for code in found.codes()[:1]:
            rejected[code] = rejected.get(code, 0) + 1
    assert sum(rejected.values()) == sum(report.rejected.values())
    assert inspection.outputs["t"].items_per_table == report.items_confirmed
    assert set(report.rejected) <= set(inspection.findings.codes())
    judged = inspect_source(EpisodeList(source, "test"), {}, options=options)
    assert judged.episodes == len(source)
    of_views = {"no_items", "view_refused"}
    assert set(judged.findings.codes()) == set(inspection.findings.codes()) - of_views


def test_validate_tells_what_a_shift_would_lose_when_it_is_asked() -> None:
    source = [episodes(1)[0].with_columns(reward=np.array([1, 0, 0, 0], np.float32))]
    assert inspect_source(EpisodeList(source), {}).findings.codes() == []
    shifted = inspect_source(EpisodeList(source), {}, options=EpisodeOptions(last_reward="shift"))
    assert shifted.findings.codes() == ["first_reward_lost"]


def test_an_episode_that_a_view_refuses_is_named_and_counts_for_no_table() -> None:
    short, long = episodes(1, rows=3), [dataclasses.replace(episodes(1, rows=9)[0], id="long one")]
    inspection = inspected([*short, *long], {"pairs": "two_step", "whole": "episode:max_length=6"})
    assert {name: need.items_per_table for name, need in inspection.outputs.items()} == {"pairs": 2, "whole": 1}
    (example,) = inspection.findings.examples["view_refused"]
    assert example.episode == "long one"
    assert "longer than max_length 6" in example.problem.detail


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(width=32), min_size=1, max_size=6))
def test_returns_are_told_of_the_finite_ones_and_the_others_counted(rewards: list[float]) -> None:
    source = [
        episode.with_columns(reward=np.array([reward, 0, 0, 0], np.float32))
        for episode, reward in zip(episodes(len(rewards)), rewards)
    ]
    returns = inspected(source, {"pairs": "two_step"}).as_dict()["return"]
    finite = [float(reward) for reward in np.array(rewards, np.float32) if np.isfinite(reward)]
    if not finite:
        assert returns == {"min": None, "median": None, "mean": None, "max": None, "not_finite": len(rewards)}
    else:
        assert (returns["min"], returns["max"]) == (min(finite), max(finite))
        assert returns["mean"] == pytest.approx(np.mean(finite))
        assert returns["not_finite"] == len(rewards) - len(finite)


def test_columns_that_a_views_items_do_not_hold_are_listed_by_table() -> None:
    said = {
        "language_instruction": np.array([b"lift"] * 4, object),
        "language_embedding": np.zeros((4, 5), np.float32),
        "action_dict/gripper": np.zeros(4),
    }
    source = [episode.with_only_columns({**episode.columns, **said}) for episode in episodes(2)]
    needs = inspected(source, {"pairs": "two_step", "all": "slices:length=2", "moves": "transition"}).outputs
    assert set(needs["pairs"].not_in_items) == set(said)
    assert needs["all"].not_in_items == ()
    assert set(needs["moves"].not_in_items) == {*said, "discount", "is_first"}
    assert set(members(needs["pairs"])["not_in_items"]) == set(said)


def test_a_field_that_is_filled_in_is_not_missed() -> None:
    bare = [episode.with_only_columns({path: column for path, column in episode.columns.items() if path != "discount"})
            for episode in episodes(1)]  # fmt: skip
    assert inspected(bare, {"moves": "transition"}).outputs["moves"].not_in_items == ("is_first",)


def test_only_a_view_with_priorities_from_the_data_asks_for_a_sampler_that_heeds_them() -> None:
    needs = inspected(episodes(1), {"plain": "two_step:priority=2", "weighed": "two_step:priority=reward"}).outputs
    assert (needs["plain"].by_priority, needs["weighed"].by_priority) == (False, True)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.sampled_from(LAST_OBSERVATIONS), st.integers(1, 9))
def test_shared_ends_are_told_and_mended_as_in_a_push(seed: int, count: int, choice: str, limit: int) -> None:
    source = poisoned(np.random.default_rng(seed), count)
    report = push_to(
        Server({"t": table_info("t")}),
        source[:limit],
        outputs_of({"t": "two_step"}),
        on_invalid="skip",
        last_observation=choice,
    )
    options = EpisodeOptions(last_observation=choice)
    inspection = inspected(source, {"t": "two_step"}, limit, options)
    assert inspection.outputs["t"].items_per_table == report.items_confirmed
    assert dict(inspection.findings.episodes) == report.rejected
    assert inspect_source(EpisodeList(source), {}, limit, options).findings.episodes == inspection.findings.episodes


def test_what_is_said_of_the_dataset_rejects_it_only_strictly() -> None:
    source = [
        episode.with_columns(observation=episode.columns["observation"].astype(np.float64))
        for episode in episodes(3, rows=20)
    ]
    findings = inspect_source(EpisodeList(source), {}).findings
    assert [remark.code for remark in findings.notices] == ["rounded_float64"]
    assert (findings.codes(), findings.codes(strict=True)) == ([], ["rounded_float64"])
    assert findings.codes(strict=True, allow=("rounded_float64",)) == []
    told = inspected(source, {"t": "two_step"}).as_dict()
    assert [remark["path"] for remark in told["notices"]] == ["observation", ""]  # and a note on last actions
    assert told["ends"]["episodes"] == 3


@pytest.mark.parametrize(("last_reward", "lowest", "values"), [(0.0, 1.0, 3), (5.0, 1.0, 4)])
def test_last_rows_that_were_added_do_not_count_in_ranges_of_transitions(
    last_reward: float, lowest: float, values: int
) -> None:
    (episode,) = episodes(1, 4)
    columns = {
        "reward": np.array([1, 1, 1, last_reward]),
        "action": np.array([3, 3, 3, 0]),
        "discount": np.array([1.0, 1, 1, 0]),
    }
    inspection = inspected([episode.with_columns(**columns)], {"t": "two_step"})
    spans = {name: inspection.ranges[name] for name in columns}
    assert {name: span.finite for name, span in spans.items()} == dict.fromkeys(columns, values)
    assert spans["reward"].minimum == lowest
    assert inspection.ranges["observation"].finite == 4 * int(np.prod(episode.columns["observation"].shape[1:]))


# `rlds2reverb.inspect` tells what the command tells.


def test_it_tells_what_the_command_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--view",
        "sequence:length=3",
        "--limit",
        "5",
        "--terminal-discount",
        "transition",
        "--transform",
        "drop=discount",
    ]
    monkeypatch.setattr(sys, "argv", ["rlds2reverb", "inspect", "bundled:cartpole", "--json", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    given: dict[str, Any] = {"limit": 5, "terminal_discount": "transition", "transform": "drop=discount"}
    found = rlds2reverb.inspect("bundled:cartpole", "sequence:length=3", **given)
    assert json.loads(json.dumps(found.as_dict())) == json.loads(capsys.readouterr().out)


def test_a_view_may_be_written_as_in_yaml() -> None:
    given = {"view": "sequence", "length": 3}
    found = rlds2reverb.inspect("bundled:cartpole", given, limit=2)
    assert found.as_dict() == rlds2reverb.inspect("bundled:cartpole", "sequence:length=3", limit=2).as_dict()
    found = rlds2reverb.inspect("bundled:cartpole", {"a": given, "view": "two_step"}, limit=2)
    assert list(found.outputs) == ["a", "view"]


def test_several_tables_have_views_of_their_own() -> None:
    found = rlds2reverb.inspect("bundled:cartpole", {"a": "episode", "b": view_of("two_step")}, limit=2)
    assert [(table, output.view) for table, output in found.outputs.items()] == [("a", "episode"), ("b", "two_step")]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"view": {}}, ConfigError, "view is empty"),
        ({"limit": 0}, ConfigError, "limit 0: expected at least 1"),
        (
            {"last_rewards": "shift"},
            ConfigError,
            'inspect has no option last_rewards; there are .*; did you mean "last_reward"',
        ),
        ({"last_reward": "shif"}, ConfigError, 'last_reward "shif": expected one of'),
        ({"view": "nonsense"}, ViewError, "nonsense"),
        ({"encoded": "observation"}, SourceError, "no step columns whose JPEG or PNG"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        rlds2reverb.inspect("bundled:cartpole", **options)


def test_a_source_that_there_is_not_is_refused() -> None:
    with pytest.raises(SourceError):
        rlds2reverb.inspect("bundled:nothing")
