"""The shipped notebook, and the script that runs one."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "examples" / "quickstart.ipynb"

HAS_REVERB = 'importlib.util.find_spec("reverb") is not None'
ADDRESS = 'ADDRESS = ""'


@cache
def runner() -> ModuleType:
    """scripts/run_notebook.py."""
    spec = importlib.util.spec_from_file_location("run_notebook", ROOT / "scripts" / "run_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["run_notebook"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored() -> Any:
    """The quickstart, as its file says."""
    return json.loads(QUICKSTART.read_text(encoding="utf-8"))


def of_cells(*cells: str) -> dict[str, Any]:
    """A notebook of such code."""
    made = [
        {"cell_type": "code", "id": f"c{number}", "source": code.splitlines(keepends=True)}
        for number, code in enumerate(cells)
    ]
    return {"cells": made}
