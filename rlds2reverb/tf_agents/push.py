"""RLDS data into the tables of an observer, over this package's own wire."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Union

import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.client import Target, connect
from rlds2reverb.episodes import IS_FIRST
from rlds2reverb.errors import TransportError, ViewError
from rlds2reverb.sources.rlds import STEPS, batch_steps, without_tuning
from rlds2reverb.specs import flatten
from rlds2reverb.step_stream import Rows, StreamError, joined, segments, with_lookahead
from rlds2reverb.tf_agents.conversion import convert_rlds_to_trajectories, policy_info
from rlds2reverb.tf_agents.observers import left_where_it_ends, stream_from, view_of_observer
from rlds2reverb.tf_agents.specs import (
    PolicyInfoFn,
    check_discount,
    check_signature,
    create_trajectory_data_spec,
    policy_spec,
    step_spec_of,
)
from rlds2reverb.views.across import AcrossEpisodes, RowStream
from rlds2reverb.views.base import Cut, View
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.sequence import Sequence
from rlds2reverb.views.trajectory import POLICY_INFO
from rlds2reverb.wire.encoder import EpisodeEncoder, Part
from rlds2reverb.wire.requests import RequestBuilder, RequestLimits
from rlds2reverb.wire.sender import Sender

Observer = Union[reverb_utils.ReverbAddEpisodeObserver, reverb_utils.ReverbAddTrajectoryObserver, Target]
Cutter = Union[Sequence, WholeEpisode, RowStream]

_WINDOWS_A_PART = 4
"""Of a stream, rows to cut at once, in windows. The last window's are stored again with the next part."""

_log = logging.getLogger("rlds2reverb.tf_agents")

_TOO_LONG = (
    "The number of trajectories within the same episode exceeds `max_sequence_length`. Consider increasing the "
    "`max_sequence_length` or set `bypass_partial_episodes` to true to bypass the episodes with length more than "
    "`max_sequence_length`."
)


def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset, reverb_observer: Observer, policy_info_fn: PolicyInfoFn = None
) -> int:
    """Stores the data's trajectories in Reverb as the observer would have, and waits until the server has them all.

    The configuration of TF-Agents' three observers is read; the data goes over this package's own wire, in the same order.
    An observer of another kind is called step by step. Called twice, it stores twice. What was stored before an
    error stays stored.

    Args:
      rlds_data: as for `create_trajectory_data_spec`.
      reverb_observer: `ReverbAddTrajectoryObserver`, `ReverbAddEpisodeObserver`, `ReverbTrajectorySequenceObserver`, a
        `Target` (`client.target(...)`), or any callable with `get_table_signature()`.
      policy_info_fn: as for `convert_rlds_to_trajectories`.

    Returns:
      The number of trajectories made of the data (one a step), as TF-Agents counts them.

    Raises:
      ValueError: no RLDS steps, a field is missing, the table's signature is another (the cause lists it leaf by
        leaf), or an episode is longer than the episode observer's `max_sequence_length` and not bypassed.
      TypeError: the discount is not float32.
      tf.errors.InvalidArgumentError: as for `convert_rlds_to_trajectories`.
      TransportError: the server cannot be reached, was restarted, or confirms nothing.
    """
    step_spec = step_spec_of(rlds_data)
    check_signature(rlds_data, reverb_observer, policy_info_fn)
    check_discount(step_spec)
    if isinstance(reverb_observer, Target):
        return _push(rlds_data, reverb_observer, policy_info_fn)
    view = view_of_observer(reverb_observer)
    if isinstance(view, AcrossEpisodes):
        return _push_stream(rlds_data, reverb_observer, view, policy_info_fn)
    if view is None or reverb_observer._cached_steps:
        return _push_by_call(rlds_data, reverb_observer, policy_info_fn)
    reverb_observer.flush()  # what the caller observed before comes first
    with connect(reverb_observer.py_client.server_address) as client:
        return _push(rlds_data, client.target(reverb_observer._table_names, view), policy_info_fn)


def _push_stream(rlds_data: tf.data.Dataset, observer: Any, view: AcrossEpisodes, policy_info_fn: PolicyInfoFn) -> int:
    spec = create_trajectory_data_spec(rlds_data, policy_info_fn)
    stream = stream_from(observer, spec)
    if stream is None:
        return _push_by_call(rlds_data, observer, policy_info_fn)
    observer.flush()
    with connect(observer.py_client.server_address) as client, left_where_it_ends(observer, stream, spec):
        return _push(rlds_data, client.target(observer._table_names, view), policy_info_fn, stream)


def _push_by_call(rlds_data: tf.data.Dataset, observer: Any, policy_info_fn: PolicyInfoFn) -> int:
    count = 0
    for entry in convert_rlds_to_trajectories(rlds_data, policy_info_fn):
        observer(entry)
        count += 1
    if hasattr(observer, "flush"):
        observer.flush()
    return count


def _push(
    rlds_data: tf.data.Dataset, target: Target, policy_info_fn: PolicyInfoFn, stream: RowStream | None = None
) -> int:
    client, cutter = target.client, _cutter(target.view) if stream is None else stream
    order = _column_order(rlds_data, policy_info_fn)
    encoder, push_seed = EpisodeEncoder(), secrets.randbits(64)
    builder = RequestBuilder(RequestLimits())
    steps = items = 0
    with Sender(client.channel, target.tables, client.server_info()) as sender:
        try:
            for number, rows in enumerate(_parts(cutter, _checked_segments(rlds_data, policy_info_fn))):
                cut = _cut(cutter, rows).in_order(order)
                steps += len(next(iter(rows.values())))
                items += len(cut.anchors) * len(target.tables)
                if len(cut.anchors):
                    part = Part(target.tables, push_seed, str(number), cut)
                    for request in builder.add(encoder.encode(part.tag, [part])):
                        sender.send(request)
        except TransportError:
            raise
        except Exception:  # whatever stops the reading, what was sent before it is waited for
            _drain(builder, sender)
            raise
        _drain(builder, sender)
    _log.info("Successfully wrote %d steps to Reverb, as %d items.", steps, items)
    return steps


def _drain(builder: RequestBuilder, sender: Sender) -> None:
    for request in builder.flush():
        sender.send(request)
    sender.drain()


def _cutter(view: View) -> Cutter:
    if isinstance(view, AcrossEpisodes):
        return view.stream()
    if isinstance(view, (Sequence, WholeEpisode)):
        return view
    raise ViewError(
        f"view {view.label}: push_rlds_to_reverb takes two_step, sequence, episode or across_episodes; use client.push"
    )


def _parts(cutter: Cutter, segments: Iterator[Rows]) -> Iterator[Rows]:
    """What to cut at once: an episode, of a stream as many as make the rows carried over few beside the new ones."""
    return joined(segments, _WINDOWS_A_PART * cutter.view.length) if isinstance(cutter, RowStream) else segments


def _cut(cutter: Cutter, rows: Rows) -> Cut:
    try:
        cut = cutter.cut_rows(rows)
    except ViewError as error:
        raise ValueError(_TOO_LONG) from error
    if not len(cut.anchors) and isinstance(cutter, WholeEpisode):
        _log.error("An episode of %d steps exceeds `max_sequence_length` and was not stored.", cut.row_count)
    return cut


def _column_order(rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn) -> list[str]:
    return list(flatten(create_trajectory_data_spec(rlds_data, policy_info_fn)))


def _checked_segments(rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn) -> Iterator[Rows]:
    """Trajectory rows, one boundary each; TF-Agents' error for bad data."""
    episodes = without_tuning(rlds_data.map(lambda episode: batch_steps(episode[STEPS])).prefetch(1))
    columns = _with_policy_info(episodes.as_numpy_iterator(), step_spec_of(rlds_data), policy_info_fn)
    try:
        yield from segments(with_lookahead(columns))
    except StreamError as error:
        message = f"assertion failed: [{error}] [step {error.step} of its episode]"
        raise tf.errors.InvalidArgumentError(None, None, message) from error


def _with_policy_info(
    episodes: Iterator[Any], step_spec: Any, policy_info_fn: PolicyInfoFn
) -> Iterator[Mapping[str, Any]]:
    """Columns of every episode, with policy_info columns if there is a function."""
    if policy_info_fn is None:
        yield from map(_columns, episodes)
        return
    info_spec = policy_spec(step_spec, policy_info_fn)
    compute = tf.function(
        lambda current, following: policy_info(current, following, policy_info_fn, info_spec), reduce_retracing=True
    )
    for steps, following in _with_following(episodes):
        info = tf.nest.map_structure(lambda tensor: tensor.numpy(), compute(steps, following))
        yield {**_columns(steps), **flatten(info, POLICY_INFO)}


def _columns(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Columns by path; a step field that is called policy_info is ignored, as TF-Agents does."""
    return flatten({name: columns for name, columns in steps.items() if name != POLICY_INFO})


def _with_following(episodes: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Steps [T, ...] with, for each step, the one after it; a padding step after the last."""
    previous: Any = None
    for steps in episodes:
        if not len(steps[IS_FIRST]):
            continue
        if previous is not None:
            yield previous, _shifted(previous, tf.nest.map_structure(lambda column: column[:1], steps))
        previous = steps
    if previous is not None:
        yield previous, _shifted(previous, _numpy_padding_step(previous))


def _shifted(steps: Any, next_row: Any) -> Any:
    return tf.nest.map_structure(lambda column, row: np.concatenate((column[1:], row)), steps, next_row)


def _numpy_padding_step(like: Any) -> Any:
    def zeros(column: Any) -> Any:
        return np.full((1, *column.shape[1:]), b"" if column.dtype == object else 0, column.dtype)

    return {**tf.nest.map_structure(zeros, like), IS_FIRST: np.ones(1, bool)}
