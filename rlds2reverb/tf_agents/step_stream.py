"""TF-Agents' checks over a stream of steps, and the cut of the stream at boundary rows; by the block, in numpy.

Source: `convert_rlds_to_trajectories` and the observers of tf-agents 0.19. TF-Agents flattens all episodes to one stream,
appends one step of type FIRST, and looks at every pair of adjacent steps. Its observers cut the stream after every row of type
LAST. Blocks here are the dataset's episodes; the flags decide, not where a block ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episode import IS_FIRST, IS_LAST, IS_TERMINAL, Array
from rlds2reverb.views.trajectory import LAST, STEP_TYPE, trajectory_rows

TERMINAL_NOT_LAST = "Terminal step must be the last step of an episode."
MID_BEFORE_FIRST = "Mid step should not be followed by a first step."
LAST_BEFORE_NO_FIRST = "Last step of an episode must be followed by a first step."
MESSAGES = (TERMINAL_NOT_LAST, MID_BEFORE_FIRST, LAST_BEFORE_NO_FIRST)
"""TF-Agents' texts, in the order in which it checks a pair."""

Rows = dict[str, Array]


@dataclass(frozen=True)
class Block:
    """Consecutive steps of the stream and the flags of the step after them.

    Attributes:
      columns: [T, ...] by path, T at least 1.
      next_is_first, next_is_last: of the following step; the stream's end is followed by a first step.
    """

    columns: Mapping[str, Array]
    next_is_first: bool = True
    next_is_last: bool = False


class StreamError(ValueError):
    """The stream breaks one of TF-Agents' three rules.

    Attributes:
      step: number of the step within its block.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def with_lookahead(episodes: Iterable[Mapping[str, Array]]) -> Iterator[Block]:
    """Columns of episodes -> blocks, each with the flags of the step that follows; empty ones are passed over."""
    previous: Mapping[str, Array] | None = None
    for columns in episodes:
        if not len(columns[IS_FIRST]):
            continue
        if previous is not None:
            yield Block(previous, bool(columns[IS_FIRST][0]), bool(columns[IS_LAST][0]))
        previous = columns
    if previous is not None:
        yield Block(previous)


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
      StreamError: a block breaks a rule. Segments that were complete before that block have been yielded; none of it has.
    """
    open_rows: list[Rows] = []
    for block in blocks:
        check(block)
        rows = trajectory_rows(block.columns, block.next_is_first, block.next_is_last)
        start = 0
        for boundary in np.nonzero(rows[STEP_TYPE] == LAST)[0].tolist():
            yield _joined([*open_rows, _between(rows, start, boundary + 1)])
            open_rows, start = [], boundary + 1
        if start < len(rows[STEP_TYPE]):
            open_rows.append(_between(rows, start, None))


def joined(segments: Iterable[Rows], least: int) -> Iterator[Rows]:
    """Consecutive segments joined to longer ones of at least `least` rows; the last may have fewer.

    When something stops the reading, a segment with all that was read comes before it.
    """
    held: list[Rows] = []
    count = 0
    try:
        for segment in segments:
            held.append(segment)
            count += len(segment[STEP_TYPE])
            if count >= least:
                yield _joined(held)
                held, count = [], 0
    except Exception:
        if held:
            yield _joined(held)
        raise
    if held:
        yield _joined(held)


def _between(rows: Rows, start: int, stop: int | None) -> Rows:
    return {path: column[start:stop] for path, column in rows.items()}


def _joined(segments: list[Rows]) -> Rows:
    if len(segments) == 1:
        return segments[0]
    return {path: np.concatenate([rows[path] for rows in segments]) for path in segments[0]}
