"""Objects as JSON has them. A class says once what is printed of it: `as_dict`, the documents of the command line and their schemas follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Annotated, Any, TypeVar

C = TypeVar("C", bound=type)

Count = Annotated[int, "from 0"]


def printed(*members: str) -> Callable[[C], C]:
    """Says what is printed of a dataclass, in this order.

    Args:
      members: names of fields and properties, "*" for all fields; NAME=ATTRIBUTE where JSON has another name, or where it is an attribute
        of an attribute: "path=problem.path".
    """

    def decorate(printed_class: C) -> C:
        names = [name for member in members for name in (_fields(printed_class) if member == "*" else [member])]
        places = {name.partition("=")[0]: name.rpartition("=")[2] for name in names}
        setattr(printed_class, "_printed", places)  # noqa: B010 - no class of ours declares it
        return printed_class

    return decorate


def attributes(printed_class: type) -> Mapping[str, str]:
    """Name in JSON -> attribute, of a dataclass; its fields where `printed` says nothing."""
    places: Mapping[str, str] | None = getattr(printed_class, "_printed", None)
    return dict(zip(_fields(printed_class), _fields(printed_class))) if places is None else places


def plain(value: Any) -> Any:
    """Mappings, lists, tuples, text and numbers in place of objects; specs, dataclasses of which nothing is `printed`, become text."""
    if isinstance(value, Mapping):
        return {name: plain(child) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if hasattr(value, "_printed"):
        return members(value)
    return str(value) if is_dataclass(value) else value


def members(thing: Any) -> dict[str, Any]:
    """What is printed of a dataclass, as plain values."""
    return {name: plain(attrgetter(place)(thing)) for name, place in attributes(type(thing)).items()}


def _fields(printed_class: Any) -> list[str]:
    return [field.name for field in fields(printed_class)]
