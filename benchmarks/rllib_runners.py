"""Two EnvRunners of RLlib, with and without our callback, in a process in RLlib's Python: `python -m benchmarks.rllib_runners DESCRIPTION`.

DESCRIPTION is JSON: {"address": of our server, "table", "fragment": steps of a call of `sample`}.
Each line of the input is JSON, too: {"steps": at least so many, "writes": which of the two}; the answer is {"steps", "seconds", "processor_seconds",
"stored_steps": of all runs}. It comes when the server has confirmed the finished episodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rlds2reverb.adapters.rllib_writing import flush_episodes, table_callbacks


def make_runner(fragment: int, callbacks: type[RLlibCallback] = RLlibCallback) -> SingleAgentEnvRunner:
    """An EnvRunner as PPO makes it; RLlib's own callbacks do nothing."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, rollout_fragment_length=fragment)
        .callbacks(callbacks)
        .debugging(seed=0)
    )
    return SingleAgentEnvRunner(config=config)


def measure(runner: SingleAgentEnvRunner, fragment: int, steps: int) -> dict[str, Any]:
    """Samples; with the callback, waits in the end until what it was given is stored."""
    began = time.perf_counter(), time.process_time()
    done = 0
    while done < steps:
        runner.sample()
        done += fragment
    account = flush_episodes()
    if account.waiting or account.dropped or account.bad:
        raise RuntimeError(f"not everything was stored: {account}")
    return {
        "steps": done,
        "seconds": time.perf_counter() - began[0],
        "processor_seconds": time.process_time() - began[1],
        "stored_steps": account.steps,
    }


def main(description: Mapping[str, Any]) -> None:
    """Serves lines."""
    fragment, answers = description["fragment"], os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    plain = make_runner(fragment)
    writing = make_runner(fragment, table_callbacks(description["address"], description["table"], "transition"))
    writing.module.set_state(plain.module.get_state())
    for line in sys.stdin:
        request = json.loads(line)
        answer = measure(writing if request["writes"] else plain, fragment, request["steps"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(json.loads(sys.argv[1]))
