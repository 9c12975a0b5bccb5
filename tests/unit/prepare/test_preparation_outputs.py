"""What a push fills: outputs made of what the caller says."""

from __future__ import annotations

from typing import Any

import pytest

from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.prepare.preparation import Output, outputs_of
from rlds2reverb.views.base import View
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step


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
