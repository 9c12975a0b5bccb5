"""Files in the layouts of robomimic, MimicGen and LIBERO.

Sources: robomimic 0.5.0, docs/datasets/overview.md and robomimic/scripts/dataset_states_to_obs.py; MimicGen (72bd767),
mimicgen/utils/file_utils.py; LIBERO (8f1084e), scripts/create_dataset.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

ENV_ARGS = json.dumps({"env_name": "Lift", "env_version": "1.4.1", "type": 1, "env_kwargs": {"control_freq": 20}})
Demo = dict[str, Any]


def demonstration(rng: np.random.Generator, length: int) -> Demo:
    """Path -> rows of one demonstration, as dataset_states_to_obs.py makes it."""
    eef = rng.random((length + 1, 3))
    images = rng.integers(0, 256, (length + 1, 4, 4, 3), np.uint8)
    depth = rng.random((length + 1, 4, 4, 1)).astype(np.float32)
    after = {"robot0_eef_pos": eef[1:], "agentview_image": images[1:], "agentview_depth": depth[1:]}
    before = {"robot0_eef_pos": eef[:-1], "agentview_image": images[:-1], "agentview_depth": depth[:-1]}
    is_last = np.arange(length) == length - 1
    return {
        "actions": rng.uniform(-1, 1, (length, 7)),
        "actions_abs": rng.uniform(-1, 1, (length, 7)),
        "action_dict/gripper": rng.uniform(-1, 1, (length, 1)),
        "rewards": is_last.astype(np.float64),
        "dones": is_last.astype(np.int64),
        "states": rng.random((length, 9)),
        **{f"obs/{key}": column for key, column in before.items()},
        **{f"next_obs/{key}": column for key, column in after.items()},
    }


def demonstrations(lengths: Sequence[int]) -> dict[str, Demo]:
    """demo_0, demo_1, ... of these lengths."""
    rng = np.random.default_rng(4)
    return {f"demo_{number}": demonstration(rng, length) for number, length in enumerate(lengths)}


def write_file(file: h5py.File, demos: Mapping[str, Demo]) -> h5py.Group:
    """Writes them as robomimic does; the group of the demonstrations."""
    data = file.create_group("data")
    data.attrs["env_args"] = ENV_ARGS
    data.attrs["total"] = sum(len(demo["actions"]) for demo in demos.values())
    for name, demo in demos.items():
        group = data.create_group(name)
        for path, column in demo.items():
            packing = {"compression": "gzip"} if path.startswith(("obs/", "next_obs/")) else {}
            group.create_dataset(path, data=column, **packing)
        group.attrs["num_samples"] = len(demo["actions"])
        group.attrs["model_file"] = f'<mujoco model="{name}"/>'
        group.attrs["ep_meta"] = json.dumps({"lang": f"lift {name}"})
    return data


def without(demo: Demo, *fields: str) -> Demo:
    """The demonstration without these datasets and groups."""
    return {path: column for path, column in demo.items() if path.split("/")[0] not in fields}


def of_mimicgen(demo: Demo) -> Demo:
    """What MimicGen writes of it."""
    length = len(demo["actions"])
    poses = np.tile(np.eye(4), (length, 1, 1))
    return {
        **without(demo, "next_obs", "rewards", "dones", "actions_abs", "action_dict"),
        "datagen_info/eef_pose": poses,
        "datagen_info/object_poses/cube": poses * 2,
        "datagen_info/subtask_term_signals/grasp": np.arange(length) % 2,
        "src_demo_inds": np.arange(2),
        "src_demo_labels": np.zeros((length, 1), np.int64),
    }


def write_libero(file: h5py.File, lengths: Sequence[int]) -> None:
    """What LIBERO's create_dataset.py writes: the observation of row k is the one after action k."""
    rng = np.random.default_rng(5)
    data = file.create_group("data")
    data.attrs["env_args"] = ENV_ARGS
    data.attrs["problem_info"] = json.dumps({"problem_name": "kitchen", "language_instruction": ["open the drawer"]})
    data.attrs["bddl_file_name"] = "open_the_drawer.bddl"
    data.attrs["bddl_file_content"] = "(define (problem kitchen))"
    data.attrs["macros_image_convention"] = "opengl"
    data.attrs["num_demos"], data.attrs["total"] = len(lengths), sum(lengths)
    for number, length in enumerate(lengths):
        group = data.create_group(f"demo_{number}")
        is_last = np.arange(length) == length - 1
        group["obs/agentview_rgb"] = rng.integers(0, 256, (length, 6, 4, 3), np.uint8)
        group["obs/ee_pos"] = rng.random((length, 3))
        group["actions"], group["states"] = rng.uniform(-1, 1, (length, 7)), rng.random((length, 5))
        group["robot_states"] = rng.random((length, 9))
        group["rewards"], group["dones"] = is_last.astype(np.uint8), is_last.astype(np.uint8)
        group.attrs["num_samples"], group.attrs["model_file"] = length, "<mujoco/>"
