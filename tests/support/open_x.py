"""The script that makes Open X-Embodiment-shaped datasets (examples/make_open_x.py), for tests. It needs TensorFlow."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def script() -> Any:
    """The module; its folder stays on the path, as when Python runs the script."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module("make_open_x")


def small(name: str, output: Path, episodes: int = 3, steps: int = 6, **options: Any) -> Path:
    """A dataset of a few short episodes with small images; its version directory."""
    return Path(script().make(name, output, episodes, steps, **{"size": (24, 32), **options}))
