"""Offline DQN in JAX: double Q-learning that mistrusts what the data did not try (CQL); see dqn_torch.py for why.

python examples/learners/dqn_jax.py --server localhost:8000 --table cartpole --plot dqn.png
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from bc_jax import network, new_layers
from cartpole import Run

import rlds2reverb

BATCH_SIZE = 64
DISCOUNT = 0.95  # so no value is over 20, and the data's choices weigh something beside it
CONSERVATIVE = 1.0


def main() -> None:
    run = Run(__doc__, steps=1_000)
    layers = target = new_layers(run.seed)
    optimizer = optax.adam(1e-3)
    state = optimizer.init(layers)
    act = jax.jit(lambda layers, observations: network(layers, observations).argmax(1))

    @jax.jit
    def update(layers: list, target: list, state: tuple, step: tuple) -> tuple:
        observation, action, reward, discount = step  # [64, 2, ...]: the step, and the one after it

        def loss(layers: list) -> jax.Array:
            values = network(layers, observation[:, 0])
            taken = jnp.take_along_axis(values, action[:, :1], 1)[:, 0]
            mistrust = jax.nn.logsumexp(values, 1) - taken
            return (optax.huber_loss(taken, wanted) + CONSERVATIVE * mistrust).mean()

        best = network(layers, observation[:, 1]).argmax(1, keepdims=True)
        following = jnp.take_along_axis(network(target, observation[:, 1]), best, 1)[:, 0]
        wanted = reward[:, 0] + DISCOUNT * discount[:, 0] * following  # discount is 0 where the pole fell
        changes, state = optimizer.update(jax.grad(loss)(layers), state)
        layers = optax.apply_updates(layers, changes)
        return layers, optax.incremental_update(layers, target, 0.01), state

    def policy(observations: np.ndarray) -> jax.Array:
        return act(layers, observations)

    with (
        rlds2reverb.connect(run.server, wait_seconds=60) as client,
        client.sample(run.table, BATCH_SIZE, samples=run.steps * BATCH_SIZE, timeout_seconds=60) as batches,
    ):
        for data, _ in run.watched(batches, policy):
            step = (data.observation, data.action, data.reward, data.discount)
            layers, target, state = update(layers, target, state, step)
    run.report(policy)


if __name__ == "__main__":
    main()
