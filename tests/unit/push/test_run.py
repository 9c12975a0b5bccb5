"""The pusher from source to account, on an in-memory server that keeps Reverb's rules for the insert stream."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Progress
from rlds2reverb.episode import Episode
from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    InvalidEpisode,
    SourceError,
    SpecMismatch,
    TransportError,
    ViewError,
)
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import IsKnown, Source, columns_of, spec_of
from rlds2reverb.prepare.checks import find_problems
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.push.ledger import SqliteLedger
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views import view_of
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from rlds2reverb.wire.insert import RequestLimits
from tests.support import reference, strategies
from tests.support.prepare import faults
from tests.support.project import ROOT
from tests.support.push import in_memory
from tests.support.push.in_memory import FLOAT, Server, Unmeasured, episodes, options_of, planned, push, table_info
from tests.support.views.cutting import ordered_items, slow_episode_items, slow_sequence_items


def expected_items(source: list[Episode], view: SequenceView) -> list[list[np.ndarray]]:
    return [item for episode in EpisodeList(source) for item in ordered_items(view, episode)]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tables": ()}, "push: at least one table is needed"),
            ({"tables": ("a", "b", "a")}, "push: a table is named twice in a, b, a"),
            ({"chunk_length": 0}, r"chunk_length \(--chunk-length\) 0: expected at least 1 row"),
            ({"stall_seconds": 0}, r"stall_seconds \(--stall-seconds\) 0: expected a positive number"),
            ({"stall_seconds": float("nan")}, "expected a positive number"),
            ({"last_reward": "later"}, 'last_reward "later": expected one of as_recorded, shift'),
            ({"again": True, "ledger": "x.db"}, "stores everything once more; it does not go with a ledger"),
        ],
    )
    def test_that_make_no_sense_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            options_of(**options)


class TestTables:
    def test_are_compared_before_anything_is_sent(self) -> None:
        server = Server({"replay": table_info(signature={"x": FLOAT})})
        with pytest.raises(SpecMismatch):
            push(server, episodes(2))
        assert server.requests == 0


class TestItems:
    @settings(max_examples=25)
    @given(st.lists(strategies.episodes(max_steps=9), min_size=1, max_size=1), st.integers(0, 4), st.integers(1, 5))
    def test_of_two_tables_are_those_of_tf_agents_observer(self, first: list[Episode], more: int, chunk: int) -> None:
        columns = {
            path: (column.dtype, column.shape[1:])
            for path, column in first[0].columns.items()
            if path.startswith(("observation", "action"))
        }
        source = [*first, *(strategies.episode(np.random.default_rng(n), n + 2, columns) for n in range(more))]
        server = Server({name: table_info(name) for name in ("one", "two", "other")})
        report = push(server, source, tables=("one", "two"), chunk_length=chunk, limits=RequestLimits(3, 1000))
        expected = [item for episode in source for item in slow_sequence_items(episode, length=2)]
        reference.assert_same_items(server.contents("one"), expected)
        reference.assert_same_items(server.contents("two"), expected)
        assert report.items_confirmed == 2 * len(expected)
        assert "other" not in server.items

    def test_of_whole_episodes_are_those_of_tf_agents_observer(self) -> None:
        source = [*episodes(3, 5), *episodes(1, 2)]
        server = Server()
        report = push(server, source, view=WholeEpisode())
        expected = [item for episode in source for item in slow_episode_items(episode)]
        reference.assert_same_items(server.contents(), expected)
        assert report.view == "episode"

    def test_fit_the_signature_that_the_view_tells(self) -> None:
        source = EpisodeList(
            episodes(1, 3, columns={"observation/a": (np.dtype("u1"), (2,)), "action": (np.dtype(object), ())})
        )
        signature = two_step().signature(source.spec())
        server = Server({"replay": table_info(signature=signature)})
        push(server, source)
        assert len(server.contents()) == 2

    @pytest.mark.parametrize(
        ("conventions", "column", "value"),
        [
            ({}, "discount", [[1, 0], [0, 0]]),
            ({}, "reward", [[0, 2], [2, 3]]),
            ({"terminal_discount": "transition"}, "discount", [[1, 0], [0, 0]]),
            ({"last_reward": "shift"}, "reward", [[2, 3], [3, 0]]),
        ],
    )
    def test_follow_the_conventions(self, conventions: dict[str, Any], column: str, value: list[list[int]]) -> None:
        episode = episodes(1, 3)[0].with_columns(reward=np.array([0, 2, 3.0]))
        server = Server()
        push(server, [episode], **conventions)
        index = ["step_type", "observation", "action", "next_step_type", "reward", "discount"].index(column)
        assert [item[index].tolist() for item in server.contents()] == value

    def test_have_every_leaf_of_a_nested_reward(self) -> None:
        steps = dict(episodes(1, 3)[0].columns)
        del steps["reward"]
        steps |= {"reward/b": np.array([0, 1, 2.0]), "reward/a": np.array([[0], [3], [4]])}
        server = Server()
        push(server, [Episode(steps)], last_reward="shift")
        assert [[item[4].tolist(), item[5].tolist()] for item in server.contents()] == [
            [[[3], [4]], [1, 2]],
            [[[4], [0]], [2, 0]],
        ]

    def test_have_the_absent_fields_filled_and_the_report_says_which(self) -> None:
        kept = ("observation", "action", "is_first", "is_last", "is_terminal")
        source = [Episode({path: episode.columns[path] for path in kept}) for episode in episodes(2, 3)]
        server = Server()
        report = push(server, source)
        assert report.filled == ("reward", "discount")
        assert [item[4].tolist() for item in server.contents()] == [[0, 0], [0, 0]] * 2
        assert [item[5].tolist() for item in server.contents()] == [[1, 0], [0, 0]] * 2


class TestKeys:
    def test_of_the_same_push_are_the_same(self) -> None:
        server, source = Server(), episodes(3)
        push(server, source)
        before = list(server.items["replay"])
        report = push(server, source, chunk_length=1)
        assert list(server.items["replay"]) == before
        assert len(before) == 9 == report.items_confirmed

    @pytest.mark.parametrize(
        "other",
        [
            {"again": True},
            {"view": SequenceView(3)},
            {"terminal_discount": "transition"},
        ],
        ids=str,
    )
    def test_of_another_push_are_others(self, other: dict[str, Any]) -> None:
        server, source = Server(), episodes(3)
        first = push(server, source)
        second = push(server, source, **other)
        assert len(server.items["replay"]) == first.items_confirmed + second.items_confirmed

    def test_of_two_tables_and_of_equal_episodes_are_different(self) -> None:
        server = Server({name: table_info(name) for name in ("one", "two")})
        push(server, episodes(1) * 2, tables=("one", "two"))
        assert [len(server.items[name]) for name in ("one", "two")] == [6, 6]
        assert not server.items["one"].keys() & server.items["two"].keys()


class TestAccounts:
    @settings(max_examples=30)
    @given(
        st.lists(
            st.tuples(st.integers(6, 9), st.lists(st.sampled_from(sorted(faults.SPOILERS)), max_size=2, unique=True))
        ),
        st.sampled_from(["skip", "quarantine"]),
        st.booleans(),
    )
    def test_add_up_and_nothing_bad_is_stored(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        described: list[tuple[int, list[str]]],
        action: str,
        strict: bool,
    ) -> None:
        rng = np.random.default_rng(0)
        source = [faults.good(rng, 6, terminal=False)]
        source += [faults.spoiled(rng, faults.good(rng, rows), sorted(names))[0] for rows, names in described]
        source = [Episode(episode.columns, id=f"e{number}") for number, episode in enumerate(source)]
        spec = columns_of(EpisodeList(source).spec(), "test")  # that of most
        bad = {}
        for episode in source:
            problems = [found for found in find_problems(episode, spec) if strict or not found.is_advice]
            if problems:
                bad[episode.id] = problems
        report_path = tmp_path_factory.mktemp("push") / "bad.jsonl"
        server = Server()
        report = push(
            server,
            source,
            on_invalid=action,
            strict=strict,
            quarantine=report_path if action == "quarantine" else None,
        )
        good = [episode for episode in source if episode.id not in bad]
        reference.assert_same_items(server.contents(), expected_items(good, two_step()))
        assert report.episodes_read == len(source) == report.episodes_pushed + report.episodes_rejected
        assert report.steps_read == sum(map(len, source)) == report.steps_pushed + report.steps_rejected
        assert report.episodes_pushed == len(good)
        assert report.steps_pushed == sum(map(len, good))
        assert report.items_confirmed == sum(len(episode) - 1 for episode in good)
        assert report.rejected == Counter(problems[0].code for problems in bad.values())
        if action == "quarantine" and bad:
            lines = [json.loads(line) for line in report_path.read_text().splitlines()]
            assert [(line["episode"], line["code"]) for line in lines] == [
                (name, problem.code) for name, problems in bad.items() for problem in problems
            ]

    def test_name_source_tables_and_view_and_count_bytes(self) -> None:
        server = Server()
        report = push(server, episodes(2))
        assert (report.source, report.tables, report.view) == ("test", ("replay",), "two_step")
        assert report.bytes > 0
        assert report.seconds > 0
        assert (report.reconnects, report.episodes_resumed) == (0, 0)

    def test_name_what_the_items_do_not_hold(self) -> None:
        said = {"language_instruction": np.array([b"lift"] * 4, object), "action_dict/gripper": np.zeros(4)}
        source = [episode.with_only_columns({**episode.columns, **said}) for episode in episodes(2)]
        out = push(Server(), source).not_in_items
        assert {table: sorted(paths) for table, paths in out.items()} == {"replay": sorted(said)}
        assert push(Server(), episodes(2)).not_in_items == {}

    def test_count_advice_and_repairs(self) -> None:
        source = episodes(3)
        source[1] = source[1].with_columns(reward=np.ones(4, np.float32))
        source[2] = source[2].with_columns(is_first=np.zeros(4, bool))
        report = push(Server(), source, on_invalid="repair")
        assert (report.advice, report.repaired) == ({"last_reward": 1}, {"first_missing": 1})
        assert report.episodes_pushed == 3

    def test_of_a_source_without_good_episodes_are_empty(self) -> None:
        server = Server()
        source = [episode.with_columns(reward=np.full(4, np.nan, np.float32)) for episode in episodes(2)]
        report = push(server, source, on_invalid="skip")
        assert (report.rejected, report.items_confirmed, server.requests) == ({"nan": 2}, 0, 0)


class TestBadEpisodes:
    def test_raise_with_what_came_before_stored_and_nothing_of_them(self, tmp_path: Path) -> None:
        server, source = Server(), episodes(4)
        source[2] = source[2].with_columns(reward=np.full(4, np.nan, np.float32))
        ledger = tmp_path / "ledger.db"
        with pytest.raises(InvalidEpisode, match="nan"):
            push(server, source, ledger=ledger)
        reference.assert_same_items(server.contents(), expected_items(source[:2], two_step()))
        report = push(server, source, ledger=ledger, on_invalid="skip")
        assert (report.episodes_resumed, report.episodes_pushed, report.rejected) == (2, 1, {"nan": 1})
        assert len(server.contents()) == 9

    def test_without_the_flags_of_the_spec_are_judged_like_any(self) -> None:
        source = episodes(2)
        without = {path: column for path, column in source[1].columns.items() if path != "is_last"}
        report = push(Server(), [source[0], Episode(without)], on_invalid="skip")
        assert report.rejected == {"missing_column": 1}

    def test_of_no_steps_are_rejected(self) -> None:
        source = episodes(2)
        empty = Episode({path: column[:0] for path, column in source[1].columns.items()})
        report = push(Server(), [source[0], empty], on_invalid="skip")
        assert (report.rejected, report.steps_rejected) == ({"no_steps": 1}, 0)

    def test_too_short_for_the_view_are_rejected_unless_that_is_tolerated(self) -> None:
        source = [*episodes(1, 6), *episodes(2, 3)]
        with pytest.raises(InvalidEpisode, match=r"no_items: sequence:length=5.* makes no item of 3 steps"):
            push(Server(), source, view=SequenceView(5))
        server = Server()
        report = push(server, source, view=SequenceView(5), allow=("no_items",))
        assert (report.rejected, report.steps_rejected, report.episodes_pushed) == ({"no_items": 2}, 6, 1)
        assert len(server.contents()) == 2

    def test_whose_first_reward_a_shift_would_lose_are_rejected_unless_that_is_tolerated(self) -> None:
        episode = episodes(1)[0].with_columns(reward=np.array([0.5, 2, 3, 0]))
        with pytest.raises(
            InvalidEpisode, match=r'first_reward_lost: column "reward": step 0 has reward 0.5; .*needs no shift'
        ):
            push(Server(), [episode], last_reward="shift")
        server = Server()
        report = push(server, [episode], last_reward="shift", allow=("first_reward_lost",))
        assert report.episodes_pushed == 1
        assert server.contents()[0][4].tolist() == episode.columns["reward"][1:3].tolist()

    def test_whose_last_reward_a_shift_would_bring_in_as_nan_are_rejected(self) -> None:
        for value, code in ((np.nan, "nan"), (np.inf, "infinite")):
            episode = episodes(1)[0].with_columns(reward=np.array([0, 2, 3, value], np.float32))
            server = Server()
            with pytest.raises(InvalidEpisode, match=f"{code}: .*which a shift would use"):
                push(server, [episode], last_reward="shift")
            assert push(server, [episode]).episodes_pushed == 1

    @pytest.mark.parametrize(("code", "column"), [("dtype", np.zeros(4)), ("shape", np.zeros((4, 2), np.float32))])
    def test_whose_rows_are_not_the_tables_are_never_stored(self, code: str, column: np.ndarray) -> None:
        good, bad = episodes(2)
        server = Server()
        with pytest.raises(ViewError, match=r'column "reward" has .*, the items need'):
            push(server, [good, bad.with_columns(reward=column)], allow=(code,))
        assert len(server.contents()) == 3

    def test_too_long_for_the_view_stop_the_push_with_what_came_before_stored(self) -> None:
        server, source = Server(), [*episodes(1, 3), *episodes(1, 6)]
        with pytest.raises(ViewError, match="longer than max_length 5"):
            push(server, source, view=WholeEpisode(5))
        assert len(server.contents()) == 1


class TestSources:
    @pytest.mark.parametrize(
        ("absent", "message"),
        [
            (("is_first",), "test: not RLDS: steps lack is_first; found"),
            (("is_first", "is_last"), "test: not RLDS: steps lack is_first and is_last; found"),
        ],
    )
    def test_without_the_flags_of_rlds_are_refused(self, absent: tuple[str, ...], message: str) -> None:
        server = Server()
        steps = {path: column for path, column in episodes(1)[0].columns.items() if path not in absent}
        with pytest.raises(SourceError, match=message):
            push(server, [Episode(steps)])
        assert server.requests == 0

    def test_that_give_two_episodes_of_one_id_end_with_those_before_stored(self) -> None:
        class Twice(EpisodeList):
            """As a split that names its records twice."""

            def __iter__(self) -> Iterator[Episode]:
                yield from super().__iter__()
                yield from super().__iter__()

        server, source = Server(), [replace(episode, id=f"e{number}") for number, episode in enumerate(episodes(2))]
        with pytest.raises(SourceError, match="two episodes have the id") as caught:
            push(server, Twice(source))
        reference.assert_same_items(server.contents(), expected_items(source, two_step()))
        report = caught.value.report
        assert (report.episodes_read, report.episodes_pushed, report.episodes_unconfirmed) == (2, 2, 0)

    def test_that_the_view_cannot_cut_are_refused(self) -> None:
        steps = {path: column for path, column in episodes(1)[0].columns.items() if path != "action"}
        with pytest.raises(ViewError, match="step spec without action"):
            push(Server(), [Episode(steps)])

    def test_that_break_stop_the_push_with_what_came_before_stored(self, tmp_path: Path) -> None:
        class Breaking(EpisodeList):
            def __iter__(self) -> Iterator[Episode]:
                yield from list(super().__iter__())[:2]
                raise SourceError("broken")

        server, source = Server(), episodes(4)
        with pytest.raises(SourceError, match="broken"):
            push(server, Breaking(source), ledger=tmp_path / "ledger.db")
        assert len(server.contents()) == 6
        assert push(server, source, ledger=tmp_path / "ledger.db").episodes_resumed == 2


class TestCapacity:
    def test_too_small_for_one_item_an_episode_is_refused_at_once(self) -> None:
        server = Server({"replay": table_info(), "small": table_info("small", max_size=3)})
        with pytest.raises(
            CapacityError, match=r'table "small": max_size 3 is smaller than the push \(at least 4 items\)'
        ):
            push(server, Unmeasured(episodes(4)), tables=("replay", "small"))
        assert server.requests == 0

    @pytest.mark.parametrize(
        "view", ["two_step", "transition", "n_step:n=2,early=true", "sequence:length=3,pad_end=true"]
    )
    @pytest.mark.parametrize(
        "more", [{}, {"on_invalid": "repair"}, {"allow": ("no_items",)}, {"ledger": "l.db"}], ids=str
    )
    def test_too_small_for_items_that_can_be_counted_is_refused_before_the_first(
        self, tmp_path: Path, view: str, more: dict[str, Any]
    ) -> None:
        more = {**more, **({"ledger": tmp_path / "l.db"} if "ledger" in more else {})}
        source = [episode for rows in (1, 4, 9) for episode in episodes(2, rows)][2:]
        made = sum(len(view_of(view).cut(episode).anchors) for episode in source)
        for size in (made - 1, made):
            server = Server({"replay": table_info(max_size=size)})
            if size == made:
                assert push(server, source, view=view_of(view), **more).items_confirmed == made
                continue
            with pytest.raises(CapacityError, match=rf"max_size {size} is smaller than the push \({made} items\)"):
                planned(server, source, view=view_of(view), **more)
            with pytest.raises(CapacityError, match=rf"max_size {size} is smaller than the push \({made} items\)"):
                push(server, source, view=view_of(view), **more)
            assert server.requests == 0

    def test_too_small_for_the_items_stops_before_the_first_eviction(self) -> None:
        server = Server({"replay": table_info(max_size=8)})
        with pytest.raises(CapacityError, match=r"smaller than the push \(more than 8 items\), so the oldest would be"):
            push(server, Unmeasured(episodes(3)))
        assert len(server.contents()) == 6

    def test_that_just_fits_is_enough(self) -> None:
        server = Server({"replay": table_info(max_size=9)})
        assert push(server, episodes(3)).items_confirmed == 9

    def test_is_not_asked_for_when_eviction_is_allowed(self) -> None:
        server = Server({"replay": table_info(max_size=1)})
        assert push(server, episodes(3), allow_eviction=True).items_confirmed == 9

    def test_is_checked_as_items_come_when_the_source_does_not_know_its_length(self) -> None:
        class Unknown(Unmeasured):
            episode_count = None

        server = Server({"replay": table_info(max_size=3)})
        with pytest.raises(CapacityError, match=r"more than 5 items"):
            push(server, Unknown(episodes(5)))
        assert len(server.contents()) == 3


class TestLedger:
    def test_a_push_that_is_done_is_not_done_again(self, tmp_path: Path) -> None:
        server, source = Server(), episodes(3)
        push(server, source, ledger=tmp_path / "ledger.db")
        requests = server.requests
        report = push(server, source, ledger=tmp_path / "ledger.db")
        assert server.requests == requests
        assert (report.episodes_resumed, report.episodes_read, report.items_confirmed) == (3, 0, 0)

    @pytest.mark.parametrize("fails_after", range(6))
    def test_a_push_that_broke_goes_on_and_leaves_every_item_once(self, tmp_path: Path, fails_after: int) -> None:
        source, limits = episodes(5), RequestLimits(3, 1 << 20)
        server = Server()
        server.fail_after(fails_after)
        if fails_after < 5:
            with pytest.raises(TransportError):
                push(server, source, ledger=tmp_path / "ledger.db", limits=limits)
        else:
            push(server, source, ledger=tmp_path / "ledger.db", limits=limits)
        server.fail_after(None)
        report = push(server, source, ledger=tmp_path / "ledger.db", limits=limits)
        assert report.episodes_resumed == min(fails_after, 5)
        assert report.episodes_pushed == 5 - report.episodes_resumed
        reference.assert_same_items(server.contents(), expected_items(source, two_step()))

    def test_a_server_process_that_was_restarted_gets_everything_again(self, tmp_path: Path) -> None:
        source = episodes(3)
        push(Server(), source, ledger=tmp_path / "ledger.db")
        after = Server(state_id=8)
        report = push(after, source, ledger=tmp_path / "ledger.db")
        assert (report.episodes_resumed, report.items_confirmed, len(after.contents())) == (0, 9, 9)

    def test_without_resume_everything_is_sent_and_recorded_again(self, tmp_path: Path) -> None:
        server, source = Server(), episodes(3)
        push(server, source, ledger=tmp_path / "ledger.db")
        report = push(server, source, ledger=tmp_path / "ledger.db", resume=False)
        assert (report.episodes_resumed, report.items_confirmed, len(server.contents())) == (0, 9, 9)

    def test_other_tables_views_and_conventions_are_other_pushes(self, tmp_path: Path) -> None:
        server, source = Server({name: table_info(name) for name in ("replay", "two")}), episodes(3)
        others: tuple[dict[str, Any], ...] = (
            {},
            {"tables": ("two",)},
            {"tables": ("replay", "two")},
            {"view": SequenceView(3)},
            {"terminal_discount": "transition"},
        )
        for options in others:
            assert push(server, source, ledger=tmp_path / "ledger.db", **options).episodes_resumed == 0

    def test_is_written_while_the_push_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_by_one: Any
    ) -> None:
        monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", -1.0)
        monkeypatch.setattr("rlds2reverb.push.run.TOGETHER_ROWS", 0)
        seen = []

        def look(_: Progress) -> None:
            with SqliteLedger(
                tmp_path / "ledger.db", "|".join((two_step().label, Conventions().label, "replay")), f"{7:032x}"
            ) as it:
                seen.append(len(it))

        push(Server(), episodes(4), look, ledger=tmp_path / "ledger.db", limits=RequestLimits(3, 1 << 20))
        assert seen == sorted(seen)
        assert set(seen) == {1, 2, 3, 4}


class TestProgress:
    def test_tells_how_far_it_is_and_what_it_waits_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", -1.0)
        server, told = Server(), []
        server.hold()

        def tell(progress: Progress) -> None:
            told.append(progress)
            if progress.waiting:
                server.release()

        push(server, episodes(3), tell, limits=RequestLimits(3, 1 << 20), deadlines=Deadlines(notice=0.01))
        assert {moment.episode_count for moment in told} == {3}
        assert [moment.episodes for moment in told] == sorted(moment.episodes for moment in told)
        assert any(moment.waiting.startswith("no rate limiter blocks: the server is busy") for moment in told)
        last = told[-1]
        assert (last.episodes, last.steps, last.items_confirmed, last.waiting) == (3, 12, 9, "")
        assert last.bytes > 0
        assert last.seconds > 0

    def test_counts_resumed_episodes_as_well(self, tmp_path: Path) -> None:
        told: list[Progress] = []
        server, source = Server(), episodes(3)
        push(server, source, ledger=tmp_path / "ledger.db")
        push(server, source, told.append, ledger=tmp_path / "ledger.db")
        assert (told[-1].episodes, told[-1].steps, told[-1].items_confirmed) == (3, 0, 0)

    def test_that_fails_ends_the_push_with_its_own_error_and_the_ledger_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server, source = Server(), episodes(3)
        failures = iter([ValueError("first"), ValueError("second")])

        def tell(progress: Progress) -> None:
            if not progress.waiting:
                raise next(failures)

        monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", -1.0)
        with pytest.raises(ValueError, match="first"):
            push(server, source, tell, ledger=tmp_path / "ledger.db")
        assert push(server, source, ledger=tmp_path / "ledger.db").episodes_resumed == 1


# Any object with the methods of `Source` is one: what docs/formats/npz.md shows, as it stands there.

PAGE = ROOT / "docs" / "formats" / "npz.md"


def users_class() -> Any:
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "class MyBuffer" in block
    )
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["MyBuffer"]


def buffer() -> Source:
    rng = np.random.default_rng(2)
    made = [{"states": rng.random((4, 3)), "moves": rng.integers(0, 2, 4)} for _ in range(5)]
    source: Source = users_class()(made)
    return source


def test_it_reads_shards_and_is_pushed() -> None:
    source = buffer()
    whole = [episode.id for episode in source]
    assert len(set(whole)) == source.episode_count == 5
    assert [episode.id for episode in source.shard(1, 2)] == whole[1::2]
    server = in_memory.Server()
    in_memory.push(server, source)
    assert len(server.items["replay"]) == 5 * 3


def test_open_source_hands_it_on() -> None:
    source = buffer()
    opened = open_source(source)
    assert opened.name == "my buffer"
    assert opened.episode_count == 5
    assert [episode.id for episode in opened] == [episode.id for episode in source]
    assert opened.spec() == source.spec()


class Indifferent(Source):
    """A source whose `read` pays no attention to `is_known`; it may ask for other names than it gives."""

    name = "indifferent"

    def __init__(self, asks_for: Callable[[str], str] | None = None) -> None:
        self._episodes = in_memory.episodes(6)
        self._asks_for = asks_for

    def spec(self) -> Any:
        return spec_of(self._episodes[0])

    def read(self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None) -> Iterator[Any]:
        for episode in self._episodes[start:stop]:
            if self._asks_for is not None and is_known is not None:
                is_known(self._asks_for(episode.id))
            yield episode


def test_a_read_that_does_not_ask_what_is_known_is_pushed_once(tmp_path: Path) -> None:
    server, source = in_memory.Server(), Indifferent()
    first, second = (in_memory.push(server, source, ledger=tmp_path / "ledger.db") for _ in range(2))
    assert (first.episodes_pushed, first.episodes_resumed) == (6, 0)
    assert (second.episodes_pushed, second.episodes_resumed) == (0, 6)
    assert len(server.items["replay"]) == first.items_confirmed


def test_a_read_that_asks_for_other_episodes_than_it_gives_is_refused() -> None:
    with pytest.raises(SourceError, match=r'gives episode ".*" where it asked is_known for "another'):
        in_memory.push(in_memory.Server(), Indifferent("another {}".format))
