"""The stream of steps agrees with TF-Agents' rules applied to one pair after another, however it is split in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.tf_agents.step_stream import (
    LAST_BEFORE_NO_FIRST,
    MESSAGES,
    MID_BEFORE_FIRST,
    TERMINAL_NOT_LAST,
    Block,
    StreamError,
    check,
    join_segments,
    segments,
    with_lookahead,
)

FIRST, MID, LAST = 0, 1, 2
PADDING = (True, False, False)

Flags = tuple[int, int, int]
"""Of a step: is_first, is_last, is_terminal."""

ANY_FLAGS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=10)
"""is_first, is_last, is_terminal of every step."""


@st.composite
def valid_flags(draw: st.DrawFn) -> Sequence[Flags]:
    """The flags of a few good episodes; of a single step, with or without a last flag."""
    flags = []
    for rows, ends in draw(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["terminal", "truncated", "cut"])))):
        is_cut = rows == 1 and ends == "cut"
        flags += [(at == 0, at == rows - 1 and not is_cut, at == rows - 1 and ends == "terminal") for at in range(rows)]
    return flags


@st.composite
def nearly_valid_flags(draw: st.DrawFn) -> Sequence[Flags]:
    flags = [list(step) for step in draw(valid_flags())]
    for _ in range(draw(st.integers(0, 2)) if flags else 0):
        step, flag = draw(st.integers(0, len(flags) - 1)), draw(st.integers(0, 2))
        flags[step][flag] = not flags[step][flag]
    return [(first, last, terminal) for first, last, terminal in flags]


FLAGS = st.one_of(ANY_FLAGS, valid_flags(), nearly_valid_flags())


def columns(flags: Sequence[Flags], start: int = 0) -> dict[str, np.ndarray]:
    first, last, terminal = np.array(flags, bool).reshape(-1, 3).T
    at = np.arange(start, start + len(flags))
    return {
        "observation/at": at,
        "observation/text": np.array([b"%d" % number for number in at], object),
        "action": np.stack((at, -at), axis=1),
        "reward": at / 2,
        "discount": np.full(len(flags), 0.5, np.float32),
        "is_first": first,
        "is_last": last,
        "is_terminal": terminal,
    }


def split(flags: Sequence[Flags], cuts: list[int]) -> list[dict[str, np.ndarray]]:
    """Blocks of columns; some may be empty."""
    bounds = [0, *sorted(min(cut, len(flags)) for cut in cuts), len(flags)]
    return [columns(flags[start:stop], start) for start, stop in pairwise(bounds)]


def slow_kind(step: Flags) -> int:
    return FIRST if step[0] else LAST if step[1] else MID


def slow_error(flags: Sequence[Flags]) -> tuple[str, int] | None:
    """(message, step) of the first pair that breaks a rule, rule by rule as TF-Agents asks; None for a good stream."""
    for at, (current, following) in enumerate(zip(flags, [*flags[1:], PADDING])):
        _, is_last, is_terminal = current
        if is_terminal and not is_last:
            return "Terminal step must be the last step of an episode.", at
        if slow_kind(current) == MID and following[0]:
            return "Mid step should not be followed by a first step.", at
        if is_last and not following[0]:
            return "Last step of an episode must be followed by a first step.", at
    return None


def slow_segments(flags: Sequence[Flags]) -> list[list[tuple[int, int, int, float]]]:
    """Segments of (step, step_type, next_step_type, discount)."""
    done, cache = [], []
    for at, (current, following) in enumerate(zip(flags, [*flags[1:], PADDING])):
        kinds = slow_kind(current), slow_kind(following)
        if kinds == (FIRST, FIRST):
            kinds = LAST, LAST
        cache.append((at, *kinds, 0.0 if current[1] and current[2] else 0.5))
        if kinds[0] == LAST:
            done.append(cache)
            cache = []
    return done


def plain(segment: dict[str, np.ndarray]) -> list[tuple[int, int, int, float]]:
    """A segment as the slow way gives it; every column is looked at."""
    at = segment["observation/at"].tolist()
    assert segment["observation/text"].tolist() == [b"%d" % number for number in at]
    assert segment["action"].tolist() == [[number, -number] for number in at]
    assert segment["reward"].tolist() == [number / 2 for number in at]
    kinds = segment["step_type"].tolist(), segment["next_step_type"].tolist()
    return list(zip(at, *kinds, segment["discount"].tolist()))


def run(blocks: list[dict[str, np.ndarray]]) -> Any:
    """The segments that came, and the error that ended the stream."""
    came = []
    try:
        for segment in segments(with_lookahead(blocks)):
            came.append(plain(segment))  # noqa: PERF401 - what came before an error counts
    except StreamError as error:
        return came, error
    return came, None


def test_the_messages_are_tf_agents_in_the_order_of_its_checks() -> None:
    assert MESSAGES == (
        "Terminal step must be the last step of an episode.",
        "Mid step should not be followed by a first step.",
        "Last step of an episode must be followed by a first step.",
    )
    assert MESSAGES == (TERMINAL_NOT_LAST, MID_BEFORE_FIRST, LAST_BEFORE_NO_FIRST)


@given(FLAGS, st.lists(st.integers(0, 12), max_size=4))
def test_any_stream_in_any_blocks_gives_tf_agents_segments_and_errors(flags: Sequence[Flags], cuts: list[int]) -> None:
    blocks = split(flags, cuts)
    came, error = run(blocks)
    expected = slow_error(flags)
    if expected is None:
        assert error is None
        assert came == slow_segments(flags)
        return
    message, step = expected
    assert str(error) == message
    starts = np.cumsum([0, *(len(block["is_first"]) for block in blocks)]).tolist()
    block_start = max(start for start in starts if start <= step)
    assert error.step == step - block_start
    assert came == [segment for segment in slow_segments(flags) if segment[-1][0] < block_start]


@given(valid_flags(), st.lists(st.integers(0, 30), max_size=6))
def test_blocks_split_anywhere_give_the_same_rows(flags: Sequence[Flags], cuts: list[int]) -> None:
    whole, error = run([columns(flags)])
    assert error is None
    assert run(split(flags, cuts)) == (whole, None)
    assert [row[0] for segment in whole for row in segment] == list(range(len(flags)))


@given(valid_flags())
def test_a_segment_ends_in_its_only_boundary_row(flags: Sequence[Flags]) -> None:
    for segment in run([columns(flags)])[0]:
        assert [row[1] == LAST for row in segment] == [False] * (len(segment) - 1) + [True]


@given(st.lists(st.booleans(), max_size=8))
def test_a_block_knows_the_flags_of_the_step_after_it(lasts: list[bool]) -> None:
    blocks = [columns([(not last, last, False)], at) for at, last in enumerate(lasts)]
    empty = columns([])
    spread = [part for block in blocks for part in (empty, block, empty)]
    found = [
        (block.columns["action"][0, 0], block.next_is_first, block.next_is_last) for block in with_lookahead(spread)
    ]
    following = [*((not last, last) for last in lasts[1:]), (True, False)]
    assert found == [(at, *flags) for at, flags in enumerate(following[: len(lasts)])]


@pytest.mark.parametrize("blocks", [[], [columns([])], [columns([]), columns([])]])
def test_no_steps_give_no_segments(blocks: list[dict[str, np.ndarray]]) -> None:
    assert list(with_lookahead(blocks)) == []
    assert list(segments(with_lookahead(blocks))) == []


@pytest.mark.parametrize(
    ("flags", "message", "step"),
    [
        ([(1, 0, 1), (0, 1, 0)], TERMINAL_NOT_LAST, 0),
        ([(1, 1, 1), (1, 0, 1)], TERMINAL_NOT_LAST, 1),
        ([(1, 0, 0), (0, 0, 0)], MID_BEFORE_FIRST, 1),
        ([(1, 0, 0), (0, 1, 0), (0, 1, 0)], LAST_BEFORE_NO_FIRST, 1),
        ([(0, 0, 1), (1, 1, 0)], TERMINAL_NOT_LAST, 0),  # breaks two rules: the first that TF-Agents asks counts
        ([(0, 1, 0), (0, 0, 1)], LAST_BEFORE_NO_FIRST, 0),  # two pairs break a rule: the first pair counts
    ],
)
def test_the_first_broken_rule_of_the_first_broken_pair_is_told(
    flags: Sequence[Flags], message: str, step: int
) -> None:
    with pytest.raises(StreamError) as error:
        check(Block(columns(flags)))
    assert (str(error.value), error.value.step) == (message, step)
    assert isinstance(error.value, ValueError)


def test_what_tf_agents_lets_pass_passes() -> None:
    check(Block(columns([(1, 0, 0)])))  # one step, first and not last
    check(Block(columns([(0, 0, 0), (0, 1, 1)])))  # the first step of the data is not first
    check(Block(columns([(0, 0, 0)]), next_is_first=False))


def test_rows_of_a_block_that_is_one_segment_are_not_copied() -> None:
    blocks = [columns([(1, 0, 0), (0, 0, 0), (0, 1, 1)], start) for start in (0, 3)]
    found = list(segments(with_lookahead(blocks)))
    assert [np.shares_memory(block_read["action"], block["action"]) for block_read, block in zip(found, blocks)] == [
        True,
        True,
    ]


def test_blocks_are_taken_one_ahead_and_not_all_at_once() -> None:
    taken = []

    def source() -> Iterator[dict[str, np.ndarray]]:
        for at in range(5):
            taken.append(at)
            yield columns([(1, 0, 0), (0, 1, 0)])

    came = segments(with_lookahead(source()))
    next(came)
    assert taken == [0, 1]


@given(st.lists(st.integers(1, 9)), st.integers(1, 30), st.booleans())
def test_joined_segments_are_the_same_rows_in_fewer_parts(lengths: list[int], least: int, breaks: bool) -> None:
    starts = np.cumsum([0, *lengths])

    def source() -> Iterator[dict[str, np.ndarray]]:
        for start, rows in zip(starts, lengths):
            yield {"step_type": np.arange(start, start + rows)}
        if breaks:
            raise StreamError(MID_BEFORE_FIRST, 0)

    parts: list[np.ndarray] = []
    refused: AbstractContextManager[object] = pytest.raises(StreamError)
    expected = refused if breaks else nullcontext()
    with expected:
        parts.extend(part["step_type"] for part in join_segments(source(), least))
    assert np.concatenate([*parts, []]).tolist() == list(range(sum(lengths)))
    assert all(len(part) >= least for part in parts[:-1])
    assert all(len(part) < least + 9 for part in parts)
