"""The drop-in for `tf_agents.replay_buffers.rlds_to_reverb`: same names, signatures, specs, errors and texts.

Differences, all on purpose: nested observations and actions come out right (TF-Agents stacks both steps); a table whose
signature holds policy_info is accepted; everything is confirmed by the server before `push_rlds_to_reverb` returns; bad data
raises before any item of the bad episode is stored. Source: tf-agents 0.19.0, probed; see docs/tf_agents.md.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from rlds2reverb.client import Target, connect
from rlds2reverb.episodes import ACTION, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD, STEP_FIELDS
from rlds2reverb.errors import SpecMismatch, ViewError
from rlds2reverb.sources.rlds import STEPS, array_spec, batch_steps
from rlds2reverb.specs import differences, flatten, map_leaves
from rlds2reverb.step_stream import MESSAGES, Rows, StreamError, segments, with_lookahead
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.sequence import Sequence
from rlds2reverb.views.trajectory import POLICY_INFO, with_window
from rlds2reverb.wire.encoder import EpisodeEncoder
from rlds2reverb.wire.requests import RequestBuilder, RequestLimits
from rlds2reverb.wire.sender import Sender

__all__ = ["convert_rlds_to_trajectories", "create_trajectory_data_spec", "push_rlds_to_reverb"]

PolicyInfoFn = Optional[Callable[[Any, Any], Any]]
Observer = Union[reverb_utils.ReverbAddEpisodeObserver, reverb_utils.ReverbAddTrajectoryObserver, Target]

_log = logging.getLogger(__name__)

_SPEC_MISMATCH = "Replay buffer table signature spec should match RLDS data spec."
_TOO_LONG = (
    "The number of trajectories within the same episode exceeds `max_sequence_length`. Consider increasing the "
    "`max_sequence_length` or set `bypass_partial_episodes` to true to bypass the episodes with length more than "
    "`max_sequence_length`."
)

_BLOCK_STEPS = 512
"""Steps that `convert_rlds_to_trajectories` turns into trajectories at once."""


def create_trajectory_data_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn = None
) -> trajectory.Trajectory:
    """The spec of the trajectories that `rlds_data` gives; what the table's signature and the replay buffer need.

    Args:
      rlds_data: a dataset of RLDS episodes, each with a dataset of steps; a step has at least the seven RLDS fields.
      policy_info_fn: as for `push_rlds_to_reverb`; with it, the spec has its policy_info (an extension).

    Returns:
      A Trajectory of `tf.TensorSpec`, without outer dimension. The discount is a bounded float32 in [0, 1].

    Raises:
      ValueError: there are no RLDS steps in the data, or they lack one of the seven fields.
    """
    step_spec = _step_spec(rlds_data)
    time_step_spec = ts.time_step_spec(step_spec[OBSERVATION], step_spec[REWARD])
    action_spec = policy_step.PolicyStep(step_spec[ACTION], info=_policy_spec(step_spec, policy_info_fn))
    return trajectory.from_transition(time_step_spec, action_spec, time_step_spec)


def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn = None, *, batch_size: int | None = None
) -> tf.data.Dataset:
    """A dataset of trajectories, one a step, each made of a step and the one after it.

    The last step of the data is followed by a padding step of type FIRST.

    Args:
      rlds_data: as for `create_trajectory_data_spec`.
      policy_info_fn: (current_step, next_step) -> policy_info of the current step's trajectory.
      batch_size: trajectories an element, with a leading axis (an extension, and the fastest way: the work
        is done by the block anyway); None for one trajectory an element.

    Returns:
      A dataset of Trajectory; shapes and dtypes are those of `create_trajectory_data_spec`.

    Raises:
      ValueError: as for `create_trajectory_data_spec`.
      TypeError: the discount is not float32.
      tf.errors.InvalidArgumentError: while iterating: an episode does not end in a last step, a terminal step is
        not the last, or a last step is not followed by a first step.
    """
    step_spec = _step_spec(rlds_data)
    _check_discount(step_spec)
    info_spec = _policy_spec(step_spec, policy_info_fn)
    pairs = _pairs(rlds_data.flat_map(lambda episode: episode[STEPS]), batch_size or _BLOCK_STEPS)
    blocks = pairs.map(lambda current, following: _to_trajectories(current, following, policy_info_fn, info_spec))
    return blocks.unbatch() if batch_size is None else blocks.rebatch(batch_size)


def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset, reverb_observer: Observer, policy_info_fn: PolicyInfoFn = None
) -> int:
    """Stores the data's trajectories in Reverb as the observer would have, and waits until the server has them all.

    The configuration of TF-Agents' two observers is read; the data goes over this package's own wire, in the same order.
    An observer of another kind is called step by step. Called twice, it stores twice. What was stored before an
    error stays stored.

    Args:
      rlds_data: as for `create_trajectory_data_spec`.
      reverb_observer: `ReverbAddTrajectoryObserver`, `ReverbAddEpisodeObserver`, a `Target` (`client.target(...)`), or any
        callable with `get_table_signature()`.
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
    step_spec = _step_spec(rlds_data)
    _check_signature(rlds_data, reverb_observer, policy_info_fn)
    _check_discount(step_spec)
    if isinstance(reverb_observer, Target):
        return _push(rlds_data, reverb_observer, policy_info_fn)
    view = _view_of(reverb_observer)
    if view is None or reverb_observer._cached_steps:
        return _push_by_call(rlds_data, reverb_observer, policy_info_fn)
    reverb_observer.flush()  # what the caller observed before comes first
    with connect(reverb_observer.py_client.server_address) as client:
        return _push(rlds_data, client.target(reverb_observer._table_names, view), policy_info_fn)


# Specs.


def _step_spec(rlds_data: tf.data.Dataset) -> Any:
    """The element spec of a step, checked with TF-Agents' texts."""
    if STEPS not in rlds_data.element_spec:
        raise ValueError(f"No dataset representing RLDS {STEPS} exist in the data.")
    step_spec = rlds_data.flat_map(lambda episode: episode[STEPS]).element_spec
    if not all(name in step_spec for name in STEP_FIELDS):
        raise ValueError(
            f"Invalid RLDS step spec. Features expected are {list(STEP_FIELDS)}, but found {list(step_spec.keys())}"
        )
    return step_spec


def _check_discount(step_spec: Any) -> None:
    if step_spec[DISCOUNT].dtype != tf.float32:
        raise TypeError(
            f"RLDS discount: expected float32, as the trajectory spec says, got {step_spec[DISCOUNT].dtype.name}; "
            "cast it with a map over the steps"
        )


def _policy_spec(step_spec: Any, policy_info_fn: PolicyInfoFn) -> Any:
    """The spec of policy_info, from a trace of the function; () without one."""
    if policy_info_fn is None:
        return ()
    traced = tf.function(_as_tensors(policy_info_fn)).get_concrete_function(step_spec, step_spec)
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs)


def _as_tensors(policy_info_fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    function = tf.autograph.experimental.do_not_convert(tf.nest.map_structure)
    return lambda current, following: function(tf.convert_to_tensor, policy_info_fn(current, following))


def _check_signature(rlds_data: tf.data.Dataset, observer: Any, policy_info_fn: PolicyInfoFn) -> None:
    """Raises TF-Agents' ValueError unless the table takes the data's trajectories.

    A table without policy_info takes them too, as with TF-Agents: its items then have more columns than its signature.
    """
    found = observer.get_table_signature()
    if isinstance(observer, Target):
        wanted = with_window(_array_specs(create_trajectory_data_spec(rlds_data, policy_info_fn)), _rows(observer.view))
        lines = ["the table has no signature"] if found is None else differences(wanted, found)
    elif found == tensor_spec.add_outer_dim(create_trajectory_data_spec(rlds_data)):
        lines = []
    else:
        lines = _observer_differences(rlds_data, found, policy_info_fn)
    if lines:
        raise ValueError(_SPEC_MISMATCH) from SpecMismatch("table", lines)


def _observer_differences(rlds_data: tf.data.Dataset, found: Any, policy_info_fn: PolicyInfoFn) -> list[str]:
    """Why a signature that is not TF-Agents' own does not fit; [] if it differs by the right policy_info only."""
    if found is None:
        return ["the table has no signature"]
    with_info = getattr(found, POLICY_INFO, ()) != ()
    spec = create_trajectory_data_spec(rlds_data, policy_info_fn if with_info else None)
    lines = differences(_array_specs(tensor_spec.add_outer_dim(spec)), _array_specs(found))
    return lines if lines or with_info else ["the specs differ in their names or bounds, which TF-Agents compares"]


def _array_specs(nest: Any) -> Any:
    return map_leaves(lambda leaf: array_spec(leaf, "trajectory"), nest)


def _rows(view: Any) -> int | None:
    return view.length if isinstance(view, Sequence) else None


# Conversion, in the graph.


def _pairs(steps: tf.data.Dataset, block_steps: int) -> tf.data.Dataset:
    """A dataset of steps -> (current, following) columns [n, ...] of adjacent steps, the last followed by padding."""
    spec = steps.element_spec
    blocks = steps.batch(block_steps).map(lambda block: (block, False))
    end = tf.data.Dataset.from_tensors((_zeros(spec, (0,)), True))
    initial = (False, _zeros(spec, ()))

    def step(state: Any, element: Any) -> Any:
        (seen, last), (block, is_end) = state, element
        rows = tf.cond(
            is_end,
            lambda: _stack_rows(last, seen, _padding_step(last)),
            lambda: _stack_rows(last, seen, block),
        )
        following = tf.nest.map_structure(lambda column: column[1:], rows)
        current = tf.nest.map_structure(lambda column: column[:-1], rows)
        return (True, tf.nest.map_structure(lambda column: column[-1], rows)), (current, following)

    return blocks.concatenate(end).scan(initial, step)


def _zeros(spec: Any, leading: tuple[int, ...]) -> Any:
    return tf.nest.map_structure(
        lambda leaf: tf.zeros((*leading, *(size or 0 for size in leaf.shape)), leaf.dtype), spec
    )


def _stack_rows(last: Any, seen: tf.Tensor, rows: Any) -> Any:
    """The rows, with the last row before them in front if there was one."""
    count = tf.cast(seen, tf.int32)
    return tf.nest.map_structure(lambda row, column: tf.concat((row[tf.newaxis][:count], column), 0), last, rows)


def _padding_step(like: Any) -> Any:
    zeros = tf.nest.map_structure(lambda row: tf.zeros_like(row)[tf.newaxis], like)
    return {**zeros, IS_FIRST: tf.ones((1,), tf.bool)}


def _to_trajectories(current: Any, following: Any, policy_info_fn: PolicyInfoFn, info_spec: Any) -> Any:
    """Columns [n, ...] of steps and of the steps after them -> a Trajectory with leading axis n."""
    with tf.control_dependencies([_assert_valid(current, following)]):
        kind, next_kind = _step_types(current), _step_types(following)
    alone = (kind == ts.StepType.FIRST) & (next_kind == ts.StepType.FIRST)
    ended = current[IS_LAST] & current[IS_TERMINAL]
    return trajectory.Trajectory(
        step_type=tf.where(alone, ts.StepType.LAST, kind),
        observation=current[OBSERVATION],
        action=current[ACTION],
        policy_info=_policy_info(current, following, policy_info_fn, info_spec),
        next_step_type=tf.where(alone, ts.StepType.LAST, next_kind),
        reward=current[REWARD],
        discount=tf.where(ended, tf.zeros_like(current[DISCOUNT]), current[DISCOUNT]),
    )


def _step_types(steps: Any) -> tf.Tensor:
    last_or_mid = tf.where(steps[IS_LAST], ts.StepType.LAST, ts.StepType.MID)
    return tf.where(steps[IS_FIRST], ts.StepType.FIRST, last_or_mid)


def _assert_valid(current: Any, following: Any) -> tf.Operation:
    """Fails with TF-Agents' text for the first pair that breaks a rule."""
    first, last, next_first = current[IS_FIRST], current[IS_LAST], following[IS_FIRST]
    broken = tf.stack((current[IS_TERMINAL] & ~last, ~last & ~first & next_first, last & ~next_first), axis=1)
    flat = tf.reshape(broken, [-1])  # pair by pair, rule by rule
    rule = tf.argmax(tf.concat((flat, [True]), 0), output_type=tf.int32) % len(MESSAGES)
    return tf.debugging.Assert(~tf.reduce_any(flat), [tf.gather(tf.constant(MESSAGES), rule)])


def _policy_info(current: Any, following: Any, policy_info_fn: PolicyInfoFn, info_spec: Any) -> Any:
    """policy_info of [n] pairs: the function is called for each, inside the graph."""
    if policy_info_fn is None:
        return ()
    function = _as_tensors(policy_info_fn)
    if not tf.nest.flatten(info_spec):
        return info_spec
    return tf.map_fn(lambda pair: function(*pair), (current, following), fn_output_signature=info_spec)


# Pushing.


def _view_of(observer: Any) -> Sequence | WholeEpisode | None:
    """The view that stores what the observer stores, or None for an observer of another kind."""
    if type(observer) is reverb_utils.ReverbAddTrajectoryObserver:
        observer._get_writer()  # TF-Agents' error when it is closed
        return Sequence(
            observer._sequence_length,
            observer._stride_length,
            observer._pad_end_of_episodes,
            observer._tile_end_of_episodes,
            float(observer._priority),
        )
    if type(observer) is reverb_utils.ReverbAddEpisodeObserver:
        observer._get_writer()
        return WholeEpisode(observer._max_sequence_length, observer._bypass_partial_episodes, float(observer._priority))
    return None


def _push_by_call(rlds_data: tf.data.Dataset, observer: Any, policy_info_fn: PolicyInfoFn) -> int:
    count = 0
    for entry in convert_rlds_to_trajectories(rlds_data, policy_info_fn):
        observer(entry)
        count += 1
    if hasattr(observer, "flush"):
        observer.flush()
    return count


def _push(rlds_data: tf.data.Dataset, target: Target, policy_info_fn: PolicyInfoFn) -> int:
    client, view = target.client, target.view
    if not isinstance(view, (Sequence, WholeEpisode)):
        raise ViewError(f"view {view.label}: push_rlds_to_reverb takes two_step, sequence or episode; use client.push")
    order = _column_order(rlds_data, policy_info_fn)
    encoder = EpisodeEncoder(target.tables, secrets.randbits(64))
    builder = RequestBuilder(RequestLimits())
    steps = items = 0
    with Sender(client.channel, target.tables, client.server_info()) as sender:
        try:
            for number, rows in enumerate(_checked_segments(rlds_data, policy_info_fn)):
                cut = _cut(view, rows).in_order(order)
                steps += len(next(iter(rows.values())))
                items += len(cut.anchors) * len(target.tables)
                if len(cut.anchors):
                    for request in builder.add(encoder.encode(str(number), cut)):
                        sender.send(request)
        finally:
            _drain(builder, sender)
    _log.info("Successfully wrote %d steps to Reverb, as %d items.", steps, items)
    return steps


def _drain(builder: RequestBuilder, sender: Sender) -> None:
    for request in builder.flush():
        sender.send(request)
    sender.drain()


def _cut(view: Sequence | WholeEpisode, rows: Rows) -> Any:
    try:
        cut = view.cut_rows(rows)
    except ViewError as error:
        raise ValueError(_TOO_LONG) from error
    if not len(cut.anchors) and isinstance(view, WholeEpisode):
        _log.error("An episode of %d steps exceeds `max_sequence_length` and was not stored.", cut.row_count)
    return cut


def _column_order(rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn) -> list[str]:
    return list(flatten(create_trajectory_data_spec(rlds_data, policy_info_fn)))


def _checked_segments(rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn) -> Iterator[Rows]:
    """Trajectory rows, one boundary each; TF-Agents' error for bad data."""
    episodes = rlds_data.map(lambda episode: batch_steps(episode[STEPS])).prefetch(1).as_numpy_iterator()
    columns = _with_policy_info(episodes, _step_spec(rlds_data), policy_info_fn)
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
        yield from map(flatten, episodes)
        return
    info_spec = _policy_spec(step_spec, policy_info_fn)
    compute = tf.function(
        lambda current, following: _policy_info(current, following, policy_info_fn, info_spec), reduce_retracing=True
    )
    for steps, following in _with_following(episodes):
        info = tf.nest.map_structure(lambda tensor: tensor.numpy(), compute(steps, following))
        yield {**flatten(steps), **flatten(info, POLICY_INFO)}


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
