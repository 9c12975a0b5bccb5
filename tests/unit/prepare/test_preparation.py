"""One way from a source to what a view needs: cuts for every output, or a rejection that leaves no trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Episode
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError, ViewError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Output, Preparation, Prepared, Preparer, outputs_of
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.views import view_of
from rlds2reverb.views.base import View
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from tests.support import strategies


def an_episode(rows: int, name: str = "e") -> Episode:
    return strategies.episode(np.random.default_rng(rows), rows, episode_id=name)


def bad(rows: int, name: str = "bad") -> Episode:
    return dataclasses.replace(an_episode(rows, name).with_columns(discount=np.full(rows, 2, np.float32)), id=name)


def opened(*views: str, episodes: tuple[Episode, ...] = (an_episode(4),), **options: Any) -> Preparation:
    outputs = [Output((f"t{number}",), view_of(view)) for number, view in enumerate(views)]
    return Preparation.open(EpisodeList(list(episodes), "test"), EpisodeOptions(**options), outputs)


def preparer(*views: str, **options: Any) -> Preparer:
    return opened(*views, **options).preparer()


def anchors(prepared: Prepared) -> list[list[int]]:
    assert prepared.is_good
    return [made.cut.anchors.tolist() for made in prepared.cuts]


def test_every_episode_comes_once_in_order_and_the_bad_ones_are_counted() -> None:
    ready = opened("two_step", episodes=(an_episode(4, "a"), bad(3), an_episode(2, "b")), on_invalid="skip")
    found = list(ready)
    assert [(prepared.episode.id, prepared.is_good) for prepared in found] == [("a", True), ("bad", False), ("b", True)]
    assert "discount_range" in [problem.code for problem in found[1].problems]
    one = ready.preparer()
    for episode, others in ready.read():
        one.prepare(episode, others)
    assert (one.episodes, one.steps, one.steps_rejected, dict(one.policy.rejected)) == (3, 9, 3, {"discount_range": 1})


def test_a_part_of_the_source_is_read() -> None:
    ready = opened(episodes=tuple(an_episode(3, f"e{number}") for number in range(6)))
    assert [episode.id for episode, _ in ready.read(start=2, stop=4)] == ["e2", "e3"]


def test_without_outputs_an_episode_is_normalised_and_not_cut() -> None:
    rewarded = an_episode(4).with_columns(reward=np.array([0, 1, 2, 3], np.float32))
    (one,) = opened(episodes=(rewarded,), last_reward="shift")
    assert one.normalised is not None
    assert one.normalised.columns["reward"].tolist() == [1, 2, 3, 0]
    assert (one.episode.columns["reward"].tolist(), list(one.cuts)) == ([0, 1, 2, 3], [])


def test_absent_fields_are_filled() -> None:
    whole = an_episode(4)
    left = whole.with_only_columns({path: column for path, column in whole.columns.items() if path != "discount"})
    ready = opened("two_step", episodes=(left,))
    assert ready.filled == ("discount",)
    assert "discount" not in ready.recorded_spec
    assert "discount" in ready.step_spec
    (one,) = ready
    assert "discount" in one.filled.columns


def test_a_good_episode_is_cut_for_every_output_in_their_order() -> None:
    one = preparer("two_step", "sequence:length=3")
    prepared = one.prepare(an_episode(4))
    assert [made.output for made in prepared.cuts] == [cutter.output for cutter in one.cutters]
    assert anchors(prepared) == [[0, 1, 2], [0, 1]]
    assert prepared.key_name == prepared.episode.id


def test_it_is_cut_for_those_outputs_that_want_it() -> None:
    assert anchors(preparer("two_step", "sequence:length=3").prepare(an_episode(4), output_numbers=[1])) == [[0, 1]]


def test_a_mended_episode_has_a_name_of_its_own() -> None:
    spoilt = dataclasses.replace(an_episode(4).with_columns(is_first=np.zeros(4, bool)), id="e")
    prepared = preparer("two_step", on_invalid="repair").prepare(spoilt)
    assert prepared.key_name == "e|repaired=first_missing"
    assert [problem.code for problem in prepared.mended] == ["first_missing"]


def test_a_bad_episode_is_rejected_before_any_view_sees_it() -> None:
    one = preparer("across_episodes:length=3", on_invalid="skip")
    assert not one.prepare(bad(4)).is_good
    assert (dict(one.policy.rejected), one.cutters[0].left_over) == ({"discount_range": 1}, 0)


def test_one_that_ends_the_reading_is_counted() -> None:
    one = preparer("two_step")
    with pytest.raises(InvalidEpisode, match="discount_range"):
        one.prepare(bad(4))
    assert (one.steps, one.steps_rejected, dict(one.policy.rejected)) == (4, 4, {"discount_range": 1})


def test_what_a_view_refuses_is_rejected_whole_and_streams_go_on_as_if_it_had_not_been_there() -> None:
    views = ("across_episodes:length=3", "episode:max_length=4")
    one, calm = preparer(*views, on_invalid="skip"), preparer(*views)
    refused = one.prepare(an_episode(6, "long")).refused
    assert refused is not None
    assert refused.code == "view_refused"
    assert anchors(one.prepare(an_episode(4))) == anchors(calm.prepare(an_episode(4)))


@pytest.mark.parametrize("action", ["raise", "repair"])
def test_a_policy_that_stops_names_the_episode_that_a_view_refuses(action: str) -> None:
    with pytest.raises(ViewError, match=r"episode long: .* longer than max_length 4"):
        preparer("episode:max_length=4", on_invalid=action).prepare(an_episode(6, "long"))


class TestAnEpisodeWithoutItems:
    VIEWS = ("sequence:length=8", "sequence:length=9")

    def test_is_rejected_under_the_names_of_all_views(self) -> None:
        with pytest.raises(InvalidEpisode, match=r"no_items: sequence:length=8.*, sequence:length=9.* of 4 steps"):
            preparer(*self.VIEWS).prepare(an_episode(4))

    def test_is_let_through_where_one_view_makes_some(self) -> None:
        assert anchors(preparer("two_step", *self.VIEWS).prepare(an_episode(4))) == [[0, 1, 2], [], []]

    def test_is_let_through_where_other_outputs_have_it(self) -> None:
        assert anchors(preparer("two_step", *self.VIEWS).prepare(an_episode(4), output_numbers=[1, 2])) == [[], []]

    def test_is_let_through_where_a_stream_takes_it_in(self) -> None:
        one = preparer("across_episodes:length=9")
        assert anchors(one.prepare(an_episode(4))) == [[]]
        assert one.cutters[0].left_over == 4


def test_no_stream_takes_in_what_is_dropped() -> None:
    one = preparer("across_episodes:length=9")
    assert one.prepare(an_episode(4), is_dropped=True).is_good
    assert one.cutters[0].left_over == 0


def test_a_shift_that_would_lose_a_reward_rejects_unless_it_is_tolerated() -> None:
    rewarded = an_episode(4).with_columns(reward=np.array([1, 0, 0, 0], np.float32))
    with pytest.raises(InvalidEpisode, match="first_reward_lost"):
        preparer("two_step", last_reward="shift").prepare(rewarded)
    tolerant = preparer("two_step", last_reward="shift", allow=("first_reward_lost",))
    assert anchors(tolerant.prepare(rewarded)) == [[0, 1, 2]]


def test_rows_that_are_not_the_tables_end_the_reading_under_any_policy_and_no_stream_takes_them_in() -> None:
    one = preparer("across_episodes:length=3", on_invalid="skip", allow=("dtype",))
    with pytest.raises(ViewError, match=r'^episode .*: column "reward" has .*, the items need'):
        one.prepare(an_episode(4).with_columns(reward=np.zeros(4)))
    assert (one.policy.rejected, one.cutters[0].left_over) == ({"view_refused": 1}, 0)


def test_what_a_format_cannot_hold_is_rejected_later() -> None:
    one = preparer(on_invalid="skip")
    prepared = one.prepare(an_episode(4))
    one.reject(prepared, Problem("single_step", "", "too short"))
    assert (one.steps_rejected, dict(one.policy.rejected)) == (4, {"single_step": 1})


def test_a_silent_reading_reports_no_bad_episode_again(tmp_path: Path) -> None:
    ready = opened(episodes=(bad(4),), on_invalid="quarantine", quarantine=tmp_path / "bad.jsonl")
    list(ready)
    written = (tmp_path / "bad.jsonl").read_text()
    assert [prepared.is_good for prepared in ready.silent()] == [False]
    assert (tmp_path / "bad.jsonl").read_text() == written


def test_steps_that_are_no_rlds_are_refused() -> None:
    with pytest.raises(SourceError, match="not RLDS: steps lack is_first and is_last"):
        opened(episodes=(Episode({"observation": np.zeros(3)}, {}, "e"),))


def test_the_identity_says_what_changes_items() -> None:
    assert opened().identity == opened(strict=True).identity
    others = [opened(last_reward="shift"), opened(transform={"drop": ["reward"]}), opened(last_observation="drop")]
    assert len({opened().identity, *(other.identity for other in others)}) == 4


# What a push fills: outputs made of what the caller says.


class TestWhatTheCallerSays:
    def test_one_view_for_some_tables(self) -> None:
        assert outputs_of("a") == outputs_of(["a"], "two_step") == (Output(("a",), two_step()),)
        assert outputs_of(("a", "b"), WholeEpisode()) == (Output(("a", "b"), WholeEpisode()),)

    def test_a_view_a_table(self) -> None:
        views: dict[str, str | View] = {"pairs": "two_step", "stacks": FrameStack(3)}
        assert outputs_of(views) == (Output(("pairs",), two_step()), Output(("stacks",), FrameStack(3)))

    def test_a_view_may_be_written_as_in_yaml(self) -> None:
        given = {"view": "sequence", "length": 3}
        assert outputs_of("a", given) == (Output(("a",), SequenceView(3)),)
        assert outputs_of({"a": given, "b": "two_step"}) == (
            Output(("a",), SequenceView(3)),
            Output(("b",), two_step()),
        )
        with pytest.raises(ViewError, match="push: view: sequence has no option size"):
            outputs_of("a", {"view": "sequence", "size": 3})
        with pytest.raises(ViewError, match='push: view: expected a view\'s name, or a mapping with "view"'):
            outputs_of("a", {"length": 3})

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (((),), "at least one table"),
            (({},), "at least one table"),
            ((("a", "a"),), "a table is named twice in a, a"),
            (({"a": "two_step"}, "episode"), "every table has a view of its own here, so no other view can be given"),
            ((5,), "push: table 5: expected a table's name"),
            ((None,), "push: table None: expected"),
            ((["a", 5],), "push: table 5: expected"),
            (({5: "two_step"},), "push: table 5: expected"),
            (("a", 3), "push: view 3: expected a view \\(label, signature, reads, cut\\), or its name"),
            (({"a": None},), "push: view None: expected a view "),
        ],
    )
    def test_nonsense_is_refused(self, given: tuple[Any, ...], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            outputs_of(*given)

    def test_a_name_of_no_view_is_refused(self) -> None:
        with pytest.raises(ViewError, match='"three_step", expected one of two_step'):
            outputs_of({"a": "three_step"})
