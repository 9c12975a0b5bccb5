"""The examples of the modules hold."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from rlds2reverb.cli.top import rows
from rlds2reverb.transport import base


@pytest.mark.parametrize("module", [rows, base])
def test_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert found.failed == 0
