"""One of two JAX processes that share batches; prints what it saw, as JSON. See test_jax.py."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import rlds2reverb
from rlds2reverb.adapters.jax import Placement, sample
from rlds2reverb.errors import ConfigError
from tests.support.raising import error_of


def main(coordinator: str, process: int, server: str, batch_size: int) -> dict[str, Any]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, num_processes=2, process_id=process)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))
    total = jax.jit(jnp.sum)
    totals, shapes, local = [], [], []
    with rlds2reverb.connect(server) as client:
        refused = error_of(ConfigError, lambda: sample(client, "one", 7))
        for batch in sample(client, "one", batch_size, Placement(sharding=sharding), samples=16):
            column = batch.data["observation"]
            totals.append(int(total(column)))
            shapes.append(list(column.shape))
            mine = [number for shard in column.addressable_shards for number in np.asarray(shard.data).tolist()]
            local.append(mine)
            assert len(batch.info.key) == len(mine)
    return {"totals": totals, "shapes": shapes, "local": local, "refused": str(refused)}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
