"""Behavioural cloning in JAX: in each state, the action that the data took.

python examples/learners/bc_jax.py --server localhost:8000 --table cartpole --plot bc.png
"""

import jax
import jax.numpy as jnp
import optax
from cartpole import Run

import rlds2reverb

BATCH_SIZE = 64
SIZES = ((4, 64), (64, 64), (64, 2))


def network(layers: list, rows: jax.Array) -> jax.Array:
    """[n, 4] observations -> [n, 2], how likely each action is."""
    *hidden, last = layers
    for weights, bias in hidden:
        rows = jax.nn.relu(rows @ weights + bias)
    return rows @ last[0] + last[1]


def main() -> None:
    run = Run(__doc__, steps=1_500)
    keys = jax.random.split(jax.random.key(run.seed), len(SIZES))
    layers = [
        (jax.nn.initializers.he_uniform()(key, size), jnp.zeros(size[1])) for key, size in zip(keys, SIZES, strict=True)
    ]
    optimizer = optax.adam(1e-3)
    state = optimizer.init(layers)
    act = jax.jit(lambda layers, observations: network(layers, observations).argmax(1))

    @jax.jit
    def update(layers: list, state: tuple, observation: jax.Array, action: jax.Array) -> tuple:
        def loss(layers: list) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(network(layers, observation), action).mean()

        changes, state = optimizer.update(jax.grad(loss)(layers), state)
        return optax.apply_updates(layers, changes), state

    with (
        rlds2reverb.connect(run.server, wait_seconds=60) as client,
        client.sample(run.table, BATCH_SIZE, samples=run.steps * BATCH_SIZE, timeout_seconds=60) as batches,
    ):
        for data, _ in run.watched(batches, lambda observations: act(layers, observations)):
            # A row of the batch is two steps: [64, 2, ...]. The first has the action that was taken.
            layers, state = update(layers, state, data.observation[:, 0], data.action[:, 0])
    run.report(lambda observations: act(layers, observations))


if __name__ == "__main__":
    main()
