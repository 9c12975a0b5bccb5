"""The data that both sides of a benchmark get: made once, in memory, from a fixed seed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb import Episode
from rlds2reverb.episode import Array
from rlds2reverb.formats.source import spec_of
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.views.trajectory import FIELDS, trajectory_rows, trajectory_spec, with_window

STEPS = 1_000
"""Steps of a half-cheetah episode: as long as the environment's time limit makes them."""

IMAGE_STEPS = 250
IMAGE_SHAPE = (84, 84, 4)
"""What Atari agents see: the last four frames, 84 by 84, one byte a pixel."""

CAMERA_SHAPE = (64, 64, 3)
"""What world models and most pixel agents see."""

EXAMPLES = Path(__file__).parent.parent / "examples"

_DISTINCT = 16
"""Different episodes; longer data repeats them, under other names."""

_SEED = 2024


def half_cheetah() -> list[dict[str, Array]]:
    """Columns of episodes shaped like D4RL half-cheetah (17 observations, 6 actions, float32); random walks."""
    return vectors(17, 6)


def vectors(observations: int, actions: int, steps: int = STEPS) -> list[dict[str, Array]]:
    """Columns of episodes with so many float32 of observation, random walks, and of action per step."""
    rng = np.random.default_rng(_SEED)
    return [
        {
            "observation": np.cumsum(rng.normal(size=(steps, observations)), axis=0).astype(np.float32),
            "action": rng.uniform(-1, 1, size=(steps, actions)).astype(np.float32),
            **_scalars(steps, rng),
        }
        for _ in range(_DISTINCT)
    ]


def pictures(random_bytes: bool = False) -> list[dict[str, Array]]:
    """Columns of episodes with one image per step: a smooth background with moving blocks, or plain noise."""
    rng = np.random.default_rng(_SEED)
    return [
        {
            "observation": _noise(rng) if random_bytes else _scene(rng),
            "action": rng.integers(0, 18, IMAGE_STEPS),
            **_scalars(IMAGE_STEPS, rng),
        }
        for _ in range(4)
    ]


def camera_pictures() -> list[dict[str, Array]]:
    """Columns of episodes with what a robot's camera sees, 64 by 64 pixels: objects, texture, something that moves, noise."""
    camera = example("open_x_camera")
    rng = np.random.default_rng(_SEED)
    made = []
    for _ in range(4):
        motion = camera.motion(rng, IMAGE_STEPS)
        images = np.stack(list(camera.film(rng, motion, CAMERA_SHAPE[:2], moving=False)))
        actions = np.concatenate([motion.moved, motion.turned], axis=1).astype(np.float32)
        made.append({"observation": images, "action": actions, **_scalars(IMAGE_STEPS, rng)})
    return made


def example(name: str) -> Any:
    """A module of the examples, whose folder is put on the path, as when Python runs one of them."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


def episodes(columns: Sequence[dict[str, Array]], count: int) -> list[Episode]:
    """So many episodes, named by their number; the arrays are shared, not copied."""
    return [Episode(columns[number % len(columns)], {}, f"episode-{number}") for number in range(count)]


def rlds_dataset(columns: Sequence[dict[str, Array]]) -> Any:
    """An endless `tf.data.Dataset` in RLDS form: episodes with a dataset of steps each, made from memory."""
    import tensorflow as tf

    stacked = {name: np.stack([episode[name] for episode in columns]) for name in columns[0]}
    dataset = tf.data.Dataset.from_tensor_slices(stacked)
    return dataset.map(lambda steps: {"steps": tf.data.Dataset.from_tensor_slices(steps)}).repeat()


def signature(columns: Sequence[dict[str, Array]]) -> Nest:
    """The table signature that TF-Agents asks for: a Trajectory, a free leading axis, a bounded discount."""
    step = spec_of(Episode(columns[0], {}, "spec"))
    spec = trajectory_spec(step)._replace(discount=ArraySpec((), np.dtype(np.float32), "discount", 0.0, 1.0))
    return with_window(spec, None)


def trajectory_steps(columns: Sequence[dict[str, Array]]) -> list[list[Any]]:
    """The TF-Agents trajectory of every step, in numpy, for writers that take one step per call."""
    from tf_agents.trajectories import trajectory

    out = []
    for episode in columns:
        rows = trajectory_rows(episode)
        fields = [rows.get(name, ()) for name in FIELDS]
        count = len(episode["is_first"])
        out.append([trajectory.Trajectory(*(field[t] if len(field) else () for field in fields)) for t in range(count)])
    return out


def episodes_for(items: int, steps: int) -> int:
    """How many episodes of `steps` steps make at least so many 2-step items."""
    return -(-items // (steps - 1))


def _scalars(steps: int, rng: np.random.Generator) -> dict[str, Array]:
    row = np.arange(steps)
    return {
        "reward": rng.normal(size=steps).astype(np.float32),
        "discount": np.ones(steps, np.float32),
        "is_first": row == 0,
        "is_last": row == steps - 1,
        "is_terminal": np.zeros(steps, bool),
    }


def _noise(rng: np.random.Generator) -> Array:
    return rng.integers(0, 256, (IMAGE_STEPS, *IMAGE_SHAPE), np.uint8)


def _scene(rng: np.random.Generator) -> Array:
    """[T, 84, 84, 4] uint8: a background of smooth noise in 32 grey levels, six moving blocks, four frames stacked."""
    height, width, stacked = IMAGE_SHAPE
    coarse = rng.uniform(0, 8, (8, 8))
    rows, columns = np.linspace(0, 6.99, height), np.linspace(0, 6.99, width)
    frames = np.repeat(_smooth(coarse, rows, columns)[np.newaxis], IMAGE_STEPS + stacked - 1, axis=0)
    for _ in range(6):
        size, grey = int(rng.integers(3, 12)), int(rng.integers(64, 256))
        y, x = rng.integers(0, height - size), rng.integers(0, width - size)
        dy, dx = rng.integers(-3, 4, 2)
        for t, frame in enumerate(frames):
            top, left = (y + dy * t) % (height - size), (x + dx * t) % (width - size)
            frame[top : top + size, left : left + size] = grey
    return np.ascontiguousarray(np.stack([frames[k : k + IMAGE_STEPS] for k in range(stacked)], axis=-1))


def _smooth(coarse: Array, rows: Array, columns: Array) -> Array:
    """Bilinear interpolation of a coarse grid, as uint8 in steps of 8 grey levels."""
    y, x = rows.astype(int), columns.astype(int)
    fy, fx = (rows - y)[:, np.newaxis], (columns - x)[np.newaxis]
    top = coarse[np.ix_(y, x)] * (1 - fx) + coarse[np.ix_(y, x + 1)] * fx
    bottom = coarse[np.ix_(y + 1, x)] * (1 - fx) + coarse[np.ix_(y + 1, x + 1)] * fx
    grey: Array = (top * (1 - fy) + bottom * fy) * 4
    return (grey.astype(np.uint8)) * 8
