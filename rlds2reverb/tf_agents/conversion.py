"""RLDS data -> a dataset of trajectories, in the graph, by the block instead of by the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episode import ACTION, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD
from rlds2reverb.formats.rlds import STEPS
from rlds2reverb.tf_agents.specs import PolicyInfo, PolicyInfoFn, RldsData, TrajectoryPlan, check_discount, plan_of
from rlds2reverb.tf_agents.step_stream import MESSAGES

_BLOCK_STEPS = 4096  # most steps that are converted at once; episodes and blocks need not end together
_BLOCK_BYTES = 4 << 20  # most bytes of a block, which large steps (images) make shorter; free sizes count as 1
_READ_AHEAD = 2  # blocks that each stage prefetches


def convert_rlds_to_trajectories(
    rlds_data: RldsData, policy_info_fn: PolicyInfoFn = None, *, batch_size: int | None = None
) -> tf.data.Dataset:
    """A dataset of trajectories, one per step, each made of a step and the one after it.

    The last step of the data is followed by a padding step of type FIRST.

    Args:
      rlds_data: as for `create_trajectory_data_spec`.
      policy_info_fn: (current_step, next_step) -> policy_info of the current step's trajectory.
      batch_size: trajectories per element, with a leading axis (an extension, and the fastest way, for data is
        converted by the block); None for one trajectory per element.

    Returns:
      A dataset of Trajectory; shapes and dtypes are those of `create_trajectory_data_spec`.

    Raises:
      ValueError, SourceError: as for `create_trajectory_data_spec`.
      TypeError: the discount is not float32.
      tf.errors.InvalidArgumentError: while iterating: an episode does not end in a last step, a terminal step is
        not the last, or a last step is not followed by a first step.
    """
    plan = plan_of(rlds_data, policy_info_fn)
    check_discount(plan.step_spec)
    rows = _blocks_of_trajectories(plan)
    return _one_by_one(rows) if batch_size is None else rows.rebatch(batch_size)


def trajectories_one_by_one(plan: TrajectoryPlan) -> tf.data.Dataset:
    """A dataset of single trajectories of data whose discount is checked."""
    return _one_by_one(_blocks_of_trajectories(plan))


def _blocks_of_trajectories(plan: TrajectoryPlan) -> tf.data.Dataset:
    step_bytes = sum(
        math.prod(size or 1 for size in leaf.shape) * leaf.dtype.size for leaf in tf.nest.flatten(plan.step_spec)
    )
    size = max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // max(1, step_bytes)))
    # Batching within the episode first is cheaper than flattening step by step.
    blocks = plan.data.flat_map(lambda episode: episode[STEPS].batch(size)).rebatch(size)

    def to_rows(current: Any, following: Any) -> trajectory.Trajectory:
        return _to_trajectories(current, following, plan.policy_info)

    return _map_pairs(blocks.prefetch(_READ_AHEAD), plan.step_spec, to_rows).prefetch(_READ_AHEAD)


def _one_by_one(rows: tf.data.Dataset) -> tf.data.Dataset:
    """Rows [n, ...] -> single rows.

    `unbatch` is cheaper, but ends the process with a segmentation fault at a row of size 0 (TensorFlow 2.15), which a
    free size may be.
    """
    sizes = [size for leaf in tf.nest.flatten(rows.element_spec) for size in leaf.shape[1:]]
    return rows.unbatch() if all(sizes) else rows.flat_map(tf.data.Dataset.from_tensor_slices)


def _map_pairs(blocks: tf.data.Dataset, spec: Any, function: Callable[[Any, Any], Any]) -> tf.data.Dataset:
    """Blocks of steps [b, ...] -> function(current, following) of the columns [n, ...] of adjacent steps.

    The last step of the data is followed by a padding step.
    """
    nothing = tf.nest.map_structure(lambda leaf: tf.zeros((0, *(n or 0 for n in leaf.shape)), leaf.dtype), spec)
    end = tf.data.Dataset.from_tensors((nothing, True))

    def step(held: Any, element: tuple[Any, tf.Tensor]) -> tuple[Any, Any]:
        block, is_end = element
        held, block = _shaped_like(held, block), _shaped_like(block, held)
        padding = _padding_steps(block, tf.cast(is_end, tf.int32))
        rows = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), held, block, padding)
        following = tf.nest.map_structure(lambda column: column[1:], rows)
        current = tf.nest.map_structure(lambda column: column[:-1], rows)
        return tf.nest.map_structure(lambda column: column[-1:], rows), function(current, following)

    # `held` is the last row so far: no row at the start, then one.
    return blocks.map(lambda block: (block, False)).concatenate(end).scan(nothing, step)


def _shaped_like(columns: Any, others: Any) -> Any:
    """Gives columns without rows the row shape of `others`: `nothing` has size 0 where the spec leaves a size free."""

    def fit(column: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        if column.shape[1:].is_fully_defined() and other.shape[1:].is_fully_defined():
            return column
        shape, other_shape = tf.shape(column), tf.shape(other)
        return tf.reshape(column, tf.concat((shape[:1], tf.where(shape[0] > 0, shape, other_shape)[1:]), 0))

    return tf.nest.map_structure(fit, columns, others)


def _padding_steps(like: Any, count: tf.Tensor) -> Any:
    def zeros(column: tf.Tensor) -> tf.Tensor:
        return tf.zeros(tf.concat(([count], tf.shape(column)[1:]), 0), column.dtype)

    return {**tf.nest.map_structure(zeros, like), IS_FIRST: tf.ones([count], tf.bool)}


def _to_trajectories(current: Any, following: Any, info: PolicyInfo) -> Any:
    """Columns [n, ...] of steps and of the steps after them -> a Trajectory with leading axis n."""
    with tf.control_dependencies([_assert_valid(current, following)]):
        kind, next_kind = _step_types(current), _step_types(following)
    alone = (kind == ts.StepType.FIRST) & (next_kind == ts.StepType.FIRST)
    ended = current[IS_LAST] & current[IS_TERMINAL]
    return trajectory.Trajectory(
        step_type=tf.where(alone, ts.StepType.LAST, kind),
        observation=current[OBSERVATION],
        action=current[ACTION],
        policy_info=info.of_pairs(current, following),
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
