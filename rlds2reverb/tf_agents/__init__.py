"""The drop-in for `tf_agents.replay_buffers.rlds_to_reverb`: same names, signatures, specs, errors and texts.

Intended differences:

- Nested observations and actions are correct; TF-Agents stacks both steps.
- A table is accepted when its signature fits, also with policy_info or a fixed number of rows.
- Data may be a name or a list of episodes.
- The server has confirmed everything before `push_rlds_to_reverb` returns.
- Bad data raises before any item of the bad episode is stored.

Source: tf-agents 0.19.0, probed; see docs/tf_agents.md.
"""

from rlds2reverb.tf_agents.conversion import convert_rlds_to_trajectories
from rlds2reverb.tf_agents.decoding import image_decoder
from rlds2reverb.tf_agents.push import push_rlds_to_reverb
from rlds2reverb.tf_agents.specs import create_trajectory_data_spec, data_spec

__all__ = [
    "convert_rlds_to_trajectories",
    "create_trajectory_data_spec",
    "data_spec",
    "image_decoder",
    "push_rlds_to_reverb",
]
