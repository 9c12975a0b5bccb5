"""One episode's way through policy, conventions and views: cuts for every output, or a rejection that leaves no trace."""

import dataclasses

import numpy as np
import pytest

from rlds2reverb.conventions import Conventions, filled_spec
from rlds2reverb.errors import InvalidEpisode, ViewError
from rlds2reverb.judging import Judge, cut_all, lack_of_items, refusal
from rlds2reverb.outputs import OpenOutput, Output
from rlds2reverb.sources.base import spec_of
from rlds2reverb.specs import flatten
from rlds2reverb.validation import Policy
from rlds2reverb.views.registry import view_of
from tests import strategies

SPEC = filled_spec(spec_of(strategies.episode(np.random.default_rng(0), 4)))


def an_episode(rows, name="e"):
    return dataclasses.replace(strategies.episode(np.random.default_rng(rows), rows), id=name)


def opened(*views):
    return [OpenOutput(Output((f"t{n}",), view_of(view)), SPEC, Conventions().label) for n, view in enumerate(views)]


def judge_of(policy, conventions=Conventions()):
    return Judge(policy, flatten(SPEC), conventions)


def anchors(cuts):
    return [cut.anchors.tolist() for _, cut in cuts]


def test_a_good_episode_is_cut_for_every_output_in_their_order():
    outputs = opened("two_step", "sequence:length=3")
    cuts = judge_of(Policy()).cut(an_episode(4), outputs, is_stored=False)
    assert [output for output, _ in cuts] == outputs
    assert anchors(cuts) == [[0, 1, 2], [0, 1]]


def test_a_bad_episode_is_rejected_before_any_view_sees_it():
    policy = Policy("skip")
    (output,) = opened("across_episodes:length=3")
    bad = an_episode(4).with_columns(discount=np.full(4, 2, np.float32))
    assert judge_of(policy).cut(bad, [output], is_stored=False) is None
    assert (dict(policy.rejected), output.tag, output.left_over) == ({"discount_range": 1}, "", 0)


def test_what_a_view_refuses_is_rejected_whole_and_streams_go_on_as_if_it_had_not_been_there():
    policy, outputs = Policy("skip"), opened("across_episodes:length=3", "episode:max_length=4")
    judge = judge_of(policy)
    assert judge.cut(an_episode(6, "long"), outputs, is_stored=False) is None
    assert dict(policy.rejected) == {"view_refused": 1}
    calm = judge.cut(an_episode(4), opened("across_episodes:length=3", "episode:max_length=4"), is_stored=False)
    assert anchors(judge.cut(an_episode(4), outputs, is_stored=False)) == anchors(calm)


@pytest.mark.parametrize("action", ["raise", "repair"])
def test_a_policy_that_stops_names_the_episode_that_a_view_refuses(action):
    with pytest.raises(ViewError, match=r"episode long: .* longer than max_length 4"):
        judge_of(Policy(action)).cut(an_episode(6, "long"), opened("episode:max_length=4"), is_stored=False)


class TestAnEpisodeWithoutItems:
    VIEWS = ("sequence:length=8", "sequence:length=9")

    def test_is_rejected_under_the_names_of_all_views(self):
        with pytest.raises(InvalidEpisode, match=r"no_items: sequence:length=8.*, sequence:length=9.* of 4 steps"):
            judge_of(Policy()).cut(an_episode(4), opened(*self.VIEWS), is_stored=False)

    def test_is_let_through_where_one_view_makes_some(self):
        cuts = judge_of(Policy()).cut(an_episode(4), opened("two_step", *self.VIEWS), is_stored=False)
        assert anchors(cuts) == [[0, 1, 2], [], []]

    def test_is_let_through_where_other_outputs_have_it(self):
        assert anchors(judge_of(Policy()).cut(an_episode(4), opened(*self.VIEWS), is_stored=True)) == [[], []]

    def test_is_let_through_where_a_stream_takes_it_in(self):
        (output,) = opened("across_episodes:length=9")
        cuts = cut_all([output], an_episode(4), "e")
        assert anchors(cuts) == [[]]
        assert lack_of_items(an_episode(4), cuts) is None
        assert output.left_over == 4


def test_a_shift_that_would_lose_a_reward_rejects_unless_it_is_tolerated():
    shift = Conventions(last_reward="shift")
    rewarded = an_episode(4).with_columns(reward=np.array([1, 0, 0, 0], np.float32))
    with pytest.raises(InvalidEpisode, match="first_reward_lost"):
        judge_of(Policy(), shift).cut(rewarded, opened("two_step"), is_stored=False)
    tolerant = Policy(allow=("first_reward_lost",))
    assert anchors(judge_of(tolerant, shift).cut(rewarded, opened("two_step"), is_stored=False)) == [[0, 1, 2]]


def test_a_refusal_says_what_the_view_said():
    problem = refusal(ViewError("too long"))
    assert (problem.code, problem.path, problem.detail) == ("view_refused", "", "too long")
