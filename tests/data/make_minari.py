"""Datasets of Minari, made by Minari itself: what tests/unit/formats/minari reads.

    python tests/data/make_minari.py tests/data/minari

Each version writes an archive of its own, for HDF5's files are mostly empty. Those here were written by these, each with Python 3.11 in an
environment of its own:

| archive | minari | gymnasium | h5py | others |
| --- | --- | --- | --- | --- |
| v0.3.1 | 0.3.1 | 0.28.1 | 3.16.0 | numpy 1.26.4 |
| v0.4.2 | 0.4.2 | 0.29.1 | 3.16.0 | numpy 1.26.4 |
| v0.4.3 | 0.4.3 | 0.29.1 | 3.16.0 | numpy 1.26.4 |
| v0.5.2 | 0.5.2 | 1.1.1 | 3.16.0 | numpy 2.4.6, pyarrow 19.0.1, jax 0.10.2 |
| v0.5.4 | 0.5.4 | 1.4.0 | 3.16.0 | numpy 2.4.6, pyarrow 26.0.1, jax 0.10.2 |

Beside each dataset lies `expected.npz`: what Minari itself reads of it, `EPISODE/observations/KEY...`.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

FOLDER_OF_VERSION = Path("/tmp/minari-made")
"""Combined datasets have this path in them."""

EVERY = spaces.Dict(
    {
        "box": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "bounded": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float64),
        "image": spaces.Box(0, 255, (32, 33, 3), np.uint8),
        "grey": spaces.Box(0, 255, (32, 32), np.uint8),
        "small": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "text": spaces.Text(6, min_length=1),
        "discrete": spaces.Discrete(5, start=-2),
        "deep": spaces.Dict(
            {"pair": spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.Tuple((spaces.MultiBinary((2, 2)),))))}
        ),
    }
)
ACTIONS = spaces.Tuple((spaces.Discrete(4), spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32)})))


class Every(gym.Env):
    """All kinds of spaces; episodes of 3, 4, ... steps, terminated and truncated by turns."""

    def __init__(self, part: str) -> None:
        self.observation_space, self.action_space = PARTS[part]
        self.episode = self.at = 0

    def _observation(self) -> Any:
        made = self.observation_space.sample()
        for key in {"image", "grey"} & set(made):
            shape = made[key].shape
            ramp = np.arange(np.prod(shape[:2])).reshape(shape[:2]) * (3 + self.at) // 16
            made[key] = (
                np.stack([ramp + 40 * place for place in range(3)], -1).astype(np.uint8)
                if len(shape) > 2
                else ramp.astype(np.uint8)
            )
        return made

    def _info(self) -> Any:
        return {"at": np.int64(self.at), "inner": {"two": np.full((2, 2), self.at, np.float32)}}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(self.episode)
        self.episode, self.at = self.episode + 1, 0
        return self._observation(), self._info()

    def step(self, action: Any) -> Any:
        self.at += 1
        end = self.at == 2 + self.episode % 3
        terminated = end and self.episode % 2 == 1
        return self._observation(), 0.5 * self.at, terminated, end and not terminated, self._info()


BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO = spaces.Dict({"a": BOX, "b": spaces.Box(-1, 1, (2, 2), np.float64)})
MOVES: Any = spaces.Discrete(4)

PARTS = {"every": (EVERY, ACTIONS), "two": (TWO, MOVES), "box": (BOX, MOVES)}
for _name in PARTS:
    gym.register(f"{_name}-v0", entry_point="__main__:Every", max_episode_steps=100, kwargs={"part": _name})


def play(env: Any, episodes: int, **options: Any) -> None:
    env.action_space.seed(1)
    for number in range(episodes):
        env.reset(seed=(1 << 63) + number if options.pop("long_seeds", False) else number, **options)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated


def flat(value: Any, path: str, into: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            flat(inner, f"{path}/{key}", into)
    elif isinstance(value, tuple):
        for place, inner in enumerate(value):
            flat(inner, f"{path}/_index_{place}", into)
    elif value is not None and np.asarray(value).dtype != object:  # of nested infos in Arrow Minari makes dicts
        into[path] = np.asarray(value)


def expected(name: str, **_: Any) -> None:
    """What Minari reads."""
    import minari

    found: dict[str, Any] = {}
    for number, episode in enumerate(minari.load_dataset(name).iterate_episodes()):
        for key in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
            flat(getattr(episode, key, None), f"{number}/{key}", found)
    np.savez_compressed(FOLDER_OF_VERSION / name / "expected.npz", **found)


ABOUT = {
    "algorithm_name": "random",
    "code_permalink": "https://example.org/code",
    "author": "someone",
    "author_email": "someone@example.org",
}


def new(version: str) -> None:
    """0.5: storages of three kinds, images, options."""
    from minari import DataCollector

    formats = ("hdf5", "arrow", "parquet") if version >= "0.5.3" else ("hdf5", "arrow")
    for kind in formats:
        env = DataCollector(gym.make("every-v0"), record_infos=True, data_format=kind)
        play(env, 3, options={"level": 2, "deep": {"name": "hard"}}, long_seeds=True)
        env.create_dataset(f"kinds/{kind}-v0", **ABOUT)
        expected(f"kinds/{kind}-v0")
    env = DataCollector(gym.make("two-v0"), data_format="hdf5")
    play(env, 5)
    env.create_dataset("plain/two-v3", **ABOUT)
    expected("plain/two-v3")
    if version >= "0.5.4":
        env = DataCollector(gym.make("every-v0"), jpeg_encoding=False, data_format="hdf5")
        play(env, 2)
        env.create_dataset("raw/images-v0", **ABOUT)
        expected("raw/images-v0")
        blank(DataCollector)


def blank(collector: Any) -> None:
    """Images whose JPEG files all have one length."""
    image = spaces.Box(0, 255, (40, 32, 3), np.uint8)
    import minari
    from minari.data_collector import EpisodeBuffer

    frames = np.stack([np.full((40, 32, 3), 9 * at, np.uint8) for at in range(4)])
    ends = [False, False, True]
    buffer = EpisodeBuffer(
        observations=frames, actions=np.arange(3), rewards=[1.0, 2.0, 3.0], terminations=ends, truncations=ends
    )
    neither = EpisodeBuffer(
        observations=frames, actions=np.arange(3), rewards=[1, 2, 3], terminations=[False] * 3, truncations=[False] * 3
    )
    minari.create_dataset_from_buffers(
        "blank-v0", [buffer, neither], observation_space=image, action_space=MOVES, data_format="hdf5", **ABOUT
    )
    expected("blank-v0")


def old(version: str) -> None:
    """0.3 and 0.4: attributes of the main file; before 0.4.3 further files that it links to."""
    import minari

    env = minari.DataCollectorV0(gym.make("two-v0"), record_infos=True)
    play(env, 3)
    name = "two-own-v0"
    dataset = minari.create_dataset_from_collector_env(dataset_id=name, collector_env=env, **ABOUT)
    env = minari.DataCollectorV0(gym.make("two-v0"), record_infos=True)
    play(env, 2)
    if hasattr(dataset, "update_dataset_from_collector_env"):
        dataset.update_dataset_from_collector_env(env)
    expected(name)
    combined(minari)


def combined(minari: Any) -> None:
    """Up to 0.4.2 a combination links to its parts by their absolute paths."""
    env = minari.DataCollectorV0(gym.make("two-v0"), record_infos=True)
    play(env, 2)
    minari.create_dataset_from_collector_env(dataset_id="two-other-v0", collector_env=env, **ABOUT)
    parts = [minari.load_dataset("two-own-v0"), minari.load_dataset("two-other-v0")]
    minari.combine_datasets(parts, "two-both-v0")


def main() -> None:
    version = importlib.metadata.version("minari")
    shutil.rmtree(FOLDER_OF_VERSION, ignore_errors=True)
    FOLDER_OF_VERSION.mkdir(parents=True)
    os.environ["MINARI_DATASETS_PATH"] = str(FOLDER_OF_VERSION)
    (new if version >= "0.5" else old)(version)
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(exist_ok=True)
    for left in FOLDER_OF_VERSION.glob("tmp*"):
        shutil.rmtree(left)
    shutil.make_archive(str(folder / f"v{version}"), "zip", FOLDER_OF_VERSION)


if __name__ == "__main__":
    main()
