"""Record the bundled RLDS datasets from real simulators.

Steps Gymnasium environments in a `DataCollector`, which writes the episodes as a dataset of TFDS:

    python examples/record_datasets.py --output DIR [--only cartpole]

writes `DIR/<name>/1.0.0`. An episode of T transitions becomes T + 1 rows, in RLDS alignment:

    row         observation  action  reward  discount               is_first  is_last  is_terminal
    0 <= t < T  o_t          a_t     r_t     d_t                    t == 0    False    False
    T           o_T          0       0       0 if terminal, else 1  False     True     o_T is terminal

r_t and d_t are what a_t earned. d_t is 1, except d_(T-1) = 0 if o_T is terminal. An episode that ends
at the time limit of the environment is truncated: its last row is not terminal.

All randomness is a function of (dataset, episode index), so recording again with the same versions of
the simulators gives equal data.
"""

import argparse
import dataclasses
import importlib.metadata
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from rlds2reverb.adapters.gymnasium import DataCollector, StepDataCallback
from rlds2reverb.conversion.writer import DatasetWriter, dataset_writer
from rlds2reverb.formats.source import About

VERSION = "1.0.0"

Array = npt.NDArray[Any]

Policy = Callable[[int, Array], Any]
"""(step index, observation) -> action."""

CONTROL_PERIOD_SECONDS = 0.05  # HalfCheetah-v5: 5 simulation frames of 0.01 s per action
GAIT_HORIZON = 1_000  # actions; the time limit of HalfCheetah-v5
GAIT_FREQUENCY_HZ = 4.61
# One entry per joint: back thigh, shin, foot, front thigh, shin, foot. Units: torque as a share of the
# limit; phase in radians. Found by random search over open-loop gaits for a high return.
GAIT_AMPLITUDE = np.array([0.52, 1.0, 0.97, 0.96, 0.87, 0.67])
GAIT_PHASE = np.array([0.44, 2.17, 6.1, 4.06, 3.64, 4.22])
GAIT_OFFSET = np.array([0.08, 0.24, -0.14, -0.02, 0.26, -0.25])

# Feedback on (cart position, cart velocity, pole angle, pole angular velocity), SI units; the sign of the
# sum is the direction of the push.
BALANCE_GAINS = np.array([0.1, 0.2, 1.0, 0.5])
BALANCE_EVERY = 5  # each fifth CartPole episode is balanced, the others act at random


def smooth_noise(rng: np.random.Generator, length: int, width: int) -> Array:
    """Return standard normal noise under a moving average of 10 steps, float64 [length, width]."""
    window = 10
    white = rng.standard_normal((length + window - 1, width))
    total = np.cumsum(np.concatenate([np.zeros((1, width)), white]), axis=0)  # [length + window, width]
    smooth: Array = (total[window:] - total[:-window]) / np.sqrt(window)
    return smooth


def gait_actions(seed: int) -> Array:
    """Return the joint torques of one HalfCheetah episode, float32 [GAIT_HORIZON, 6] in [-1, 1].

    A sine per joint, whose frequency, strength and start vary with the seed, plus smooth noise.
    """
    rng = np.random.default_rng(seed)
    frequency_hz = GAIT_FREQUENCY_HZ * rng.uniform(0.9, 1.05)
    strength = rng.uniform(0.8, 1.0)
    start = rng.uniform(0.0, 2.0 * np.pi)
    noise = 0.1 * smooth_noise(rng, GAIT_HORIZON, GAIT_PHASE.size)
    seconds = CONTROL_PERIOD_SECONDS * np.arange(GAIT_HORIZON)[:, np.newaxis]  # [GAIT_HORIZON, 1]
    wave = np.sin(2.0 * np.pi * frequency_hz * seconds + start + GAIT_PHASE)  # [GAIT_HORIZON, 6]
    actions: Array = GAIT_OFFSET + strength * GAIT_AMPLITUDE * wave + noise
    return actions.clip(-1.0, 1.0).astype(np.float32)


def sinusoidal_gait(seed: int) -> Policy:
    """Return an open-loop policy that plays `gait_actions(seed)`."""
    actions = gait_actions(seed)
    return lambda step, observation: actions[step]


def uniform_random(seed: int) -> Policy:
    """Return a policy that pushes the cart left (0) or right (1) with equal chance, int64 []."""
    rng = np.random.default_rng(seed)
    return lambda step, observation: rng.integers(2, dtype=np.int64)


def pd_balance(seed: int) -> Policy:
    """Return a proportional-derivative policy that keeps the pole up, int64 []; the seed has no effect."""
    return lambda step, observation: np.int64(observation @ BALANCE_GAINS > 0.0)


def cheetah_policy(index: int) -> Callable[[int], Policy]:
    """Return the policy factory of HalfCheetah episode `index`."""
    return sinusoidal_gait


def cartpole_policy(index: int) -> Callable[[int], Policy]:
    """Return the policy factory of CartPole episode `index`."""
    return pd_balance if index % BALANCE_EVERY == BALANCE_EVERY - 1 else uniform_random


@dataclasses.dataclass(frozen=True)
class Recording:
    """What to record under one dataset name.

    Attributes:
        environment: Gymnasium id, with a time limit.
        episodes: number of episodes in the shipped dataset.
        first_seed: seed of episode 0; episode i uses `first_seed + i`, for simulator and policy.
        choose_policy: episode index -> policy factory (seed -> policy); its name goes into the metadata.
        simulators: distributions whose versions the description names.
        summary: what the dataset holds.
    """

    environment: str
    episodes: int
    first_seed: int
    choose_policy: Callable[[int], Callable[[int], Policy]]
    simulators: tuple[str, ...]
    summary: str


RECORDINGS: dict[str, Recording] = {
    "cartpole": Recording(
        environment="CartPole-v1",
        episodes=25,
        first_seed=1_000,
        choose_policy=cartpole_policy,
        simulators=("gymnasium",),
        summary=(
            "Gymnasium CartPole-v1. Each fifth episode is balanced by a proportional-derivative controller "
            "until the time limit of 500 transitions truncates it; in the others seeded uniform random "
            "actions let the pole fall, which is terminal."
        ),
    ),
    "half_cheetah": Recording(
        environment="HalfCheetah-v5",
        episodes=4,
        first_seed=2_000,
        choose_policy=cheetah_policy,
        simulators=("gymnasium", "mujoco"),
        summary=(
            "Gymnasium HalfCheetah-v5 (MuJoCo). The policy is not trained: an open-loop gait of one sine "
            "per joint, its parameters found by random search, varied by seed and with smooth noise "
            "added. Each episode is truncated at the time limit of 1000 transitions. Observations are "
            "rounded from float64 to float32."
        ),
    ),
}


class Rounded(StepDataCallback):
    """Records observations and rewards as float32."""

    def __call__(
        self, env: Any, obs: Any, info: Any, *, action: Any = None, rew: Any = None, **ends: Any
    ) -> dict[str, Any]:
        reward = None if rew is None else np.float32(rew)
        return super().__call__(env, np.asarray(obs, np.float32), info, action=action, rew=reward, **ends)


def record_episodes(recording: Recording, episodes: int, writer: DatasetWriter) -> None:
    """Play the first `episodes` episodes of a recording in one simulator, into a writer."""

    def describe(episode: Mapping[str, Any]) -> dict[str, Any]:
        index = int(episode["seed"]) - recording.first_seed
        return {
            "seed": np.int64(episode["seed"]),
            "environment": recording.environment,
            "policy": recording.choose_policy(index).__name__,
            "episode_return": np.float32(sum(float(reward) for reward in episode["rewards"])),
        }

    environment = DataCollector(gymnasium.make(recording.environment), writer, Rounded, describe)
    try:
        for index in range(episodes):
            play(environment, recording, index)
    finally:
        environment.close()


def play(environment: Any, recording: Recording, index: int) -> None:
    """Play episode `index` of a recording from a seeded reset to its end."""
    seed = recording.first_seed + index
    policy = recording.choose_policy(index)(seed)
    observation, _ = environment.reset(seed=seed)
    step, has_ended = 0, False
    while not has_ended:
        observation, _, terminated, truncated, _ = environment.step(policy(step, observation))
        step, has_ended = step + 1, terminated or truncated


def description(recording: Recording) -> str:
    """Return the text of the dataset: what was recorded, the row conventions, the simulator versions."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in recording.simulators)
    return (
        f"{recording.summary} Row t holds the reward and discount that its action earned; the last row "
        f"holds the final observation with zero action and reward. The discount is 0 on the transition "
        f"into a terminal state and on the terminal row, else 1. Recorded with {versions}."
    )


def record(name: str, output: pathlib.Path, episodes: int | None = None) -> pathlib.Path:
    """Record one dataset; return its version directory, `output/name/1.0.0`.

    Args:
        name: key of `RECORDINGS`.
        output: directory that holds the datasets; made if missing.
        episodes: number of episodes, at least 1; None for the number of the shipped dataset. Fewer
            episodes are a prefix of more.

    Raises:
        ValueError: if `episodes` is below 1.
        FileExistsError: if the version directory exists already.
    """
    recording = RECORDINGS[name]
    count = recording.episodes if episodes is None else episodes
    if count < 1:
        raise ValueError(f"episodes: expected at least 1, got {count}")
    directory = output / name / VERSION
    if directory.exists():
        raise FileExistsError(f"{directory} exists: remove it or choose another output directory")
    about = About.of("tfds", {"description": description(recording)})
    with dataset_writer(f"tfds:{output / name}:{VERSION}?shards=1", about=about) as writer:
        record_episodes(recording, count, writer)
    return directory


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the datasets that the command line asks for and print their directories."""
    parser = argparse.ArgumentParser(description="Record the bundled RLDS datasets from real simulators.")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="directory to write datasets into")
    parser.add_argument("--only", choices=sorted(RECORDINGS), help="record this dataset alone")
    options = parser.parse_args(arguments)
    for name in [options.only] if options.only else sorted(RECORDINGS):
        print(record(name, options.output))


if __name__ == "__main__":
    main()
