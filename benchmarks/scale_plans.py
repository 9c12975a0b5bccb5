"""What a dataset takes, by the costs of a step: machines, memory, time. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.cost_model import Costs


@dataclass(frozen=True)
class Machine:
    """What a machine of the plan has.

    Attributes:
      memory_bytes, cores: of each.
      network_bytes: per second, in one direction.
      fill: part of the memory that may be used.
    """

    memory_bytes: float
    cores: int
    network_bytes: float
    fill: float = 0.8


@dataclass(frozen=True)
class Plan:
    """What a dataset takes.

    Attributes:
      servers: machines with one server each.
      memory_bytes, saving_bytes: of all servers, and what comes on top while they write checkpoints.
      steps_per_server: most that one holds.
      push_core_hours, insert_core_hours: processor time of the push.
      push_hours: until it is done, with one pushing machine for each server, whichever of their bounds is the slowest.
      bound: that one: "pushers", "servers" or "network".
      sent_bytes: over the network.
      checkpoint_bytes: of one generation of all servers.
      checkpoint_hours, restore_hours: of one server, by one core; disks are not counted.
      steps_per_second, samples_per_second: what one server takes, and what it serves, with one core.
    """

    servers: int
    memory_bytes: float
    saving_bytes: float
    steps_per_server: int
    push_core_hours: float
    insert_core_hours: float
    push_hours: float
    bound: str
    sent_bytes: float
    checkpoint_bytes: float
    checkpoint_hours: float
    restore_hours: float
    steps_per_second: float
    samples_per_second: float


def plan_of(costs: Costs, steps: int, machine: Machine) -> Plan:
    """The plan for so many steps, with room for checkpoints. A server inserts with one core: a table has one lock.

    Raises:
      ValueError: an empty server does not fit into the memory of a machine.
    """
    room = machine.memory_bytes * machine.fill - costs.empty_bytes
    needed = costs.memory + costs.saving
    if room < needed:
        raise ValueError(f"a machine has {machine.memory_bytes:g} bytes, too few for a server with one step")
    servers = math.ceil(steps * needed / room)
    each = steps / servers
    hours = {
        "pushers": each * costs.push / machine.cores / 3600,
        "servers": each * costs.insert / 3600,
        "network": each * costs.sent / machine.network_bytes / 3600,
    }
    bound = max(hours, key=lambda name: hours[name])
    return Plan(
        servers=servers,
        memory_bytes=steps * costs.memory + servers * costs.empty_bytes,
        saving_bytes=steps * costs.saving,
        steps_per_server=int(room / needed),
        push_core_hours=steps * costs.push / 3600,
        insert_core_hours=steps * costs.insert / 3600,
        push_hours=hours[bound],
        bound=bound,
        sent_bytes=steps * costs.sent,
        checkpoint_bytes=steps * costs.checkpoint_bytes,
        checkpoint_hours=each * costs.checkpoint / 3600,
        restore_hours=each * costs.restore / 3600,
        steps_per_second=1 / costs.insert,
        samples_per_second=1 / costs.serve,
    )
