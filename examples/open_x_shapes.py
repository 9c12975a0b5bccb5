"""The features and steps of three Open X-Embodiment datasets, by the TFDS catalog and DROID's documentation. Part of make_open_x.py."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from open_x_camera import Motion

EMBEDDING = 512


@dataclasses.dataclass(frozen=True)
class Shape:
    """One kind of dataset.

    Attributes:
        name: of the TFDS dataset.
        version: of the TFDS dataset.
        steps: of an episode, on average.
        image_size: height and width.
        cameras: name of the column in the observation: whether the camera moves with the arm.
        features: (step's image feature) -> features of the dataset.
        step: (motion, row, instruction) -> the step without images, reward and flags.
        episode: (episode number) -> what the episode has besides its steps.
    """

    name: str
    version: str
    steps: int
    image_size: tuple[int, int]
    cameras: dict[str, bool]
    features: Callable[[Any], Any]
    step: Callable[[Motion, int, str], dict[str, Any]]
    episode: Callable[[int], dict[str, Any]]


def tensor(*shape: int, dtype: Any = np.float32) -> Any:
    """Return a feature for arrays of this shape."""
    return tfds.features.Tensor(shape=shape, dtype=dtype)


def flags_and_reward() -> dict[str, Any]:
    """Return what every step has."""
    flags: dict[str, Any] = {name: tensor(dtype=np.bool_) for name in ("is_first", "is_last", "is_terminal")}
    return {**flags, "reward": tfds.features.Scalar(dtype=np.float32)}


def language_features() -> dict[str, Any]:
    """Return the columns of the instruction in an observation."""
    return {"natural_language_instruction": tensor(dtype=np.str_), "natural_language_embedding": tensor(EMBEDDING)}


def language(instruction: str) -> dict[str, Any]:
    """Return the instruction, and a unit vector that depends on it alone."""
    seed = int.from_bytes(hashlib.sha256(instruction.encode()).digest()[:8], "little")
    vector = np.random.default_rng(seed).standard_normal(EMBEDDING)
    embedding = (vector / np.linalg.norm(vector)).astype(np.float32)
    return {"natural_language_instruction": instruction, "natural_language_embedding": embedding}


def bridge_features(image: Any) -> Any:
    """Return the features of `bridge`."""
    return {
        "steps": {
            **flags_and_reward(),
            "action": {
                "world_vector": tensor(3),
                "rotation_delta": tensor(3),
                "open_gripper": tensor(dtype=np.bool_),
                "terminate_episode": tensor(dtype=np.float32),
            },
            "observation": {"image": image, "state": tensor(7), **language_features()},
        }
    }


def bridge_step(motion: Motion, row: int, instruction: str) -> dict[str, Any]:
    """Return a step of `bridge`: the state is position, rotation and opening."""
    state = np.concatenate([motion.position[row], motion.rotation[row], motion.opening[row : row + 1]])
    return {
        "action": {
            "world_vector": np.float32(motion.moved[row]),
            "rotation_delta": np.float32(motion.turned[row]),
            "open_gripper": bool(motion.opening[row] > 0.5),
            "terminate_episode": np.float32(row == len(motion.position) - 1),
        },
        "observation": {"state": np.float32(state), **language(instruction)},
    }


RT1_STATE = {  # name: shape
    "base_pose_tool_reached": (7,),
    "gripper_closed": (1,),
    "gripper_closedness_commanded": (1,),
    "height_to_bottom": (1,),
    "orientation_box": (2, 3),
    "orientation_start": (4,),
    "robot_orientation_positions_box": (3, 3),
    "rotation_delta_to_go": (3,),
    "src_rotation": (4,),
    "vector_to_go": (3,),
    "workspace_bounds": (3, 3),
}
RT1_ASPECTS = {"already_success": False, "feasible": True, "has_aspects": True, "success": True, "undesirable": False}
RT1_ATTRIBUTES = ("collection_mode", "data_type", "env", "location", "objects_family", "task_family")


def rt1_features(image: Any) -> Any:
    """Return the features of `fractal20220817_data`."""
    attributes: dict[str, Any] = {name: tensor(dtype=np.int64) for name in RT1_ATTRIBUTES}
    names: dict[str, Any] = {f"{name}_name": tensor(dtype=np.str_) for name in RT1_ATTRIBUTES}
    return {
        "aspects": {name: tensor(dtype=np.bool_) for name in RT1_ASPECTS},
        "attributes": {**attributes, **names},
        "steps": {
            **flags_and_reward(),
            "action": {
                "base_displacement_vector": tensor(2),
                "base_displacement_vertical_rotation": tensor(1),
                "gripper_closedness_action": tensor(1),
                "rotation_delta": tensor(3),
                "terminate_episode": tensor(3, dtype=np.int32),
                "world_vector": tensor(3),
            },
            "observation": {
                "image": image,
                **language_features(),
                **{name: tensor(*shape) for name, shape in RT1_STATE.items()},
            },
        },
    }


def rt1_step(motion: Motion, row: int, instruction: str) -> dict[str, Any]:
    """Return a step of `fractal20220817_data`: the base stands still, the goal is the last position."""
    ends = row == len(motion.position) - 1
    closed = np.float32(1 - motion.opening[row : row + 1])
    pose = np.concatenate([motion.position[row], motion.rotation[row], [1.0]])
    known = {
        "base_pose_tool_reached": np.float32(pose),
        "gripper_closed": closed,
        "gripper_closedness_commanded": closed,
        "height_to_bottom": np.float32(motion.position[row, 2:]),
        "rotation_delta_to_go": np.float32(motion.rotation[-1] - motion.rotation[row]),
        "vector_to_go": np.float32(motion.position[-1] - motion.position[row]),
    }
    constant = {name: np.zeros(shape, np.float32) for name, shape in RT1_STATE.items()}
    return {
        "action": {
            "base_displacement_vector": np.zeros(2, np.float32),
            "base_displacement_vertical_rotation": np.zeros(1, np.float32),
            "gripper_closedness_action": closed,
            "rotation_delta": np.float32(motion.turned[row]),
            "terminate_episode": np.array([ends, not ends, 0], np.int32),
            "world_vector": np.float32(motion.moved[row]),
        },
        "observation": {**language(instruction), **constant, **known},
    }


def rt1_episode(number: int) -> dict[str, Any]:
    """Return ratings and circumstances of an episode."""
    names = {f"{name}_name": f"{name} {number % 3}" for name in RT1_ATTRIBUTES}
    return {"aspects": RT1_ASPECTS, "attributes": {**dict.fromkeys(RT1_ATTRIBUTES, number % 3), **names}}


DROID_STATE = {"cartesian_position": 6, "gripper_position": 1, "joint_position": 7}
DROID_CAMERAS = {"exterior_image_1_left": False, "exterior_image_2_left": False, "wrist_image_left": True}
DROID_LANGUAGE = ("language_instruction", "language_instruction_2", "language_instruction_3")


def droid_features(image: Any) -> Any:
    """Return the features of `droid`."""
    velocities = {name.replace("position", "velocity"): size for name, size in DROID_STATE.items()}
    return {
        "episode_metadata": {"file_path": tfds.features.Text(), "recording_folderpath": tfds.features.Text()},
        "steps": {
            **flags_and_reward(),
            **{name: tfds.features.Text() for name in DROID_LANGUAGE},
            "action": tensor(7, dtype=np.float64),
            "action_dict": {
                name: tensor(size, dtype=np.float64) for name, size in {**DROID_STATE, **velocities}.items()
            },
            "discount": tfds.features.Scalar(dtype=np.float32),
            "observation": {
                **{name: tensor(size, dtype=np.float64) for name, size in DROID_STATE.items()},
                **dict.fromkeys(DROID_CAMERAS, image),
            },
        },
    }


def droid_step(motion: Motion, row: int, instruction: str) -> dict[str, Any]:
    """Return a step of `droid`: the action is the cartesian velocity and the gripper's position."""
    pose = np.concatenate([motion.position[row], motion.rotation[row]])
    velocity = np.concatenate([motion.moved[row], motion.turned[row]])
    closed = 1 - motion.opening[row : row + 1]
    state = {"cartesian_position": pose, "gripper_position": closed, "joint_position": np.append(pose[::-1], 0.5)}
    velocities = {
        "cartesian_velocity": velocity,
        "gripper_velocity": np.zeros(1),
        "joint_velocity": np.append(velocity[::-1], 0.0),
    }
    return {
        "action": np.concatenate([velocity, closed]),
        "action_dict": {**state, **velocities},
        "discount": np.float32(1.0),
        "language_instruction": instruction,
        "language_instruction_2": f"{instruction}, please" if instruction else "",
        "language_instruction_3": "",
        "observation": state,
    }


def droid_episode(number: int) -> dict[str, Any]:
    """Return where the recording of an episode would be."""
    folder = f"recordings/{number:06d}"
    return {"episode_metadata": {"file_path": f"{folder}/trajectory.h5", "recording_folderpath": folder}}


SHAPES = {
    "bridge": Shape(
        "bridge", "0.1.0", 34, (480, 640), {"image": False}, bridge_features, bridge_step, lambda number: {}
    ),
    "rt1": Shape(
        "fractal20220817_data", "0.1.0", 43, (256, 320), {"image": False}, rt1_features, rt1_step, rt1_episode
    ),
    "droid": Shape("droid", "1.0.0", 290, (180, 320), DROID_CAMERAS, droid_features, droid_step, droid_episode),
}
