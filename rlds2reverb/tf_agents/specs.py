"""Checks and specs of TF-Agents' functions: steps, policy_info, trajectories, and the signature of their table.

Source: `tf_agents.replay_buffers.rlds_to_reverb`, tf-agents 0.19.0; the texts of errors are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from rlds2reverb.client import Target
from rlds2reverb.episode import ACTION, DISCOUNT, OBSERVATION, REWARD, STEP_FIELDS, Episode
from rlds2reverb.errors import SpecError, SpecMismatch
from rlds2reverb.formats import load
from rlds2reverb.formats.rlds import STEPS, array_spec
from rlds2reverb.formats.source import Source
from rlds2reverb.push.tables import check_tables
from rlds2reverb.specs import differences, flatten, map_leaves
from rlds2reverb.tf_agents.observers import item_rows
from rlds2reverb.views.trajectory import FIELDS, POLICY_INFO, AcrossEpisodes, SequenceView, with_window

_RIGHT_SIGNATURE = (
    "create the table with signature=tensor_spec.add_outer_dim(create_trajectory_data_spec(rlds_data, policy_info_fn)), "
    "or by the config that `rlds2reverb inspect SOURCE --server-config` prints"
)

_SPEC_MISMATCH = "Replay buffer table signature spec should match RLDS data spec."


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


def data_spec(signature: Any) -> trajectory.Trajectory:
    """The `data_spec` or `collect_data_spec` of TF-Agents' buffers and agents: a row of a table of trajectories.

    Args:
      signature: the table's, as `client.server_info()` has it; extras are its policy_info.

    Returns:
      A Trajectory of `tf.TensorSpec`, without outer dimension.

    Raises:
      SpecError: the table holds no trajectories.
    """
    if getattr(signature, "_fields", ()) != FIELDS:
        raise SpecError(f"expected the signature of a table of trajectories ({', '.join(FIELDS)}), got {signature!r}")
    return trajectory.Trajectory(
        *map_leaves(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype, leaf.name or None), tuple(signature))
    )


def check_discount(step_spec: Any) -> None:
    """Raises TypeError unless the discount is float32, as in the trajectory spec."""
    if step_spec[DISCOUNT].dtype != tf.float32:
        raise TypeError(
            f"RLDS discount: expected float32, as the trajectory spec says, got {step_spec[DISCOUNT].dtype.name}; "
            "cast it with a map over the steps"
        )


def check_signature(spec: Any, observer: Any) -> None:
    """Raises TF-Agents' ValueError unless the observer's table takes such trajectories, leaf by leaf; see `specs.differences`.

    A table whose sizes are fixed takes items of as many rows. A table without policy_info also takes items with it, as with TF-Agents:
    they then have more columns than its signature. A target names its view, so it is refused by a table that was made for
    another view; an observer has no view, and is not asked for one.
    """
    signature = observer.get_table_signature()
    if signature is not None and isinstance(observer, Target):
        view = observer.output.view
        rows = view.length if isinstance(view, (SequenceView, AcrossEpisodes)) else None
        items = with_window(_array_specs(spec), rows)
        try:
            check_tables(observer.output, items, observer.client.server_info(), observer.allow_other_views)
        except SpecMismatch as error:
            raise ValueError(_SPEC_MISMATCH) from error
    elif lines := _misfits(spec, observer, signature):
        raise ValueError(_SPEC_MISMATCH) from SpecMismatch("table", lines, _RIGHT_SIGNATURE)


def _misfits(spec: Any, observer: Any, signature_found: Any) -> list[str]:
    if signature_found is None:
        return ["the table has no signature"]
    bare = spec._replace(policy_info=())
    if signature_found == tensor_spec.add_outer_dim(bare):
        return []
    with_info = bool(tf.nest.flatten(getattr(signature_found, POLICY_INFO, ())))
    signature = _array_specs(signature_found)
    is_free = all(leaf.shape[:1] == (None,) for leaf in flatten(signature).values())
    rows = None if is_free else item_rows(observer)
    return differences(with_window(_array_specs(spec if with_info else bare), rows), signature)


def _array_specs(nest: Any) -> Any:
    return map_leaves(lambda leaf: array_spec(leaf, "trajectory"), nest)


PolicyInfoFn = Optional[Callable[[Any, Any], Any]]
"""(current_step, next_step) -> policy_info, or None."""


@dataclass(frozen=True)
class PolicyInfo:
    """policy_info by a function of two steps.

    Attributes:
      function: (current_step, next_step) -> a nest of tensors, as a graph; None without a function.
      spec: of its result; () without a function.
    """

    function: Callable[[Any, Any], Any] | None = None
    spec: Any = ()

    @classmethod
    def traced(cls, policy_info_fn: PolicyInfoFn, step_spec: Any) -> PolicyInfo:
        """Calls the function once, with symbolic steps of this spec."""
        if policy_info_fn is None:
            return cls()
        mapped = tf.autograph.experimental.do_not_convert(tf.nest.map_structure)

        def as_tensors(current: Any, following: Any) -> Any:
            return mapped(tf.convert_to_tensor, policy_info_fn(current, following))

        traced = tf.function(as_tensors).get_concrete_function(step_spec, step_spec)
        return cls(traced, tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs))

    def of_pairs(self, current: Any, following: Any) -> Any:
        """policy_info of [n] pairs of steps; calls the function for each, inside the graph."""
        function = self.function
        if function is None or not tf.nest.flatten(self.spec):
            return self.spec
        return tf.map_fn(lambda pair: function(*pair), (current, following), fn_output_signature=self.spec)


RldsData = Union[tf.data.Dataset, str, Sequence[Episode], Source]
"""A dataset of RLDS episodes, or another argument of `open_source`."""


def as_dataset(rlds_data: RldsData) -> tf.data.Dataset:
    """A dataset of episodes, each with a dataset of steps. Any other `tf.data.Dataset` is left to TF-Agents' own checks.

    Raises:
      SourceError: as `open_source`.
    """
    spec = getattr(rlds_data, "element_spec", None)
    if spec is None:
        return load(rlds_data)
    has_columns = isinstance(spec, Mapping) and isinstance(spec.get(STEPS), Mapping)
    return load(rlds_data) if has_columns else rlds_data


@dataclass(frozen=True)
class TrajectoryPlan:
    """Data and the specs of its trajectories.

    Attributes:
      data: a dataset of RLDS episodes.
      step_spec: of its steps.
      policy_info: the user's function, traced.
      spec: of the trajectories: a Trajectory of `tf.TensorSpec`, without outer dimension.
    """

    data: tf.data.Dataset
    step_spec: Any
    policy_info: PolicyInfo
    spec: trajectory.Trajectory

    @property
    def column_order(self) -> list[str]:
        """Paths of a trajectory's columns, in the order of a table."""
        return list(flatten(self.spec))


def plan_of(rlds_data: RldsData, policy_info_fn: PolicyInfoFn) -> TrajectoryPlan:
    """Opens the data, and traces the function; reads no episode. Raises as `create_trajectory_data_spec`."""
    data = as_dataset(rlds_data)
    step_spec = step_spec_of(data)
    policy_info = PolicyInfo.traced(policy_info_fn, step_spec)
    time_step_spec = ts.time_step_spec(step_spec[OBSERVATION], step_spec[REWARD])
    action_spec = policy_step.PolicyStep(step_spec[ACTION], info=policy_info.spec)
    spec = trajectory.from_transition(time_step_spec, action_spec, time_step_spec)
    return TrajectoryPlan(data, step_spec, policy_info, spec)


def create_trajectory_data_spec(rlds_data: RldsData, policy_info_fn: PolicyInfoFn = None) -> trajectory.Trajectory:
    """The spec of the trajectories of `rlds_data`, for the table's signature and the replay buffer.

    Args:
      rlds_data: a dataset of RLDS episodes, each with a dataset of steps (or their columns); or another argument of
        `open_source`: "bundled:cartpole", "tfds:NAME@SPLIT", a list of `Episode`. A step has the seven RLDS fields.
      policy_info_fn: as for `push_rlds_to_reverb`; with it, the spec has its policy_info (an extension).

    Returns:
      A Trajectory of `tf.TensorSpec`, without outer dimension. The discount is a bounded float32 in [0, 1].

    Raises:
      ValueError: the data has no RLDS steps, or they lack one of the seven fields.
      SourceError: a name or list that `open_source` refuses, or that has no steps.
    """
    return plan_of(rlds_data, policy_info_fn).spec
