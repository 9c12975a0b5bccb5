"""What becomes of the columns of a step, and what is refused before any episode is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.transform import Transform
from rlds2reverb.formats.transformed import left_out, recipes_of
from rlds2reverb.specs import ArraySpec, ImageSpec


def spec(dtype: Any, *shape: int | None) -> ArraySpec:
    return ArraySpec(shape, np.dtype(dtype))


FIELDS = {
    "reward": spec(np.float32),
    "discount": spec(np.float32),
    "is_first": spec(bool),
    "is_last": spec(bool),
    "is_terminal": spec(bool),
}
ROBOT = {
    "observation/image": spec(np.uint8, 256, 320, 3),
    "observation/wrist/rgb": spec(np.uint8, None, None, 3),
    "observation/wrist/depth": spec(np.float32, 64, 64, 1),
    "observation/state": spec(np.float64, 7),
    "observation/jpeg": ArraySpec.of_images(ImageSpec((48, 64, 3), np.dtype(np.uint8), "jpeg")),
    "observation/tag": spec(object),
    "action/world_vector": spec(np.float32, 3),
    "action/rotation/delta": spec(np.float32, 3),
    "action/gripper": spec(bool),
    "action/word": spec(object),
    "action/matrix": spec(np.float32, 2, 2),
    "language": spec(object),
    **FIELDS,
}


def made(**options: Any) -> dict[str, str]:
    """Path -> spec in words, without RLDS' own fields."""
    columns = recipes_of(Transform(**options), ROBOT)
    return {path: str(column.spec) for path, column in columns.items() if path not in FIELDS}


def test_nothing_changes_nothing() -> None:
    columns = recipes_of(Transform(), ROBOT)
    assert {path: column.spec for path, column in columns.items()} == ROBOT
    assert left_out(columns, ROBOT) == ()


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (["observation/image"], ["observation/image"]),
        (["observation/wrist"], ["observation/wrist/depth", "observation/wrist/rgb"]),
        (["observation/*/rgb", "lang*"], ["language", "observation/wrist/rgb"]),
        (["*/[is]*"], ["observation/image", "observation/state"]),
        (["reward", "language"], ["language"]),
    ],
)
def test_select_keeps_paths_nests_and_what_patterns_match(patterns: list[str], kept: list[str]) -> None:
    assert sorted(made(select=patterns)) == kept
    assert set(FIELDS) <= recipes_of(Transform(select=patterns), ROBOT).keys()


def test_drop_leaves_out_after_select() -> None:
    assert sorted(made(select=["observation"], drop=["observation/wrist", "observation/*g*"])) == ["observation/state"]
    assert "reward" not in recipes_of(Transform(drop=["reward"]), ROBOT)


def test_the_action_takes_the_place_of_its_nest() -> None:
    columns = recipes_of(Transform(action="concat(rotation/delta, gripper, /observation/state)"), ROBOT)
    assert {path: str(column.spec) for path, column in columns.items() if path.startswith("action")} == {
        "action": "float64[11]"
    }
    assert columns["action"].reads == ("action/rotation/delta", "action/gripper", "observation/state")
    assert left_out(columns, ROBOT) == ("action/world_vector", "action/word", "action/matrix")


def test_an_action_that_is_a_column_can_be_replaced_by_others() -> None:
    droid = {
        "action": spec(np.float64, 7),
        "action_dict/velocity": spec(np.float64, 6),
        "action_dict/grip": spec(np.float64, 1),
    }
    columns = recipes_of(Transform(action="concat(/action_dict/velocity, /action_dict/grip)"), droid)
    assert str(columns["action"].spec) == "float64[7]"
    assert left_out(columns, droid) == ("action",)


def test_images_have_another_size_also_where_theirs_is_not_known() -> None:
    sizes = {"observation/image": "64x48", "observation/wrist/rgb": "8x8", "observation/wrist/depth": "1x2:lanczos3"}
    columns = made(resize=sizes)
    assert [columns[path] for path in sizes] == ["uint8[64, 48, 3]", "uint8[8, 8, 3]", "float32[1, 2, 1]"]


@pytest.mark.parametrize(
    ("encode", "encoded"),
    [
        (
            "jpeg",
            {"observation/image": "jpeg of uint8[256, 320, 3]", "observation/wrist/rgb": "jpeg of uint8[?, ?, 3]"},
        ),
        ("png", {"observation/image": "png of uint8[256, 320, 3]", "observation/wrist/rgb": "png of uint8[?, ?, 3]"}),
        ({"observation/wrist": "jpeg"}, {"observation/wrist/rgb": "jpeg of uint8[?, ?, 3]"}),
        (
            {"all": "jpeg", "observation": "png", "observation/image": "jpeg:quality=7"},
            {"observation/image": "jpeg of uint8[256, 320, 3]", "observation/wrist/rgb": "png of uint8[?, ?, 3]"},
        ),
    ],
    ids=str,
)
def test_images_become_files_by_the_longest_path(encode: Any, encoded: dict[str, str]) -> None:
    pytest.importorskip("imagecodecs")
    if isinstance(encode, dict) and "all" in encode:  # its longest paths leave nothing to the shortest
        with pytest.raises(ConfigError, match='encode: "all": no image'):
            made(encode=encode)
        encode.pop("all")
    columns, plain = made(encode=encode), made()
    assert columns == {**plain, **{path: f"string[] ({text})" for path, text in encoded.items()}}


def test_files_of_another_size_are_made_again() -> None:
    pytest.importorskip("imagecodecs")
    columns = made(
        resize={"observation/jpeg": "8x6"}, encode={"observation/jpeg": "png"}, rename={"observation/jpeg": "small"}
    )
    assert columns["small"] == "string[] (png of uint8[8, 6, 3])"


def test_names_change_all_at_once() -> None:
    swapped = {"observation/image": "observation/state", "observation/state": "observation/image", "language": "a/b/c"}
    columns = made(rename=swapped)
    assert columns["observation/state"] == "uint8[256, 320, 3]"
    assert columns["observation/image"] == "float64[7]"
    assert columns["a/b/c"] == "string[]"
    nest = made(rename={"observation/wrist": "hand"})
    assert {"hand/rgb", "hand/depth"} <= nest.keys()


def test_all_names_are_those_of_the_dataset() -> None:
    columns = made(
        action="concat(world_vector, gripper)",
        select=["observation/image", "action"],
        resize={"observation/image": "8x8"},
        rename={"observation/image": "pixels", "action": "control"},
    )
    assert columns == {"pixels": "uint8[8, 8, 3]", "control": "float32[4]"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": ["observation/imag"]}, 'select: "observation/imag" is no column of the steps; there are observation/image, .*; did you mean "observation/image"'),
        ({"select": ["observation/image/x"]}, "is no column"),
        ({"drop": ["*/nothing"]}, 'drop: "\\*/nothing" is no column'),
        ({"select": ["action"], "drop": ["observation"]}, 'drop: "observation" is no column of the steps; there are action/'),
        ({"drop": ["is_first"]}, "it leaves the steps without is_first, which RLDS needs"),
        ({"drop": ["is_*"]}, "it leaves the steps without is_first and is_last"),
        ({"rename": {"is_last": "end"}}, "it leaves the steps without is_last"),
        ({"action": "concat(world_vectr)"}, 'action: "action/world_vectr" is no column of the steps; .*did you mean "action/world_vector"'),
        ({"action": "concat(rotation)"}, 'action: "action/rotation" is a nest of the steps; there are action/rotation/delta'),
        ({"action": "concat(world_vector, matrix)"}, r"of one rank \(a scalar is a vector of one\), got action/world_vector float32\[3\], action/matrix float32\[2, 2\]"),
        ({"action": "concat(world_vector, word)"}, r"expected numbers, .* action/word string\[\]"),
        ({"action": "concat(gripper)", "select": ["action/gripper"]}, 'select: "action/gripper" is no column'),
        ({"resize": {"observation/state": "8x8"}}, r'"observation/state" is float64\[7\]: expected an image \[height, width, channels\] of uint8, uint16, float32$'),
        ({"resize": {"observation": "8x8"}}, 'resize: "observation" is no column'),
        ({"resize": {"observation/tag": "8x8"}}, r'"observation/tag" is string\[\]: expected an image'),
        ({"resize": {"observation/jpeg": "8x8"}}, r'is jpeg of uint8\[48, 64, 3\]: images that stay encoded cannot be resized; with encode'),
        ({"resize": {"observation/jpeg": "8x8"}, "encode": {"observation/image": "png"}}, "images that stay encoded cannot be resized"),
        ({"encode": {"observation/state": "png"}}, r'encode: "observation/state" is float64\[7\]: png is made of images \[height, width, 1\|3\|4\] of uint8 or uint16'),
        ({"encode": {"observation/wrist/depth": "jpeg"}}, r"is float32\[64, 64, 1\]: jpeg is made of images \[height, width, 1\|3\] of uint8$"),
        ({"encode": {"observation/jpeg": "png"}}, "it holds image files already; with a size"),
        ({"encode": {"observation/imag": "png"}}, 'encode: "observation/imag" is no column of the steps; .*did you mean "observation/image"'),
        ({"encode": {"action": "png"}}, 'encode: "action": no image that png could hold; there are '),
        ({"encode": "jpeg", "drop": ["observation"]}, 'encode: "all": no image that jpeg:quality=95 could hold'),
        ({"resize": {"observation/image": "8x8"}, "drop": ["observation/image"]}, 'resize: "observation/image" is no column'),
        ({"rename": {"observation/image": "language"}}, 'rename: "observation/image" and "language" would both be named "language"'),
        ({"rename": {"observation/image": "language/a"}}, 'column "language" would have the name of the nest of "language/a"'),
        ({"rename": {"language": "observation"}}, 'column "observation" would have the name of the nest of "observation/'),
        ({"rename": {"observation": "a", "observation/image": "b"}}, '"observation/image" is part of "observation"'),
        ({"rename": {"nothing": "b"}}, 'rename: "nothing" is no column'),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_steps_do_not_allow_is_refused_with_what_there_is(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^transform: .*{message}" if "leaves" not in message else message):
        made(**options)


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (5, 5), (2, 5, 5, 3), ()])
def test_an_image_has_pixels_and_three_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected an image"):
        recipes_of(Transform(resize={"image": "8x8"}), {"image": spec(np.uint8, *shape)})


@pytest.mark.parametrize("dtype", [bool, np.int32, np.float64, np.int8, np.complex64])
def test_an_image_is_of_a_dtype_that_images_have(dtype: Any) -> None:
    with pytest.raises(ConfigError, match="of uint8, uint16, float32"):
        recipes_of(Transform(resize={"image": "8x8"}), {"image": spec(dtype, 5, 5, 3)})


def test_steps_that_never_had_flags_are_not_the_transforms_fault() -> None:
    assert "a" in recipes_of(Transform(drop=["b"]), {"a": spec(bool), "b": spec(bool)})
