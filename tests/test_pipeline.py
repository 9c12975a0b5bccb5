"""The pusher from source to account, on an in-memory server that keeps Reverb's rules for the insert stream."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import pipeline
from rlds2reverb.conventions import Conventions
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    InvalidEpisode,
    SourceError,
    SpecMismatch,
    TransportError,
    ViewError,
)
from rlds2reverb.ledger import Ledger
from rlds2reverb.outputs import Output
from rlds2reverb.pipeline import PushOptions
from rlds2reverb.sources.base import EpisodeList
from rlds2reverb.validation import find_problems
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.sequence import Sequence, two_step
from rlds2reverb.wire.requests import RequestLimits
from tests import reference, strategies
from tests.in_memory import FLOAT, Server, episodes, in_memory, options_of, push, table  # noqa: F401
from tests.validation import faults
from tests.views.cutting import ordered_items, slow_episode_items, slow_sequence_items


def expected_items(source, view):
    return [item for episode in EpisodeList(source) for item in ordered_items(view, episode)]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tables": ()}, "push: at least one table is needed"),
            ({"tables": ("a", "b", "a")}, "push: a table is named twice in a, b, a"),
            ({"rows_per_chunk": 0}, "chunk length 0: expected at least 1 row"),
            ({"again": True, "ledger": "x.db"}, "again=True stores everything once more; it does not go with a ledger"),
        ],
    )
    def test_that_make_no_sense_are_refused(self, options, message):
        with pytest.raises(ConfigError, match=message):
            options_of(**options)

    def test_of_several_outputs_name_no_table_twice(self):
        with pytest.raises(ConfigError, match="push: a table is named twice in a, b, a"):
            PushOptions((Output(("a", "b")), Output(("a",), WholeEpisode())))


class TestTables:
    def test_are_compared_before_anything_is_sent(self):
        server = Server({"replay": table(signature={"x": FLOAT})})
        with pytest.raises(SpecMismatch):
            push(server, episodes(2))
        assert server.requests == 0


class TestItems:
    @settings(max_examples=25)
    @given(st.lists(strategies.episodes(max_steps=9), min_size=1, max_size=1), st.integers(0, 4), st.integers(1, 5))
    def test_of_two_tables_are_those_of_tf_agents_observer(self, first, more, chunk):
        columns = {
            path: (column.dtype, column.shape[1:])
            for path, column in first[0].steps.items()
            if path.startswith(("observation", "action"))
        }
        source = [*first, *(strategies.episode(np.random.default_rng(n), n + 2, columns) for n in range(more))]
        server = Server({name: table(name) for name in ("one", "two", "other")})
        report = push(server, source, tables=("one", "two"), rows_per_chunk=chunk, limits=RequestLimits(3, 1000))
        expected = [item for episode in source for item in slow_sequence_items(episode, length=2)]
        reference.assert_same_items(server.contents("one"), expected)
        reference.assert_same_items(server.contents("two"), expected)
        assert report.items_confirmed == 2 * len(expected)
        assert "other" not in server.items

    def test_of_whole_episodes_are_those_of_tf_agents_observer(self):
        source = [*episodes(3, 5), *episodes(1, 2)]
        server = Server()
        report = push(server, source, view=WholeEpisode())
        expected = [item for episode in source for item in slow_episode_items(episode)]
        reference.assert_same_items(server.contents(), expected)
        assert report.view == "episode"

    def test_fit_the_signature_that_the_view_tells(self):
        source = EpisodeList(
            episodes(1, 3, columns={"observation/a": (np.dtype("u1"), (2,)), "action": (np.dtype(object), ())})
        )
        signature = two_step().signature(source.spec())
        server = Server({"replay": table(signature=signature)})
        push(server, source)
        assert len(server.contents()) == 2

    @pytest.mark.parametrize(
        ("conventions", "column", "value"),
        [
            (Conventions(), "discount", [[1, 0], [0, 0]]),
            (Conventions(), "reward", [[0, 2], [2, 3]]),
            (Conventions(terminal_discount="transition"), "discount", [[1, 0], [0, 0]]),
            (Conventions(last_reward="shift"), "reward", [[2, 3], [3, 0]]),
        ],
    )
    def test_follow_the_conventions(self, conventions, column, value):
        episode = episodes(1, 3)[0].with_columns(reward=np.array([0, 2, 3.0]))
        server = Server()
        push(server, [episode], conventions=conventions)
        index = ["step_type", "observation", "action", "next_step_type", "reward", "discount"].index(column)
        assert [item[index].tolist() for item in server.contents()] == value

    def test_have_every_leaf_of_a_nested_reward(self):
        steps = dict(episodes(1, 3)[0].steps)
        del steps["reward"]
        steps |= {"reward/b": np.array([0, 1, 2.0]), "reward/a": np.array([[0], [3], [4]])}
        server = Server()
        push(server, [Episode(steps)], conventions=Conventions(last_reward="shift"))
        assert [[item[4].tolist(), item[5].tolist()] for item in server.contents()] == [
            [[[3], [4]], [1, 2]],
            [[[4], [0]], [2, 0]],
        ]

    def test_have_the_absent_fields_filled_and_the_report_says_which(self):
        kept = ("observation", "action", "is_first", "is_last", "is_terminal")
        source = [Episode({path: episode.steps[path] for path in kept}) for episode in episodes(2, 3)]
        server = Server()
        report = push(server, source)
        assert report.filled == ("reward", "discount")
        assert [item[4].tolist() for item in server.contents()] == [[0, 0], [0, 0]] * 2
        assert [item[5].tolist() for item in server.contents()] == [[1, 0], [0, 0]] * 2


class TestKeys:
    def test_of_the_same_push_are_the_same(self):
        server, source = Server(), episodes(3)
        push(server, source)
        before = list(server.items["replay"])
        report = push(server, source, rows_per_chunk=1)
        assert list(server.items["replay"]) == before
        assert len(before) == 9 == report.items_confirmed

    @pytest.mark.parametrize(
        "other",
        [
            {"again": True},
            {"view": Sequence(3)},
            {"conventions": Conventions(terminal_discount="transition")},
        ],
        ids=str,
    )
    def test_of_another_push_are_others(self, other):
        server, source = Server(), episodes(3)
        first = push(server, source)
        second = push(server, source, **other)
        assert len(server.items["replay"]) == first.items_confirmed + second.items_confirmed

    def test_of_two_tables_and_of_equal_episodes_are_different(self):
        server = Server({name: table(name) for name in ("one", "two")})
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
    def test_add_up_and_nothing_bad_is_stored(self, tmp_path_factory, described, action, strict):
        rng = np.random.default_rng(0)
        source = [faults.good(rng, 6, terminal=False)]
        source += [faults.spoiled(rng, faults.good(rng, rows), sorted(names))[0] for rows, names in described]
        source = [Episode(episode.steps, id=f"e{number}") for number, episode in enumerate(source)]
        spec = faults.spec(source[0])
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

    def test_name_source_tables_and_view_and_count_bytes(self):
        server = Server()
        report = push(server, episodes(2))
        assert (report.source, report.tables, report.view) == ("test", ("replay",), two_step().label)
        assert report.bytes > 0
        assert report.seconds > 0
        assert (report.reconnects, report.episodes_resumed) == (0, 0)

    def test_count_advice_and_repairs(self):
        source = episodes(3)
        source[1] = source[1].with_columns(reward=np.ones(4, np.float32))
        source[2] = source[2].with_columns(is_first=np.zeros(4, bool))
        report = push(Server(), source, on_invalid="repair")
        assert (report.advice, report.repaired) == ({"last_reward": 1}, {"first_missing": 1})
        assert report.episodes_pushed == 3

    def test_of_a_source_without_good_episodes_are_empty(self):
        server = Server()
        source = [episode.with_columns(reward=np.full(4, np.nan, np.float32)) for episode in episodes(2)]
        report = push(server, source, on_invalid="skip")
        assert (report.rejected, report.items_confirmed, server.requests) == ({"nan": 2}, 0, 0)


class TestBadEpisodes:
    def test_raise_with_what_came_before_stored_and_nothing_of_them(self, tmp_path):
        server, source = Server(), episodes(4)
        source[2] = source[2].with_columns(reward=np.full(4, np.nan, np.float32))
        ledger = tmp_path / "ledger.db"
        with pytest.raises(InvalidEpisode, match="nan"):
            push(server, source, ledger=ledger)
        reference.assert_same_items(server.contents(), expected_items(source[:2], two_step()))
        report = push(server, source, ledger=ledger, on_invalid="skip")
        assert (report.episodes_resumed, report.episodes_pushed, report.rejected) == (2, 1, {"nan": 1})
        assert len(server.contents()) == 9

    def test_without_the_flags_of_the_spec_are_judged_like_any(self):
        source = episodes(2)
        without = {path: column for path, column in source[1].steps.items() if path != "is_last"}
        report = push(Server(), [source[0], Episode(without)], on_invalid="skip")
        assert report.rejected == {"missing_column": 1}

    def test_of_no_steps_are_rejected(self):
        source = episodes(2)
        empty = Episode({path: column[:0] for path, column in source[1].steps.items()})
        report = push(Server(), [source[0], empty], on_invalid="skip")
        assert (report.rejected, report.steps_rejected) == ({"no_steps": 1}, 0)

    def test_too_short_for_the_view_are_rejected_unless_that_is_tolerated(self):
        source = [*episodes(1, 6), *episodes(2, 3)]
        with pytest.raises(InvalidEpisode, match=r"no_items: sequence:length=5.* makes no item of 3 steps"):
            push(Server(), source, view=Sequence(5))
        server = Server()
        report = push(server, source, view=Sequence(5), allow=("no_items",))
        assert (report.rejected, report.steps_rejected, report.episodes_pushed) == ({"no_items": 2}, 6, 1)
        assert len(server.contents()) == 2

    def test_whose_first_reward_a_shift_would_lose_are_rejected_unless_that_is_tolerated(self):
        episode = episodes(1)[0].with_columns(reward=np.array([0.5, 2, 3, 0]))
        shift = Conventions(last_reward="shift")
        with pytest.raises(
            InvalidEpisode, match=r'first_reward_lost: column "reward": step 0 has reward 0.5; .*needs no shift'
        ):
            push(Server(), [episode], conventions=shift)
        server = Server()
        report = push(server, [episode], conventions=shift, allow=("first_reward_lost",))
        assert report.episodes_pushed == 1
        assert server.contents()[0][4].tolist() == episode.steps["reward"][1:3].tolist()

    def test_whose_last_reward_a_shift_would_bring_in_as_nan_are_rejected(self):
        for value, code in ((np.nan, "nan"), (np.inf, "infinite")):
            episode = episodes(1)[0].with_columns(reward=np.array([0, 2, 3, value], np.float32))
            server = Server()
            with pytest.raises(InvalidEpisode, match=f"{code}: .*which a shift would use"):
                push(server, [episode], conventions=Conventions(last_reward="shift"))
            assert push(server, [episode]).episodes_pushed == 1

    @pytest.mark.parametrize(("code", "column"), [("dtype", np.zeros(4)), ("shape", np.zeros((4, 2), np.float32))])
    def test_whose_rows_are_not_the_tables_are_never_stored(self, code, column):
        good, bad = episodes(2)
        server = Server()
        with pytest.raises(ViewError, match=r'column "reward" has .*, the items need'):
            push(server, [good, bad.with_columns(reward=column)], allow=(code,))
        assert len(server.contents()) == 3

    def test_too_long_for_the_view_stop_the_push_with_what_came_before_stored(self):
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
    def test_without_the_flags_of_rlds_are_refused(self, absent, message):
        server = Server()
        steps = {path: column for path, column in episodes(1)[0].steps.items() if path not in absent}
        with pytest.raises(SourceError, match=message):
            push(server, [Episode(steps)])
        assert server.requests == 0

    def test_that_the_view_cannot_cut_are_refused(self):
        steps = {path: column for path, column in episodes(1)[0].steps.items() if path != "action"}
        with pytest.raises(ViewError, match="step spec without action"):
            push(Server(), [Episode(steps)])

    def test_that_break_stop_the_push_with_what_came_before_stored(self, tmp_path):
        class Breaking(EpisodeList):
            def __iter__(self):
                yield from list(super().__iter__())[:2]
                raise SourceError("broken")

        server, source = Server(), episodes(4)
        with pytest.raises(SourceError, match="broken"):
            push(server, Breaking(source), ledger=tmp_path / "ledger.db")
        assert len(server.contents()) == 6
        assert push(server, source, ledger=tmp_path / "ledger.db").episodes_resumed == 2


class TestCapacity:
    def test_too_small_for_one_item_an_episode_is_refused_at_once(self):
        server = Server({"replay": table(), "small": table("small", max_size=3)})
        with pytest.raises(
            CapacityError, match=r'table "small": max_size 3 is smaller than the push \(at least 4 items\)'
        ):
            push(server, episodes(4), tables=("replay", "small"))
        assert server.requests == 0

    def test_too_small_for_the_items_stops_before_the_first_eviction(self):
        server = Server({"replay": table(max_size=8)})
        with pytest.raises(CapacityError, match=r"smaller than the push \(more than 8 items\), so the oldest would be"):
            push(server, episodes(3))
        assert len(server.contents()) == 6

    def test_that_just_fits_is_enough(self):
        server = Server({"replay": table(max_size=9)})
        assert push(server, episodes(3)).items_confirmed == 9

    def test_is_not_asked_for_when_eviction_is_allowed(self):
        server = Server({"replay": table(max_size=1)})
        assert push(server, episodes(3), allow_eviction=True).items_confirmed == 9

    def test_is_checked_as_items_come_when_the_source_does_not_know_its_length(self):
        class Unknown(EpisodeList):
            episode_count = None

        server = Server({"replay": table(max_size=3)})
        with pytest.raises(CapacityError, match=r"more than 5 items"):
            push(server, Unknown(episodes(5)))
        assert len(server.contents()) == 3


class TestLedger:
    def test_a_push_that_is_done_is_not_done_again(self, tmp_path):
        server, source = Server(), episodes(3)
        push(server, source, ledger=tmp_path / "ledger.db")
        requests = server.requests
        report = push(server, source, ledger=tmp_path / "ledger.db")
        assert server.requests == requests
        assert (report.episodes_resumed, report.episodes_read, report.items_confirmed) == (3, 0, 0)

    @pytest.mark.parametrize("fails_after", range(6))
    def test_a_push_that_broke_goes_on_and_leaves_every_item_once(self, tmp_path, fails_after):
        source, limits = episodes(5), RequestLimits(3, 1 << 20)
        server = Server(fails_after=fails_after)
        if fails_after < 5:
            with pytest.raises(TransportError):
                push(server, source, ledger=tmp_path / "ledger.db", limits=limits)
        else:
            push(server, source, ledger=tmp_path / "ledger.db", limits=limits)
        server.fails_after = None
        report = push(server, source, ledger=tmp_path / "ledger.db", limits=limits)
        assert report.episodes_resumed == min(fails_after, 5)
        assert report.episodes_pushed == 5 - report.episodes_resumed
        reference.assert_same_items(server.contents(), expected_items(source, two_step()))

    def test_a_server_process_that_was_restarted_gets_everything_again(self, tmp_path):
        source = episodes(3)
        push(Server(), source, ledger=tmp_path / "ledger.db")
        after = Server(state_id=8)
        report = push(after, source, ledger=tmp_path / "ledger.db")
        assert (report.episodes_resumed, report.items_confirmed, len(after.contents())) == (0, 9, 9)

    def test_without_resume_everything_is_sent_and_recorded_again(self, tmp_path):
        server, source = Server(), episodes(3)
        push(server, source, ledger=tmp_path / "ledger.db")
        report = push(server, source, ledger=tmp_path / "ledger.db", resume=False)
        assert (report.episodes_resumed, report.items_confirmed, len(server.contents())) == (0, 9, 9)

    def test_other_tables_views_and_conventions_are_other_pushes(self, tmp_path):
        server, source = Server({name: table(name) for name in ("replay", "two")}), episodes(3)
        for options in (
            {},
            {"tables": ("two",)},
            {"tables": ("replay", "two")},
            {"view": Sequence(3)},
            {"conventions": Conventions(terminal_discount="transition")},
        ):
            assert push(server, source, ledger=tmp_path / "ledger.db", **options).episodes_resumed == 0

    def test_is_written_while_the_push_goes_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr(pipeline, "_RECORD_SECONDS", -1.0)
        seen = []

        def look(_):
            with Ledger(
                tmp_path / "ledger.db", "|".join((two_step().label, Conventions().label, "replay")), f"{7:032x}"
            ) as it:
                seen.append(len(it))

        push(Server(), episodes(4), look, ledger=tmp_path / "ledger.db", limits=RequestLimits(3, 1 << 20))
        assert seen == sorted(seen)
        assert set(seen) == {0, 1, 2, 3, 4}


class TestProgress:
    def test_tells_how_far_it_is_and_what_it_waits_for(self, monkeypatch):
        monkeypatch.setattr(pipeline, "_RECORD_SECONDS", -1.0)
        told = []
        push(Server(), episodes(3), told.append, limits=RequestLimits(3, 1 << 20))
        assert {one.episode_count for one in told} == {3}
        assert [one.episodes for one in told] == sorted(one.episodes for one in told)
        assert "waiting for the test" in {one.waiting for one in told}
        last = told[-1]
        assert (last.episodes, last.steps, last.items_confirmed, last.waiting) == (3, 12, 9, "")
        assert last.bytes > 0
        assert last.seconds > 0

    def test_counts_resumed_episodes_as_well(self, tmp_path):
        server, source, told = Server(), episodes(3), []
        push(server, source, ledger=tmp_path / "ledger.db")
        push(server, source, told.append, ledger=tmp_path / "ledger.db")
        assert (told[-1].episodes, told[-1].steps, told[-1].items_confirmed) == (3, 12, 0)
