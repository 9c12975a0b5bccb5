"""Offline DQN with TF-Agents: double Q-learning that mistrusts what the data did not try (CQL); see dqn_torch.py for why.

python examples/learners/dqn_tf_agents.py --server localhost:8000 --table cartpole --plot dqn.png
"""

from typing import Any

import numpy as np
import tensorflow as tf
from bc_tf_agents import ACTION, OBSERVATION
from cartpole import Run
from tf_agents.agents.dqn.dqn_agent import DdqnAgent
from tf_agents.networks.q_network import QNetwork
from tf_agents.trajectories import restart, time_step_spec, trajectory

from rlds2reverb.adapters.tf_agents import as_trajectory_dataset

BATCH_SIZE = 64
CONSERVATIVE = 1.0


class ConservativeAgent(DdqnAgent):
    """Values what the data did above what it did not do."""

    def _loss(self, experience: trajectory.Trajectory, *arguments: Any, **options: Any) -> Any:
        told = super()._loss(experience, *arguments, **options)
        values, _ = self._q_network(experience.observation[:, 0], training=True)  # [B, 2], one for each action
        mistrust = tf.nn.sparse_softmax_cross_entropy_with_logits(experience.action[:, 0], values)
        return told._replace(loss=told.loss + CONSERVATIVE * tf.reduce_mean(mistrust))


def main() -> None:
    run = Run(__doc__, steps=1_000)
    tf.random.set_seed(run.seed)
    agent = ConservativeAgent(
        time_step_spec(OBSERVATION),
        ACTION,
        q_network=QNetwork(OBSERVATION, ACTION, fc_layer_params=(64, 64)),
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
        gamma=0.95,  # so no value is over 20, and the data's choices weigh something beside it
        target_update_tau=0.01,
    )
    agent.initialize()
    train = tf.function(agent.train, reduce_retracing=True)
    act = tf.function(lambda observations: agent.policy.action(restart(observations, len(observations))).action)

    def policy(observations: np.ndarray) -> np.ndarray:
        return act(tf.constant(observations)).numpy()

    dataset = as_trajectory_dataset(
        run.server, run.table, BATCH_SIZE, sequence_length=2, samples=run.steps * BATCH_SIZE, timeout_seconds=60
    )
    for experience, _ in run.watched(dataset, policy):  # each row is two steps: [64, 2, ...]
        train(experience)
    run.report(policy)


if __name__ == "__main__":
    main()
