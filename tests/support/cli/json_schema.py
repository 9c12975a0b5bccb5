"""A small judge of JSON against JSON Schema 2020-12: the keywords that the schemas of this package use, and no others."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator
from typing import Any

TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}
ABOUT = {"$schema", "title", "description", "$defs"}
BOUNDS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
KNOWN = ABOUT | {
    "$ref",
    "type",
    "enum",
    "anyOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    *BOUNDS,
    "pattern",
}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, at: str = "$") -> Iterator[str]:
    """What is wrong with a value, each with its place; raises ValueError for a keyword that it does not know."""
    root = schema if root is None else root
    if unknown := set(schema) - KNOWN:
        raise ValueError(f"{at}: keywords that this judge does not know: {unknown}")
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    if "type" in schema and not _is_of(value, schema["type"]):
        yield f"{at}: expected {schema['type']}, got {value!r}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: expected one of {schema['enum']}, got {value!r}"
    if "anyOf" in schema:
        each = [[*faults(value, form, root, at)] for form in schema["anyOf"]]
        if all(each):
            yield f"{at}: none of {len(each)}: {'; or '.join(', '.join(reasons) for reasons in each)}"
    for name, holds in BOUNDS.items():
        if name in schema and isinstance(value, (int, float)) and not holds(value, schema[name]):
            yield f"{at}: expected {name} {schema[name]}, got {value!r}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{at}: expected {schema['pattern']}, got {value!r}"
    if isinstance(value, list) and "items" in schema:
        for number, element in enumerate(value):
            yield from faults(element, schema["items"], root, f"{at}[{number}]")
    if isinstance(value, dict):
        yield from _of_members(value, schema, root, at)


def _of_members(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    yield from (f"{at}: lacks {name}" for name in schema.get("required", ()) if name not in value)
    for name, member in value.items():
        if name in properties:
            yield from faults(member, properties[name], root, f"{at}.{name}")
        elif others is False:
            yield f"{at}: has {name}, which no schema knows"
        else:
            yield from faults(member, others, root, f"{at}.{name}")


def _is_of(value: Any, types: str | list[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return any(isinstance(value, TYPES[name]) for name in names)
