"""Behavioural cloning in JAX: in each state, the action that the data took.

python examples/learners/bc_jax.py --server localhost:8000 --table cartpole --plot bc.png
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cartpole import Run
from jax.nn.initializers import he_uniform

import rlds2reverb

BATCH_SIZE = 64
SIZES = ((4, 64), (64, 64), (64, 2))


def new_layers(seed: int) -> list:
    """Weights and biases, drawn."""
    keys = jax.random.split(jax.random.key(seed), len(SIZES))
    return [(he_uniform()(key, size), jnp.zeros(size[1])) for key, size in zip(keys, SIZES, strict=True)]


def network(layers: list, rows: jax.Array) -> jax.Array:
    """[n, 4] observations -> [n, 2], how likely each action is."""
    for number, (weights, bias) in enumerate(layers):
        rows = (jax.nn.relu(rows) if number else rows) @ weights + bias
    return rows


def main() -> None:
    run = Run(__doc__, steps=1_000)
    layers = new_layers(run.seed)
    optimizer = optax.adam(1e-3)
    state = optimizer.init(layers)

    @jax.jit
    def update(layers: list, state: tuple, observation: jax.Array, action: jax.Array) -> tuple:
        def loss(layers: list) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(network(layers, observation), action).mean()

        changes, state = optimizer.update(jax.grad(loss)(layers), state)
        return optax.apply_updates(layers, changes), state

    def policy(observations: np.ndarray) -> jax.Array:
        return jax.jit(network)(layers, observations).argmax(1)

    with (
        rlds2reverb.connect(run.server, wait_seconds=60) as client,
        client.sample(run.table, BATCH_SIZE, samples=run.steps * BATCH_SIZE, timeout_seconds=60) as batches,
    ):
        for data, _ in run.watched(batches, policy):  # rows of two steps; the first has the action
            layers, state = update(layers, state, data.observation[:, 0], data.action[:, 0])
    run.report(policy)


if __name__ == "__main__":
    main()
