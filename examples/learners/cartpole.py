"""What the learners in this folder share: their options, the real CartPole, and a report that compares.

The data is `bundled:cartpole`: five episodes of a controller that balances until the time limit of 500 steps, twenty of random
actions. So its mean return is far below what can be learned from it, and far above a random policy's. A learner that scores
above the data has not found out anything new: it has found out which part of the data to follow. It is only good where
that part of the data has been: start the pole far from where the controller ever held it, and it falls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

import rlds2reverb

SOURCE = "bundled:cartpole"
EPISODES = 10
LOOKS = 5

Policy = Callable[[Any], Any]
"""[n, 4] float32 observations -> [n] actions."""


def returns(policy: Policy, episodes: int = EPISODES, first_seed: int = 1_000_000) -> Any:
    """[episodes] float64: what a policy earns in the real environment, from starts that no recording has."""
    environments = [gymnasium.make("CartPole-v1") for _ in range(episodes)]
    observations = np.stack(
        [environment.reset(seed=first_seed + number)[0] for number, environment in enumerate(environments)]
    )
    total, runs = np.zeros(episodes), np.ones(episodes, bool)
    while runs.any():
        actions = np.asarray(policy(observations))
        for number in np.flatnonzero(runs):
            observations[number], reward, ended, cut, _ = environments[number].step(int(actions[number]))
            total[number] += float(reward)
            runs[number] = not (ended or cut)
    return total


def random_policy() -> Policy:
    """Pushes left or right with equal chance, whatever it sees; the same in every run."""
    generator = np.random.default_rng(0)
    return lambda observations: generator.integers(2, size=len(observations))


def data_returns() -> Any:
    """[episodes] float64: what the recorded episodes earned."""
    return np.array([episode.columns["reward"].sum() for episode in rlds2reverb.open_source(SOURCE)])


class Run:
    """One run of a learner: its options, and what its policy earned on the way.

    Attributes:
      server, table, steps, seed: what the command line says.
    """

    def __init__(self, description: str | None, steps: int) -> None:
        parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
        parser.add_argument("--server", default="localhost:8000", help="address of the Reverb server")
        parser.add_argument("--table", default="cartpole", help=f"a table of {SOURCE} by the view two_step")
        parser.add_argument("--steps", type=int, default=steps, help="batches to learn from")
        parser.add_argument(
            "--seed", type=int, default=0, help="of the first weights; what is sampled is the server's choice"
        )
        parser.add_argument("--plot", help="file for a picture of it; needs matplotlib")
        options = parser.parse_args()
        self.name = parser.description or ""
        self.server, self.table, self.steps, self.seed = options.server, options.table, options.steps, options.seed
        self._plot: str | None = options.plot
        self._earned: dict[int, float] = {}

    def watched(self, batches: Iterable[Any], policy: Policy) -> Iterator[Any]:
        """The batches; looks now and then what the policy earns, which the learner never gets to see."""
        for number, batch in enumerate(batches, 1):
            yield batch
            if number % max(1, self.steps // LOOKS) == 0:
                self._earned[number] = float(returns(policy).mean())
                print(f"{number:6,} batches: return {self._earned[number]:5.1f}", flush=True)

    def report(self, policy: Policy) -> None:
        """Prints what the policy earns beside a random one and beside the data, and draws it where that is asked for."""
        learned, chance, data = returns(policy, 2 * EPISODES), returns(random_policy(), 100), data_returns()
        print(f"learned {learned.mean():.1f}   random policy {chance.mean():.1f}   mean of the data {data.mean():.1f}")
        print(
            f"lowest and highest of {len(learned)}: {learned.min():.0f}, {learned.max():.0f}; best of the data {data.max():.0f}"
        )
        if self._plot is not None:
            self._draw(self._plot, chance.mean(), data)

    def _draw(self, file: str, chance: float, data: Any) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(list(self._earned), list(self._earned.values()), marker="o", label=self.name)
        for value, label in (
            (data.max(), "best of the data"),
            (data.mean(), "mean of the data"),
            (chance, "random policy"),
        ):
            axes.axhline(value, linestyle=":", color="grey")
            axes.text(0, value, f" {label}", va="bottom")
        axes.set(xlabel="batches", ylabel="return in CartPole-v1", ylim=(0, 520), xlim=(0, None))
        axes.legend(loc="center right")
        figure.savefig(file)
        print(f"drawn in {file}")
