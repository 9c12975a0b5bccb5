"""What a push fills: outputs made of what the caller says, and the tables that must fit them."""

import numpy as np
import pytest

from rlds2reverb.conventions import Conventions, filled_spec
from rlds2reverb.errors import ConfigError, SpecMismatch, ViewError
from rlds2reverb.outputs import OpenOutput, Output, outputs_of
from rlds2reverb.sources.base import spec_of
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.views.across import AcrossEpisodes
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.sequence import Sequence, two_step
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo
from tests import strategies


def opened(tables=("t",), view=two_step(), conventions=Conventions(), steps=4):
    spec = filled_spec(spec_of(strategies.episode(np.random.default_rng(0), steps)))
    return OpenOutput(Output(tables, view), spec, conventions.label)


class TestWhatTheCallerSays:
    def test_one_view_for_some_tables(self):
        assert outputs_of("a") == outputs_of(["a"], "two_step") == (Output(("a",), two_step()),)
        assert outputs_of(("a", "b"), WholeEpisode()) == (Output(("a", "b"), WholeEpisode()),)

    def test_a_view_a_table(self):
        views = {"pairs": "two_step", "stacks": FrameStack(3)}
        assert outputs_of(views) == (Output(("pairs",), two_step()), Output(("stacks",), FrameStack(3)))

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
            (("a", 3), "push: view 3: expected a view, or its name"),
            (({"a": None},), "push: view None: expected a view, or its name"),
        ],
    )
    def test_nonsense_is_refused(self, given, message):
        with pytest.raises(ConfigError, match=message):
            outputs_of(*given)

    def test_a_name_of_no_view_is_refused(self):
        with pytest.raises(ViewError, match='"three_step", expected one of two_step'):
            outputs_of({"a": "three_step"})


def test_outputs_share_an_identity_exactly_when_their_items_are_the_same():
    same = [opened(), opened(("other",)), opened(view=Sequence(2))]
    others = [
        opened(view=Sequence(3)),
        opened(view=WholeEpisode()),
        opened(conventions=Conventions(terminal_discount="transition")),
        opened(conventions=Conventions(last_reward="shift")),
    ]
    assert len({output.identity for output in same}) == 1
    assert len({output.identity for output in (same[0], *others)}) == 1 + len(others)


def test_a_stream_tells_what_no_item_holds():
    output = opened(view=AcrossEpisodes(length=4, stride=3))
    assert output.is_stream
    left = []
    for seed, steps in enumerate((3, 4, 1, 2)):
        output.cut(strategies.episode(np.random.default_rng(seed), steps), f"e{seed}")
        left.append(output.left_over)
    assert left == [3, 0, 1, 0]  # 3, 7, 8 and 10 rows; items of rows 0-3, 3-6 and 6-9
    assert opened().left_over == 0


def test_items_of_a_stream_are_named_by_all_episodes_before():
    episodes = [strategies.episode(np.random.default_rng(seed), 4) for seed in range(3)]
    tags = []
    for order in ((0, 1, 2), (1, 0, 2)):
        output = opened(view=AcrossEpisodes(length=3))
        for number in order:
            output.cut(episodes[number], episodes[number].id)
        tags.append(output.tag)
    assert tags[0] != tags[1]


def test_a_stream_goes_on_as_if_an_episode_had_never_been_there():
    episodes = [strategies.episode(np.random.default_rng(seed), 4, episode_id=f"e{seed}") for seed in range(3)]
    disturbed, calm = opened(view=AcrossEpisodes(length=3)), opened(view=AcrossEpisodes(length=3))
    for output, numbers in ((disturbed, (0, 1, 2)), (calm, (0, 2))):
        for number in numbers:
            cut = output.cut(episodes[number], episodes[number].id)
            if output is disturbed and number == 1:
                output.undo()
    again = calm.tag, calm.left_over, cut.steps.tolist()
    assert (disturbed.tag, disturbed.left_over, cut.steps.tolist()) == again


class TestTables:
    SIGNATURE = opened().signature

    def info(self, **signatures):
        limiter = RateLimiter(1.0, -1e9, 1e9, 1, 0, 0)
        tables = [
            TableInfo(name, "uniform", "fifo", 9, 0, 0, limiter, spec, 0, 0, 0) for name, spec in signatures.items()
        ]
        return ServerInfo(1, {table.name: table for table in tables})

    def test_that_fit_are_accepted(self):
        opened(("a", "free")).check_tables(self.info(a=self.SIGNATURE, free=None))

    def test_that_do_not_exist_are_named_with_those_that_do(self):
        with pytest.raises(ConfigError, match='the server has no table "c"; it has a, b'):
            opened(("a", "c")).check_tables(self.info(a=None, b=None))
        with pytest.raises(ConfigError, match='the server has no table "c"; it has none'):
            opened(("c",)).check_tables(self.info())

    def test_with_another_signature_are_named_with_every_difference(self):
        other = {**flatten(self.SIGNATURE), "y": ArraySpec((), np.dtype(np.float32))}
        with pytest.raises(SpecMismatch) as error:
            opened(("a", "b")).check_tables(self.info(a=self.SIGNATURE, b=other))
        assert error.value.where == 'table "b"'
        assert error.value.differences == ("y: table has float32[], items have no such column",)
