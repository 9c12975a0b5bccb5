"""The examples of the modules hold."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from rlds2reverb.cli.top import keys, texts, wrapping


@pytest.mark.parametrize("module", [keys, texts, wrapping])
def test_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert found.failed == 0
