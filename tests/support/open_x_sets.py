"""Steps as the sets of Open X-Embodiment have them, and what standardising makes of them: slowly, number by number, without a line of the library.

Shapes and dtypes are those of the sets' TFDS features. Values are drawn so that grippers open, close and stand between.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episode import Array, Episode

WORDS = b"push the blue triangle to the left"
_SIGNS = (-1.0, -0.5, -0.05, 0.0, 0.0, 0.05, 0.5, 1.0)  # of a gripper that is told what to do
_SHARES = (-0.3, 0.0, 0.02, 0.3, 0.5, 0.97, 1.0, 1.2)  # how far a gripper is open

# kind, shape; several kinds stand side by side along the last axis.
_ARM = {"action/world_vector": [("float", 3)], "action/rotation_delta": [("float", 3)]}
_NATURAL = {"observation/natural_language_instruction": "text"}
_PLAIN = {"language_instruction": "text"}
_HAND = {"observation/image": "image", "observation/wrist_image": "image"}
_SHARED_7 = {"action": [("float", 6), ("share", 1)]}

SETS: dict[str, dict[str, Any]] = {
    "fractal20220817_data": {
        **_ARM, **_NATURAL, "action/gripper_closedness_action": [("sign", 1)], "observation/image": "image",
        "observation/base_pose_tool_reached": [("float", 3), ("quaternion", 4)], "observation/gripper_closed": [("share", 1)],
    },
    "kuka": {
        **_ARM, **_NATURAL, "action/gripper_closedness_action": [("sign", 1)], "observation/image": "image",
        "observation/clip_function_input/base_pose_tool_reached": "zlib 7", "observation/gripper_closed": "zlib 1",
    },
    "bridge_oxe": {
        **_ARM, **_NATURAL, "action/open_gripper": "bool", "observation/image": "image", "observation/image_1": "image",
        "observation/state": [("float", 7)],
    },
    "bridge_orig": {
        **_SHARED_7, **_PLAIN, "observation/image_0": "image", "observation/image_1": "image", "observation/state": [("float", 7)],
    },
    "taco_play": {
        **_NATURAL, "action/rel_actions_world": [("float", 6), ("share", 1)], "action/actions": [("float", 7)],
        "observation/robot_obs": [("float", 15)], "observation/rgb_static": "image", "observation/rgb_gripper": "image",
    },
    "jaco_play": {
        **_NATURAL, "action/world_vector": [("float", 3)], "action/gripper_closedness_action": [("sign", 1)],
        "observation/end_effector_cartesian_pos": [("float", 7)], "observation/image": "image", "observation/image_wrist": "image",
    },
    "berkeley_cable_routing": {
        **_ARM, **_NATURAL, "observation/robot_state": [("float", 7)], "observation/image": "image", "observation/top_image": "image",
        "observation/wrist45_image": "image",
    },
    "roboturk": {**_ARM, **_NATURAL, "action/gripper_closedness_action": [("share", 1)], "observation/front_rgb": "image"},
    "viola": {
        **_ARM, **_NATURAL, "action/gripper_closedness_action": "share", "observation/joint_states": [("float", 7)],
        "observation/gripper_states": [("share", 1)], "observation/agentview_rgb": "image", "observation/eye_in_hand_rgb": "image",
    },
    "berkeley_autolab_ur5": {
        **_ARM, **_NATURAL, "action/gripper_closedness_action": "sign", "observation/robot_state": [("float", 15)],
        "observation/image": "image", "observation/hand_image": "image", "observation/image_with_depth": "depth",
    },
    "toto": {**_ARM, **_NATURAL, "action/open_gripper": "bool", "observation/state": [("float", 7)], "observation/image": "image"},
    "language_table": {
        "action": [("float", 2)], "observation/effector_translation": [("float", 2)], "observation/instruction": "codes",
        "observation/rgb": "image",
    },
    "stanford_hydra": {**_SHARED_7, **_PLAIN, **_HAND, "observation/state": [("float", 27)]},
    "austin_buds": {**_SHARED_7, **_PLAIN, **_HAND, "observation/state": [("float", 24)]},
    "nyu_franka_play": {
        **_PLAIN, "action": [("float", 13), ("share", 1), ("float", 1)], "observation/state": [("float", 13)], "observation/image": "image",
        "observation/image_additional_view": "image", "observation/depth": "metres", "observation/depth_additional_view": "metres",
    },
    "furniture_bench": {
        **_PLAIN, **_HAND, "action": [("float", 3), ("quaternion", 4), ("share", 1)], "observation/state": [("float", 35)],
    },
    "ucsd_kitchen": {**_PLAIN, "action": [("float", 8)], "observation/state": [("float", 21)], "observation/image": "image"},
    "austin_sailor": {**_SHARED_7, **_PLAIN, **_HAND, "observation/state": [("float", 8)]},
    "austin_sirius": {**_SHARED_7, **_PLAIN, **_HAND, "observation/state": [("float", 8)]},
    "bc_z": {
        **_NATURAL, "action/future/xyz_residual": [("float", 30)], "action/future/axis_angle_residual": [("float", 30)],
        "action/future/target_close": "integers 10", "observation/present/xyz": [("float", 3)], "observation/present/axis_angle": [("float", 3)],
        "observation/present/sensed_close": [("share", 1)], "observation/image": "image",
    },
    "dlr_edan_shared_control": {**_SHARED_7, **_PLAIN, "observation/state": [("float", 7)], "observation/image": "image"},
    "iamlab_cmu_pickup_insert": {
        **_PLAIN, **_HAND, "action": [("float", 3), ("quaternion", 4), ("share", 1)], "observation/state": [("float", 20)],
    },
    "utaustin_mutex": {**_SHARED_7, **_PLAIN, **_HAND, "observation/state": [("float", 24)]},
    "berkeley_fanuc_manipulation": {
        **_PLAIN, **_HAND, "action": [("float", 6)], "observation/state": [("float", 6), ("share", 1), ("float", 6)],
    },
    "cmu_stretch": {**_PLAIN, "action": [("float", 8)], "observation/state": [("float", 4)], "observation/image": "image"},
    "fmb": {
        **_PLAIN, "action": [("float", 7)], "observation/eef_pose": [("float", 7)], "observation/state_gripper_pose": "share",
        "observation/image_side_1": "image", "observation/image_side_2": "image", "observation/image_wrist_1": "image",
    },
    "dobbe": {**_PLAIN, "action": [("float", 7)], "observation/state": [("float", 7)], "observation/wrist_image": "image"},
    "droid": {
        **_PLAIN, "language_instruction_2": "text", "language_instruction_3": "text", "action": [("double", 7)],
        "action_dict/cartesian_velocity": [("double", 6)], "action_dict/gripper_position": [("double", 1)],
        "observation/cartesian_position": [("double", 6)], "observation/gripper_position": [("double", 1)],
        "observation/exterior_image_1_left": "image", "observation/exterior_image_2_left": "image", "observation/wrist_image_left": "image",
    },
    "libero": {**_SHARED_7, **_PLAIN, **_HAND, "observation/state": [("float", 8)]},
}  # fmt: skip
"""Name of a shipped transform -> recorded path -> what stands there."""

OPENVLA_NAMES = {
    "stanford_hydra": "stanford_hydra_dataset_converted_externally_to_rlds",
    "austin_buds": "austin_buds_dataset_converted_externally_to_rlds",
    "nyu_franka_play": "nyu_franka_play_dataset_converted_externally_to_rlds",
    "furniture_bench": "furniture_bench_dataset_converted_externally_to_rlds",
    "ucsd_kitchen": "ucsd_kitchen_dataset_converted_externally_to_rlds",
    "austin_sailor": "austin_sailor_dataset_converted_externally_to_rlds",
    "austin_sirius": "austin_sirius_dataset_converted_externally_to_rlds",
    "dlr_edan_shared_control": "dlr_edan_shared_control_converted_externally_to_rlds",
    "iamlab_cmu_pickup_insert": "iamlab_cmu_pickup_insert_converted_externally_to_rlds",
    "fmb": "fmb_dataset",
    "libero": "libero_spatial_no_noops",
}
"""OpenVLA's names, which are those of TFDS, where they differ."""


def recorded(name: str, rows: int = 6, seed: int = 0) -> dict[str, Array]:
    """The step columns of an episode of a set, without flags and rewards; the same for the same numbers."""
    rng = np.random.default_rng([seed, *name.encode()])
    return {path: _column(rng, kind, rows) for path, kind in sorted(SETS[name].items())}


def _column(rng: np.random.Generator, kind: Any, rows: int) -> Array:
    if isinstance(kind, list):
        return np.concatenate([_numbers(rng, name, rows, size) for name, size in kind], axis=1)
    word, _, size = kind.partition(" ")
    if word == "zlib":
        floats = _numbers(rng, "float", rows, int(size))
        return _texts([zlib.compress(row.tobytes()) for row in floats])
    if word == "integers":
        return rng.integers(0, 2, (rows, int(size)))
    if word == "text":
        return _texts([WORDS + b" %d" % rng.integers(100)] * rows)
    if word == "codes":
        codes = np.zeros((rows, 64), np.int32)
        codes[:, : len(WORDS)] = np.frombuffer(WORDS, np.uint8)
        codes[:, len(WORDS) + 2] = 33  # what stands behind the end
        return codes
    if word == "image":
        return rng.integers(0, 256, (rows, 4, 5, 3)).astype(np.uint8)
    if word in ("depth", "metres"):
        return rng.random((rows, 4, 5, 1)).astype(np.float32)
    if word == "bool":
        return rng.random(rows) < 0.5
    return _numbers(rng, word, rows, 1)[:, 0]


def _numbers(rng: np.random.Generator, kind: str, rows: int, size: int) -> Array:
    if kind in ("sign", "share"):
        return np.array(_SIGNS if kind == "sign" else _SHARES, np.float32)[rng.integers(0, 8, (rows, size))]
    values = rng.random((rows, size)) * 2 - 1
    if kind == "quaternion":
        values = values / np.sqrt((values**2).sum(axis=1, keepdims=True))
    return values.astype(np.float64 if kind == "double" else np.float32)


def _texts(values: Sequence[bytes]) -> Array:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def episode(name: str, rows: int = 6, seed: int = 0) -> Episode:
    """An episode as RLDS has it."""
    columns = recorded(name, rows, seed)
    flags = {
        "is_first": np.arange(rows) == 0,
        "is_last": np.arange(rows) == rows - 1,
        "is_terminal": np.zeros(rows, bool),
    }
    numbers = {"reward": np.zeros(rows, np.float32), "discount": np.ones(rows, np.float32)}
    return Episode({**columns, **flags, **numbers}, id=f"{name} {seed}")


# The reference: a row is a list of numbers. Every function is written from what docs/open_x.md says.

Rows = list[list[float]]


def _join(*parts: Rows) -> Rows:
    return [[number for row in rows for number in row] for rows in zip(*parts)]


def _part(rows: Rows, start: int | None = None, stop: int | None = None) -> Rows:
    return [row[start:stop] for row in rows]


def _same(rows: Rows, *numbers: float) -> Rows:
    return [list(numbers) for _ in rows]


def _inverted(rows: Rows) -> Rows:
    return [[1 - number for number in row] for row in rows]


def _clipped(rows: Rows) -> Rows:
    return [[min(max(number, 0.0), 1.0) for number in row] for row in rows]


def absolute(rows: Rows, threshold: float = 0.1) -> Rows:
    """Of a gripper that is told what to do: what it is, 1 for open."""
    changes = [1 if number < -threshold else 0 if number > threshold else None for (number,) in rows]
    first = next((change for change in changes if change is not None), 0)
    state, states = 1 - first, []
    for change in changes:
        state = state if change is None else change
        states.append([float(state)])
    return states


def binarized(rows: Rows, closed: float = 0.05, opened: float = 0.95) -> Rows:
    """What lies between becomes what is decided next."""
    states: Rows = []
    state = rows[-1][0]
    for (number,) in reversed(rows):
        state = 1.0 if number > opened else 0.0 if number < closed else state
        states.insert(0, [state])
    return states


def _euler(rows: Rows) -> Rows:
    """Quaternions x, y, z, w as roll, pitch, yaw about fixed axes."""
    return [
        [
            math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y)),
            math.asin(2 * (w * y - z * x)),
            math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)),
        ]
        for x, y, z, w in rows
    ]


def _moves(rows: Rows) -> Rows:
    return [[after - before for before, after in zip(row, following)] for row, following in itertools.pairwise(rows)]


def standardised(name: str, columns: dict[str, Array]) -> dict[str, Any]:
    """action, proprio: lists of rows; instruction: of texts; kept: the range of recorded rows that is left; images: camera -> recorded path."""

    def get(path: str) -> Rows:
        column = columns[path]
        if column.dtype == object:
            return [np.frombuffer(zlib.decompress(text), np.float32).astype(float).tolist() for text in column]
        flat = column.reshape(len(column), -1).astype(float)
        return [list(map(float, row)) for row in flat]

    count = len(next(iter(columns.values())))
    result: dict[str, Any] = {"kept": range(count), "images": dict(IMAGES[name])}
    result["action"], result["proprio"] = (rows(get) for rows in _REFERENCES[name])
    if name.startswith("bridge"):
        result["kept"] = range(1, count - 1)
        result["action"] = result["action"][1:]
        result["proprio"] = result["proprio"][1:-1]
    if name == "language_table":
        texts = [bytes(row.tolist()).split(b"\0")[0] for row in columns["observation/instruction"]]
    else:
        natural = "observation/natural_language_instruction"
        texts = list(columns[natural if natural in columns else "language_instruction"])
    result["instruction"] = texts[result["kept"].start : result["kept"].stop]
    return result


_Get = Callable[[str], Rows]
_Make = Callable[[_Get], Rows]


def _arm(get: _Get, gripper: Rows) -> Rows:
    return _join(get("action/world_vector"), get("action/rotation_delta"), gripper)


def _first_six(gripper: Callable[[Rows], Rows]) -> _Make:
    return lambda get: _join(_part(get("action"), 0, 6), gripper(_part(get("action"), -1)))


def _told(get: _Get) -> Rows:
    return absolute(get("action/gripper_closedness_action"))


def _shut(rows: Rows) -> Rows:
    return _inverted(_clipped(rows))


def _state(*parts: tuple[int | None, int | None] | int) -> _Make:
    """Slices of the state, and numbers of zeros."""

    def make(get: _Get) -> Rows:
        state = get("observation/state")
        return _join(*(_same(state, *[0.0] * part) if isinstance(part, int) else _part(state, *part) for part in parts))

    return make


def _columns(*paths: str | int) -> _Make:
    def make(get: _Get) -> Rows:
        rows = get(f"observation/{paths[0]}")
        return _join(
            *(_same(rows, *[0.0] * path) if isinstance(path, int) else get(f"observation/{path}") for path in paths)
        )

    return make


_EULER_STATE = _state((0, 6), 1, (-1, None))
_REFERENCES: dict[str, tuple[_Make, _Make]] = {
    "fractal20220817_data": (lambda get: _arm(get, _told(get)), _columns("base_pose_tool_reached", "gripper_closed")),
    "kuka": (
        lambda get: _arm(get, _told(get)),
        _columns("clip_function_input/base_pose_tool_reached", "gripper_closed"),
    ),
    "bridge_oxe": (
        lambda get: _join(_moves(_part(get("observation/state"), 0, 6)), get("action/open_gripper")),
        _EULER_STATE,
    ),
    "bridge_orig": (
        lambda get: _join(_moves(_part(get("observation/state"), 0, 6)), binarized(_part(get("action"), -1))),
        _EULER_STATE,
    ),
    "taco_play": (
        lambda get: _join(
            _part(get("action/rel_actions_world"), 0, 6), _clipped(_part(get("action/rel_actions_world"), -1))
        ),
        lambda get: _join(
            _part(get("observation/robot_obs"), 0, 6),
            _same(get("observation/robot_obs"), 0.0),
            _part(get("observation/robot_obs"), 7, 8),
        ),
    ),
    "jaco_play": (
        lambda get: _join(get("action/world_vector"), _same(get("action/world_vector"), 0.0, 0.0, 0.0), _told(get)),
        lambda get: _join(
            _part(get("observation/end_effector_cartesian_pos"), 0, 6),
            _same(get("action/world_vector"), 0.0),
            _part(get("observation/end_effector_cartesian_pos"), 6),
        ),
    ),
    "berkeley_cable_routing": (
        lambda get: _arm(get, _same(get("action/world_vector"), 0.0)),
        _columns("robot_state", 1),
    ),
    "roboturk": (
        lambda get: _arm(get, _shut(get("action/gripper_closedness_action"))),
        lambda get: _same(get("action/world_vector"), *[0.0] * 8),
    ),
    "viola": (
        lambda get: _arm(get, _shut(get("action/gripper_closedness_action"))),
        _columns("joint_states", "gripper_states"),
    ),
    "berkeley_autolab_ur5": (
        lambda get: _arm(get, _told(get)),
        lambda get: _part(get("observation/robot_state"), 6, 14),
    ),
    "toto": (lambda get: _arm(get, get("action/open_gripper")), _state((None, None), 1)),
    "language_table": (
        lambda get: _join(get("action"), _same(get("action"), 0.0, 0.0, 0.0, 0.0, 1.0)),
        _columns("effector_translation", 6),
    ),
    "stanford_hydra": (_first_six(_inverted), _state((0, 3), (7, 10), 1, (24, 25))),
    "austin_buds": (_first_six(_shut), _state((0, 8))),
    "nyu_franka_play": (
        lambda get: _join(_part(get("action"), 7, 13), _clipped(_part(get("action"), 13, 14))),
        _state((7, 13), 2),
    ),
    "furniture_bench": (
        lambda get: _join(
            _part(get("action"), 0, 3), _euler(_part(get("action"), 3, 7)), _shut(_part(get("action"), 7))
        ),
        _state((0, 7), (34, 35)),
    ),
    "ucsd_kitchen": (lambda get: _part(get("action"), 0, 7), _state((0, 7), 1)),
    "austin_sailor": (_first_six(_shut), _state((0, 8))),
    "austin_sirius": (_first_six(_shut), _state((0, 8))),
    "bc_z": (
        lambda get: _join(
            _part(get("action/future/xyz_residual"), 0, 3),
            _part(get("action/future/axis_angle_residual"), 0, 3),
            _inverted(_part(get("action/future/target_close"), 0, 1)),
        ),
        _columns("present/xyz", "present/axis_angle", 1, "present/sensed_close"),
    ),
    "dlr_edan_shared_control": (_first_six(_inverted), _state((0, 7), 1)),
    "iamlab_cmu_pickup_insert": (
        lambda get: _join(_part(get("action"), 0, 3), _euler(_part(get("action"), 3, 7)), _part(get("action"), 7, 8)),
        _state((0, 8)),
    ),
    "utaustin_mutex": (_first_six(_shut), _state((0, 8))),
    "berkeley_fanuc_manipulation": (
        lambda get: _join(get("action"), _inverted(_part(get("observation/state"), 6, 7))),
        _state((0, 6), 1, (6, 7)),
    ),
    "cmu_stretch": (lambda get: _part(get("action"), 0, 7), _state((0, 3), 4, (3, 4))),
    "fmb": (lambda get: get("action"), _columns("eef_pose", "state_gripper_pose")),
    "dobbe": (lambda get: get("action"), _state((0, 7))),
    "droid": (
        lambda get: _join(get("action_dict/cartesian_velocity"), _inverted(get("action_dict/gripper_position"))),
        _columns("cartesian_position", "gripper_position"),
    ),
    "libero": (_first_six(_shut), _state((0, 6), 1, (6, 8))),
}

_TWO = {"primary": "image", "wrist": "wrist_image"}
IMAGES: dict[str, dict[str, str]] = {
    **{name: {"primary": "image"} for name in SETS},
    **{name: _TWO for name, columns in SETS.items() if columns.keys() >= _HAND.keys()},
    "bridge_oxe": {"primary": "image", "secondary": "image_1"},
    "bridge_orig": {"primary": "image_0", "secondary": "image_1"},
    "taco_play": {"primary": "rgb_static", "wrist": "rgb_gripper"},
    "jaco_play": {"primary": "image", "wrist": "image_wrist"},
    "berkeley_cable_routing": {"primary": "image", "secondary": "top_image", "wrist": "wrist45_image"},
    "roboturk": {"primary": "front_rgb"},
    "viola": {"primary": "agentview_rgb", "wrist": "eye_in_hand_rgb"},
    "berkeley_autolab_ur5": {"primary": "image", "wrist": "hand_image"},
    "language_table": {"primary": "rgb"},
    "nyu_franka_play": {"primary": "image", "secondary": "image_additional_view"},
    "fmb": {"primary": "image_side_1", "secondary": "image_side_2", "wrist": "image_wrist_1"},
    "dobbe": {"primary": "wrist_image"},
    "droid": {"primary": "exterior_image_1_left", "secondary": "exterior_image_2_left", "wrist": "wrist_image_left"},
}
"""Which recorded image is which camera's; in DROID the outer two may be swapped."""
