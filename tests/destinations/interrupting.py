"""Ends a conversion at one of its calls of the operating system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CALLS = ("fsync", "replace", "rename", "unlink", "truncate", "ftruncate", "rmdir", "mkdir")


class Interrupted(BaseException):
    pass


class Calls:
    """How many there were."""

    count = 0


@contextmanager
def interrupted(at: int | None = None) -> Iterator[Calls]:
    """Raises `Interrupted` in place of call number `at`, from 1, of those that change files or put them on disk; None counts only."""
    calls = Calls()

    def counting(call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.count += 1
            if calls.count == at:
                raise Interrupted
            return call(*args, **kwargs)

        return counted

    with pytest.MonkeyPatch.context() as patched:
        for name in CALLS:
            if hasattr(os, name):
                patched.setattr(os, name, counting(getattr(os, name)))
        yield calls
