"""RLDS element spec -> trajectory data spec, and what keeps a table from taking it.

Source: `tf_agents.replay_buffers.rlds_to_reverb`, tf-agents 0.19.0; the texts of errors are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from rlds2reverb.client import Target
from rlds2reverb.episodes import ACTION, DISCOUNT, OBSERVATION, REWARD, STEP_FIELDS
from rlds2reverb.errors import SpecMismatch
from rlds2reverb.sources.rlds import STEPS, array_spec
from rlds2reverb.specs import differences, map_leaves
from rlds2reverb.views.across import AcrossEpisodes
from rlds2reverb.views.sequence import Sequence
from rlds2reverb.views.trajectory import POLICY_INFO, with_window

PolicyInfoFn = Optional[Callable[[Any, Any], Any]]
"""(current_step, next_step) -> policy_info, or None."""

_SPEC_MISMATCH = "Replay buffer table signature spec should match RLDS data spec."


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
    step_spec = step_spec_of(rlds_data)
    time_step_spec = ts.time_step_spec(step_spec[OBSERVATION], step_spec[REWARD])
    action_spec = policy_step.PolicyStep(step_spec[ACTION], info=policy_spec(step_spec, policy_info_fn))
    return trajectory.from_transition(time_step_spec, action_spec, time_step_spec)


def step_spec_of(rlds_data: tf.data.Dataset) -> Any:
    """The element spec of a step, checked with TF-Agents' texts."""
    if STEPS not in rlds_data.element_spec:
        raise ValueError(f"No dataset representing RLDS {STEPS} exist in the data.")
    step_spec = rlds_data.flat_map(lambda episode: episode[STEPS]).element_spec
    if not all(name in step_spec for name in STEP_FIELDS):
        raise ValueError(
            f"Invalid RLDS step spec. Features expected are {list(STEP_FIELDS)}, but found {list(step_spec.keys())}"
        )
    return step_spec


def check_discount(step_spec: Any) -> None:
    """Raises TypeError unless the discount is float32, as the trajectory spec says it is."""
    if step_spec[DISCOUNT].dtype != tf.float32:
        raise TypeError(
            f"RLDS discount: expected float32, as the trajectory spec says, got {step_spec[DISCOUNT].dtype.name}; "
            "cast it with a map over the steps"
        )


def policy_spec(step_spec: Any, policy_info_fn: PolicyInfoFn) -> Any:
    """The spec of policy_info, from a trace of the function; () without one."""
    if policy_info_fn is None:
        return ()
    traced = tf.function(as_tensors(policy_info_fn)).get_concrete_function(step_spec, step_spec)
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs)


def as_tensors(policy_info_fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same function with every leaf of its result as a tensor."""
    function = tf.autograph.experimental.do_not_convert(tf.nest.map_structure)
    return lambda current, following: function(tf.convert_to_tensor, policy_info_fn(current, following))


def check_signature(rlds_data: tf.data.Dataset, observer: Any, policy_info_fn: PolicyInfoFn) -> None:
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
    return view.length if isinstance(view, (Sequence, AcrossEpisodes)) else None
