"""Cutting for an output: a stream is a value, and has taken in an episode only when it is told so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.prepare.preparation import Cutter, ItemCounts, Output, OutputCut
from rlds2reverb.views.base import View
from rlds2reverb.views.fragments import Fragments
from rlds2reverb.views.trajectory import AcrossEpisodes, SequenceView, two_step
from tests.support import strategies

SPEC = filled_spec(spec_of(strategies.episode(np.random.default_rng(0), 4)))
STREAMS = [AcrossEpisodes(3), AcrossEpisodes(4, 3), Fragments(3), Fragments(4, "complete_episodes")]


def cutter_of(view: View = two_step(), tables: tuple[str, ...] = ("t",)) -> Cutter:
    return Cutter(Output(tables, view), view.signature(SPEC))


def an_episode(rows: int, number: int = 0) -> Episode:
    return strategies.episode(np.random.default_rng(number), rows, episode_id=f"e{number}")


def contents(made: OutputCut) -> Any:
    rows = {path: column.tolist() for path, column in made.cut.rows.items()}
    return rows, made.cut.anchors.tolist(), made.cut.steps.tolist()


def test_a_stream_tells_what_no_item_holds() -> None:
    cutter = cutter_of(AcrossEpisodes(length=4, stride=3))
    left = []
    for number, steps in enumerate((3, 4, 1, 2)):
        cutter.take_in(cutter.cut(an_episode(steps, number)))
        left.append(cutter.left_over)
    assert left == [3, 0, 1, 0]  # 3, 7, 8 and 10 rows; items of rows 0-3, 3-6 and 6-9
    assert cutter_of().left_over == 0


@pytest.mark.parametrize("view", STREAMS, ids=str)
@given(lengths=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=6))
def test_a_stream_goes_on_as_if_episodes_that_it_did_not_take_in_had_never_been_there(
    view: AcrossEpisodes, lengths: list[tuple[int, bool]]
) -> None:
    disturbed, calm = cutter_of(view), cutter_of(view)
    for number, (rows, is_taken) in enumerate(lengths):
        made = disturbed.cut(an_episode(rows, number))
        if is_taken:
            assert contents(made) == contents(calm.cut(an_episode(rows, number)))
            disturbed.take_in(made)
            calm.take_in(calm.cut(an_episode(rows, number)))
        assert disturbed.left_over == calm.left_over


def test_rows_of_another_kind_are_refused() -> None:
    cutter = cutter_of()
    good, other = an_episode(4), an_episode(4).with_columns(reward=np.zeros(4))
    cutter.check_rows(cutter.cut(good).cut)
    with pytest.raises(
        ViewError, match=r'column "reward" has float64\[.*, the items need float32.*do not tolerate dtype'
    ):
        cutter.check_rows(cutter.cut(other).cut)


@given(st.lists(st.integers(1, 6), max_size=5))
def test_a_tally_counts_items_per_table_and_episodes_that_give_none(lengths: list[int]) -> None:
    cutter, stream = cutter_of(SequenceView(3), ("a", "b")), cutter_of(AcrossEpisodes(3), ("c",))
    tally, of_stream = ItemCounts(), ItemCounts()
    for number, rows in enumerate(lengths):
        made, streamed = cutter.cut(an_episode(rows, number)), stream.cut(an_episode(rows, number))
        stream.take_in(streamed)
        tally.add(made.items_per_table, made.is_of_stream)
        of_stream.add(streamed.items_per_table, streamed.is_of_stream)
    assert tally == ItemCounts(sum(max(0, rows - 2) for rows in lengths), sum(rows < 3 for rows in lengths))
    assert of_stream == ItemCounts(max(0, sum(lengths) - 2), 0)
