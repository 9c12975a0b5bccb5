"""Plans follow from costs by arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cost_model import Costs
from benchmarks.scale_plans import Machine, plan_of
from tests.packaging.benchmarks.points import COSTS


def test_a_plan_has_as_many_servers_as_the_memory_asks_for() -> None:
    plan = plan_of(COSTS, 10**9, Machine(memory_bytes=128e9, cores=8, network_bytes=1e9))
    assert plan.steps_per_server == 101_900_000  # 0.8 of the memory, less an empty server; checkpoints have room
    assert plan.servers == 10
    assert plan.memory_bytes == pytest.approx(0.75e12 + 5e9)
    assert plan.saving_bytes == pytest.approx(0.25e12)
    assert plan.push_core_hours == pytest.approx(6_000 / 3600)
    assert plan.insert_core_hours == pytest.approx(4_000 / 3600)
    assert plan.checkpoint_hours == pytest.approx(0.5)
    assert plan.restore_hours == pytest.approx(0.1)
    assert plan.steps_per_second == pytest.approx(250_000)
    assert plan.samples_per_second == pytest.approx(100_000)


@pytest.mark.parametrize(
    ("costs", "bound", "seconds"),
    [
        (COSTS, "servers", 400),
        (replace(COSTS, push=80e-6), "pushers", 1_000),
        (replace(COSTS, sent=5e4), "network", 5_000),
    ],
)
def test_a_push_takes_what_its_slowest_part_takes(costs: Costs, bound: str, seconds: float) -> None:
    plan = plan_of(costs, 10**9, Machine(memory_bytes=128e9, cores=8, network_bytes=1e9))
    assert plan.bound == bound
    assert plan.push_hours == pytest.approx(seconds / 3600)


def test_a_machine_that_holds_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="too few for a server with one step"):
        plan_of(COSTS, 10, Machine(memory_bytes=6e8, cores=1, network_bytes=1e9))
