"""The drop-in for `tf_agents.replay_buffers.rlds_to_reverb`: same names, signatures, specs, errors and texts.

Differences, all on purpose: nested observations and actions come out right (TF-Agents stacks both steps); a table whose
signature holds policy_info is accepted; everything is confirmed by the server before `push_rlds_to_reverb` returns; bad data
raises before any item of the bad episode is stored. Source: tf-agents 0.19.0, probed; see docs/tf_agents.md.
"""

from rlds2reverb.tf_agents.conversion import convert_rlds_to_trajectories
from rlds2reverb.tf_agents.push import push_rlds_to_reverb
from rlds2reverb.tf_agents.specs import create_trajectory_data_spec

__all__ = ["convert_rlds_to_trajectories", "create_trajectory_data_spec", "push_rlds_to_reverb"]
