"""The declaration: what it takes, what it refuses, and what names it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.operations import concat_columns, joined_spec, too_large
from rlds2reverb.formats.transform import Transform, parts_of, transform_of, written
from rlds2reverb.formats.transformed import recipes_of
from rlds2reverb.images import METHODS, MOST_PIXELS, Size, resize_images
from rlds2reverb.specs import IMAGE_DTYPES, ArraySpec, column_spec
from tests.support import strategies
from tests.support.project import ROOT
from tests.unit.formats.test_transformed_columns import FIELDS

EVERYTHING = Transform(
    select=["observation/*", "action"],
    drop="observation/depth",
    action="concat( world_vector ,rotation_delta, /gripper)",
    resize={"observation/image": "64x48"},
    encode={"observation/image": "jpeg"},
    rename={"observation/image": "observation/rgb"},
    reward_last="shift",
    make={"observation/grip": "clip( action/grip , 0.0,1)"},
    drop_first_rows=1,
    drop_last_rows=2,
)


def test_there_is_one_way_of_writing_it() -> None:
    assert EVERYTHING.as_dict() == {
        "make": {"observation/grip": "clip(action/grip, 0, 1)"},
        "action": "concat(world_vector, rotation_delta, /gripper)",
        "select": ["observation/*", "action"],
        "drop": ["observation/depth"],
        "resize": {"observation/image": "64x48:area"},
        "encode": {"observation/image": "jpeg:quality=95"},
        "rename": {"observation/image": "observation/rgb"},
        "reward_last": "shift",
        "drop_first_rows": 1,
        "drop_last_rows": 2,
    }
    assert Transform(**EVERYTHING.as_dict()) == EVERYTHING
    assert list(EVERYTHING.lines()) == list(EVERYTHING.as_dict())
    assert EVERYTHING.lines()["make"] == "observation/grip = clip(action/grip, 0, 1)"
    assert EVERYTHING.lines()["rename"] == "observation/image -> observation/rgb"


def test_nothing_is_nothing() -> None:
    assert Transform().as_dict() == Transform().lines() == {}
    assert Transform().label == ""
    assert not Transform().changes_columns


def test_what_does_the_same_has_the_same_label() -> None:
    one = Transform(select=("a", "b"), drop=("c", "d"), resize={"i": "2x3", "j": "4x4"})
    other = Transform(select=("b", "a"), drop=("d", "c"), resize={"j": "4 x 4:area", "i": "2x3"})
    assert one.label == other.label


@pytest.mark.parametrize(
    "other",
    [
        {"select": ["action"]},
        {"drop": ["action"]},
        {"action": "concat(a)"},
        {"action": "concat(a, b)"},
        {"action": "concat(b, a)"},
        {"resize": {"a": "2x3"}},
        {"resize": {"a": "3x2"}},
        {"resize": {"a": "2x3:lanczos3"}},
        {"encode": "png"},
        {"encode": "jpeg"},
        {"encode": "jpeg:quality=94"},
        {"encode": "jpeg:subsampling=444"},
        {"encode": {"a": "png"}},
        {"make": {"a": "b"}},
        {"make": {"a": "c"}},
        {"make": {"a": "choose(b, c, seed=1)"}},
        {"make": {"a": "choose(b, c, seed=2)"}},
        {"drop_first_rows": 1},
        {"drop_last_rows": 1},
        {"rename": {"a": "b"}},
        {"rename": {"b": "a"}},
    ],
    ids=str,
)
def test_what_does_something_else_has_another_label(other: dict[str, Any]) -> None:
    labels = ["", Transform(select=["observation"]).label, Transform(resize={"a": "2x4"}).label]
    assert Transform(**other).label not in labels
    assert Transform(**other).label == Transform(**other, reward_last="shift").label


def test_a_shift_of_rewards_is_the_conventions_own() -> None:
    shift = Transform(reward_last="shift")
    assert not shift.changes_columns
    assert shift.label == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"select": 5}, "select: 5: expected a list of paths"),
        ({"select": [5]}, "select: 5: expected a path of a column"),
        ({"select": {"a": "b"}}, "select: {'a': 'b'}: expected a list of paths"),
        ({"drop": [""]}, "drop: '': expected a path of a column"),
        ({"drop": ["a//b"]}, "drop: 'a//b': expected a path"),
        ({"drop": ["/a"]}, "drop: '/a': expected a path"),
        ({"drop": ["a\nb"]}, r"drop: 'a\\nb': expected a path"),
        ({"drop": ["a", "b", "a"]}, 'drop: "a" stands twice'),
        ({"action": "sum(a)"}, r"action: 'sum\(a\)': expected concat\(PATH, PATH, ...\)"),
        ({"action": ["a"]}, r"action: \['a'\]: expected concat"),
        ({"action": "concat()"}, "action: '': expected a path"),
        ({"action": "concat(a, a)"}, 'action: "action/a" stands twice'),
        ({"action": "concat(a, /action/a)"}, 'action: "action/a" stands twice'),
        ({"resize": ["a"]}, r"resize: \['a'\]: expected a mapping"),
        ({"resize": {"a": "big"}}, 'resize: "a": .big.: expected HEIGHTxWIDTH'),
        ({"resize": {7: "2x2"}}, "resize: 7: expected a path"),
        ({"encode": ["a"]}, r"encode: \['a'\]: expected a mapping"),
        ({"encode": {"a": "webp"}}, 'encode: "a": .webp.: expected png, jpeg, jpeg:quality='),
        ({"encode": "jpeg:quality=101"}, 'encode: "all": .*got "quality=101"'),
        ({"rename": "a"}, "rename: 'a': expected a mapping"),
        ({"rename": {"a": ""}}, "rename: '': expected a path"),
        ({"rename": {"a": None}}, "rename: None: expected a path"),
        ({"make": ["a"]}, r"make: \['a'\]: expected a mapping"),
        ({"make": {"a//b": "c"}}, "make: 'a//b': expected a path"),
        ({"make": {"a": 5}}, 'make: "a": 5: expected an expression such as concat'),
        ({"make": {"a": "clip(b)"}}, r'make: "a": "clip\(b\)": clip: LOW is missing; expected clip\(x, LOW, HIGH\)'),
        ({"make": {"a/b": "x", "a": "y"}}, 'make: "a/b" is part of "a"; make one of them'),
        ({"make": {"action": "x"}, "action": "concat(a)"}, 'make: "action" is made by the operation action as well'),
        ({"drop_first_rows": -1}, "drop_first_rows: -1: expected a number of rows"),
        ({"drop_last_rows": True}, "drop_last_rows: True: expected a number of rows"),
        ({"drop_last_rows": "1"}, "drop_last_rows: '1': expected a number of rows"),
        ({"reward_last": "first"}, "reward_last: 'first': expected one of as_recorded, shift"),
        ({"reward_last": ["shift"]}, r"reward_last: \['shift'\]: expected one of"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_its_operation(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Transform(**given)


# The transforms in configs/transforms fit the datasets that they are for, as far as their specs are known.

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
    columns = recipes_of(transform_of(FOLDER / f"{name}.yaml"), DATASETS[name])
    made = {path: str(column.spec) for path, column in columns.items()}
    assert made.items() >= WANTED[name].items()
    assert "string[]" in made.values()  # the instruction
    assert not any(path.startswith(("action/", "action_dict")) for path in made)


def test_every_file_is_tried() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(WANTED) == set(DATASETS)


def test_the_page_has_the_file_as_it_is() -> None:
    page = (ROOT / "docs" / "transforms.md").read_text(encoding="utf-8")
    text = (FOLDER / "bridge.yaml").read_text(encoding="utf-8")
    assert text[text.index("transform:") :] in page


# Columns joined to one vector: exact, in the order that is written.

EXACT = ("bool", "int8", "int16", "uint8", "uint16", "float16", "float32", "float64", ml_dtypes.bfloat16)
"""Every number that some float holds exactly, whatever its value."""


@given(st.data())
def test_every_number_is_there_in_its_order_and_exactly(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    steps = data.draw(st.integers(0, 4))
    parts = data.draw(st.lists(st.tuples(st.sampled_from(EXACT), st.sampled_from([(), (0,), (1,), (3,)])), min_size=1))
    columns = [strategies.array(rng, np.dtype(dtype), (steps, *shape)) for dtype, shape in parts]
    spec = joined_spec([column_spec(column) for column in columns])
    assert spec is not None
    made = concat_columns(columns, spec.dtype)
    assert column_spec(made) == spec
    for step in range(steps):
        numbers = [float(number) for column in columns for number in np.ravel(column[step])]
        assert made[step].tolist() == numbers
    assert all(too_large(column, spec.dtype) is None for column in columns)


@pytest.mark.parametrize(
    ("dtypes", "wanted"),
    [
        (["bool"], "float32"),
        (["int64", "uint8"], "float32"),
        (["float16"], "float32"),
        ([ml_dtypes.bfloat16], "float32"),
        (["float32", "bool"], "float32"),
        (["float64", "float32", "int32"], "float64"),
    ],
)
def test_the_floats_are_the_widest_of_the_parts_and_at_least_float32(dtypes: list[str], wanted: str) -> None:
    spec = joined_spec([ArraySpec((2,), np.dtype(dtype)) for dtype in dtypes])
    assert spec == ArraySpec((2 * len(dtypes),), np.dtype(wanted))


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([(), (3,)], (4,)),
        ([(), ()], (2,)),
        ([(5, 2), (5, 3)], (5, 5)),
        ([(None,), (3,)], (None,)),
        ([(5, 2), (4, 2)], None),
        ([(2, 2), (2,)], None),
        ([(2, 2), ()], None),
    ],
)
def test_shapes_go_together_but_for_the_last_axis(
    parts: list[tuple[int, ...]], wanted: tuple[int | None, ...] | None
) -> None:
    spec = joined_spec([ArraySpec(shape, np.dtype(np.float32)) for shape in parts])
    assert (None if spec is None else spec.shape) == wanted


@pytest.mark.parametrize("dtype", [object, np.complex64])
def test_what_is_no_number_is_not_joined(dtype: type) -> None:
    assert joined_spec([ArraySpec((1,), np.dtype(dtype)), ArraySpec((1,), np.dtype(np.float32))]) is None


@pytest.mark.parametrize(
    ("value", "dtype", "into", "fits"),
    [
        (2**24, np.int32, np.float32, True),
        (-(2**24), np.int32, np.float32, True),
        (2**24 + 1, np.int32, np.float32, False),
        (-(2**24) - 1, np.int32, np.float32, False),
        (2**53, np.int64, np.float64, True),
        (2**53 + 1, np.int64, np.float64, False),
        (-(2**63), np.int64, np.float32, False),
        (2**64 - 1, np.uint64, np.float64, False),
    ],
)
def test_integers_that_no_float_holds_are_told(value: int, dtype: type, into: type, fits: bool) -> None:
    column: Array = np.array([[0, 1], [1, value]], dtype)
    reason = too_large(column, np.dtype(into))
    if fits:
        assert reason is None
        assert concat_columns([column], np.dtype(into))[1, 1] == value
    else:
        assert f"step 1 has {value}: expected integers of at most " in str(reason)


@pytest.mark.parametrize("text", ["concat(a)", "concat(a, b/c, /d)"])
def test_the_parts_are_what_stands_between_the_brackets(text: str) -> None:
    parts = parts_of(text)
    assert parts is not None
    assert written(parts) == text


@pytest.mark.parametrize("text", ["", "a", "concat", "concat(a", "concat a)", "sum(a, b)"])
def test_nothing_else_is_taken_for_it(text: str) -> None:
    assert parts_of(text) is None


# Images of another size, against the definition of each method.

SIDES = st.integers(1, 12)


def overlap_weights(before: int, after: int) -> Array:
    """[after, before] the share of each output pixel that each input pixel covers, pixel by pixel."""
    weights = np.zeros((after, before))
    scale = before / after
    for out in range(after):
        for source in range(before):
            covered = min(source + 1, (out + 1) * scale) - max(source, out * scale)
            weights[out, source] = max(covered, 0) / scale
    return weights


def lanczos_weights(before: int, after: int) -> Array:
    """[after, before] the kernel's values at the distances between centres, normed."""
    scale = before / after
    widened = max(scale, 1.0)
    centres = (np.arange(after) + 0.5) * scale
    distances = np.abs(np.arange(before) + 0.5 - centres[:, None]) / widened
    values = np.sinc(distances) * np.sinc(distances / 3) * (distances < 3)
    return values / values.sum(axis=1, keepdims=True)


WEIGHTS = {"area": overlap_weights, "lanczos3": lanczos_weights}


def slowly(images: Array, size: Size) -> Array:
    """The same in float64, not rounded."""
    weights = WEIGHTS[size.method]
    rows, columns = weights(images.shape[1], size.height), weights(images.shape[2], size.width)
    return np.einsum("yh,xw,thwc->tyxc", rows, columns, images.astype(np.float64))


@st.composite
def images(draw: st.DrawFn) -> Array:
    shape = (draw(st.integers(0, 3)), draw(SIDES), draw(SIDES), draw(st.integers(0, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return strategies.array(rng, draw(st.sampled_from(IMAGE_DTYPES)), shape)


def sizes() -> st.SearchStrategy[Size]:
    return st.builds(Size, SIDES, SIDES, st.sampled_from(METHODS))


@given(images(), sizes())
def test_is_what_the_definition_says(given_images: Array, size: Size) -> None:
    made, exact = resize_images(given_images, size), slowly(given_images, size)
    assert made.dtype == given_images.dtype
    if made.dtype.kind == "f":
        np.testing.assert_allclose(made, exact, atol=2e-5)
        return
    limits = np.iinfo(made.dtype)
    exact = np.clip(exact, limits.min, limits.max)
    assert np.abs(made - exact).max(initial=0) <= 0.5 + 2e-6 * limits.max  # to the nearest, up to errors of float32


@given(images())
def test_of_the_same_size_is_the_same_image_by_area(given_images: Array) -> None:
    np.testing.assert_array_equal(
        resize_images(given_images, Size(given_images.shape[1], given_images.shape[2])), given_images
    )


@given(SIDES, SIDES, sizes(), st.integers(0, 255))
def test_one_grey_stays_that_grey(height: int, width: int, size: Size, grey: int) -> None:
    plain = np.full((1, height, width, 1), grey, np.uint8)
    assert (resize_images(plain, size) == grey).all()


@given(images(), sizes())
def test_steps_and_channels_do_not_touch_one_another(given_images: Array, size: Size) -> None:
    made = resize_images(given_images, size)
    for step in range(len(given_images)):
        for channel in range(given_images.shape[3]):
            alone = resize_images(given_images[step : step + 1, :, :, channel : channel + 1], size)
            np.testing.assert_array_equal(made[step : step + 1, :, :, channel : channel + 1], alone)


@given(images(), sizes())
def test_how_the_images_lie_in_memory_changes_nothing(given_images: Array, size: Size) -> None:
    made = resize_images(given_images, size)
    other_order = given_images.astype(given_images.dtype.newbyteorder())
    for same in (np.asfortranarray(given_images), other_order, given_images[::-1][::-1]):
        np.testing.assert_array_equal(resize_images(same, size), made)
    assert resize_images(other_order, size).dtype.isnative


def test_halves_go_to_the_even_number_and_overshoot_is_cut() -> None:
    pairs = np.array([[0, 1], [1, 2], [2, 3], [254, 255]], np.uint8).reshape(4, 1, 2, 1)
    assert resize_images(pairs, Size(1, 1)).ravel().tolist() == [0, 2, 2, 254]
    edge = np.repeat(np.array([0, 255], np.uint8), 8).reshape(1, 1, 16, 1)
    larger = slowly(edge, Size(1, 31, "lanczos3"))
    assert larger.min() < 0
    assert larger.max() > 255
    made = resize_images(edge, Size(1, 31, "lanczos3"))
    assert (made.min(), made.max()) == (0, 255)
    assert (made[larger < 0] == 0).all()


def test_pixels_that_are_not_finite_stay_so() -> None:
    picture = np.zeros((1, 4, 4, 1), np.float32)
    picture[0, 0, 0] = np.nan
    made = resize_images(picture, Size(2, 2))
    assert np.isnan(made[0, 0, 0, 0])
    assert made[0, 1:].tolist() == [[[0], [0]]]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256x320", Size(256, 320)),
        ("8 x 9", Size(8, 9, "area")),
        ("1x1:lanczos3", Size(1, 1, "lanczos3")),
        (f"{MOST_PIXELS}x1", Size(MOST_PIXELS, 1)),
    ],
)
def test_a_size_is_height_and_width(text: str, size: Size) -> None:
    assert Size.parse(text) == size
    assert Size.parse(str(size)) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0x5", "0x5: expected sides of 1 to 8192 pixels"),
        ("5x8193", "expected sides of 1 to 8192 pixels"),
        ("5x5:bilinear", 'method "bilinear": expected one of area, lanczos3'),
        ("5", "'5': expected HEIGHTxWIDTH or HEIGHTxWIDTH:METHOD"),
        ("-5x5", "expected HEIGHTxWIDTH"),
        ("9999999999x5", "expected HEIGHTxWIDTH"),
        ("٣x٣", "expected HEIGHTxWIDTH"),
        (256, "256: expected HEIGHTxWIDTH"),
        ([256, 256], "expected HEIGHTxWIDTH"),
        (None, "expected HEIGHTxWIDTH"),
    ],
)
def test_what_is_no_size_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Size.parse(text)
