"""Signatures: any nest of specs comes back as it was; anything else is a WireError."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import WireError
from rlds2reverb.specs import ArraySpec, Nest, flatten, named_tuple_type
from rlds2reverb.wire import codec as dtypes
from rlds2reverb.wire.codec import decode_signature, encode_signature
from rlds2reverb.wire.schema import message_class
from tests.support import strategies
from tests.support.raising import outcome_of
from tests.support.wire import mutants

StructuredValue = message_class("StructuredValue")

names = st.sampled_from([*string.ascii_lowercase[:8], "Trajectory", "step_type", "é", "日本"])
keys = st.one_of(names, st.text(max_size=6))
specs = st.builds(
    ArraySpec,
    st.lists(st.one_of(st.none(), st.integers(0, 2**40)), max_size=4).map(tuple),
    strategies.dtypes(),
    st.text(max_size=5),
)


def named_tuples(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(names, children, max_size=4)
    return st.builds(lambda name, values: named_tuple_type(name, tuple(values))(*values.values()), names, fields)


nests = st.recursive(
    specs,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(keys, children, max_size=3),
        named_tuples(children),
    ),
    max_leaves=8,
)


def same_kinds(one: Any, other: Any) -> bool:
    """Equal, with the same containers throughout."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_kinds(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_kinds, one, other))
    return one == other and one.name == other.name


@given(nests)
@settings(max_examples=100)
def test_a_nest_comes_back_as_it_was(nest: Nest) -> None:
    data = encode_signature(nest).SerializeToString()
    found = decode_signature(StructuredValue.FromString(data))
    assert same_kinds(found, nest)


@given(specs.filter(lambda leaf: leaf.shape or not leaf.name), st.text(min_size=1, max_size=20).filter(str.isprintable))
@settings(max_examples=50)
def test_a_view_comes_back_as_it_was_and_names_stay(leaf: ArraySpec, view: str) -> None:
    leaf = replace(leaf, view=view)
    found = decode_signature(StructuredValue.FromString(encode_signature(leaf).SerializeToString()))
    assert (found, found.name, found.view) == (leaf, leaf.name, view)


@pytest.mark.parametrize("name", ["items_of.a_zz", "items_of.a b", "items_of.é", "items_ofx", "items_of."])
def test_another_name_of_a_scalar_is_no_view(name: str) -> None:
    found = decode_signature(encode_signature(ArraySpec((), np.dtype(np.int8), name)))
    assert (found.name, found.view) == (name, "")


FLOAT = ArraySpec((None, 3), np.dtype(np.float32), "r")
TABLE = [
    (FLOAT, "8a0218 0a0172 1211 120b08ffffffffffffffffff01 12020803 1801"),
    ([], "9a0300"),
    ((), "a20300"),
    ({}, "aa0300"),
    ([ArraySpec((), np.dtype(bool))], "9a0309 0a07 8a0204 1200 180a"),
    ((ArraySpec((), np.dtype(object)),), "a20309 0a07 8a0204 1200 1807"),
    ({"b": (), "a": []}, "aa0314 0a08 0a0161 1203 9a0300 0a08 0a0162 1203 a20300"),
    (named_tuple_type("T", ("b", "a"))((), []), "b20317 0a0154 1208 0a0162 1203 a20300 1208 0a0161 1203 9a0300"),
]


@pytest.mark.parametrize(("nest", "text"), TABLE, ids=str)
def test_a_signature_has_the_bytes_of_the_table_both_ways(nest: Nest, text: str) -> None:
    assert encode_signature(nest).SerializeToString().hex() == text.replace(" ", "")
    assert same_kinds(decode_signature(StructuredValue.FromString(bytes.fromhex(text))), nest)


def test_the_order_of_leaves_is_that_of_the_table() -> None:
    nest = named_tuple_type("T", ("z", "a"))({"b": FLOAT, "a": FLOAT}, [FLOAT, (FLOAT,)])
    found = decode_signature(encode_signature(nest))
    assert list(flatten(found)) == ["z/a", "z/b", "a/0", "a/1/0"]
    assert found == nest


def test_namedtuples_of_one_name_and_fields_are_of_one_class() -> None:
    nest = named_tuple_type("T", ("x",))(FLOAT)
    one, other = (decode_signature(encode_signature(nest)) for _ in range(2))
    assert type(one) is type(other) is type(nest)
    assert one.x == FLOAT


def bounded(dtype: Any, **bounds: Any) -> Any:
    number = dtypes.wire_number(np.dtype(dtype))
    spec = {"name": "r", "shape": {"dim": [{"size": -1}]}, "dtype": number}
    tensors = {side: {"dtype": number, **tensor} for side, tensor in bounds.items()}
    return StructuredValue(bounded_tensor_spec_value={**spec, **tensors})


@pytest.mark.parametrize(
    ("dtype", "field", "values"),
    [
        (np.float32, "float_val", [-0.5]),
        (np.float64, "double_val", [1e300]),
        (np.int32, "int_val", [-7, 7]),
        (np.uint8, "int_val", [255]),
        (np.int64, "int64_val", [-(2**63), 2**63 - 1]),
        (np.uint64, "uint64_val", [1, 2**64 - 1]),
        (np.uint32, "uint32_val", [2**32 - 1]),
        (np.bool_, "bool_val", [True]),
    ],
)
def test_a_bound_in_short_form_keeps_its_values(dtype: type, field: str, values: list[bool | float]) -> None:
    found = decode_signature(bounded(dtype, minimum={field: values}, maximum={field: values}))
    assert found == ArraySpec((None,), np.dtype(dtype))
    assert found.name == "r"
    assert found.minimum.tolist() == found.maximum.tolist() == values


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_bound_of_two_bytes_is_kept_as_bits(dtype: type) -> None:
    bits = int(np.array(1.5, dtype).view(np.uint16))
    found = decode_signature(bounded(dtype, minimum={"half_val": [bits]}, maximum={"half_val": [bits, 0]}))
    assert found.minimum.dtype == dtype
    assert found.minimum.astype(float).tolist() == [1.5]
    assert found.maximum.astype(float).tolist() == [1.5, 0.0]


@pytest.mark.parametrize("dtype", [dtype for dtype in strategies.DTYPES if dtype != object], ids=str)
def test_a_bound_of_raw_bytes_keeps_its_values(dtype: np.dtype) -> None:
    values = strategies.array(np.random.default_rng(0), dtype, (3,))
    found = decode_signature(bounded(dtype, minimum={"tensor_content": values.tobytes()}, maximum={}))
    assert found.minimum.dtype == dtype
    assert found.minimum.tolist() == values.tolist()
    assert found.maximum.size == 0


def test_bounds_are_not_compared_but_sent() -> None:
    found = decode_signature(bounded(np.float32, minimum={"float_val": [0]}, maximum={"float_val": [1]}))
    assert found == ArraySpec((None,), np.dtype(np.float32), "r")
    again = decode_signature(encode_signature(found))
    assert (again.name, again.minimum.tolist(), again.maximum.tolist()) == ("r", [0], [1])


@pytest.mark.parametrize("dtype", [dtype for dtype in strategies.DTYPES if dtype != object], ids=str)
def test_bounds_come_back_as_they_were(dtype: np.dtype) -> None:
    bounds = strategies.array(np.random.default_rng(0), dtype, (2, 3))
    found = decode_signature(encode_signature(ArraySpec((None, 3), dtype, "r", bounds[0], bounds[1, 0])))
    assert found.minimum.dtype == found.maximum.dtype == dtype
    assert found.minimum.tolist() == bounds[0].tolist()
    assert found.maximum.tolist() == [bounds[1, 0].tolist()]


def nested_lists(levels: int) -> Any:
    """Lists in lists, made from the inside without a parser's limits."""
    value = StructuredValue(list_value={})
    for _ in range(levels):
        outer = StructuredValue()
        outer.list_value.values.add().CopyFrom(value)
        value = outer
    return value


def test_nesting_is_bounded() -> None:
    depth = 0
    found = decode_signature(nested_lists(40))
    while found:
        (found,) = found
        depth += 1
    assert depth == 40
    with pytest.raises(WireError, match="deeper than 64 levels"):
        decode_signature(nested_lists(65))


def spec_value(**spec: Any) -> Any:
    return StructuredValue(tensor_spec_value=spec)


def named_tuple_value(name: str, fields: list[str]) -> Any:
    leaf = spec_value(shape={}, dtype=1)
    return StructuredValue(named_tuple_value={"name": name, "values": [{"key": key, "value": leaf} for key in fields]})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (StructuredValue(), "with nothing in it"),
        (StructuredValue(none_value={}), r"with \['none_value'\] in it: expected one of"),
        (StructuredValue(list_value={}, dict_value={}), "in it: expected one of"),
        (StructuredValue(list_value={"values": [{}]}), "with nothing in it"),
        (StructuredValue(dict_value={"fields": [{"key": "a"}]}), "with nothing in it"),
        (spec_value(shape={}, dtype=0), "tensor dtype number 0"),
        (spec_value(shape={}, dtype=99), "tensor dtype number 99"),
        (spec_value(name="x", shape={"unknown_rank": True}, dtype=1), '"x": unknown rank'),
        (named_tuple_value("class", ["a"]), 'namedtuple "class"'),
        (named_tuple_value("", ["a"]), 'namedtuple ""'),
        (named_tuple_value("T", ["_a"]), "cannot start with an underscore"),
        (named_tuple_value("T", ["a", "a"]), "duplicate field name"),
        (named_tuple_value("T", ["a b"]), "valid identifiers"),
        (named_tuple_value("T", ["a", "ª"]), r"fields \('a', 'ª'\)"),  # one name to Python's parser
        (bounded(np.float32, minimum={"tensor_content": b"123"}, maximum={}), "3 bytes are no whole number of float32"),
        (StructuredValue(bounded_tensor_spec_value={"shape": {}, "dtype": 1}), "tensor dtype number 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_signature_has_is_a_wire_error(value: Any, message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode_signature(value)


def test_a_dtype_that_reverb_cannot_store_is_refused_when_encoding() -> None:
    with pytest.raises(WireError, match="Reverb cannot store it"):
        encode_signature({"when": ArraySpec((), np.dtype("datetime64[s]"))})


def value_or_wire_error(message: Any) -> None:
    nest = outcome_of(WireError, lambda: decode_signature(message))
    assert isinstance(nest, WireError) or same_kinds(decode_signature(encode_signature(nest)), nest)


@given(mutants.messages("StructuredValue", depth=4))
@settings(max_examples=50)
def test_any_structured_value_is_a_nest_or_a_wire_error(message: Any) -> None:
    value_or_wire_error(message)


@given(mutants.mutated([bytes.fromhex(text) for _, text in TABLE]))
@settings(max_examples=200)
def test_a_broken_signature_is_a_nest_or_a_wire_error(data: bytes) -> None:
    try:
        message = StructuredValue.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return
    value_or_wire_error(message)
