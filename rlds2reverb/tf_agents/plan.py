"""What the three functions find out about their data: once per call, and handed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import ACTION, OBSERVATION, REWARD
from rlds2reverb.specs import flatten
from rlds2reverb.tf_agents.data import RldsData, as_dataset
from rlds2reverb.tf_agents.policy_info import PolicyInfo, PolicyInfoFn
from rlds2reverb.tf_agents.specs import step_spec_of


@dataclass(frozen=True)
class TrajectoryPlan:
    """How data becomes trajectories.

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
        """Paths of a trajectory's columns, as a table has them."""
        return list(flatten(self.spec))


def plan_of(rlds_data: RldsData, policy_info_fn: PolicyInfoFn) -> TrajectoryPlan:
    """Opens the data, looks at its steps, and traces the function; no episode is read.

    Raises:
      ValueError, SourceError: as `create_trajectory_data_spec`.
    """
    data = as_dataset(rlds_data)
    step_spec = step_spec_of(data)
    policy_info = PolicyInfo.traced(policy_info_fn, step_spec)
    time_step_spec = ts.time_step_spec(step_spec[OBSERVATION], step_spec[REWARD])
    action_spec = policy_step.PolicyStep(step_spec[ACTION], info=policy_info.spec)
    spec = trajectory.from_transition(time_step_spec, action_spec, time_step_spec)
    return TrajectoryPlan(data, step_spec, policy_info, spec)


def create_trajectory_data_spec(rlds_data: RldsData, policy_info_fn: PolicyInfoFn = None) -> trajectory.Trajectory:
    """The spec of the trajectories that `rlds_data` gives; what the table's signature and the replay buffer need.

    Args:
      rlds_data: a dataset of RLDS episodes, each with a dataset of steps (or their columns); or anything else that
        `open_source` takes: "bundled:cartpole", "tfds:NAME@SPLIT", a list of `Episode`. A step has the seven RLDS fields.
      policy_info_fn: as for `push_rlds_to_reverb`; with it, the spec has its policy_info (an extension).

    Returns:
      A Trajectory of `tf.TensorSpec`, without outer dimension. The discount is a bounded float32 in [0, 1].

    Raises:
      ValueError: there are no RLDS steps in the data, or they lack one of the seven fields.
      SourceError: a name or list that `open_source` refuses, or that has no steps.
    """
    return plan_of(rlds_data, policy_info_fn).spec
