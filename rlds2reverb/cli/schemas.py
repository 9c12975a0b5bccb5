"""The JSON Schemas of what commands print with --json: files of `rlds2reverb/schemas`, made whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "schemas"
_COMMON = "common.json"
_DEFINITIONS = "#/$defs/"


def schema_names() -> list[str]:
    """Commands that have a schema."""
    return sorted(path.stem for path in FOLDER.glob("*.json") if path.name != _COMMON)


def schema_of(command: str) -> dict[str, Any]:
    """The schema of what a command prints, with all that it refers to in it."""
    schema = schema_of_file(command)
    common = schema_of_file("common")["$defs"]
    definitions = dict(schema.pop("$defs", {}))
    wanted = [*_shared({"own": definitions, "schema": schema})]
    while wanted:
        name = wanted.pop()
        if name not in definitions:
            definitions[name] = common[name]
            wanted += _shared(common[name])
    whole: dict[str, Any] = _own({**schema, "$defs": definitions})
    return whole


def schema_of_file(name: str) -> dict[str, Any]:
    """A schema as its file has it: of a command, or what they share, "common"."""
    read: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return read


def _shared(part: Any) -> Iterator[str]:
    """Names of the shared definitions that a part of a schema refers to."""
    for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _shared(one)
    if isinstance(part, dict) and isinstance(part.get("$ref"), str) and part["$ref"].startswith(_COMMON):
        yield part["$ref"].removeprefix(_COMMON + _DEFINITIONS)


def _own(part: Any) -> Any:
    """The same with references to shared definitions as references to its own."""
    if isinstance(part, list):
        return [_own(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        name: one.removeprefix(_COMMON) if name == "$ref" and isinstance(one, str) else _own(one)
        for name, one in part.items()
    }
