"""Table signatures in YAML.

A leaf is text, `float32[2, 17]` (`?` for a free size, `string` for text), or a mapping with `dtype`, `shape` and, for
bounded specs, `minimum` and `maximum`. One leaf may have the `view` that the table is for. Mappings and lists are nests; a tuple is `{"!tuple": [...]}`, a namedtuple
`{"!namedtuple": NAME, "fields": [...]}` with one mapping per field, in the order of the table's columns.
`to_plain` writes what `from_plain` reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.specs import ArraySpec, Nest, dtype_name, named_tuple_type
from rlds2reverb.views.registry import view_of
from rlds2reverb.views.sequence import name_of
from rlds2reverb.wire.dtypes import NUMPY_DTYPES

_LEAF = re.compile(r"(?P<dtype>[a-z0-9]+)\[(?P<shape>[0-9?, ]*)\]")
_NAMED_TUPLE = "!namedtuple"
_TUPLE = "!tuple"
_LEAF_KEYS = {"dtype", "shape", "name", "minimum", "maximum", "view"}


def from_plain(value: Any, path: str = "$") -> Nest:
    """A signature from what YAML gives.

    Raises:
      ConfigError: says the path, what was expected and what came.
    """
    if isinstance(value, str):
        return _leaf_from_text(value, path)
    if isinstance(value, Mapping):
        if _NAMED_TUPLE in value:
            return _named_tuple(value, path)
        if _TUPLE in value:
            return _tuple(value, path)
        if "dtype" in value and not isinstance(value["dtype"], Mapping) and set(value) <= _LEAF_KEYS:
            return _leaf_from_mapping(value, path)
        if len(set(map(str, value))) < len(value):
            raise ConfigError(f"{path}: two names are the same, got {list(value)!r}")
        return {str(key): from_plain(child, f"{path}.{key}") for key, child in value.items()}
    if isinstance(value, list):
        return [from_plain(child, f"{path}[{index}]") for index, child in enumerate(value)]
    raise ConfigError(f'{path}: expected a leaf such as "float32[2, 17]", a mapping or a list, got {value!r}')


def to_plain(nest: Nest) -> Any:
    """A signature as plain mappings, lists and text."""
    if isinstance(nest, ArraySpec):
        return _plain_leaf(nest)
    if hasattr(nest, "_fields"):
        fields = [{name: to_plain(getattr(nest, name))} for name in nest._fields]
        return {_NAMED_TUPLE: type(nest).__name__, "fields": fields}
    if isinstance(nest, Mapping):
        return {key: _plain_child(key, child) for key, child in nest.items()}
    children = [to_plain(child) for child in nest]
    return {_TUPLE: children} if isinstance(nest, tuple) else children


def _plain_child(key: str, child: Nest) -> Any:
    """A column named "dtype" is written as a mapping: as text it would make a leaf of the mapping around it."""
    return _leaf_mapping(child) if key == "dtype" and isinstance(child, ArraySpec) else to_plain(child)


def _plain_leaf(spec: ArraySpec) -> Any:
    return str(spec) if spec.minimum is None and not spec.name and not spec.view else _leaf_mapping(spec)


def _leaf_mapping(spec: ArraySpec) -> dict[str, Any]:
    leaf: dict[str, Any] = {"dtype": dtype_name(spec.dtype), "shape": ["?" if n is None else n for n in spec.shape]}
    if spec.name:
        leaf["name"] = spec.name
    if spec.minimum is not None:
        leaf |= {"minimum": np.asarray(spec.minimum).tolist(), "maximum": np.asarray(spec.maximum).tolist()}
    if spec.view:
        leaf["view"] = spec.view
    return leaf


def _leaf_from_text(text: str, path: str) -> ArraySpec:
    match = _LEAF.fullmatch(text)
    if match is None:
        raise ConfigError(f'{path}: expected DTYPE[SIZES] such as "float32[2, 17]" or "string[]", got "{text}"')
    sizes = [part.strip() for part in match["shape"].split(",") if part.strip()]
    return ArraySpec(_shape(sizes, path), _dtype(match["dtype"], path))


def _leaf_from_mapping(leaf: Mapping[str, Any], path: str) -> ArraySpec:
    dtype = _dtype(str(leaf["dtype"]), f"{path}.dtype")
    sizes = leaf.get("shape", [])
    if not isinstance(sizes, list):
        raise ConfigError(f"{path}.shape: expected a list of sizes, got {sizes!r}")
    if ("minimum" in leaf) != ("maximum" in leaf):
        raise ConfigError(f"{path}: minimum and maximum go together")
    bounds = [_bound(leaf[key], dtype, f"{path}.{key}") if key in leaf else None for key in ("minimum", "maximum")]
    shape, name = _shape(sizes, f"{path}.shape"), str(leaf.get("name", ""))
    view = _view(leaf["view"], f"{path}.view") if "view" in leaf else ""
    if view and name and not shape:
        raise ConfigError(f"{path}: a leaf without axes has a name or a view, not both; write the view at another leaf")
    return ArraySpec(shape, dtype, name, *bounds, view=view)


def _view(text: object, path: str) -> str:
    """The view that the items are of, as a push says it: `sequence:length=4` stands for its other options, too. One's own view has its label."""
    if not isinstance(text, str) or not text:
        raise ConfigError(f'{path}: expected a view\'s name such as "two_step" or "sequence:length=8", got {text!r}')
    try:
        return name_of(view_of(text))
    except ViewError:
        return text


def _bound(value: Any, dtype: np.dtype[Any], path: str) -> Any:
    try:
        given, bound = np.asarray(value), np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: expected {dtype_name(dtype)} values, got {value!r} ({error})") from error
    is_exact = dtype.kind not in "biu" or np.array_equal(given, bound)
    if dtype.kind == "O" or given.dtype.kind not in "biufc" or not is_exact:
        raise ConfigError(f"{path}: expected {dtype_name(dtype)} values, got {value!r}")
    return bound


def _shape(sizes: list[Any], path: str) -> tuple[int | None, ...]:
    if not all(size in ("?", None) or re.fullmatch("[0-9]{1,18}", str(size)) for size in sizes):
        raise ConfigError(f'{path}: expected sizes or "?", got {sizes!r}')
    return tuple(None if size in ("?", None) else int(size) for size in sizes)


def _dtype(name: str, path: str) -> np.dtype[Any]:
    known = {dtype_name(dtype): dtype for dtype in NUMPY_DTYPES.values()}
    if name not in known:
        raise ConfigError(f'{path}: dtype "{name}", expected one of {", ".join(known)}')
    return known[name]


def _tuple(value: Mapping[str, Any], path: str) -> Nest:
    children = value[_TUPLE]
    if len(value) > 1 or not isinstance(children, list):
        raise ConfigError(f'{path}: a tuple is {{"{_TUPLE}": [...]}} and nothing else, got {value!r}')
    return tuple(from_plain(child, f"{path}.{_TUPLE}[{index}]") for index, child in enumerate(children))


def _named_tuple(value: Mapping[str, Any], path: str) -> Nest:
    fields = value.get("fields")
    if set(value) != {_NAMED_TUPLE, "fields"} or not isinstance(fields, list) or not fields:
        raise ConfigError(
            f'{path}: a namedtuple has "{_NAMED_TUPLE}" and a list of "fields", got {sorted(map(str, value))}'
        )
    names, children = [], []
    for index, field in enumerate(fields):
        if not isinstance(field, Mapping) or len(field) != 1:
            raise ConfigError(f"{path}.fields[{index}]: expected NAME: LEAF, got {field!r}")
        ((name, child),) = field.items()
        names.append(str(name))
        children.append(from_plain(child, f"{path}.fields[{index}].{name}"))
    try:
        return named_tuple_type(str(value[_NAMED_TUPLE]), tuple(names))(*children)
    except ValueError as error:
        raise ConfigError(f"{path}: no namedtuple: {error}") from error
