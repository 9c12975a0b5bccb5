"""Record the bundled RLDS datasets from real simulators.

Steps Gymnasium environments and writes the episodes with the writers of TFDS itself
(`rlds_base.build_info` for the features, `SequentialWriter` for the files):

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
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import tensorflow_datasets as tfds
from tensorflow_datasets.rlds import rlds_base

VERSION = "1.0.0"
SPLIT = "train"

Array = npt.NDArray[Any]

Episode = dict[str, Any]
"""One TFDS example: the episode metadata, and `steps`, a list of rows (dicts)."""

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
        observation: TFDS feature of one observation.
        action: TFDS feature of one action.
        simulators: distributions whose versions the description names.
        summary: what the dataset holds.
    """

    environment: str
    episodes: int
    first_seed: int
    choose_policy: Callable[[int], Callable[[int], Policy]]
    observation: tfds.features.FeatureConnector
    action: tfds.features.FeatureConnector
    simulators: tuple[str, ...]
    summary: str


RECORDINGS: dict[str, Recording] = {
    "cartpole": Recording(
        environment="CartPole-v1",
        episodes=25,
        first_seed=1_000,
        choose_policy=cartpole_policy,
        observation=tfds.features.Tensor(shape=(4,), dtype=np.float32),
        action=tfds.features.Scalar(dtype=np.int64),
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
        observation=tfds.features.Tensor(shape=(17,), dtype=np.float32),
        action=tfds.features.Tensor(shape=(6,), dtype=np.float32),
        simulators=("gymnasium", "mujoco"),
        summary=(
            "Gymnasium HalfCheetah-v5 (MuJoCo). The policy is not trained: an open-loop gait of one sine "
            "per joint, its parameters found by random search, varied by seed and with smooth noise "
            "added. Each episode is truncated at the time limit of 1000 transitions. Observations are "
            "rounded from float64 to float32."
        ),
    ),
}


def row(observation: Array, action: Any, reward: float, discount: float) -> dict[str, Any]:
    """Return one RLDS row, float numbers as float32, all three flags False."""
    return {
        "observation": np.asarray(observation, dtype=np.float32),
        "action": action,
        "reward": np.float32(reward),
        "discount": np.float32(discount),
        "is_first": False,
        "is_last": False,
        "is_terminal": False,
    }


def rollout(environment: gymnasium.Env[Any, Any], policy: Policy, seed: int) -> list[dict[str, Any]]:
    """Play one episode from a seeded reset to its end; return its T + 1 rows (table: module docstring)."""
    observation, _ = environment.reset(seed=seed)
    rows: list[dict[str, Any]] = []
    terminated = truncated = False
    while not (terminated or truncated):
        action = policy(len(rows), observation)
        following, reward, terminated, truncated, _ = environment.step(action)
        rows.append(row(observation, action, float(reward), 0.0 if terminated else 1.0))
        observation = following
    final = row(observation, np.zeros_like(action), 0.0, 0.0 if terminated else 1.0)
    rows.append({**final, "is_last": True, "is_terminal": terminated})
    rows[0]["is_first"] = True
    return rows


def record_episode(environment: gymnasium.Env[Any, Any], recording: Recording, index: int) -> Episode:
    """Play episode `index` of a recording; return it with its metadata."""
    seed = recording.first_seed + index
    make_policy = recording.choose_policy(index)
    rows = rollout(environment, make_policy(seed), seed)
    return {
        "steps": rows,
        "seed": np.int64(seed),
        "environment": recording.environment,
        "policy": make_policy.__name__,
        "episode_return": np.float32(sum(float(step["reward"]) for step in rows)),
    }


def record_episodes(recording: Recording, episodes: int) -> list[Episode]:
    """Play the first `episodes` episodes of a recording in one simulator."""
    environment = gymnasium.make(recording.environment)
    try:
        return [record_episode(environment, recording, index) for index in range(episodes)]
    finally:
        environment.close()


def description(recording: Recording) -> str:
    """Return the text of the dataset: what was recorded, the row conventions, the simulator versions."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in recording.simulators)
    return (
        f"{recording.summary} Row t holds the reward and discount that its action earned; the last row "
        f"holds the final observation with zero action and reward. The discount is 0 on the transition "
        f"into a terminal state and on the terminal row, else 1. Recorded with {versions}."
    )


def dataset_info(name: str, recording: Recording, directory: pathlib.Path) -> tfds.core.DatasetInfo:
    """Return the TFDS metadata of a dataset that is to be written to `directory`."""
    config = rlds_base.DatasetConfig(
        name=name,
        overall_description=description(recording),
        observation_info=recording.observation,
        action_info=recording.action,
        reward_info=tfds.features.Scalar(dtype=np.float32),
        discount_info=tfds.features.Scalar(dtype=np.float32),
        episode_metadata_info={
            "seed": tfds.features.Scalar(dtype=np.int64),
            "environment": tfds.features.Text(),
            "policy": tfds.features.Text(),
            "episode_return": tfds.features.Scalar(dtype=np.float32),
        },
    )
    identity = tfds.core.DatasetIdentity(
        name=name, version=tfds.core.Version(VERSION), data_dir=str(directory), module_name=""
    )
    return rlds_base.build_info(config, identity)


def write(info: tfds.core.DatasetInfo, episodes: list[Episode]) -> None:
    """Write the episodes, in order, as one shard of the split `train` into the directory of `info`."""
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=len(episodes))
    writer.initialize_splits([SPLIT])
    writer.add_examples({SPLIT: episodes})
    writer.close_all()


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
    recorded = record_episodes(recording, count)
    directory.mkdir(parents=True)
    write(dataset_info(name, recording, directory), recorded)
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
