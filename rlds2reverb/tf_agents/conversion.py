"""RLDS data -> a dataset of trajectories, in the graph, by the block instead of by the step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import ACTION, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD
from rlds2reverb.sources.rlds import STEPS
from rlds2reverb.step_stream import MESSAGES
from rlds2reverb.tf_agents.specs import PolicyInfoFn, as_tensors, check_discount, policy_spec, step_spec_of

_BLOCK_STEPS = 1024
"""Steps that are turned into trajectories at once; episodes and blocks need not end together."""


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
    step_spec = step_spec_of(rlds_data)
    check_discount(step_spec)
    info_spec = policy_spec(step_spec, policy_info_fn)
    # Batched within the episode first: that is cheaper than to flatten step by step.
    blocks = rlds_data.flat_map(lambda episode: episode[STEPS].batch(_BLOCK_STEPS)).rebatch(_BLOCK_STEPS)
    pairs = _pairs(blocks.prefetch(1), step_spec)
    rows = pairs.map(lambda current, following: _to_trajectories(current, following, policy_info_fn, info_spec))
    rows = rows.prefetch(1)
    return rows.unbatch() if batch_size is None else rows.rebatch(batch_size)


def _pairs(blocks: tf.data.Dataset, spec: Any) -> tf.data.Dataset:
    """Blocks of steps [b, ...] -> (current, following) columns [n, ...] of adjacent steps, the last followed by padding."""
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

    return blocks.map(lambda block: (block, False)).concatenate(end).scan(initial, step)


def _zeros(spec: Any, leading: tuple[int, ...]) -> Any:
    return tf.nest.map_structure(
        lambda leaf: tf.zeros((*leading, *(size or 0 for size in leaf.shape)), leaf.dtype), spec
    )


def _stack_rows(last: Any, seen: tf.Tensor, rows: Any) -> Any:
    """The rows, with the last row before them in front if there was one."""

    def joined() -> Any:
        return tf.nest.map_structure(lambda row, column: tf.concat((row[tf.newaxis], column), 0), last, rows)

    return tf.cond(seen, joined, lambda: rows)  # `last` has no size yet where the spec leaves one free


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
        policy_info=policy_info(current, following, policy_info_fn, info_spec),
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


def policy_info(current: Any, following: Any, policy_info_fn: PolicyInfoFn, info_spec: Any) -> Any:
    """policy_info of [n] pairs: the function is called for each, inside the graph."""
    if policy_info_fn is None:
        return ()
    function = as_tensors(policy_info_fn)
    if not tf.nest.flatten(info_spec):
        return info_spec
    return tf.map_fn(lambda pair: function(*pair), (current, following), fn_output_signature=info_spec)
