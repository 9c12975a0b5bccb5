"""Each operation against a slow reference; what is refused before an episode is read, and what of an episode cannot be used."""

from __future__ import annotations

import itertools
import pickle
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.expressions import Unusable, expression_of
from rlds2reverb.formats.operations import OPERATIONS, EpisodeRows
from rlds2reverb.specs import ArraySpec, ImageSpec, column_spec
from tests.support.open_x_sets import absolute, binarized
from tests.support.project import ROOT

IMAGE = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)


def texts(*values: bytes) -> Array:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def made(text: str, name: str = "episode", **columns: Array) -> Array:
    """The column, which is as its spec says."""
    expression = expression_of(text, "here")
    spec = expression.spec({path: column_spec(column) for path, column in columns.items()}, "here")
    count = len(next(iter(columns.values()))) if columns else 3
    rows = EpisodeRows(columns, count, name)
    again = pickle.loads(pickle.dumps(expression))  # workers get it so
    assert (again, again.text) == (expression, expression_of(expression.text, "here").text)
    column = expression.make(rows)
    assert column_spec(column) == spec
    assert len(column) == count
    return column


floats = arrays.arrays(np.float32, st.tuples(st.integers(1, 9), st.just(3)), elements=st.floats(-2, 2, width=16))
shares = arrays.arrays(
    np.float32,
    st.integers(1, 9),
    elements=st.sampled_from([-1, 0, 0.04, 0.05, 0.3, 0.95, 0.96, 1, 2]).map(np.float32),
)
signs = arrays.arrays(
    np.float32,
    st.integers(1, 9),
    elements=st.sampled_from([-1, -0.1, -0.05, 0, 0.05, 0.1, 0.11, 1]).map(np.float32),
)


@given(shares)
def test_a_gripper_is_open_or_closed(column: Array) -> None:
    rows = [[float(value)] for value in column]
    assert made("gripper_binarize(x)", x=column).tolist() == [
        row[0] for row in binarized(rows, float(np.float32(0.05)), float(np.float32(0.95)))
    ]
    assert made("gripper_binarize(x, 0.2, open=0.5)", x=column).tolist() == [
        row[0] for row in binarized(rows, 0.2, 0.5)
    ]
    both = made("gripper_binarize(x)", x=np.stack([column, column[::-1]], axis=1))
    np.testing.assert_array_equal(both[:, 1], made("gripper_binarize(x)", x=column[::-1].copy()))


@given(signs)
def test_a_gripper_that_is_told_what_to_do_has_a_state(column: Array) -> None:
    rows = [[float(value)] for value in column]
    assert made("gripper_absolute(x)", x=column).tolist() == [row[0] for row in absolute(rows, float(np.float32(0.1)))]
    assert made("gripper_absolute(x, 0.5)", x=column[:, None]).tolist() == absolute(rows, 0.5)


@given(floats)
def test_numbers(column: Array) -> None:
    rows = column.tolist()
    np.testing.assert_allclose(
        made("gripper_invert(x)", x=column), [[1 - value for value in row] for row in rows], atol=1e-6
    )
    assert made("clip(x, -1, 0.5)", x=column).tolist() == [[min(max(value, -1), 0.5) for value in row] for row in rows]
    np.testing.assert_allclose(
        made("scale(x, 2, offset=-1)", x=column), [[2 * value - 1 for value in row] for row in rows], atol=1e-6
    )
    np.testing.assert_allclose(
        made("scale(x, 0.5)", x=column.astype(np.float64)), [[value / 2 for value in row] for row in rows]
    )
    steps = [[after - before for before, after in zip(row, behind)] for row, behind in itertools.pairwise(rows)]
    np.testing.assert_allclose(made("delta(x)", x=column), [*steps, [0, 0, 0]], atol=1e-6)
    assert made("x[1]", x=column).tolist() == [row[1] for row in rows]
    assert made("concat(x[-2:], x[0], zeros(2), constant(1, 0.5))", x=column).tolist() == [
        [*row[-2:], row[0], 0, 0, 1, 0.5] for row in rows
    ]
    assert made("pad(x, 5)", x=column).tolist() == [[*row, 0, 0] for row in rows]
    assert made("pad_mask(x, 5)", x=column).tolist() == [[True, True, True, False, False]] * len(rows)
    assert made("reshape(x, 3, 1)", x=column).tolist() == [[[value] for value in row] for row in rows]
    assert made("cast(x, float64)", x=column).tolist() == rows


def test_floats_keep_their_dtype_and_others_become_float32() -> None:
    for dtype, wanted in (
        (np.float16, np.float16),
        (np.float64, np.float64),
        (np.int64, np.float32),
        (bool, np.float32),
    ):
        assert made("gripper_invert(x)", x=np.ones(2, dtype)).dtype == wanted
    assert made("pad(x, 2)", x=np.ones(2, bool)).dtype == bool


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5), min_size=1, max_size=4
    )
)
def test_code_points_are_text_up_to_the_first_zero(words: list[str]) -> None:
    codes = np.zeros((len(words), 7), np.int32)
    for row, word in enumerate(words):
        codes[row, : len(word)] = [ord(sign) for sign in word]
        codes[row, len(word) + 1 :] = 65
    assert made("codes_to_text(x)", x=codes).tolist() == [word.encode() for word in words]


def test_zlib_strings_are_numbers() -> None:
    numbers = np.arange(14, dtype=np.float32).reshape(2, 7)
    column = texts(*(zlib.compress(row.astype("<f4").tobytes()) for row in numbers))
    np.testing.assert_array_equal(made("zlib(x, 7)", x=column), numbers)
    np.testing.assert_array_equal(made("zlib(x, 7)", x=numbers), numbers)
    np.testing.assert_array_equal(made("zlib(x, 7, 4, dtype=uint8)", x=column), numbers.view(np.uint8).reshape(2, 7, 4))


def test_images_are_turned_and_their_channels_swapped() -> None:
    turned = [[[list(pixel) for pixel in reversed(line)] for line in reversed(image)] for image in IMAGE.tolist()]
    assert made("rotate_180(x)", x=IMAGE).tolist() == turned
    swapped = [[[pixel[::-1] for pixel in line] for line in image] for image in IMAGE.tolist()]
    assert made("bgr_to_rgb(x)", x=IMAGE).tolist() == swapped


def test_a_turn_by_a_quaternion_is_one_by_angles() -> None:
    quarter = np.tile(np.array([0, 0, np.sqrt(0.5), np.sqrt(0.5)], np.float32), (2, 1))  # about z
    np.testing.assert_allclose(made("rotation(x, xyzw, euler)", x=quarter), [[0, 0, np.pi / 2]] * 2, atol=1e-6)
    np.testing.assert_allclose(made("rotation(x, wxyz, euler)[0]", x=np.roll(quarter, 1, axis=1)), [0, 0], atol=1e-6)
    assert made("rotation(x, xyzw, matrix)", x=quarter).shape == (2, 3, 3)


def test_a_choice_is_a_function_of_the_seed_and_of_the_episode() -> None:
    columns = {name: np.full(2, number) for number, name in enumerate("abc")}
    names = [f"content:{number:032x}" for number in range(300)]
    draws = [int(made("choose(a, b, c)", name, **columns)[0]) for name in names]
    assert min(np.bincount(draws, minlength=3)) > 70
    assert draws == [int(made("choose(a, b, c, seed=0)", name, **columns)[0]) for name in names]
    assert draws != [int(made("choose(a, b, c, seed=1)", name, **columns)[0]) for name in names]
    # Of a copy, another pass, and rows of an episode: the same.
    for name in names[:20]:
        assert (
            len(
                {
                    int(made("choose(a, b, c)", other, **columns)[0])
                    for other in (name, f"{name}#2", f"{name}[1:7]", f"{name}|3[2:]#2")
                }
            )
            == 1
        )
    for other in ("run", "run|2", "run|set=0123456789ab|3", "run|last_step=repeat", "run[2:9]|4", "run[2:9][:3]"):
        assert made("choose(a, b, c)", other, **columns)[0] == made("choose(a, b, c)", "run", **columns)[0]
    # The other way round, the one that is left.
    pairs = [(made("choose(a, b)", name, **columns)[0], made("choose(b, a)", name, **columns)[0]) for name in names]
    assert set(pairs) == {(0, 1), (1, 0)}


def test_a_text_that_is_empty_is_chosen_if_all_are() -> None:
    empty, words = texts(b"", b""), texts(b"go", b"go")
    assert {made("choose(a, b, c)", f"e{n}", a=empty, b=words, c=empty)[0] for n in range(20)} == {b"go"}
    assert made("choose(a, b)", a=empty, b=empty).tolist() == [b"", b""]


def test_lookahead_adds_up() -> None:
    assert expression_of("concat(delta(delta(x)), delta(y)[0])", "").lookahead == 2
    assert expression_of("concat(x, y)", "").lookahead == 0


def test_an_episode_without_rows_has_columns_without_rows() -> None:
    specs: dict[str, Any] = {
        "x": np.zeros(0, np.float32),
        "v": np.zeros((0, 4), np.float32),
        "i": np.zeros((0, 2, 2, 3), np.uint8),
        "t": texts(),
        "n": np.zeros((0, 5), np.int32),
    }
    for text in (
        "gripper_absolute(x)", "gripper_binarize(v)", "gripper_invert(x)", "clip(v, 0, 1)", "scale(x, 2)", "delta(v)", "concat(x, v, zeros(2))",
        "pad(v, 9)", "pad_mask(x, 2)", "rotation(v, xyzw, euler)", "rotation(v, wxyz, axis_angle)", "rotation(v, xyzw, 6d_columns)", "cast(n, uint8)",
        "reshape(v, 2, 2)", "rotate_180(i)", "bgr_to_rgb(i)", "zlib(t, 7)", "codes_to_text(n)", "choose(t, t)", "constant(1)",
    ):  # fmt: skip
        made(text, **specs)


SPECS = {
    "arm": ArraySpec((3,), np.dtype(np.float32)),
    "grip": ArraySpec((), np.dtype(np.float32)),
    "free": ArraySpec((None,), np.dtype(np.float32)),
    "word": ArraySpec((), np.dtype(object)),
    "codes": ArraySpec((9,), np.dtype(np.int32)),
    "image": ArraySpec((4, 5, 3), np.dtype(np.uint8)),
    "gray": ArraySpec((4, 5, 1), np.dtype(np.uint8)),
    "jpeg": ArraySpec.of_images(ImageSpec((4, 5, 3), np.dtype(np.uint8), "jpeg")),
    "nest/arm": ArraySpec((3,), np.dtype(np.float64)),
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arn", '"arn" is no column of the steps; there are arm, .*; did you mean "arm"'),
        ("clip(nest, 0, 1)", '"nest" is a nest of the steps; there are nest/arm'),
        ("arm[:4]", r"arm\[:4\]: expected at least 4 along the last axis of fixed size, got float32\[3\]"),
        ("arm[-4]", "expected at least 4"),
        ("arm[3]", "expected at least 4"),
        ("arm[3:]", "nothing is left"),
        ("grip[0]", r"got float32\[\]"),
        ("free[:1]", "of fixed size"),
        ("concat(arm, image)", r"concat: expected numbers, all of one rank .*, got arm float32\[3\], image uint8\[4, 5, 3\]"),
        ("concat(arm, word)", r"expected numbers, .*word string\[\]"),
        ("gripper_invert(word)", r"gripper_invert: expected numbers, got word string\[\]"),
        ("gripper_binarize(arm, 0.9, 0.1)", "gripper_binarize: expected CLOSED not above OPEN, got arm"),
        ("gripper_absolute(grip, -1)", "a threshold of 0 or more"),
        ("clip(arm, 1, 0)", "clip: expected LOW not above HIGH, got arm"),
        ("rotation(arm, xyzw, euler)", r"rotations as xyzw, numbers\[4\], got arm float32\[3\]"),
        ("pad(arm, 2)", "at most 2 numbers"),
        ("pad(free, 8)", "of fixed size"),
        ("pad_mask(image, 8)", "numbers, or vectors of them"),
        ("zlib(arm, 7)", r"strings, or float32\[7\], got arm float32\[3\]"),
        ("zlib(jpeg, 7)", "expected strings"),
        ("codes_to_text(arm)", r"code points, integers\[n\]"),
        ("bgr_to_rgb(gray)", r"images \[height, width, 3\], got gray"),
        ("rotate_180(jpeg)", "and not image files that are kept as they are"),
        ("rotate_180(arm)", "images"),
        ("choose(image, gray)", "columns of one shape and dtype, got image .*, gray "),
        ("choose(arm, nest/arm)", "columns of one shape and dtype"),
        ("reshape(arm, 2, 2)", r"as many values as \[2, 2\] holds"),
        ("cast(word, float32)", "expected numbers"),
        ("constant()", "at least one number"),
        ("constant(0, 1e39)", "numbers that float32 holds, up to 3.403e.38, and not 1e.39"),
        ("clip(arm, 0, 1e39)", "numbers that float32 holds"),
        ("scale(cast(arm, float16), 70000)", "numbers that float16 holds, up to 6.55e.04, and not 70000"),
        ("gripper_absolute(arm, 1e39)", "numbers that float32 holds"),
        ("gripper_binarize(arm, -1e39, 1)", "numbers that float32 holds"),
        ("zlib(word, 65536, 65536, 65536, 65536)", "at most 1,073,741,824 bytes in a row, and not float32"),
        ("zlib(word, 999999, 999999, 999999, 999999)", "at most 1,073,741,824 bytes"),
        ("reshape(arm, 65536, 65536, 65536, 65536)", "as many values as"),
    ],
)  # fmt: skip
def test_what_columns_do_not_allow_is_refused_before_an_episode_is_read(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^transform: make: .*{message}"):
        expression_of(text, "transform").spec(SPECS, 'transform: make: "x"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a path or an operation at its end"),
        ("clp(arm, 0, 1)", 'no operation "clp"; there are concat, .*; did you mean "clip"'),
        ("clip(arm", "brackets in pairs"),
        ("clip(arm, 0, 1))", r'expected its end before "\)"'),
        ("clip(arm, 0)", r"clip: HIGH is missing; expected clip\(x, LOW, HIGH\)"),
        ("clip(arm, 0, 1, 2)", '"2" is one value too many'),
        ("clip(arm, 0, one)", '"one": expected a number'),
        ("clip(arm, 0, nan)", '"nan": expected a number'),
        ("clip(arm, 0, high=1, high=2)", "stands twice"),
        ("clip(arm, 0, hihg=1)", 'there is no "hihg"'),
        ("clip()", r"expected clip\(x, LOW, HIGH\)"),
        ("zeros(-1)", "expected a size, from 1"),
        ("zeros(0)", "expected a size, from 1"),
        ("rotation(arm, quaternion, euler)", '"quaternion": expected one of xyzw, wxyz'),
        ("cast(arm, float)", r'"float": expected one of .*did you mean "float'),
        ("choose(a, b, seed=x)", '"x": expected a whole number'),
        ("arm[1:2:3]", "a number or FROM:TO"),
        ("arm[", "a number or FROM:TO"),
        ("arm[]", "a number or FROM:TO"),
        ("arm[1", "a number or FROM:TO"),
        ("a//b", "is no path"),
        ("concat(arm,,arm)", "expected a path or an operation"),
        (7, "expected an expression such as"),
        ("gripper_invert(" * 65 + "arm" + ")" * 65, "at most 64 operations and brackets"),
        ("arm" + "[:3]" * 3000, "at most 64 operations and brackets"),
        ("concat(" * 30 + "arm" + "[:3]" * 40 + ")" * 30, "at most 64 operations and brackets"),
    ],
)  # fmt: skip
def test_what_is_written_wrongly_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: .*{message}"):
        expression_of(text, "here")


@given(st.lists(st.sampled_from(["[:3]", "[-3:]"]), max_size=50), st.integers(0, 13))
def test_many_operations_beside_each_other_are_no_depth(parts: list[str], calls: int) -> None:
    part = "".join(["arm", *parts])
    text = f"concat({', '.join([part] * (1 + 10 * calls))})"
    assert expression_of(text, "here").text == text


@given(st.text("ab[](),:=1 x/", max_size=12))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    for candidate in (text, f"clip({text}", f"choose({text})"):
        try:
            expression = expression_of(candidate, "here")
        except ConfigError:
            continue
        assert expression_of(expression.text, "here") == expression


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("gripper_absolute(x)", np.array([0, np.nan], np.float32), "step 1 is nan"),
        ("gripper_binarize(x)", np.array([[0, np.nan]], np.float32), "step 0 is nan"),
        ("scale(x, 2)", np.array([0, 2**24 + 1]), "step 1 has 16777217: expected integers of at most 16,777,216"),
        ("concat(x)", np.array([0, 2**24 + 1]), "step 1 has 16777217"),
        ("rotation(x, xyzw, euler)", np.ones((2, 4)), "step 0 has a quaternion of length 2"),
        ("zlib(x, 1)", texts(b"no"), "step 0 is no string that zlib compressed"),
        ("zlib(x, 1)", texts(zlib.compress(b"1234"), zlib.compress(b"123")), "step 1 holds 3 bytes: expected 4"),
        ("zlib(x, 1)", texts(zlib.compress(bytes(10**6))), "step 0 holds more than 4 bytes"),
        ("zlib(x, 1)", texts(zlib.compress(b"1234")[:-2]), "step 0 holds 4 bytes: expected 4"),
        ("zlib(x, 1)", texts(zlib.compress(b"1234") + b"56"), "step 0 has 2 bytes behind what zlib compressed"),
        ("zlib(x, 2, dtype=bool)", texts(zlib.compress(b"\0\1"), zlib.compress(b"\1\7")), "step 1 holds a byte of 7"),
        ("codes_to_text(x)", np.array([[65], [-1]]), "step 1 has a number that is no code point"),
        ("codes_to_text(x)", np.array([[0xD800]]), "no code point"),
        ("codes_to_text(x)", np.array([[2**40]]), "no code point"),
        ("cast(x, uint8)", np.array([[0.0], [0.5]]), "step 1 has 0.5: expected numbers that uint8 holds"),
        ("cast(x, uint8)", np.array([256.0]), "expected numbers that uint8 holds"),
        ("cast(x, int8)", np.array([255], np.uint8), "expected numbers that int8 holds"),
        ("cast(x, uint64)", np.array([-1]), "expected numbers that uint64 holds"),
        ("cast(x, int32)", np.array([np.nan]), "expected numbers that int32 holds"),
        ("cast(x, float16)", np.array([1e9]), "expected numbers that float16 holds"),
        ("cast(x, float32)", np.array([2**24 + 1]), "step 0 has 16777217"),
    ],
)  # fmt: skip
def test_what_an_operation_is_not_defined_for_makes_the_column_unusable(text: str, column: Array, message: str) -> None:
    expression = expression_of(text, "here")
    expression.spec({"x": column_spec(column)}, "here")
    with pytest.raises(Unusable, match=message) as caught:
        expression.make(EpisodeRows({"x": column}, len(column), "episode"))
    assert caught.value.path == "x"


def test_every_operation_says_how_it_is_written_and_what_it_does() -> None:
    page = (ROOT / "docs/transforms.md").read_text()
    for name, operation in OPERATIONS.items():
        assert operation.form.startswith(f"{name}(")
        assert operation.effect
        assert f"`{operation.form}`" in page
