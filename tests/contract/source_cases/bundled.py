"""The shipped datasets."""

from __future__ import annotations

from typing import Any

from rlds2reverb.formats import open_source


def bundled(name: str) -> Any:
    return open_source(f"bundled:{name}")


SOURCES = {"cartpole": lambda: bundled("cartpole@train[:3]"), "half_cheetah": lambda: bundled("half_cheetah@train[:1]")}
PUSHED = ["cartpole"]
