"""The JSON of Gymnasium's spaces."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.minari.spaces import parse_space
from rlds2reverb.specs import ArraySpec
from tests.support.profiles import examples

INF = float("inf")


def box(**changes: Any) -> dict[str, Any]:
    return {"type": "Box", "dtype": "float32", "shape": [2], "low": [-INF, -INF], "high": [INF, INF], **changes}


def image(*shape: int, **changes: Any) -> dict[str, Any]:
    sides = {end: np.full(shape, value).tolist() for end, value in (("low", 0), ("high", 255))}
    return {"type": "Box", "dtype": "uint8", "shape": list(shape), **sides, **changes}


def only(space: Any) -> Any:
    (leaf,) = parse_space(json.dumps(space), "here")
    return leaf


@pytest.mark.parametrize(
    ("space", "spec", "bounds"),
    [
        (box(), ArraySpec((2,), np.dtype("float32")), None),
        (box(low=[0, 0], high=[1, 1]), ArraySpec((2,), np.dtype("float32")), (0.0, 1.0)),
        (box(low=[0, -1], high=[INF, 1]), ArraySpec((2,), np.dtype("float32")), ([0, -1], [INF, 1])),
        (box(dtype="int16", shape=[], low=-3, high=4), ArraySpec((), np.dtype("int16")), (-3, 4)),
        (box(shape=[0], low=[], high=[]), ArraySpec((0,), np.dtype("float32")), None),
        (box(dtype="uint64", shape=[1], low=[0], high=[2**64 - 1]), ArraySpec((1,), np.dtype("uint64")), (0, 2**64 - 1)),
        ({"type": "Discrete", "dtype": "int64", "start": -2, "n": 5}, ArraySpec((), np.dtype("int64")), (-2, 2)),
        ({"type": "Discrete", "n": 5}, ArraySpec((), np.dtype("int64")), (0, 4)),
        ({"type": "MultiDiscrete", "dtype": "int32", "nvec": [[2, 3]], "start": [[1, 1]]}, ArraySpec((1, 2), np.dtype("int32")), ([[1, 1]], [[2, 3]])),
        ({"type": "MultiDiscrete", "nvec": [2, 3]}, ArraySpec((2,), np.dtype("int64")), ([0, 0], [1, 2])),
        ({"type": "MultiBinary", "n": 3}, ArraySpec((3,), np.dtype("int8")), (0, 1)),
        ({"type": "MultiBinary", "n": [2, 2]}, ArraySpec((2, 2), np.dtype("int8")), (0, 1)),
        ({"type": "Text", "max_length": 4, "min_length": 1, "charset": "ab"}, ArraySpec((), np.dtype(object)), None),
    ],
)  # fmt: skip
def test_leaves(space: Any, spec: ArraySpec, bounds: Any) -> None:
    found = only(space).spec
    assert found == spec
    if bounds is None:
        assert found.minimum is found.maximum is None
    else:
        assert (np.asarray(found.minimum).tolist(), np.asarray(found.maximum).tolist()) == bounds


@pytest.mark.parametrize(
    ("space", "is_image"),
    [
        (image(32, 32, 3), True),
        (image(32, 40), True),
        (image(31, 40, 3), False),
        (image(32, 31, 3), False),
        (image(3, 32, 32), False),
        (image(32), False),
        (image(32, 32, 3, dtype="int16"), False),
        (image(32, 32, high=np.full((32, 32), 254).tolist()), False),
    ],
)
def test_images_are_those_that_minari_takes_for_some(space: Any, is_image: bool) -> None:
    assert only(space).is_image == is_image


def test_dicts_and_tuples_at_any_depth() -> None:
    nest = {
        "type": "Tuple",
        "subspaces": [
            box(),
            {"type": "Dict", "subspaces": {"a b": box(), "1": {"type": "Tuple", "subspaces": [box()]}}},
        ],
    }
    leaves = parse_space(
        json.dumps({"type": "Dict", "subspaces": {"x": nest, "nothing": {"type": "Dict", "subspaces": {}}}}), "here"
    )
    assert [leaf.path for leaf in leaves] == ["x/_index_0", "x/_index_1/a b", "x/_index_1/1/_index_0"]
    assert [leaf.fields for leaf in leaves] == [("x", "0"), ("x", "1", "a b"), ("x", "1", "1", "0")]


def deep(depth: int) -> Any:
    return {"type": "Tuple", "subspaces": [deep(depth - 1)]} if depth else box()


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"type": "Graph"}, "'Graph' is not known; there are: Box, Dict, Discrete"),
        ({}, "None is not known"),
        ([], "expected a space"),
        ({"type": "Dict", "subspaces": {}}, "no column"),
        ({"type": "Dict", "subspaces": []}, "no proper subspaces"),
        ({"type": "Tuple"}, "no proper subspaces"),
        (
            {"type": "Dict", "subspaces": {"a/b": box(), "a": {"type": "Dict", "subspaces": {"b": box()}}}},
            'both named "a/b"',
        ),
        ({"type": "Dict", "subspaces": {"": box()}}, "makes no name"),
        ({"type": "Dict", "subspaces": {"\ud800": box()}}, "makes no name"),
        (deep(40), "nested more than 32 deep"),
        (box(dtype="object"), "dtype 'object'"),
        (box(dtype=["f4"]), "makes no sense"),
        (box(shape=[-1]), "shape (-1,)"),
        (box(shape=[1 << 40, 1 << 40]), "makes no sense"),
        (box(shape="22"), "expected a whole number"),
        (box(low=[0]), "bounds of shape (1,)"),
        (box(low=["a", "b"]), "makes no sense"),
        ({"type": "Discrete", "n": 2.5}, "expected a whole number"),
        ({"type": "Discrete", "n": 10**30}, "makes no sense"),
        ({"type": "MultiDiscrete"}, "makes no sense"),
        ({"type": "MultiBinary", "n": {}}, "makes no sense"),
    ],
)
def test_nonsense_is_refused(space: Any, says: str) -> None:
    with pytest.raises(SourceError, match=r"^here") as caught:
        parse_space(json.dumps(space), "here")
    assert says in str(caught.value)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["Box", "Dict", "Tuple", "uint8"])),
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.dictionaries(st.sampled_from(["type", "subspaces", "shape", "dtype", "low", "high", "n", "start", "nvec"]), below, max_size=6),
    ),
)  # fmt: skip


def of_a_kind(one: Any, kind: str) -> Any:
    return {**one, "type": kind} if isinstance(one, dict) else one


KINDS = st.sampled_from(["Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"])


@examples(40)
@given(st.one_of(JSON, st.text(), st.builds(of_a_kind, JSON, KINDS)))
def test_any_json_is_a_space_or_an_error_of_ours(value: Any) -> None:
    with suppress(SourceError):
        assert parse_space(value, "here")
