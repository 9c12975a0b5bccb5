"""The examples of the modules hold."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from rlds2reverb.cli.top import texts
from rlds2reverb.transport import address


@pytest.mark.parametrize("module", [texts, address])
def test_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert found.failed == 0
