"""TF-Agents' observers: the view that stores the same items as each, and the state of the one that looks across episodes.

`ReverbTrajectorySequenceObserver` does not start anew with an episode: its next items depend on earlier steps.
It counts them (`_cached_steps`), and its writer's history has the last `sequence_length` of them. So a push continues the
stream from the observer's state, and sets that state at its end; calls and pushes may then follow one another.

Source: `tf_agents.replay_buffers.reverb_utils`, tf-agents 0.19; `reverb.trajectory_writer`, dm-reverb 0.14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Union

import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Array
from rlds2reverb.errors import TransportError
from rlds2reverb.specs import flatten
from rlds2reverb.views.trajectory import AcrossEpisodes, RowStream, SequenceView, WholeEpisode

ObserverView = Union[SequenceView, WholeEpisode, AcrossEpisodes]


_SEQUENCE = reverb_utils.ReverbAddTrajectoryObserver
_EPISODE = reverb_utils.ReverbAddEpisodeObserver
_ACROSS = reverb_utils.ReverbTrajectorySequenceObserver


def view_of_observer(observer: Any) -> ObserverView | None:
    """The view that stores the observer's items; None for an observer of another kind.

    Raises:
      ValueError: the observer is closed; TF-Agents' text.
    """
    kind = type(observer)
    if kind not in (_SEQUENCE, _EPISODE, _ACROSS) or len(set(observer._table_names)) < len(observer._table_names):
        return None  # a subclass may store something else, a table named twice gets every item twice
    observer._get_writer()  # TF-Agents' error when it is closed
    if kind is _ACROSS:
        return _across_episodes(observer)
    priority = float(observer._priority)
    if kind is _EPISODE:
        return WholeEpisode(observer._max_sequence_length, observer._bypass_partial_episodes, priority)
    return SequenceView(
        observer._sequence_length,
        observer._stride_length,
        observer._pad_end_of_episodes,
        observer._tile_end_of_episodes,
        priority,
    )


def item_rows(observer: Any) -> int | None:
    """Rows of every item that the observer stores; None where they vary, or for an observer of another kind."""
    return int(observer._sequence_length) if type(observer) in (_SEQUENCE, _ACROSS) else None


def _across_episodes(observer: reverb_utils.ReverbTrajectorySequenceObserver) -> AcrossEpisodes:
    """Its padding options act in `reset` only, which the observer does by itself."""
    return AcrossEpisodes(observer._sequence_length, observer._stride_length, float(observer._priority))


def forget_bypassed(observer: Any) -> None:
    """Clears an episode observer, as after a push without an error.

    An observer that has bypassed an episode believes that its empty writer has data, and its `reset` would raise.
    """
    if type(observer) is _EPISODE:
        observer._writer_has_data = False


class StreamCutter:
    """Cuts the rows of one stream, some at a time; `stream` is its position."""

    def __init__(self, stream: RowStream) -> None:
        self.view, self.stream = stream.view, stream

    def cut_rows(self, rows: Mapping[str, Array]) -> Cut:
        """Cuts the next rows, and moves the stream behind them."""
        cut, self.stream = self.stream.cut_rows(rows)
        return cut


def stream_from(observer: reverb_utils.ReverbTrajectorySequenceObserver, spec: Any) -> RowStream | None:
    """The stream that continues from the observer's state.

    None if its writer cannot hold such trajectories, or holds different ones.
    """
    if not all(leaf.shape.is_fully_defined() and leaf.dtype != tf.bfloat16 for leaf in tf.nest.flatten(spec)):
        return None  # the shape may change within a window; Reverb's writer has no bfloat16
    view = _across_episodes(observer)
    try:
        history = observer._get_writer().history
    except RuntimeError:  # nothing was ever observed
        return RowStream(view)
    held = _last_rows(history, min(observer._cached_steps, view.length), spec)
    return None if held is None else RowStream(view, observer._cached_steps, held)


def _last_rows(history: Any, count: int, spec: Any) -> dict[str, Array] | None:
    """Columns [count, ...] of the writer's last rows; None when they do not match this spec."""
    try:
        tf.nest.assert_same_structure(history, spec)
        columns = [column[-count:].numpy() for column in tf.nest.flatten(history)] if count else []
    except (TypeError, ValueError):  # other fields, or fields that some rows lack
        return None
    leaves = flatten(spec)
    for column, leaf in zip(columns, leaves.values()):
        if column.dtype != leaf.dtype.as_numpy_dtype or column.shape[1:] != tuple(leaf.shape):
            return None
    return dict(zip(leaves, columns))


@contextmanager
def left_where_it_ends(
    observer: reverb_utils.ReverbTrajectorySequenceObserver, cutter: StreamCutter, spec: Any
) -> Iterator[None]:
    """Sets the observer to the end of the cutter's stream, also when bad data ends it.

    When the connection fails that end is not known, and the observer does not change.
    """
    try:
        yield
    except TransportError:
        raise
    except Exception:
        _observe(observer, cutter.stream, spec)
        raise
    _observe(observer, cutter.stream, spec)


def _observe(observer: reverb_utils.ReverbTrajectorySequenceObserver, stream: RowStream, spec: Any) -> None:
    """Changes the observer as calls with the stream's new rows would have, without the items."""
    leaves = flatten(spec)
    new = min(stream.count - observer._cached_steps, observer._sequence_length)
    for number in range(-new, 0):
        row = [tf.constant(stream.last_rows[path][number], leaf.dtype) for path, leaf in leaves.items()]
        observer._last_trajectory = tf.nest.pack_sequence_as(spec, row)
        observer._get_writer().append(observer._last_trajectory)
    observer._cached_steps = stream.count
