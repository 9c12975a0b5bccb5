"""What an EnvRunner of RLlib costs with the callback that writes its episodes into a table, against the same EnvRunner without it.

Both are in one process, in the Python of RLlib (of `make setup-learners`), with the same policy (PPO's own), and sample CartPole-v1 in turn: episodes of
some 20 steps, where an episode costs the most. The server is a process of its own. `fragments_of_200` and `fragments_of_1` are steps between two calls
of the callback. Ours ends when the server has confirmed every finished episode.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from replay_server import TableConfig

from benchmarks.children import Child, learners_environment, python_with
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison
from benchmarks.servers import BenchServer
from rlds2reverb import local

FULL = Size(items=4_000, reference_items=4_000, repeats=11)
SHORT = Size(items=1_000, reference_items=1_000, repeats=2)

WRITING, PLAIN = "with the callback", "without"
GOAL = Goal(0.95, fails_at=0.5)
TABLE = "replay"
MAX_ITEMS = 1_000_000


def run(size: Size) -> Iterator[Result]:
    """Rates in steps of the environment a second; `Size` counts them."""
    python = python_with("RLlib", "learners")
    if python is None:
        return
    with local("bundled:cartpole", "transition") as prepared:
        signature = prepared.signature
    with BenchServer([TableConfig(TABLE, signature, max_size=MAX_ITEMS)]) as server:
        for fragment in (200, 1):
            description = {"address": server.address, "table": TABLE, "fragment": fragment}
            with Child(python, "benchmarks.rllib_runners", learners_environment(), description) as child:
                server.empty(TABLE)
                told: dict[str, Any] = {}

                def sample(name: str, steps: int, child: Child = child, told: dict[str, Any] = told) -> Run:
                    told[name] = answer = child.ask({"steps": steps, "writes": name == WRITING})
                    return Run(answer["steps"], answer["seconds"], answer["processor_seconds"])

                sizes = {WRITING: size.items, PLAIN: size.reference_items}
                sides = [Side(name, partial(sample, name), steps) for name, steps in sizes.items()]
                runs = alternate(sides, size.repeats)
                server.expect(TABLE, told[WRITING]["stored_steps"])
            yield comparison(
                f"rllib/fragments_of_{fragment}", runs, WRITING, PLAIN, "steps/s", GOAL, environment="CartPole-v1"
            )
