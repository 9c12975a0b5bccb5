"""The shipped datasets."""

from __future__ import annotations

from typing import Any

import pytest

from rlds2reverb.sources import open_source


def bundled(name: str) -> Any:
    pytest.importorskip("tensorflow_datasets")
    return open_source(f"bundled:{name}")


SOURCES = {"cartpole": lambda: bundled("cartpole@train[:3]"), "half_cheetah": lambda: bundled("half_cheetah@train[:1]")}
PUSHED = ["cartpole"]
