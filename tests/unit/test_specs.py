"""Specs: the order of leaves, mapping over nests, and the comparison of a table's signature with items."""

from __future__ import annotations

import copy
import pickle
import re
from collections import OrderedDict, namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import SpecError
from rlds2reverb.specs import (
    FORMATS,
    IMAGE_DTYPES,
    ArraySpec,
    ImageSpec,
    Nest,
    column_spec,
    differences,
    dtype_name,
    flatten,
    map_leaves,
    map_with_path,
    named_tuple_type,
    same_dtype,
    shape_fits,
    spec_texts,
    view_in,
    with_view,
)

Pair = namedtuple("Pair", ["right", "left"])

KEYS = st.text("abcAB_01", min_size=1, max_size=3)
NESTS = st.recursive(
    st.integers(),
    lambda children: st.one_of(
        st.dictionaries(KEYS, children, max_size=4),
        st.dictionaries(KEYS, children, max_size=4).map(OrderedDict),
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.tuples(children, children).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=12,
)


def spec(shape: tuple[int | None, ...] = (), dtype: str | type = "float32", **bounds: Any) -> ArraySpec:
    return ArraySpec(tuple(shape), np.dtype(dtype), **bounds)


def slow_leaves(nest: Nest, path: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """(path, leaf) pairs in TensorFlow's order, by the book."""
    if isinstance(nest, dict):
        children = [(key, nest[key]) for key in sorted(nest)]
    elif isinstance(nest, Pair):
        children = [("right", nest.right), ("left", nest.left)]
    elif isinstance(nest, (list, tuple)):
        children = [(str(index), child) for index, child in enumerate(nest)]
    else:
        return [("/".join(path), nest)]
    return [leaf for key, child in children for leaf in slow_leaves(child, (*path, key))]


@given(NESTS)
def test_leaves_come_out_in_order_by_path(nest: Nest) -> None:
    assert list(flatten(nest).items()) == slow_leaves(nest)


@pytest.mark.full
@given(NESTS)
def test_leaves_come_out_in_dm_trees_order(nest: Nest) -> None:
    import tree

    assert list(flatten(nest).values()) == tree.flatten(nest)
    paths = ["/".join(str(part) for part in path) for path, _ in tree.flatten_with_path(nest)]
    assert list(flatten(nest)) == paths


def test_a_path_can_stand_before_all_leaves() -> None:
    assert flatten({"b": 1, "a": (2, 3)}, "steps") == {"steps/a/0": 2, "steps/a/1": 3, "steps/b": 1}


@pytest.mark.parametrize("nest", [{"a": {"b": 1}, "a/b": 2}, {"a": (1,), "a/0": 2}])
def test_two_leaves_of_one_path_are_refused(nest: dict[str, dict[str, int] | int | tuple[int]]) -> None:
    with pytest.raises(SpecError, match='both named "a/'):
        flatten(nest)


def test_two_leaves_of_one_path_in_a_table_are_a_difference_and_in_items_an_error() -> None:
    twice = {"a": {"b": spec()}, "a/b": spec()}
    (line,) = differences({"a": spec()}, twice)
    assert line == 'table: two columns are both named "a/b": a key holds a "/"'
    with pytest.raises(SpecError, match='both named "a/b"'):
        differences(twice, {"a": spec()})


@given(NESTS)
def test_mapping_keeps_the_nest_and_sees_every_path(nest: Nest) -> None:
    seen = {}

    def note(path: str, leaf: int) -> int:
        seen[path] = leaf
        return leaf

    assert map_with_path(note, nest) == nest
    assert seen == flatten(nest)
    assert flatten(map_leaves(lambda leaf: leaf + 1, nest)) == {path: leaf + 1 for path, leaf in seen.items()}


@given(NESTS)
def test_mapping_keeps_the_kinds_of_containers(nest: Nest) -> None:
    def kinds(nest: Nest) -> Any:
        if isinstance(nest, dict):
            return "dict", {key: kinds(child) for key, child in nest.items()}
        if isinstance(nest, (list, tuple)):
            return type(nest), [kinds(child) for child in nest]
        return "leaf"

    assert kinds(map_leaves(str, nest)) == kinds(nest)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (spec(), "float32[]"),
        (spec((None, 3), "uint8"), "uint8[?, 3]"),
        (spec((2,), object), "string[2]"),
        (spec((), ml_dtypes.bfloat16), "bfloat16[]"),
    ],
)
def test_a_spec_reads_as_dtype_and_sizes(value: ArraySpec, text: str) -> None:
    assert str(value) == text


def test_the_dtype_of_text_is_called_string() -> None:
    assert dtype_name(np.dtype(object)) == "string"
    assert dtype_name(np.dtype(">f8")) == "float64"


def test_names_and_bounds_are_not_compared() -> None:
    assert spec(name="step_type", minimum=0, maximum=1) == spec()
    assert spec((3,)) != spec()
    assert spec(dtype="float64") != spec()


def test_a_window_keeps_name_and_bounds() -> None:
    window = spec((3,), name="x", minimum=0, maximum=1).with_leading(None)
    assert (window.shape, window.name, window.minimum, window.maximum) == ((None, 3), "x", 0, 1)


class TestNamedTuples:
    def test_one_class_serves_a_name_and_its_fields(self) -> None:
        assert named_tuple_type("T", ("a", "b")) is named_tuple_type("T", ("a", "b"))
        assert named_tuple_type("T", ("a", "b")) is not named_tuple_type("T", ("b", "a"))

    def test_it_behaves_as_a_namedtuple(self) -> None:
        value = named_tuple_type("T", ("b", "a"))(1, a=2)
        assert (value.a, value.b, tuple(value), value._fields) == (2, 1, (1, 2), ("b", "a"))
        assert repr(value) == "T(b=1, a=2)"
        assert flatten(value) == {"b": 1, "a": 2}
        assert not hasattr(value, "__dict__")

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_values_survive_pickling_with_their_class(self, protocol: int) -> None:
        value = named_tuple_type("T", ("b", "a"))(spec((2,)), {"x": named_tuple_type("U", ("c",))(1)})
        loaded = pickle.loads(pickle.dumps(value, protocol))
        assert loaded == value
        assert type(loaded) is type(value)
        assert type(loaded.a["x"]) is type(value.a["x"])

    def test_values_survive_copying(self) -> None:
        value = named_tuple_type("T", ("b", "a"))(1, [2])
        deep = copy.deepcopy(value)
        assert deep == value
        assert type(deep) is type(value)
        assert deep.a is not value.a


class TestDifferences:
    def test_a_table_may_leave_sizes_free(self) -> None:
        assert differences({"a": spec((2, 3))}, {"a": spec((None, 3))}) == []
        assert differences({"a": spec((2, 3))}, {"a": spec((None, None))}) == []

    def test_items_of_any_size_do_not_fit_a_fixed_one(self) -> None:
        lines = differences({"a": spec((None, 3))}, {"a": spec((2, 3))})
        assert lines == ["a: items have float32[?, 3], table has float32[2, 3]"]

    @pytest.mark.parametrize("found", [spec((2,), "float64"), spec((3,)), spec(()), spec((2, 1))])
    def test_dtype_size_and_rank_count(self, found: ArraySpec) -> None:
        assert differences({"a": spec((2,))}, {"a": found}) == [f"a: items have float32[2], table has {found}"]

    def test_byte_orders_names_and_bounds_do_not(self) -> None:
        assert differences({"a": spec((2,), ">f4")}, {"a": spec((2,), "<f4", name="x", minimum=0, maximum=1)}) == []

    def test_every_leaf_that_differs_has_its_line(self) -> None:
        items = {"a": spec(), "b": spec(), "only_items": spec((2,))}
        table = {"a": spec(dtype="int32"), "b": spec(), "only_table": spec(dtype=object)}
        assert differences(items, table) == [
            "a: items have float32[], table has int32[]",
            "only_items: items have float32[2], table has no such column",
            "only_table: table has string[], items have no such column",
        ]

    def test_the_order_of_columns_counts(self) -> None:
        one, other = named_tuple_type("T", ("a", "b")), named_tuple_type("T", ("b", "a"))
        lines = differences(one(spec(), spec()), other(spec(), spec()))
        assert lines == ["column order: items have ['a', 'b'], table has ['b', 'a']"]

    def test_kinds_of_containers_do_not_count(self) -> None:
        one = named_tuple_type("T", ("a", "b"))
        assert differences(one(spec(), (spec(),)), {"b": [spec()], "a": spec()}) == []

    @settings(max_examples=40)
    @given(NESTS)
    def test_a_nest_does_not_differ_from_itself(self, nest: Nest) -> None:
        specs = map_leaves(lambda leaf: spec((abs(leaf) % 5,)), nest)
        assert differences(specs, specs) == []

    @settings(max_examples=40)
    @given(NESTS, st.data())
    def test_one_changed_leaf_gives_one_line(self, nest: Nest, data: st.DataObject) -> None:
        specs = map_leaves(lambda leaf: spec((abs(leaf) % 5,)), nest)
        if flatten(specs):
            path = data.draw(st.sampled_from(sorted(flatten(specs))))
            changed = map_with_path(lambda at, leaf: spec(leaf.shape, "int8") if at == path else leaf, specs)
            lines = differences(specs, changed)
            assert len(lines) == 1
            assert lines[0].startswith(f"{path}: items have float32")


N_STEP = {"action": spec(), "observation": spec((4,)), "reward": spec()}


class TestViews:
    """The view that a table is for."""

    def test_one_leaf_with_axes_says_it_and_signatures_compare_as_before(self) -> None:
        marked = with_view(N_STEP, "n_step:n=3")
        assert view_in(marked) == "n_step:n=3"
        assert {path: leaf.view for path, leaf in flatten(marked).items() if leaf.view} == {"observation": "n_step:n=3"}
        assert marked == N_STEP
        assert view_in(N_STEP) == view_in(None) == view_in(()) == ""

    def test_scalars_say_it_where_they_have_no_name(self) -> None:
        named, plain = ArraySpec((), np.dtype(np.float32), "a"), spec()
        assert flatten(with_view([named, plain, plain], "x"))["1"].view == "x"
        assert view_in(with_view([named], "x")) == ""

    def test_the_last_view_counts(self) -> None:
        assert [leaf.view for leaf in with_view(with_view([spec(), spec((2,))], "a"), "b")] == ["", "b"]
        assert view_in(with_view(with_view([spec()], "a"), "")) == ""

    def test_another_view_is_a_difference_where_no_leaf_differs(self) -> None:
        three, five = (with_view(N_STEP, f"n_step:n={n}") for n in (3, 5))
        assert differences(three, three) == differences(N_STEP, three) == differences(three, N_STEP) == []
        assert differences(three, five) == ["view: items are of n_step:n=3, table is for n_step:n=5"]

    def test_another_view_shows_each_leaf_that_is_not_the_same(self) -> None:
        items = with_view({"a": spec((2, 3)), "b": spec((4,))}, "two_step")
        table = with_view({"a": spec((None, 3)), "b": spec((4,)), "c": spec()}, "episode")
        assert differences(items, table) == [
            "view: items are of two_step, table is for episode",
            "a: items have float32[2, 3], table has float32[?, 3]",
            "c: table has float32[], items have no such column",
        ]

    def test_long_names_are_cut_and_stay_different(self) -> None:
        one, other = (view_in(with_view([spec((1,))], f"{1000 * 'x'}{end}")) for end in "ab")
        assert one != other
        assert len(one) == len(other) < 450

    def test_names_that_are_no_text_for_a_message_are_written_out(self) -> None:
        assert view_in(with_view([spec((1,))], "extras=\udc80")) == "extras=\\udc80"


def test_texts_of_a_nest_stand_by_path() -> None:
    assert spec_texts({"b": [spec((2,))], "a": spec((None,), object)}) == {"a": "string[?]", "b/0": "float32[2]"}


@pytest.mark.parametrize(
    ("found", "wanted", "fits"),
    [((2, 3), (2, 3), True), ((2, 3), (None, 3), True), ((2,), (3,), False), ((2,), (2, 1), False), ((), (), True)],
)
def test_a_shape_fits_where_its_sizes_are_wanted_or_free(
    found: tuple[int, ...], wanted: tuple[int | None, ...], fits: bool
) -> None:
    assert shape_fits(found, wanted) is fits


def test_a_free_size_does_not_fit_a_fixed_one() -> None:
    assert not shape_fits((None,), (3,))


def test_dtypes_are_the_same_in_either_byte_order() -> None:
    assert same_dtype(np.dtype(">f8"), np.dtype("<f8"))
    assert not same_dtype(np.dtype("f8"), np.dtype("f4"))


@pytest.mark.parametrize("texts", [["a", "bc"], [b"a", b"bc"], np.array(["a", b"bc"], object)])
def test_a_column_of_text_has_one_dtype_whatever_its_own(texts: Any) -> None:
    assert column_spec(np.array(texts)) == ArraySpec((), np.dtype(object))


def test_a_columns_spec_is_that_of_a_row() -> None:
    assert column_spec(np.zeros((5, 2, 3), np.float32)) == ArraySpec((2, 3), np.dtype(np.float32))


# What encoded images decode to, in the name of a spec and back.

SIZES = st.none() | st.integers(0, 999_999_999)
IMAGES = st.builds(
    ImageSpec, st.tuples(SIZES, SIZES, SIZES), st.sampled_from(IMAGE_DTYPES), st.sampled_from(("", *FORMATS))
)
TENSORFLOW_TAKES = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")

UINT8 = np.dtype(np.uint8)


@given(IMAGES)
def test_a_name_tells_the_image_again(image: ImageSpec) -> None:
    assert ImageSpec.of_name(image.name) == image
    assert ArraySpec.of_images(image).image == image
    assert TENSORFLOW_TAKES.fullmatch(image.name)


@given(st.text() | IMAGES.map(lambda image: image.name + "0x") | IMAGES.map(lambda image: f" {image.name}"))
def test_other_names_tell_none(name: str) -> None:
    assert ImageSpec.of_name(name) is None


@pytest.mark.parametrize("size", ["1" * 10, "\u0663", "+1", "-1", ""])
def test_sizes_of_hostile_names_are_refused(size: str) -> None:
    assert ImageSpec.of_name(f"encoded_image.png.uint8.{size}x1x1") is None


def test_only_text_is_an_image() -> None:
    image = ImageSpec((1, 2, 3), UINT8)
    assert ArraySpec((), UINT8, image.name).image is None
    assert ArraySpec((), np.dtype(object)).image is None


@pytest.mark.parametrize(
    ("shape", "dtype", "format_", "message"),
    [
        ((1, 2), "uint8", "", "expected height, width and channels"),
        ((1, 2, -3), "uint8", "", "expected height, width and channels"),
        ((1, 2, 3), "float64", "", "float64: expected one of uint8, uint16, float32"),
        ((1, 2, 3), "uint8", "gif", '"gif": expected one of jpeg, png'),
    ],
)
def test_what_is_no_image_is_refused(shape: tuple[int, ...], dtype: str, format_: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSpec(shape, np.dtype(dtype), format_)  # type: ignore[arg-type]


@given(st.tuples(*[st.integers(0, 99)] * 3), st.sampled_from(IMAGE_DTYPES))
def test_bytes_of_a_decoded_image(shape: tuple[int, int, int], dtype: np.dtype) -> None:
    assert ImageSpec(shape, dtype).nbytes == np.zeros(shape, dtype).nbytes
    assert ImageSpec((None, *shape[1:]), dtype).nbytes is None


TEXT = ArraySpec((2,), np.dtype(object))
JPEG = ArraySpec.of_images(ImageSpec((4, 5, 3), UINT8, "jpeg"), (2,))
ANY = ArraySpec.of_images(ImageSpec((None, None, 3), UINT8), (None,))


@pytest.mark.parametrize(
    ("items", "table", "fits"),
    [
        (JPEG, JPEG, True),
        (JPEG, ANY, True),
        (ANY, JPEG, False),
        (JPEG, TEXT, True),  # a table that somebody made for text takes files
        (TEXT, JPEG, False),
        (TEXT, TEXT, True),
        (ArraySpec.of_images(ImageSpec((4, 5, 3), UINT8, "png"), (2,)), JPEG, False),
        (ArraySpec.of_images(ImageSpec((4, 6, 3), UINT8, "jpeg"), (2,)), JPEG, False),
        (ArraySpec.of_images(ImageSpec((4, 5, 3), np.dtype(np.uint16), "jpeg"), (2,)), JPEG, False),
        (ArraySpec((2, 4, 5, 3), UINT8), JPEG, False),
    ],
)
def test_which_items_a_table_takes(items: ArraySpec, table: ArraySpec, fits: bool) -> None:
    lines = differences({"a": items}, {"a": table})
    assert lines == ([] if fits else [f"a: items have {items}, table has {table}"])


def test_people_see_what_it_is() -> None:
    assert str(JPEG) == "string[2] (jpeg of uint8[4, 5, 3])"
    assert str(ANY) == "string[?] (jpeg or png of uint8[?, ?, 3])"
