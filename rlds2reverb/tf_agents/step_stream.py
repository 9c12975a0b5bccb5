"""TF-Agents' checks of a stream of steps, and the cut of the stream at boundary rows; by the block, in numpy.

Source: `convert_rlds_to_trajectories` and the observers of tf-agents 0.19. TF-Agents flattens all episodes to one stream,
appends one step of type FIRST, and checks every pair of adjacent steps. Its observers cut the stream after every row of type
LAST. Blocks here are the dataset's episodes; the flags decide, not the ends of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episode import IS_FIRST, IS_LAST, IS_TERMINAL, Array
from rlds2reverb.views.trajectory import LAST, STEP_TYPE, trajectory_rows

TERMINAL_NOT_LAST = "Terminal step must be the last step of an episode."
MID_BEFORE_FIRST = "Mid step should not be followed by a first step."
LAST_BEFORE_NO_FIRST = "Last step of an episode must be followed by a first step."
MESSAGES = (TERMINAL_NOT_LAST, MID_BEFORE_FIRST, LAST_BEFORE_NO_FIRST)
"""TF-Agents' texts, in the order of its checks of a pair."""

Rows = dict[str, Array]


@dataclass(frozen=True)
class Block:
    """Consecutive steps of the stream, at least one, and the flags of the step after them; a first step follows the stream's end."""

    columns: Mapping[str, Array]
    next_is_first: bool = True
    next_is_last: bool = False


class StreamError(ValueError):
    """The stream breaks one of TF-Agents' three rules, at the number `step` within a block."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def with_lookahead(episodes: Iterable[Mapping[str, Array]]) -> Iterator[Block]:
    """Columns of episodes -> blocks, each with the flags of the following step; empty episodes are skipped."""
    for columns, later in adjacent(episodes):
        flags = () if later is None else (bool(later[IS_FIRST][0]), bool(later[IS_LAST][0]))
        yield Block(columns, *flags)


def adjacent(episodes: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
    """Each episode that has steps, and the one after it; None after the last."""
    previous: Mapping[str, Any] | None = None
    for episode in episodes:
        if not len(episode[IS_FIRST]):
            continue
        if previous is not None:
            yield previous, episode
        previous = episode
    if previous is not None:
        yield previous, None


def check(block: Block) -> None:
    """Raises `StreamError` for the first pair of steps that breaks a rule, with TF-Agents' text."""
    first, last = block.columns[IS_FIRST], block.columns[IS_LAST]
    next_first = np.append(first[1:], block.next_is_first)
    broken = np.stack((block.columns[IS_TERMINAL] & ~last, ~last & ~first & next_first, last & ~next_first))  # [3, T]
    steps = np.nonzero(broken.any(axis=0))[0]
    if len(steps):
        raise StreamError(MESSAGES[int(np.argmax(broken[:, steps[0]]))], int(steps[0]))


def segments(blocks: Iterable[Block]) -> Iterator[Rows]:
    """Trajectory rows, cut after every boundary row; each segment ends in its only row of type LAST.

    Rows are not copied where a block is one segment, as every well-formed episode is. An episode that is spread over
    several blocks is joined.

    Raises:
      StreamError: a block breaks a rule. Segments that were complete before that block have been yielded, none of its own.
    """
    open_rows: list[Rows] = []
    for block in blocks:
        check(block)
        rows = trajectory_rows(block.columns, block.next_is_first, block.next_is_last)
        start = 0
        for boundary in np.nonzero(rows[STEP_TYPE] == LAST)[0].tolist():
            yield _concatenate([*open_rows, _between(rows, start, boundary + 1)])
            open_rows, start = [], boundary + 1
        if start < len(rows[STEP_TYPE]):
            open_rows.append(_between(rows, start, None))


def join_segments(segments: Iterable[Rows], least: int) -> Iterator[Rows]:
    """Joins consecutive segments to longer ones of at least `least` rows; the last may have fewer.

    An error of reading is raised after a segment of all rows before it.
    """
    held: list[Rows] = []
    count = 0
    try:
        for segment in segments:
            held.append(segment)
            count += len(segment[STEP_TYPE])
            if count >= least:
                yield _concatenate(held)
                held, count = [], 0
    except Exception:
        if held:
            yield _concatenate(held)
        raise
    if held:
        yield _concatenate(held)


def _between(rows: Rows, start: int, stop: int | None) -> Rows:
    return {path: column[start:stop] for path, column in rows.items()}


def _concatenate(segments: list[Rows]) -> Rows:
    if len(segments) == 1:
        return segments[0]
    return {path: np.concatenate([rows[path] for rows in segments]) for path in segments[0]}
