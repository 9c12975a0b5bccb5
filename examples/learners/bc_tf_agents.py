"""Behavioural cloning with TF-Agents: in each state, the action that the data took.

python examples/learners/bc_tf_agents.py --server localhost:8000 --table cartpole --plot bc.png
"""

import numpy as np
import tensorflow as tf
from cartpole import Run
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.networks.q_network import QNetwork
from tf_agents.specs import BoundedTensorSpec
from tf_agents.trajectories import restart, time_step_spec

from rlds2reverb.adapters.tf_agents import as_trajectory_dataset

BATCH_SIZE = 64
OBSERVATION = tf.TensorSpec((4,), tf.float32)
ACTION = BoundedTensorSpec((), tf.int64, 0, 1)


def main() -> None:
    run = Run(__doc__, steps=1_000)
    tf.random.set_seed(run.seed)
    agent = BehavioralCloningAgent(
        time_step_spec(OBSERVATION),
        ACTION,
        cloning_network=QNetwork(OBSERVATION, ACTION, fc_layer_params=(64, 64)),
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
    )
    agent.initialize()
    train = tf.function(agent.train, reduce_retracing=True)
    act = tf.function(lambda observations: agent.policy.action(restart(observations, len(observations))).action)

    def policy(observations: np.ndarray) -> np.ndarray:
        return act(tf.constant(observations)).numpy()

    dataset = as_trajectory_dataset(
        run.server, run.table, BATCH_SIZE, sequence_length=2, samples=run.steps * BATCH_SIZE, timeout_seconds=60
    )
    for experience, _ in run.watched(dataset, policy):
        # A row of the batch is two steps: [64, 2, ...]. The first has the action that was taken.
        train(tf.nest.map_structure(lambda column: column[:, 0], experience))
    run.report(policy)


if __name__ == "__main__":
    main()
