"""Errors of properties that hold for good and for bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E", bound=Exception)
T = TypeVar("T")


def outcome_of(kind: type[E], job: Callable[[], T]) -> T | E:
    """What a job gives, or else what it raises of this kind."""
    try:
        return job()
    except kind as error:
        return error


def error_of(kind: type[E], job: Callable[[], object]) -> E | None:
    """What a job raises of this kind; None when it ends well."""
    found = outcome_of(kind, job)
    return found if isinstance(found, kind) else None
