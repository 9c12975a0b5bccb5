"""OpenVLA's own standardising, run from a checkout of its source: github.com/openvla/openvla. It needs TensorFlow, and nothing else of theirs.

The folder is in the environment variable RLDS2REVERB_OPENVLA. What their modules import and do not need for this (models, logging) is replaced by
empty modules; `tensorflow_graphics` is imported where it is installed.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

from rlds2reverb.episode import Array
from tests.support.open_x_sets import OPENVLA_NAMES

VARIABLE = "RLDS2REVERB_OPENVLA"


def checkout() -> Path | None:
    """Where the source lies; None where the variable does not say it."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def _load(folder: Path) -> tuple[Any, Any]:
    """Their modules `transforms` and `configs`."""
    for name in (
        "prismatic",
        "prismatic.vla",
        "prismatic.vla.datasets",
        "prismatic.vla.datasets.rlds",
        "prismatic.vla.datasets.rlds.oxe",
    ):
        package = types.ModuleType(name)  # without running __init__, which imports models
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules.setdefault(name, package)
    overwatch: Any = types.ModuleType("prismatic.overwatch")
    overwatch.initialize_overwatch = lambda _: None
    sys.modules.setdefault("prismatic.overwatch", overwatch)
    dlimp: Any = types.ModuleType("dlimp")  # reads datasets; only named here
    dlimp.DLataset = object
    sys.modules.setdefault("dlimp", dlimp)
    oxe = "prismatic.vla.datasets.rlds.oxe"
    return importlib.import_module(f"{oxe}.transforms"), importlib.import_module(f"{oxe}.configs")


def standardised_by_openvla(folder: Path, name: str, columns: dict[str, Array]) -> dict[str, Any]:
    """What their transform and their table of state and image keys make of an episode.

    Returns: action, proprio: lists of rows of float32; instruction: texts; images: camera -> path of the recorded image, and [T, ...] pixels.
    """
    import tensorflow as tf

    transforms, configs = _load(folder)
    theirs = OPENVLA_NAMES.get(name, name)
    trajectory: dict[str, Any] = {}
    for path, column in columns.items():
        top, _, rest = path.partition("/")
        value = tf.constant(column.tolist(), tf.string) if column.dtype == object else tf.constant(column)
        if rest:
            trajectory.setdefault(top, {})[rest] = value
        else:
            trajectory[top] = value
    result = transforms.OXE_STANDARDIZATION_TRANSFORMS[theirs](trajectory)
    config = configs.OXE_DATASET_CONFIGS[theirs]
    observation, count = result["observation"], len(result["action"])
    state = [
        tf.zeros((count, 1)) if key is None else tf.cast(observation[key], tf.float32)
        for key in config["state_obs_keys"]
    ]
    return {
        "action": tf.cast(result["action"], tf.float32).numpy().tolist(),
        "proprio": tf.concat(state, axis=1).numpy().tolist(),
        "instruction": [text.decode() for text in result["language_instruction"].numpy().tolist()],
        "images": {camera: observation[key].numpy() for camera, key in config["image_obs_keys"].items() if key},
    }
