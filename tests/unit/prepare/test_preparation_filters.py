"""Filters and splits leave the same in a push, in `local`, in an inspection and in a conversion, and are counted alike."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb import Client, Episode
from rlds2reverb.episode import content_digest
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError, ViewError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import Judging
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.inspection.workers import InspectJob, inspect_by_workers
from rlds2reverb.learner.recording import WriteOptions
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.options import PushOptions
from rlds2reverb.testing import MemoryTransport
from rlds2reverb.views import view_of
from rlds2reverb.views.trajectory import two_step
from tests.support import strategies
from tests.support.push import in_memory
from tests.support.workers_in_threads import InThreads
from tests.unit.conversion import test_convert_jpeg as convert_jpeg

EPISODES = [strategies.episode(np.random.default_rng(number), 4 + number % 3) for number in range(20)]
FILTERS: list[dict[str, Any]] = [
    {"split": "train"},
    {"split": "val", "val_share": 0.3},
    {"where": ["length>4", "max(reward)>0.5"]},
    {"exclude": [EPISODES[3].id, EPISODES[4].id]},
    {"where_step": "any(observation)>1.9"},
    {"where_step": ["min(observation)>-2.2", "reward<1"], "split": "train", "split_by": None},
    {"keep_ranges": {EPISODES[number].id: [[0, 2], [3, 6]] for number in range(12)}},
    {"idle": "column=reward,by=value,eps=0.5,steps=1"},
    {"filter": "tests.support.prepare.filtering:keeps_some_rows"},
    {"filter": "tests.support.prepare.filtering:keeps_some_episodes"},
]


def left_of(filters: dict[str, Any]) -> list[Episode]:
    """Read by the preparation itself."""
    return list(Preparation.open(EPISODES, EpisodeOptions(**filters)).source)


@pytest.mark.parametrize("filters", FILTERS)
def test_all_ways_leave_the_same(filters: dict[str, Any], tmp_path: Path) -> None:
    left = left_of(filters)
    assert len(left) > 0
    server, by_hand = in_memory.Server(), in_memory.Server()
    report = in_memory.push(server, EPISODES, **filters)
    in_memory.push(by_hand, left)
    assert [*server.items["replay"]] == [*by_hand.items["replay"]]
    assert report.episodes_pushed == len(left)
    batches = list(rlds2reverb.local(EPISODES, **filters))
    assert [int(key) for batch in batches for key in batch.info.key] == [*server.items["replay"]]
    shuffled = rlds2reverb.local(EPISODES, shuffle="global", **filters)
    assert sorted(int(key) for batch in shuffled for key in batch.info.key) == sorted(server.items["replay"])
    inspection = rlds2reverb.inspect(EPISODES, **filters)
    assert inspection.lengths == [len(episode) for episode in left]
    converted = rlds2reverb.convert(EPISODES, f"tfds:{tmp_path}/made", **filters)
    digests = [content_digest(episode.columns) for episode in open_source(f"tfds:{tmp_path}/made/1.0.0?order=file")]
    assert sorted(digests) == sorted(content_digest(episode.columns) for episode in left)
    counts = inspection.filtered
    assert counts == report.filtered == converted.filtered == shuffled.filtered
    assert all(len(episode) > 1 for episode in left)
    assert sum(rule.steps for rule in counts.values()) + inspection.steps == sum(map(len, EPISODES))
    assert inspection.as_dict()["filtered"] == {
        rule: {"episodes": count.episodes, "steps": count.steps, "emptied": count.emptied}
        for rule, count in counts.items()
    }


@pytest.mark.parametrize("filters", FILTERS)
def test_workers_leave_what_one_process_leaves(filters: dict[str, Any]) -> None:
    options = EpisodeOptions(**filters)
    job = InspectJob(NamedSource(EpisodeList(EPISODES)), {"replay": two_step()}, options=options)
    divided = inspect_by_workers(job, lambda job: InThreads(job, 3), 2)
    assert divided.as_dict() == rlds2reverb.inspect(EPISODES, **filters).as_dict() | {"source": divided.source}


@pytest.mark.parametrize("filters", [{"where_step": "max(reward)<0.5"}, {"split": "train"}])
def test_workers_are_told_what_is_left_and_do_not_read_for_it(filters: dict[str, Any]) -> None:
    options = PushOptions("replay", **filters)
    left = [episode.id for episode in Preparation.open(EPISODES, options).source]

    class Unread(EpisodeList):
        """Fails where it is read for the verdicts, with few columns and all episodes."""

        def without(self, paths: Any) -> Any:
            raise AssertionError(paths)

    sent = pickle.loads(pickle.dumps(options.for_worker()))
    assert [episode.id for episode in Preparation.open(Unread(EPISODES), sent).source] == left
    again = pickle.loads(pickle.dumps(sent))
    assert [episode.id for episode in Preparation.open(Unread(EPISODES), again).source] == left
    # Another source of the same name and size in this process is judged by itself.
    other = [EPISODES[0]] * len(EPISODES)
    assert len(list(Preparation.open(other, options).source)) % len(EPISODES) == 0


@pytest.mark.parametrize("names", ["{}?split=train", "mix:{}?split=train|{}?split=val,val_share=0.4"])
def test_workers_are_told_what_splits_in_names_leave(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = names.replace("{}", f"tfds:{rlds2reverb.convert(EPISODES, f'tfds:{tmp_path}/set').path}")
    job, server = InspectJob(NamedSource(name), {"replay": two_step()}), in_memory.Server()
    left = job.prepare().source.episode_count
    plan = in_memory.planned(server, name)
    sent_job, sent_options = pickle.loads(pickle.dumps((job, plan.options.for_worker())))

    def find(_: Judging) -> Any:
        raise AssertionError("judged once more")

    monkeypatch.setattr(Judging, "find", find)
    assert sent_job.prepare().source.episode_count == left == plan.episodes
    assert Preparation.open(name, sent_options).source.episode_count == left


def test_a_function_that_filters_sees_pixels_whatever_stays_encoded(tmp_path: Path) -> None:
    source = f"tfds:{rlds2reverb.convert(convert_jpeg.episodes(), f'tfds:{tmp_path}/pictures').path}?order=file"
    options: dict[str, Any] = {"filter": "tests.support.prepare.filtering:has_four_pictures", "encoded": "observation"}
    assert [len(episode) for episode in Preparation.open(source, EpisodeOptions(**options)).source] == [4]
    further: tuple[dict[str, Any], ...] = ({}, {"map": "tests.support.prepare.filtering:with_flipped_colours"})
    for number, more in enumerate(further):
        report = rlds2reverb.convert(source, f"tfds:{tmp_path}/made{number}", **options, **more)
        assert (report.episodes_written, report.steps_written) == (1, 4)


def test_with_real_last_actions_every_row_of_a_part_gives_an_item_and_is_judged() -> None:
    ranges = {episode.id: [[0, 2], [3, len(episode)]] for episode in EPISODES}
    inspection = rlds2reverb.inspect(EPISODES, "chunk:horizon=1", keep_ranges=ranges, last_step="repeat")
    ended_by_themselves = [episode for episode in EPISODES if len(episode) > 4]  # whose last action is 0 or noise
    assert inspection.outputs["replay"].items_per_table >= 2 * len(EPISODES) + len(ended_by_themselves)
    acted = [episode.with_columns(action=np.arange(1, len(episode) + 1, dtype=np.float32)) for episode in EPISODES]
    as_recorded = rlds2reverb.inspect(acted, where_step="action<4")
    repeated = rlds2reverb.inspect(acted, where_step="action<4", last_step="repeat")
    assert as_recorded.lengths == [4 if len(episode) == 4 else 3 for episode in acted]
    assert repeated.lengths == [3] * len(acted)


@pytest.mark.parametrize("filters", FILTERS)
def test_a_client_takes_every_filter(filters: dict[str, Any]) -> None:
    server = in_memory.Server()
    with Client(MemoryTransport(server)) as client:
        assert client.plan(EPISODES, "replay", **filters).episodes == len(left_of(filters))
        assert client.push(EPISODES, "replay", **filters).episodes_pushed == len(left_of(filters))


def test_a_plan_counts_what_is_left_before_anything_is_sent() -> None:
    filters = {"split": "train"}
    plan = in_memory.planned(in_memory.Server(), EPISODES, **filters)
    assert plan.episodes == len(left_of(filters))
    (table,) = plan.tables
    assert table.least_items == sum(len(episode) - 1 for episode in left_of(filters))
    assert plan.as_dict()["filtered"].keys() == {"split=train,val_share=0.1"}


def test_a_gap_is_no_fault_of_the_data_and_short_parts_are_counted() -> None:
    rewarded = [episode.with_columns(reward=np.ones(len(episode), np.float32)) for episode in EPISODES]
    ranges = {episode.id: [[0, 2], [3, len(episode)]] for episode in rewarded}
    conventions: tuple[dict[str, Any], ...] = ({}, {"last_reward": "shift"})
    for options in conventions:
        inspection = rlds2reverb.inspect(rewarded, keep_ranges=ranges, **options)
        whole = rlds2reverb.inspect(rewarded, **options)
        code = "first_reward_lost" if options else "last_reward"
        # Only the real ends and beginnings say something of the data.
        assert inspection.findings.episodes[code] <= whole.findings.episodes[code] == len(rewarded)
    server = in_memory.Server()
    report = in_memory.push(
        server, EPISODES, keep_ranges=ranges_of_all([[0, 2], [3, 5]]), view=view_of("sequence:length=3")
    )
    assert report.rejected == {"no_items": report.episodes_read}
    assert report.stopped == ""


def ranges_of_all(ranges: list[list[int]]) -> dict[str, list[list[int]]]:
    return {episode.id: ranges for episode in EPISODES}


def test_chunks_end_at_a_gap_as_at_the_end_of_an_episode() -> None:
    long = [strategies.episode(np.random.default_rng(number), 12) for number in range(3)]
    ranges = {episode.id: [[0, 5], [7, 12]] for episode in long}
    batches = rlds2reverb.local(long, "chunk:horizon=3", keep_ranges=ranges, batch_size=999)
    (data, _), *_ = batches
    wanted = [
        [int(row + ahead > stop - 2) for ahead in range(3)]
        for _ in long
        for start, stop in ranges[long[0].id]
        for row in range(start, stop - 1)
    ]
    np.testing.assert_array_equal(data["action_is_pad"].astype(int), wanted)


@pytest.mark.parametrize(
    "filters",
    [
        {"split": "train"},
        {"where_step": "max(reward)<0.5"},
        {"keep_ranges": {episode.id: [[0, 2], [3, 6]] for episode in EPISODES}},
    ],
)
def test_filters_see_the_episodes_below_the_limit(filters: dict[str, Any]) -> None:
    first = rlds2reverb.inspect(EPISODES[:7], **filters)
    assert rlds2reverb.inspect(EPISODES, limit=7, **filters).lengths == first.lengths
    job = InspectJob(NamedSource(EpisodeList(EPISODES)), {"replay": two_step()}, 7, EpisodeOptions(**filters))
    assert inspect_by_workers(job, lambda job: InThreads(job, 2), 2).lengths == first.lengths
    statistics = [
        rlds2reverb.statistics(episodes, limit=limit, **filters)
        for episodes, limit in ((EPISODES[:7], None), (EPISODES, 7))
    ]
    assert statistics[0]["observation"].count.tolist() == statistics[1]["observation"].count.tolist()


def test_a_view_that_refuses_short_episodes_skips_short_runs_and_stops_at_whole_ones() -> None:
    long = [strategies.episode(np.random.default_rng(number), 9) for number in range(3)]
    ranges = {episode.id: [[0, 2], [3, 9]] for episode in long}
    report = in_memory.push(in_memory.Server(), long, view=view_of("chunk:horizon=4"), keep_ranges=ranges)
    assert (report.rejected, report.episodes_pushed, report.stopped) == ({"view_refused": 3}, 3, "")
    with pytest.raises(ViewError, match="expected at most 8"):
        in_memory.push(in_memory.Server(), long, view=view_of("chunk:horizon=9"), split="train")
    acted = [episode.with_columns(action=np.ones_like(episode.columns["action"])) for episode in long]
    options: dict[str, Any] = {"view": view_of("chunk:horizon=9"), "last_step": "repeat"}
    assert in_memory.push(in_memory.Server(), acted, **options).episodes_pushed == 3


def test_options_of_a_plan_keep_what_filters_have_found_out() -> None:
    plan = in_memory.planned(in_memory.Server(), EPISODES, split="train")
    assert plan.options.rules.found
    assert plan.with_progress(lambda _: None).options.rules is plan.options.rules
    assert plan.options.with_outputs(plan.options.outputs).rules is plan.options.rules


def test_a_state_of_another_split_is_refused() -> None:
    batches = rlds2reverb.local(EPISODES, split="train", batch_size=4)
    next(batches)
    same = rlds2reverb.local(EPISODES, split="train", batch_size=4)
    same.restore(batches.state())
    np.testing.assert_array_equal(next(same).info.key, next(batches).info.key)
    others: tuple[dict[str, Any], ...] = ({}, {"split": "val"}, {"split": "train", "val_share": 0.05})
    for other in others:
        with pytest.raises(ConfigError, match="restore"):
            rlds2reverb.local(EPISODES, batch_size=4, **other).restore(batches.state())


def test_a_conversion_of_another_split_does_not_go_on(tmp_path: Path) -> None:
    def label(**filters: Any) -> str:
        return rlds2reverb.conversion.convert.planned(EPISODES, f"tfds:{tmp_path}/made", **filters).job.label

    assert len({label(), label(split="train"), label(split="val"), label(split="val", val_share=0.2)}) == 4
    assert "filter" not in label()


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"split": "test"}, ConfigError, "expected train or val"),
        ({"split_by": "task"}, ConfigError, r"split_by \(--split-by\) goes with split"),
        ({"val_share": 0.2}, ConfigError, r"val_share \(--val-share\) goes with split"),
        ({"split": "val", "val_share": 1e-9}, SourceError, "nothing is left of 20 episodes, expected at least one"),
        ({"split": "val", "split_by": "task"}, SourceError, 'split_by .* "task": expected metadata'),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent_or_made(
    options: dict[str, Any], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    server = in_memory.Server()
    with pytest.raises(error, match=problem):
        in_memory.push(server, EPISODES, **options)
    assert not server.items
    with pytest.raises(error, match=problem):
        rlds2reverb.inspect(EPISODES, **options)
    with pytest.raises(error, match=problem):
        rlds2reverb.convert(EPISODES, f"tfds:{tmp_path}/made", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_actor_decides_itself_what_it_writes() -> None:
    with pytest.raises(ConfigError, match="writer: split is an option of a push"):
        WriteOptions("replay", split="val")


def test_runs_that_are_shorter_than_the_rows_a_transform_drops_are_counted_and_stop_nothing() -> None:
    episode = strategies.episode(np.random.default_rng(0), 12, episode_id="run")
    transform = {"make": {"observation": "delta(observation)"}, "drop_first_rows": 1}
    options: dict[str, Any] = {
        "transform": transform,
        "keep_ranges": {"run": [[0, 6], [8, 10], [11, 12]], "short": [[0, 2]]},
    }
    server = in_memory.Server()
    report = in_memory.push(server, [episode], **options)
    assert (report.episodes_pushed, dict(report.rejected)) == (1, {"no_steps": 1})
    batches = list(rlds2reverb.local([episode], **options))
    assert [int(key) for batch in batches for key in batch.info.key] == [*server.items["replay"]]
    short = strategies.episode(np.random.default_rng(1), 2, episode_id="short")
    with pytest.raises(InvalidEpisode, match="has 2 rows: the transform takes"):
        in_memory.push(in_memory.Server(), [episode, short], **options)
