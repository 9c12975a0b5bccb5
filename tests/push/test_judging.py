"""One episode's way through policy, conventions and views: cuts for every output, or a rejection that leaves no trace."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Episode
from rlds2reverb.conventions import Conventions, filled_spec
from rlds2reverb.errors import InvalidEpisode, ViewError
from rlds2reverb.push.cutting import Cutter
from rlds2reverb.push.judging import Accepted, Judge
from rlds2reverb.push.outputs import Output
from rlds2reverb.sources.base import spec_of
from rlds2reverb.validation import Policy, Standard
from rlds2reverb.views.registry import view_of
from tests import strategies

STEP_SPEC = spec_of(strategies.episode(np.random.default_rng(0), 4))
SPEC = filled_spec(STEP_SPEC)


def an_episode(rows: int, name: str = "e") -> Episode:
    return dataclasses.replace(strategies.episode(np.random.default_rng(rows), rows), id=name)


def opened(*views: Any) -> list[Cutter]:
    outputs = [Output((f"t{n}",), view_of(view)) for n, view in enumerate(views)]
    return [Cutter(output, output.view.signature(SPEC)) for output in outputs]


def judge_of(policy: Policy, conventions: Conventions = Conventions()) -> Judge:
    return Judge(policy, Standard.of(STEP_SPEC, conventions))


def anchors(accepted: Accepted | None) -> list[list[int]]:
    assert accepted is not None
    return [made.cut.anchors.tolist() for made in accepted.cuts]


def test_a_good_episode_is_cut_for_every_output_in_their_order() -> None:
    cutters = opened("two_step", "sequence:length=3")
    accepted = judge_of(Policy()).cut(an_episode(4), cutters, is_stored=False)
    assert [made.output for made in accepted.cuts] == [cutter.output for cutter in cutters]
    assert anchors(accepted) == [[0, 1, 2], [0, 1]]
    assert accepted.key_name == "e"


def test_a_mended_episode_has_a_name_of_its_own() -> None:
    spoilt = an_episode(4).with_columns(is_first=np.zeros(4, bool))
    accepted = judge_of(Policy("repair")).cut(spoilt, opened("two_step"), is_stored=False)
    assert accepted.key_name == "e|repaired=first_missing"


def test_a_bad_episode_is_rejected_before_any_view_sees_it() -> None:
    policy = Policy("skip")
    (cutter,) = opened("across_episodes:length=3")
    bad = an_episode(4).with_columns(discount=np.full(4, 2, np.float32))
    assert judge_of(policy).cut(bad, [cutter], is_stored=False) is None
    assert (dict(policy.rejected), cutter.left_over) == ({"discount_range": 1}, 0)


def test_what_a_view_refuses_is_rejected_whole_and_streams_go_on_as_if_it_had_not_been_there() -> None:
    policy, outputs = Policy("skip"), opened("across_episodes:length=3", "episode:max_length=4")
    judge = judge_of(policy)
    assert judge.cut(an_episode(6, "long"), outputs, is_stored=False) is None
    assert dict(policy.rejected) == {"view_refused": 1}
    calm = judge.cut(an_episode(4), opened("across_episodes:length=3", "episode:max_length=4"), is_stored=False)
    assert anchors(judge.cut(an_episode(4), outputs, is_stored=False)) == anchors(calm)


@pytest.mark.parametrize("action", ["raise", "repair"])
def test_a_policy_that_stops_names_the_episode_that_a_view_refuses(action: str) -> None:
    with pytest.raises(ViewError, match=r"episode long: .* longer than max_length 4"):
        judge_of(Policy(action)).cut(an_episode(6, "long"), opened("episode:max_length=4"), is_stored=False)


class TestAnEpisodeWithoutItems:
    VIEWS = ("sequence:length=8", "sequence:length=9")

    def test_is_rejected_under_the_names_of_all_views(self) -> None:
        with pytest.raises(InvalidEpisode, match=r"no_items: sequence:length=8.*, sequence:length=9.* of 4 steps"):
            judge_of(Policy()).cut(an_episode(4), opened(*self.VIEWS), is_stored=False)

    def test_is_let_through_where_one_view_makes_some(self) -> None:
        cuts = judge_of(Policy()).cut(an_episode(4), opened("two_step", *self.VIEWS), is_stored=False)
        assert anchors(cuts) == [[0, 1, 2], [], []]

    def test_is_let_through_where_other_outputs_have_it(self) -> None:
        assert anchors(judge_of(Policy()).cut(an_episode(4), opened(*self.VIEWS), is_stored=True)) == [[], []]

    def test_is_let_through_where_a_stream_takes_it_in(self) -> None:
        (cutter,) = opened("across_episodes:length=9")
        assert anchors(judge_of(Policy()).cut(an_episode(4), [cutter], is_stored=False)) == [[]]
        assert cutter.left_over == 4


def test_a_shift_that_would_lose_a_reward_rejects_unless_it_is_tolerated() -> None:
    shift = Conventions(last_reward="shift")
    rewarded = an_episode(4).with_columns(reward=np.array([1, 0, 0, 0], np.float32))
    with pytest.raises(InvalidEpisode, match="first_reward_lost"):
        judge_of(Policy(), shift).cut(rewarded, opened("two_step"), is_stored=False)
    tolerant = Policy(allow=("first_reward_lost",))
    assert anchors(judge_of(tolerant, shift).cut(rewarded, opened("two_step"), is_stored=False)) == [[0, 1, 2]]


def test_rows_that_are_not_the_tables_end_the_push_under_any_policy_and_no_stream_takes_them_in() -> None:
    policy, (cutter,) = Policy("skip", allow=("dtype",)), opened("across_episodes:length=3")
    other = an_episode(4).with_columns(reward=np.zeros(4))
    with pytest.raises(ViewError, match=r'^episode e: column "reward" has .*, the items need'):
        judge_of(policy).cut(other, [cutter], is_stored=False)
    assert (policy.rejected, cutter.left_over) == ({"view_refused": 1}, 0)
