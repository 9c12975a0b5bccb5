"""TF-Agents' observers: the view that stores what each stores, and the state of the one that looks across episodes.

`ReverbTrajectorySequenceObserver` never forgets at the end of an episode: what it stores next depends on the steps before.
It counts them (`_cached_steps`), and its writer's history has the last `sequence_length` of them. So a push takes up the
stream where the observer is, and leaves the observer where the push ended; calls and pushes may then follow one another.

Source: `tf_agents.replay_buffers.reverb_utils`, tf-agents 0.19; `reverb.trajectory_writer`, dm-reverb 0.14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Union

import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Array
from rlds2reverb.errors import TransportError
from rlds2reverb.specs import flatten
from rlds2reverb.views.across import AcrossEpisodes, RowStream
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.sequence import SequenceView

ObserverView = Union[SequenceView, WholeEpisode, AcrossEpisodes]


def view_of_observer(observer: Any) -> ObserverView | None:
    """The view that stores what the observer stores, or None for an observer of another kind.

    Raises:
      ValueError: the observer is closed; TF-Agents' text.
    """
    kind = type(observer)
    if kind not in _VIEWS or len(set(observer._table_names)) < len(observer._table_names):
        return None  # a subclass may store something else, a table named twice gets every item twice
    observer._get_writer()  # TF-Agents' error when it is closed
    return _VIEWS[kind](observer)


def item_rows(observer: Any) -> int | None:
    """Rows of every item that the observer stores; None where they vary, or nobody but the observer knows."""
    fixed = (reverb_utils.ReverbAddTrajectoryObserver, reverb_utils.ReverbTrajectorySequenceObserver)
    return int(observer._sequence_length) if type(observer) in fixed else None


def _sequence(observer: reverb_utils.ReverbAddTrajectoryObserver) -> SequenceView:
    return SequenceView(
        observer._sequence_length,
        observer._stride_length,
        observer._pad_end_of_episodes,
        observer._tile_end_of_episodes,
        float(observer._priority),
    )


def _whole_episode(observer: reverb_utils.ReverbAddEpisodeObserver) -> WholeEpisode:
    return WholeEpisode(observer._max_sequence_length, observer._bypass_partial_episodes, float(observer._priority))


def _across_episodes(observer: reverb_utils.ReverbTrajectorySequenceObserver) -> AcrossEpisodes:
    """Its padding options act in `reset` only, which the observer does by itself."""
    return AcrossEpisodes(observer._sequence_length, observer._stride_length, float(observer._priority))


_VIEWS: dict[type, Callable[[Any], ObserverView]] = {
    reverb_utils.ReverbAddTrajectoryObserver: _sequence,
    reverb_utils.ReverbAddEpisodeObserver: _whole_episode,
    reverb_utils.ReverbTrajectorySequenceObserver: _across_episodes,
}


def forget_bypassed(observer: Any) -> None:
    """Makes an episode observer hold nothing, as after a push that ends well.

    An observer that has bypassed an episode takes its empty writer for one with data. Without this its `reset` would raise.
    """
    if type(observer) is reverb_utils.ReverbAddEpisodeObserver:
        observer._writer_has_data = False


class StreamCutter:
    """Cuts rows for one stream, some at a time.

    Attributes:
      view: which items.
      stream: how far it is.
    """

    def __init__(self, stream: RowStream) -> None:
        self.view, self.stream = stream.view, stream

    def cut_rows(self, rows: Mapping[str, Array]) -> Cut:
        """The cut of the next rows, which the stream takes in."""
        cut, self.stream = self.stream.cut_rows(rows)
        return cut


def stream_from(observer: reverb_utils.ReverbTrajectorySequenceObserver, spec: Any) -> RowStream | None:
    """The stream that goes on where the observer is.

    Returns:
      None when the observer has to be called: its writer cannot hold such trajectories, or has others.
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
    """Columns [count, ...] of the writer's last rows; None when they are not trajectories of this spec."""
    try:
        tf.nest.assert_same_structure(history, spec)
        columns = [column[-count:].numpy() for column in tf.nest.flatten(history)] if count else []
    except (TypeError, ValueError):  # other fields, or fields that some of the rows lack
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
    """Makes the observer go on where the cutter's stream ends, also when bad data ends it.

    When the connection fails nobody can say where it ended: the observer stays as it was.
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
    """What calls with the stream's new rows would have left in the observer, beside the items."""
    leaves = flatten(spec)
    new = min(stream.count - observer._cached_steps, observer._sequence_length)
    for number in range(-new, 0):
        row = [tf.constant(stream.last_rows[path][number], leaf.dtype) for path, leaf in leaves.items()]
        observer._last_trajectory = tf.nest.pack_sequence_as(spec, row)
        observer._get_writer().append(observer._last_trajectory)
    observer._cached_steps = stream.count
