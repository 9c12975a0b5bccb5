"""A plan says what a push would do, refuses what it would refuse before it sends, and sends nothing."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import pytest

from rlds2reverb import Progress
from rlds2reverb.errors import CapacityError, ConfigError, LedgerError, SourceError, SpecMismatch, ViewError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.views import view_of
from rlds2reverb.wire.messages import RateLimiter
from tests.support.push.in_memory import FLOAT, Server, Unmeasured, episodes, planned, push, run, table_info


class Unread(EpisodeList):
    """Episodes that nobody may read."""

    def __iter__(self) -> NoReturn:
        pytest.fail("an episode was read")


class UnreadAndUnmeasured(Unmeasured, Unread):
    """The same, of which only reading tells how long they are."""


def server_of(*names: Any, **options: Any) -> Server:
    return Server({name: table_info(name, **options) for name in names})


def test_it_tells_of_each_table_view_signature_and_room() -> None:
    server = server_of("pairs", "moves", max_size=50)
    push(server, episodes(2), tables=("pairs",))  # 3 items per episode
    plan = planned(server, Unread(episodes(4), "made"), {"pairs": "two_step", "moves": "transition"}, None)
    pairs, moves = plan.tables
    assert (pairs.name, pairs.view, pairs.size, pairs.max_size, pairs.free) == ("pairs", "two_step", 6, 50, 44)
    assert (moves.name, moves.view, moves.size, moves.free) == ("moves", "transition", 0, 50)
    assert moves.signature == view_of("transition").signature(plan.step_spec)
    assert plan.not_in_items == {"moves": ("discount", "is_first")}
    assert (plan.episodes, plan.view) == (4, "two_step, transition")


def test_it_tells_what_is_filled() -> None:
    bare = [
        replace(episode, columns={k: v for k, v in episode.columns.items() if k != "reward"}) for episode in episodes(2)
    ]
    plan = planned(Server(), bare)
    assert plan.filled == ("reward",)
    assert "reward" in plan.step_spec


def test_an_episode_that_a_view_refuses_for_its_length_is_refused_before_any_is_read() -> None:
    source = Unread(episodes(3), "short")
    rows = source.episode_lengths()
    assert rows is not None
    view = f"chunk:horizon={min(rows)}"
    with pytest.raises(
        ViewError, match=f"expected at most {min(rows) - 1}, the actions of the episode, got {min(rows)}"
    ):
        planned(server_of("chunks"), source, {"chunks": view}, None)
    assert planned(server_of("chunks"), source, {"chunks": f"{view},short=pad"}, None).episodes == 3
    assert planned(server_of("chunks"), source, {"chunks": view}, None, on_invalid="skip").episodes == 3


def test_it_is_plain_values_for_json() -> None:
    plan = planned(Server(), episodes(2))
    told = json.loads(json.dumps(plan.as_dict()))
    assert told["tables"]["replay"]["signature"]["reward"] == "float32[2]"
    assert (told["source"], told["episodes"], told["tables"]["replay"]["free"]) == ("test", 2, 1000)


def test_it_sends_nothing_and_cannot_be_changed() -> None:
    server = Server()
    plan = planned(server, Unread(episodes(2)))
    assert (server.requests, server.items) == (0, {})
    with pytest.raises(FrozenInstanceError):
        cast(Any, plan).filled = ()


class TestItems:
    """How many the push makes, as far as that is known before an episode is read, and whether they fit."""

    def bounds(self, server: Server, *arguments: Any, **options: Any) -> dict[str, tuple[int, int | None, bool | None]]:
        tables = planned(server, *arguments, **options).as_dict()["tables"]
        return {name: (table["least_items"], table["most_items"], table["fits"]) for name, table in tables.items()}

    @pytest.mark.parametrize(
        ("view", "options", "least", "most"),
        [
            ("two_step", {}, 9, 9),
            ("two_step:priority=2", {}, 9, 9),
            ("two_step", {"last_observation": "drop"}, 6, 9),
            ("two_step", {"last_step": "repeat"}, 9, 12),
            ("two_step", {"on_invalid": "skip"}, 0, 9),
            ("slices:length=2,per_episode=2", {}, 6, 6),
            ("across_episodes:length=3", {}, 0, None),
        ],
    )
    def test_of_episodes_of_known_lengths(
        self, view: str, options: dict[str, str], least: int, most: int | None
    ) -> None:
        found = self.bounds(Server(), Unread(episodes(3)), ("replay",), view_of(view), **options)
        assert found == {"replay": (least, most, None if most is None else True)}

    @pytest.mark.parametrize(
        ("view", "options", "least", "most"),
        [
            ("two_step", {}, 3, None),
            ("two_step", {"on_invalid": "skip"}, 0, None),
            ("episode", {}, 3, 3),
            ("episode:max_length=5,skip_longer=true", {"on_invalid": "skip"}, 0, 3),
            ("slices:length=2,per_episode=2", {}, 3, 6),
        ],
    )
    def test_of_episodes_that_only_reading_measures(
        self, view: str, options: dict[str, str], least: int, most: int | None
    ) -> None:
        found = self.bounds(Server(), UnreadAndUnmeasured(episodes(3)), ("replay",), view_of(view), **options)
        assert found == {"replay": (least, most, None if most is None else True)}

    def test_of_several_views_are_those_of_each(self) -> None:
        server = server_of("pairs", "whole", "stream")
        views = {"pairs": "two_step", "whole": "episode", "stream": "across_episodes"}
        assert self.bounds(server, Unread(episodes(3)), views, None) == {
            "pairs": (9, 9, True),
            "whole": (3, 3, True),
            "stream": (0, None, None),
        }

    def test_may_be_in_a_table_that_has_no_room_for_all(self) -> None:
        server = server_of("replay", max_size=12)
        push(server, episodes(3))
        assert self.bounds(server, Unread(episodes(2))) == {"replay": (6, 6, None)}
        assert self.bounds(server, Unread(episodes(1))) == {"replay": (3, 3, True)}

    def test_fit_where_nothing_is_refused(self) -> None:
        source = UnreadAndUnmeasured(episodes(3))
        assert self.bounds(server_of("replay", max_size=1), source, allow_eviction=True)["replay"][2] is True
        queue = replace(table_info(max_size=3), max_times_sampled=1, rate_limiter=RateLimiter(1.0, 0.0, 3.0, 1, 0, 0))
        assert self.bounds(Server({"replay": queue}), source)["replay"][2] is True


def test_a_push_does_what_was_planned() -> None:
    server = Server()
    plan = planned(server, episodes(3))
    told: list[Progress] = []
    report = run(server, plan.with_progress(told.append))
    assert (report.tables, report.view, report.items_confirmed) == (("replay",), plan.view, 9)
    assert told


class TestItRefuses:
    def test_a_source_that_is_not_rlds(self) -> None:
        bare = [replace(episode, columns={"x": np.zeros(4)}) for episode in episodes(1)]
        with pytest.raises(SourceError, match="steps lack is_first and is_last"):
            planned(Server(), bare)

    def test_a_view_that_cannot_cut_such_steps(self) -> None:
        with pytest.raises(ViewError):
            planned(Server(), episodes(1), ("replay",), view_of("goal:achieved=nowhere,desired=nowhere"))

    def test_a_table_that_is_not_there(self) -> None:
        with pytest.raises(ConfigError, match='no table "other"; it has replay'):
            planned(Server(), episodes(1), ("other",))

    def test_a_table_of_another_signature(self) -> None:
        with pytest.raises(SpecMismatch):
            planned(Server({"replay": table_info(signature={"x": FLOAT})}), episodes(1))

    def test_files_that_cannot_be_used_before_the_source_is_opened(self, tmp_path: Path) -> None:
        with pytest.raises(LedgerError):
            planned(Server(), object(), ledger=tmp_path / "none" / "l.db")
        with pytest.raises(ConfigError, match="quarantine file"):
            planned(Server(), object(), on_invalid="quarantine", quarantine=tmp_path / "none" / "q.jsonl")

    def test_more_episodes_than_a_table_has_places_with_an_account_of_nothing(self) -> None:
        with pytest.raises(CapacityError, match="max_size 9 is smaller than the push") as caught:
            planned(server_of("replay", max_size=9), Unread(episodes(10)))
        report = caught.value.report
        assert (report.episodes_read, report.episodes_unread, report.items_new) == (0, 10, None)
        assert report.stopped.startswith("CapacityError: ")

    def test_new_keys_for_which_there_are_no_free_places(self) -> None:
        server = server_of("replay", max_size=12)
        push(server, episodes(3))  # 9 items
        assert planned(server, episodes(4)).tables[0].free == 3
        with pytest.raises(CapacityError, match="so 3 more fit; of the next 4 of this push at least 4 are not in it"):
            planned(server, UnreadAndUnmeasured(episodes(4)), again=True)
        with pytest.raises(CapacityError, match="of the next 6 of this push at least 6 are not in it"):
            planned(server, Unread(episodes(2)), again=True)

    def test_workers_for_a_source_that_does_not_know_how_many_episodes_it_has(self) -> None:
        class Endless(Unread):
            episode_count = None

        with pytest.raises(SourceError, match="cannot be divided among workers"):
            planned(Server(), Endless(episodes(1)), workers=2)


class TestItDoesNotRefuse:
    @pytest.mark.parametrize(
        "options", [{"on_invalid": "skip"}, {"allow": ("no_items",)}, {"allow_eviction": True}], ids=str
    )
    def test_episodes_that_may_give_no_items_or_evict_others(self, options: dict[str, bool | str | tuple[str]]) -> None:
        source = UnreadAndUnmeasured(episodes(10))
        assert planned(server_of("replay", max_size=9), source, **options).episodes == 10

    def test_episodes_of_which_a_stream_may_make_fewer_items(self) -> None:
        server = server_of("replay", max_size=9)
        assert planned(server, episodes(10), ("replay",), view_of("across_episodes:length=30,stride=30")).tables

    def test_new_keys_where_samples_make_room_meanwhile(self) -> None:
        server = Server({"replay": replace(table_info(max_size=12), max_times_sampled=2)})
        push(server, episodes(3))
        assert planned(server, episodes(4), again=True).tables[0].free == 3
