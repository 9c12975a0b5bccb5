"""A view's label: its name and its options, read from its fields.

Labels are part of the item keys. Equal labels mean equal items, and a label that changes makes every item of its view
another one. So every field counts unless it says why not, and a field that is added later goes unsaid at its default.

| field | in the label |
| --- | --- |
| any | as `name=value`, in the order of the fields |
| `priority` | never: items keep their keys whatever their priority |
| with `metadata=CHANGES_NO_ITEM` | never |
| with `metadata=UNSAID_AT_DEFAULT` | when its value is not the default |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from types import MappingProxyType
from typing import Any

_PRIORITY = "priority"
_COUNTS = "counts"

CHANGES_NO_ITEM: Mapping[str, str] = MappingProxyType({_COUNTS: "never"})
"""Metadata of an option that does not change what an item holds."""

UNSAID_AT_DEFAULT: Mapping[str, str] = MappingProxyType({_COUNTS: "unless default"})
"""Metadata of an option that was added when labels without it were in use."""


def label_of(name: str, view: Any, **instead: object) -> str:
    """The label of a view.

    Args:
      name: of the view.
      view: a dataclass.
      instead: by field, what stands for its value; it must tell the same values apart.

    >>> from rlds2reverb.views.n_step import NStep
    >>> label_of("n_step", NStep(n=5))
    'n_step:n=5,gamma=0.99,style=acme'
    """
    options = ",".join(f"{option}={value}" for option, value in identity(view, **instead).items())
    return f"{name}:{options}" if options else name


def identity(options: Any, **instead: object) -> dict[str, object]:
    """Field -> value, of the fields of a dataclass that count; `instead` as for `label_of`."""
    return {
        field.name: instead.get(field.name, getattr(options, field.name))
        for field in fields(options)
        if _counts(field, getattr(options, field.name))
    }


def _counts(field: Field[Any], value: object) -> bool:
    if field.name == _PRIORITY or not field.init or field.metadata == CHANGES_NO_ITEM:
        return False
    return field.metadata != UNSAID_AT_DEFAULT or value != field.default
