"""Sequences agree with a step-by-step simulation of TF-Agents' trajectory observer, for any length, stride and padding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.views.trajectory import SequenceView, two_step, window_anchors
from tests.support import reference, strategies
from tests.support.views.cutting import items_of, ordered_items, slow_sequence_items

PADDING = st.sampled_from([(False, False), (True, False), (True, True)])
SMALL = {"observation": (np.dtype(np.int16), (2,)), "action": (np.dtype(object), ())}


def counted(rows: int) -> Episode:
    """An episode whose observation counts its steps from 1, so that a padding row shows as 0."""
    at = np.arange(rows)
    return Episode(
        {
            "observation": at + 1,
            "action": at + 1,
            "reward": at + 1.0,
            "discount": np.ones(rows, np.float32),
            "is_first": at == 0,
            "is_last": at == rows - 1,
            "is_terminal": np.zeros(rows, bool),
        }
    )


def letters(view: SequenceView, rows: int) -> str:
    """Items as the docstring writes them: "abc bcP"."""
    cut = view.cut(counted(rows))
    observation = list(cut.rows).index("observation")
    return " ".join("".join("Pabcdefghijkl"[number] for number in item[observation].tolist()) for item in items_of(cut))


def table_rows() -> Iterator[pytest.ParameterSet]:
    """(options as arguments, items as a text) of every row of the module's table."""
    for text, items in re.findall(r"^ *\| (length .*?) \| (.*?) \|$", str(SequenceView.__doc__), re.MULTILINE):
        options = [option.split() for option in text.split(", ")]
        arguments = {option[0]: int(option[1]) if len(option) > 1 else True for option in options}
        yield pytest.param(arguments, "" if items == "none" else items, id=text)


def test_the_docstring_has_its_table() -> None:
    assert len(list(table_rows())) == 7


@pytest.mark.parametrize(("options", "items"), table_rows())
def test_the_table_of_the_docstring_is_true(options: dict[str, Any], items: str) -> None:
    assert letters(SequenceView(**options), 4) == items


@pytest.mark.parametrize(("options", "items"), table_rows())
def test_the_table_of_the_docstring_is_true_of_tf_agents(options: dict[str, Any], items: str) -> None:
    names = {"length": "length", "stride": "stride", "pad_end": "pad", "tile_end": "tile"}
    found = slow_sequence_items(counted(4), **{names[name]: value for name, value in options.items()})
    assert " ".join("".join("Pabcd"[number] for number in item[1].tolist()) for item in found) == items


@given(
    strategies.episodes(min_steps=1, max_steps=14, specs=SMALL),
    st.integers(1, 16),
    st.integers(1, 6),
    PADDING,
)
def test_items_are_those_of_tf_agents_observer(
    episode: Episode, length: int, stride: int, padding: tuple[bool, bool]
) -> None:
    view = SequenceView(length, stride, *padding)
    expected = slow_sequence_items(episode, length=length, stride=stride, pad=padding[0], tile=padding[1])
    reference.assert_same_items(ordered_items(view, episode), expected)


@settings(max_examples=40)
@given(strategies.episodes(min_steps=1, max_steps=6), st.integers(1, 4), PADDING)
def test_items_of_any_columns_are_those_of_tf_agents_observer(
    episode: Episode, length: int, padding: tuple[bool, bool]
) -> None:
    view = SequenceView(length, 1, *padding)
    expected = slow_sequence_items(episode, length=length, pad=padding[0], tile=padding[1])
    reference.assert_same_items(ordered_items(view, episode), expected)


@pytest.mark.parametrize(
    ("rows", "options", "count"),
    [
        (3, {"length": 2}, 2),
        (3, {"length": 4, "pad_end": True}, 1),
        (3, {"length": 4, "pad_end": True, "tile_end": True}, 3),
        (3, {"length": 3, "stride": 3}, 1),
        (1, {"length": 2}, 0),
        (1, {"length": 2, "pad_end": True}, 1),
        (2, {"length": 2, "pad_end": True}, 1),
    ],
)
def test_counts_are_those_seen_of_tf_agents(rows: int, options: dict[str, Any], count: int) -> None:
    assert len(SequenceView(**options).cut(counted(rows)).anchors) == count


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 10))
def test_anchors_are_all_starts_of_whole_windows(rows: int, length: int, stride: int) -> None:
    anchors = window_anchors(rows, length, stride)
    assert anchors.dtype == np.int64
    assert anchors.tolist() == [start for start in range(rows) if start % stride == 0 and start + length <= rows]
    assert len(anchors) == (1 + (rows - length) // stride if rows >= length else 0)


def test_rows_are_not_copied_without_padding() -> None:
    episode = counted(4)
    assert np.shares_memory(SequenceView(3).cut(episode).rows["observation"], episode.columns["observation"])


def test_every_item_has_the_views_priority() -> None:
    cut = SequenceView(2, priority=2.5).cut(counted(4))
    assert cut.priorities.tolist() == [2.5, 2.5, 2.5]
    assert cut.priorities.dtype == np.float64


def test_two_steps_are_a_sequence_of_two() -> None:
    assert two_step() == SequenceView() == SequenceView(length=2, stride=1)
    assert two_step(priority=3.0).priority == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "sequence: length 0: expected a whole number of at least 1"),
        ({"stride": 0}, "sequence: stride 0: expected a whole number of at least 1"),
        ({"length": 2.5}, "sequence: length 2.5: expected"),
        ({"priority": -1}, "sequence: priority -1: expected"),
        ({"tile_end": True}, "sequence: tile_end needs pad_end"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ViewError, match=message):
        SequenceView(**options)
