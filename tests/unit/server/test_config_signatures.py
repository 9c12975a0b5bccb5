"""Signatures in YAML: what is written is what is read, and nonsense is refused with its path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from replay_server.config import from_plain, to_plain

from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec, Nest, flatten, named_tuple_type, view_in
from rlds2reverb.views.trajectory import two_step
from tests.support import strategies
from tests.support.raising import error_of

SHAPES = st.lists(st.none() | st.integers(0, 99), max_size=3).map(tuple)
NAMES = st.sampled_from(["a", "b", "dtype", "shape", "on", "no", "1", "null", "two words", "~", "Größe", ""])
IDENTIFIERS = st.lists(st.sampled_from(["a", "b", "dtype", "on", "no", "fields"]), min_size=1, max_size=3, unique=True)
LEAVES = st.builds(ArraySpec, SHAPES, strategies.dtypes(), st.sampled_from(["", "observation", "yes"]))


@st.composite
def bounded_leaves(draw: st.DrawFn) -> ArraySpec:
    """A bounded spec, one bound for all values or one for each."""
    dtype = draw(
        st.sampled_from([np.dtype(kind) for kind in ("int8", "uint8", "int64", "uint64", "float32", "float64")])
    )
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    bounds = np.sort(strategies.array(np.random.default_rng(draw(st.integers(0, 99))), dtype, (2, *shape)), axis=0)
    pair = (bounds[0], bounds[1]) if draw(st.booleans()) else (bounds.min(initial=0), bounds.max(initial=0))
    return ArraySpec(shape, dtype, draw(st.sampled_from(["", "x"])), *(np.asarray(bound, dtype) for bound in pair))


def named_tuples(children: st.SearchStrategy[Nest]) -> st.SearchStrategy[Nest]:
    def made(fields: list[str], values: list[Nest]) -> Nest:
        return named_tuple_type("Trajectory", tuple(fields))(*values)

    return IDENTIFIERS.flatmap(
        lambda fields: st.lists(children, min_size=len(fields), max_size=len(fields)).map(
            lambda values: made(fields, values)
        )
    )


NESTS = st.recursive(
    LEAVES | bounded_leaves(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(NAMES, inner, max_size=3)
        | named_tuples(inner)
    ),
    max_leaves=8,
)


def through_yaml(plain: Any) -> Any:
    return yaml.safe_load(yaml.safe_dump(plain, sort_keys=False))


def assert_same(found: Nest, expected: Nest) -> None:
    """Equal, tuples and lists told apart, and so are the names and bounds of the leaves, which do not compare."""
    assert found == expected
    ours, theirs = flatten(found), flatten(expected)
    assert list(ours) == list(theirs)
    for path, leaf in ours.items():
        other = theirs[path]
        assert (leaf.name, leaf.dtype, leaf.minimum is None) == (other.name, other.dtype, other.minimum is None)
        if leaf.minimum is not None:
            assert np.array_equal(leaf.minimum, other.minimum)
            assert np.array_equal(leaf.maximum, other.maximum)
            assert leaf.minimum.dtype == leaf.maximum.dtype == leaf.dtype


@given(NESTS)
def test_what_is_written_is_read_back(nest: Nest) -> None:
    try:
        flatten(nest)
    except Exception:
        return  # two columns of one name
    assert_same(from_plain(to_plain(nest)), nest)
    assert_same(from_plain(through_yaml(to_plain(nest))), nest)


@given(strategies.column_specs())
def test_a_step_spec_is_read_back(columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
    spec = {path: ArraySpec((2, *shape), dtype) for path, (dtype, shape) in columns.items()}
    assert_same(from_plain(through_yaml(to_plain(spec))), spec)


def test_the_signature_of_a_view_is_read_back() -> None:
    step = {"observation": {"a": ArraySpec((3,), np.dtype(np.uint8))}, "action": ArraySpec((), np.dtype(object))}
    scalar = ArraySpec((), np.dtype(np.float32))
    signature = two_step().signature({**step, "reward": scalar, "discount": scalar})
    plain = through_yaml(to_plain(signature))
    assert list(plain) == ["!namedtuple", "fields"]
    assert {"action": "string[2]"} in plain["fields"]
    assert_same(from_plain(plain), signature)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("two_step", "two_step"),
        ("sequence:length=2", "two_step"),
        ("sequence:length=4", "sequence:length=4,stride=1,pad_end=False,tile_end=False"),
        ("my_own_view:x=1", "my_own_view:x=1"),
    ],
)
def test_the_view_that_a_table_is_for_may_be_written_as_for_a_push(written: str, read: str) -> None:
    leaf = {"dtype": "int32", "shape": ["?"], "name": "step_type", "view": written}
    signature = from_plain([leaf, "int8[]"])
    assert view_in(signature) == read
    assert to_plain(signature)[0] == {**leaf, "view": read}
    assert view_in(from_plain(through_yaml(to_plain(signature)))) == read


def test_leaves_may_be_written_in_two_ways() -> None:
    leaf = ArraySpec((2, None), np.dtype(np.float32))
    for plain in (
        "float32[2, ?]",
        "float32[2,?]",
        {"dtype": "float32", "shape": [2, "?"]},
        {"dtype": "float32", "shape": [2, None]},
    ):
        assert from_plain(plain) == leaf
    assert from_plain({"dtype": "int8"}) == from_plain("int8[]") == ArraySpec((), np.dtype(np.int8))
    assert from_plain("string[3]") == ArraySpec((3,), np.dtype(object))


def test_a_column_may_be_named_as_a_key_of_a_leaf() -> None:
    leaf = ArraySpec((2,), np.dtype(np.float32))
    for nest in ({"dtype": leaf}, {"dtype": leaf, "shape": leaf}, {"shape": leaf}, {"name": leaf, "minimum": leaf}):
        assert_same(from_plain(to_plain(nest)), nest)


def test_equal_namedtuples_are_of_one_class() -> None:
    leaf = ArraySpec((), np.dtype(np.int8))
    nest = named_tuple_type("Pair", ("b", "a"))(leaf, leaf)
    read = from_plain(to_plain(nest))
    assert (type(read).__name__, read._fields, read) == ("Pair", ("b", "a"), nest)
    assert read == from_plain(to_plain(nest))


NONSENSE: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: {"a": [7]}, r"\$\.a\[0\]: expected a leaf .* got 7"),
    "nothing": (lambda: {"a": None}, r"\$\.a: expected a leaf .* got None"),
    "no sizes": (lambda: {"a": "float32"}, r'\$\.a: expected DTYPE\[SIZES\] .* got "float32"'),
    "half a leaf": (lambda: ["float32[2"], r"\$\[0\]: expected DTYPE"),
    "text behind it": (lambda: "float32[2] x", r"\$: expected DTYPE"),
    "a dtype": (lambda: {"a": "float31[2]"}, r'\$\.a: dtype "float31", expected one of .*float32'),
    "a dtype in a mapping": (lambda: {"a": {"dtype": "text"}}, r'\$\.a\.dtype: dtype "text"'),
    "a negative size": (lambda: {"dtype": "int8", "shape": [-1]}, r"\$\.shape: expected sizes"),
    "half a size": (lambda: {"dtype": "int8", "shape": [1.5]}, r"\$\.shape: expected sizes"),
    "a size beyond all": (lambda: f"int8[{5000 * '9'}]", r"\$: expected sizes"),
    "a size of truth": (lambda: {"dtype": "int8", "shape": [True]}, r"\$\.shape: expected sizes"),
    "one size": (lambda: {"dtype": "int8", "shape": 5}, r"\$\.shape: expected a list of sizes, got 5"),
    "one bound": (lambda: {"dtype": "int8", "minimum": 5}, r"\$: minimum and maximum go together"),
    "text as a bound": (lambda: {"dtype": "int8", "minimum": "x", "maximum": 5}, r"\$\.minimum: expected int8 values"),
    "no bound": (lambda: {"dtype": "float32", "minimum": None, "maximum": 5}, r"\$\.minimum: expected float32 values"),
    "bounds of text": (lambda: {"dtype": "string", "minimum": 1, "maximum": 5}, r"\$\.minimum: expected string values"),
    "a bound too low": (lambda: {"dtype": "uint8", "minimum": -1, "maximum": 5}, r"\$\.minimum: expected uint8 values"),
    "a bound too high": (lambda: {"dtype": "uint8", "minimum": 1, "maximum": 500}, r"\$\.maximum: expected uint8"),
    "half a bound": (lambda: {"dtype": "uint8", "minimum": 1, "maximum": 5.5}, r"\$\.maximum: expected uint8"),
    "bounds in rows": (
        lambda: {"dtype": "int8", "minimum": [1, [2]], "maximum": 5},
        r"\$\.minimum: expected int8 values",
    ),
    "no view": (lambda: {"dtype": "int8", "view": 5}, r"\$\.view: expected a view's name such as .*, got 5"),
    "an empty view": (lambda: {"dtype": "int8", "view": ""}, r"\$\.view: expected a view's name"),
    "a view and a name": (lambda: {"dtype": "int8", "name": "x", "view": "episode"}, r"\$: a leaf without axes has a"),
    "a tuple of a mapping": (lambda: {"!tuple": {"a": "int8[]"}}, r"\$: a tuple is .* and nothing else"),
    "a tuple and more": (lambda: {"!tuple": [], "b": "int8[]"}, r"\$: a tuple is .* and nothing else"),
    "a tuple of a number": (lambda: {"!tuple": ["int8[]", 5]}, r"\$\.!tuple\[1\]: expected a leaf"),
    "one name twice": (lambda: {"a": {1: "int8[]", "1": "int8[]"}}, r"\$\.a: two names are the same"),
    "a namedtuple without fields": (lambda: {"!namedtuple": "X"}, r"\$: a namedtuple has"),
    "a namedtuple of nothing": (lambda: {"!namedtuple": "X", "fields": []}, r"\$: a namedtuple has"),
    "a namedtuple and more": (
        lambda: {"!namedtuple": "X", "fields": [{"a": "int8[]"}], "b": 1},
        r"\$: a namedtuple has",
    ),
    "a namedtuple of a mapping": (lambda: {"!namedtuple": "X", "fields": {"a": "int8[]"}}, r"\$: a namedtuple has"),
    "a field without a name": (
        lambda: {"!namedtuple": "X", "fields": ["int8[]"]},
        r"\$\.fields\[0\]: expected NAME: LEAF",
    ),
    "a field": (lambda: {"!namedtuple": "X", "fields": [{"a": 1}]}, r"\$\.fields\[0\]\.a: expected a leaf"),
    "a keyword as a field": (
        lambda: {"!namedtuple": "X", "fields": [{"class": "int8[]"}]},
        r"\$: no namedtuple: .*class",
    ),
    "no name of a class": (lambda: {"!namedtuple": "9 x", "fields": [{"a": "int8[]"}]}, r"\$: no namedtuple: .*9 x"),
}


@pytest.mark.parametrize(("make", "message"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_with_its_path(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        from_plain(make())
    with pytest.raises(ConfigError, match=f"^{message}".replace(r"^\$", r"^\$\.tables\[3\]\.signature\.b")):
        from_plain({"a": "int8[]", "b": make()}, "$.tables[3].signature")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3) | st.just("int8[2]"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "minimum", "maximum", "name"]), inner, max_size=4)
        | st.dictionaries(st.just("!namedtuple") | st.just("fields") | st.text(max_size=2), inner, max_size=3)
    ),
)


@given(ANYTHING)
def test_anything_is_a_signature_or_a_config_error_with_a_path(value: Any) -> None:
    error = error_of(ConfigError, lambda: from_plain(value))
    if error is not None:
        assert str(error).startswith("$")
    else:
        nest = from_plain(value)
        assert from_plain(to_plain(nest)) == nest
