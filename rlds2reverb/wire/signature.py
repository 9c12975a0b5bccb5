"""A table's signature: TensorFlow's StructuredValue -> nest of `ArraySpec`, and back.

Source: struct.proto of TensorFlow 2.15. Namedtuples come back as one cached class per name and field list.

The view that a table is for (`ArraySpec.view`) is the name of the first axis of a leaf (`TensorShapeProto.Dim.name`). Reverb and its
checkpoints keep that, and TensorFlow does not read it: a spec with such an axis equals one without, as TF-Agents' own
`push_rlds_to_reverb` demands. A leaf without axes has the view in its own name, in characters that TensorFlow takes there.

>>> names_on_wire(ArraySpec((None, 4), np.dtype(np.float32), view="n_step:n=3"))
('', 'n_step:n=3')
>>> names_on_wire(ArraySpec((), np.dtype(np.int64), view="n_step:n=3"))
('items_of.n_5fstep_3an_3d3', '')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.specs import ArraySpec, Nest, named_tuple_type
from rlds2reverb.wire import tensors
from rlds2reverb.wire.schema import message_class

_MAX_DEPTH = 64
"""Nesting that a signature may have; protobuf itself stops at 100 messages."""

_KINDS = {
    "bounded_tensor_spec_value", "dict_value", "list_value", "named_tuple_value", "tensor_spec_value", "tuple_value",
}  # fmt: skip
_OF_VIEW = "items_of."
_ESCAPED = re.compile(r"(?:[A-Za-z0-9.]|_[0-9a-f]{2})*", re.ASCII)


def decode_signature(proto: Any, depth: int = 0) -> Nest:
    """A StructuredValue message -> nest of `ArraySpec`.

    Raises:
      WireError: a kind of value that no signature has, an unknown dtype, or nesting beyond 64 levels.
    """
    if depth > _MAX_DEPTH:
        raise WireError(f"signature nested deeper than {_MAX_DEPTH} levels")
    present = [field.name for field, _ in proto.ListFields()]
    if len(present) != 1 or present[0] not in _KINDS:
        raise WireError(f"signature value with {present or 'nothing'} in it: expected one of {sorted(_KINDS)}")
    kind, value = present[0], getattr(proto, present[0])
    if kind == "tensor_spec_value":
        return _decode_spec(value)
    if kind == "bounded_tensor_spec_value":
        return replace(_decode_spec(value), minimum=_bound(value.minimum), maximum=_bound(value.maximum))
    entries = value.fields if kind == "dict_value" else value.values
    is_named = kind in ("dict_value", "named_tuple_value")
    children = []  # no comprehension, so that a deep signature takes one frame a level
    for entry in entries:
        children.append(decode_signature(entry.value if is_named else entry, depth + 1))  # noqa: PERF401
    if kind == "list_value":
        return children
    if kind == "tuple_value":
        return tuple(children)
    names = tuple(entry.key for entry in entries)
    if kind == "dict_value":
        return dict(zip(names, children))
    try:
        return named_tuple_type(value.name, names)(*children)
    except (ValueError, SyntaxError) as error:  # SyntaxError: names that are one to Python's parser
        raise WireError(f'signature namedtuple "{value.name}" with fields {names}: {error}') from error


def encode_signature(nest: Nest) -> Any:
    """A nest of `ArraySpec` -> StructuredValue message.

    Raises:
      WireError: a leaf has a dtype that Reverb cannot store.
    """
    value = message_class("StructuredValue")()
    if isinstance(nest, ArraySpec):
        _encode_leaf(value, nest)
    elif isinstance(nest, Mapping):
        value.dict_value.SetInParent()
        for key in sorted(nest):
            value.dict_value.fields.add(key=key, value=encode_signature(nest[key]))
    elif hasattr(nest, "_fields"):
        value.named_tuple_value.name = type(nest).__name__
        for key, child in zip(nest._fields, nest):
            value.named_tuple_value.values.add(key=key, value=encode_signature(child))
    else:
        target = value.tuple_value if isinstance(nest, tuple) else value.list_value
        target.SetInParent()
        target.values.extend(encode_signature(child) for child in nest)
    return value


def names_on_wire(spec: ArraySpec) -> tuple[str, str]:
    """The name of a leaf, and of its first axis; "" for none. They say which view the table is for."""
    if not spec.view or spec.shape or spec.name:
        return spec.name, spec.view if spec.shape else ""
    escaped = re.sub(rb"[^A-Za-z0-9.]", lambda match: b"_%02x" % ord(match[0]), spec.view.encode())
    return _OF_VIEW + escaped.decode(), ""


def _view_in_name(name: str) -> str:
    """The view that the name of a leaf without axes says; "" for any other name."""
    escaped = name.removeprefix(_OF_VIEW)
    if escaped == name or _ESCAPED.fullmatch(escaped) is None:
        return ""
    plain = re.sub(rb"_([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), escaped.encode())
    return plain.decode(errors="backslashreplace")


def _encode_leaf(value: Any, spec: ArraySpec) -> None:
    if spec.minimum is None or spec.maximum is None or spec.dtype.kind == "O":
        _encode_spec(value.tensor_spec_value, spec)
        return
    _encode_spec(value.bounded_tensor_spec_value, spec)
    _encode_bound(value.bounded_tensor_spec_value.minimum, spec.minimum)
    _encode_bound(value.bounded_tensor_spec_value.maximum, spec.maximum)


def _encode_bound(target: Any, bound: Any) -> None:
    values = tensors.as_wire_array(np.asarray(bound))
    target.dtype = tensors.wire_number(values.dtype)
    target.tensor_shape.SetInParent()
    for size in values.shape:
        target.tensor_shape.dim.add(size=size)
    target.tensor_content = values.tobytes()


def _encode_spec(target: Any, spec: ArraySpec) -> None:
    target.name, axis = names_on_wire(spec)
    target.dtype = tensors.wire_number(spec.dtype)
    target.shape.SetInParent()
    for size in spec.shape:
        target.shape.dim.add(size=-1 if size is None else size)
    if axis:
        target.shape.dim[0].name = axis


def _decode_spec(proto: Any) -> ArraySpec:
    if proto.shape.unknown_rank:
        raise WireError(f'signature leaf "{proto.name}": unknown rank; give the table a spec with a shape')
    shape = tuple(None if dim.size < 0 else dim.size for dim in proto.shape.dim)
    view = proto.shape.dim[0].name if shape else _view_in_name(proto.name)
    name = "" if view and not shape else proto.name
    return ArraySpec(shape, tensors.numpy_dtype(proto.dtype), name, view=view)


_BOUND_FIELDS: dict[str, Any] = {
    "float_val": np.float64,
    "double_val": np.float64,
    "int_val": np.int64,
    "int64_val": np.int64,
    "bool_val": np.bool_,
    "uint32_val": np.uint64,
    "uint64_val": np.uint64,
}


def _bound(proto: Any) -> Array:
    """A bound: raw bytes (not compressed here) or TensorFlow's short form, where one value fills the shape."""
    dtype = tensors.numpy_dtype(proto.dtype)
    if proto.tensor_content and proto.dtype != tensors.STRING:
        if len(proto.tensor_content) % dtype.itemsize:
            raise WireError(f"signature bound: {len(proto.tensor_content)} bytes are no whole number of {dtype}")
        return np.frombuffer(proto.tensor_content, dtype)
    if proto.half_val and dtype.itemsize == 2:  # float16 and bfloat16, as bits
        return np.array(proto.half_val, np.int64).astype(np.uint16).view(dtype)
    for name, kind in _BOUND_FIELDS.items():
        if values := getattr(proto, name):
            return np.array(values, kind)
    return np.empty(0, dtype)
