"""The transforms in configs/transforms fit the datasets that they are for, as far as their specs are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.formats.transform import made_columns, transform_of
from rlds2reverb.specs import ArraySpec
from tests.support.project import ROOT
from tests.unit.formats.test_transform_columns import FIELDS

FOLDER = ROOT / "configs" / "transforms"


def specs(**columns: tuple[Any, ...]) -> dict[str, ArraySpec]:
    named = {
        name.replace("__", "/"): ArraySpec(tuple(shape), np.dtype(dtype)) for name, (dtype, *shape) in columns.items()
    }
    return {**named, **FIELDS}


DATASETS = {
    "rt1": specs(
        observation__image=(np.uint8, 256, 320, 3),
        observation__base_pose_tool_reached=(np.float32, 7),
        observation__gripper_closed=(np.float32, 1),
        observation__natural_language_instruction=(object,),
        observation__natural_language_embedding=(np.float32, 512),
        action__world_vector=(np.float32, 3),
        action__rotation_delta=(np.float32, 3),
        action__gripper_closedness_action=(np.float32, 1),
        action__terminate_episode=(np.int32, 3),
        action__base_displacement_vector=(np.float32, 2),
        action__base_displacement_vertical_rotation=(np.float32, 1),
    ),
    "bridge": specs(
        observation__image=(np.uint8, 480, 640, 3),
        observation__state=(np.float32, 7),
        observation__natural_language_instruction=(object,),
        observation__natural_language_embedding=(np.float32, 512),
        action__world_vector=(np.float32, 3),
        action__rotation_delta=(np.float32, 3),
        action__open_gripper=(bool,),
        action__terminate_episode=(np.float32,),
    ),
    "droid": specs(
        observation__exterior_image_1_left=(np.uint8, 180, 320, 3),
        observation__exterior_image_2_left=(np.uint8, 180, 320, 3),
        observation__wrist_image_left=(np.uint8, 180, 320, 3),
        observation__cartesian_position=(np.float64, 6),
        observation__joint_position=(np.float64, 7),
        observation__gripper_position=(np.float64, 1),
        language_instruction=(object,),
        language_instruction_2=(object,),
        action=(np.float64, 7),
        action_dict__cartesian_velocity=(np.float64, 6),
        action_dict__gripper_position=(np.float64, 1),
        action_dict__joint_velocity=(np.float64, 7),
    ),
}
WANTED = {
    "rt1": {"action": "float32[7]", "observation/image": "uint8[256, 256, 3]", "observation/state": "float32[7]"},
    "bridge": {"action": "float32[7]", "observation/image": "uint8[256, 256, 3]", "observation/state": "float32[7]"},
    "droid": {
        "action": "float64[7]",
        "observation/image": "uint8[128, 128, 3]",
        "observation/wrist": "uint8[128, 128, 3]",
    },
}


@pytest.mark.parametrize("name", WANTED)
def test_it_makes_what_learners_want(name: str) -> None:
    columns = made_columns(transform_of(FOLDER / f"{name}.yaml"), DATASETS[name])
    made = {path: str(one.spec) for path, one in columns.items()}
    assert made.items() >= WANTED[name].items()
    assert "string[]" in made.values()  # the instruction
    assert not any(path.startswith(("action/", "action_dict")) for path in made)


def test_every_file_is_tried() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(WANTED) == set(DATASETS)


def test_the_page_has_the_file_as_it_is() -> None:
    page = (ROOT / "docs" / "transforms.md").read_text(encoding="utf-8")
    text = (FOLDER / "bridge.yaml").read_text(encoding="utf-8")
    assert text[text.index("transform:") :] in page
