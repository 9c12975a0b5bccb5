"""What one value of a step may be, and what its column makes of it."""

from __future__ import annotations

from collections import namedtuple
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, SpecError
from rlds2reverb.learner.recording import RecordedColumns, StepLayout, spec_of_value, value_for
from rlds2reverb.specs import ArraySpec, column_spec, flatten, map_leaves
from tests.support import strategies
from tests.support.learner.loops import step, writer
from tests.support.push.in_memory import Server


class Move(IntEnum):
    """Actions with names."""

    LEFT = 2


def column_of(spec: ArraySpec, *values: Any) -> Any:
    """A column with these values, as a writer records it."""
    columns = RecordedColumns(StepLayout({"x": None}), {"x": spec}, 1 << 20, 1)
    for value in values:
        columns.append({"x": value})
    return columns.finished()["x"]


@given(strategies.dtypes(), strategies.shapes(), st.integers(1, 9), st.integers(0, 99))
def test_arrays_and_scalars_of_any_dtype_are_kept_to_the_bit(dtype: Any, shape: Any, rows: int, seed: int) -> None:
    wanted = strategies.array(np.random.default_rng(seed), dtype, (rows, *shape))
    spec, _ = spec_of_value("x", wanted[0])
    assert spec == column_spec(wanted)
    found = column_of(spec, *wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found, wanted)


@given(strategies.dtypes(), strategies.shapes(), strategies.dtypes(), strategies.shapes())
def test_another_dtype_or_shape_is_refused(dtype: Any, shape: Any, other: Any, another: Any) -> None:
    rng = np.random.default_rng(0)
    spec, _ = spec_of_value("x", strategies.array(rng, dtype, (1, *shape))[0])
    value = strategies.array(rng, other, (1, *another))[0]
    number = isinstance(value, float) and spec.dtype.kind in "f" and shape == another == ()
    if (dtype, shape) == (other, another) or number or (isinstance(value, float) and "bfloat16" in str(dtype)):
        return
    with pytest.raises(ConfigError, match='column "x": expected'):
        value_for("x", value, spec)


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (1.1, "float32", np.float32(1.1)),
        (1.1, "float64", 1.1),
        (1.1, ml_dtypes.bfloat16, ml_dtypes.bfloat16(1.1)),
        (np.float64(1.1), "float32", np.float32(1.1)),
        (1, "float32", 1.0),
        (255, "uint8", 255),
        (Move.LEFT, "int32", 2),
        (True, "bool", True),
        (np.True_, "bool", True),
        (np.array(2.5, ">f4"), "float32", 2.5),
        ("ü", object, "ü".encode()),
        (np.str_("a"), object, b"a"),
        (b"a", object, b"a"),
        (np.array("a"), object, b"a"),
    ],
    ids=str,
)
def test_what_fits(value: Any, dtype: Any, stored: Any) -> None:
    assert column_of(ArraySpec((), np.dtype(dtype)), value)[0] == stored


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (256, "uint8", "holds 0 to 255; got 256"),
        (True, "int64", r"expected int64\[\], got bool\[\]"),
        (1, "bool", r"expected bool\[\], got int64\[\]"),
        (1.0, "int64", r"expected int64\[\], got float32\[\]"),
        (np.float32(1), "float64", r"expected float64\[\], got float32\[\]"),
        (np.int64(1), "int32", r"expected int32\[\], got int64\[\]"),
        (1j, "float32", r"expected float32\[\], got complex128\[\]"),
        (1, object, r"expected string\[\], got int64\[\]"),
        (np.array([b"a"]), object, r"expected string\[\], got string\[1\]"),
        (np.array(None), object, "expected text"),
        (np.datetime64("2020-01-01"), "int64", 'column "x"'),
        (np.ma.masked_array([1.0], [True]), "float64", "a masked array"),
        pytest.param(object(), "float32", "expected a number, text or a numpy array, got object", id="object"),
    ],
    ids=str,
)
def test_what_does_not(value: Any, dtype: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        value_for("x", value, ArraySpec((), np.dtype(dtype)))


def test_text_of_several_values_becomes_bytes() -> None:
    found = column_of(ArraySpec((2,), np.dtype(object)), np.array(["a", "bc"]), np.array([b"d", "e"], object))
    assert found.tolist() == [[b"a", b"bc"], [b"d", b"e"]]


def test_what_turns_into_an_array_is_taken() -> None:
    class Tensor:
        def __array__(self, *_: Any, **__: Any) -> Any:
            return np.arange(3, dtype=np.float32)

    assert column_of(ArraySpec((3,), np.dtype(np.float32)), Tensor()).tolist() == [[0, 1, 2]]


# Fields that no item holds: a writer refuses them at the first step.


def test_a_misspelt_field_is_refused_with_the_one_that_is_meant() -> None:
    server = Server()
    with writer(server) as to:
        with pytest.raises(ConfigError, match=r'field "rewards" is in no item of "replay".*did you mean reward\?'):
            to.append(observation=np.zeros(3, np.float32), action=np.int64(0), rewards=7.0)
        to.append(step(0))  # the episode is as before
        to.end_episode(observation=np.ones(3, np.float32), terminal=True)
    assert len(server.contents()) == 1


def test_a_field_of_another_name_is_refused() -> None:
    with writer(Server()) as to, pytest.raises(ConfigError, match=r'"lives" is in no item.*lost; leave it out, or'):
        to.append({**step(0), "lives": 3})


def test_fields_of_every_step_may_go_unused() -> None:
    with writer(Server()) as to:
        to.append({**step(0), "is_first": True, "is_last": False})
        to.discard_episode()


# Steps are taken apart by what was learnt of the first one; `specs.flatten` is the oracle.

Pair = namedtuple("Pair", ["right", "left"])

leaves = st.integers(0, 99) | st.text("ab", max_size=2)
nests = st.recursive(
    leaves,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)
steps = st.dictionaries(st.sampled_from(["observation", "action", "reward"]), nests, min_size=1)


def changed(nest: Any) -> Any:
    """A nest of the same kind with other leaves."""
    return map_leaves(lambda leaf: f"{leaf}!", nest)


@given(steps)
def test_values_are_those_of_flatten(step: Any) -> None:
    if not flatten(step):
        with pytest.raises(ConfigError, match="got none"):
            StepLayout(step)
        return
    layout = StepLayout(step)
    for recorded_step in (step, changed(step)):
        assert dict(zip(layout.paths, layout.values(recorded_step), strict=True)) == flatten(recorded_step)
        assert list(layout.paths) == list(flatten(recorded_step))


@given(steps, steps)
def test_a_step_of_other_columns_is_refused_by_name(step: Any, other: Any) -> None:
    if not flatten(step) or set(flatten(step)) == set(flatten(other)):
        return
    layout = StepLayout(step)
    if set(step) == set(other) and all(not isinstance(child, (dict, list, tuple)) for child in step.values()):
        return  # told by the column, which gets a container for a value
    differing = set(flatten(step)) ^ set(flatten(other))
    with pytest.raises(ConfigError, match="differs from the first one") as caught:
        layout.values(other)
    assert all(f'"{path}"' in str(caught.value) for path in differing)


@pytest.mark.parametrize("step", [None, 3, [1, 2], np.zeros(3)], ids=str)
def test_what_is_no_dict_is_refused(step: Any) -> None:
    with pytest.raises(ConfigError, match="expected a dict of the step's fields"):
        StepLayout(step)
    with pytest.raises(ConfigError, match="expected a dict of the step's fields"):
        StepLayout({"a": {"b": 1}}).values(step)


def test_other_containers_of_the_same_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="nested in another way"):
        StepLayout({"a": [1, 2]}).values({"a": {"0": 1, "1": 2}})


def test_a_name_with_a_slash_that_is_another_columns_path_is_refused() -> None:
    with pytest.raises(SpecError, match='two columns are both named "a/b"'):
        StepLayout({"a": {"b": 1}, "a/b": 2})
