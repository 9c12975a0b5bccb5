"""A server that has not started has loaded neither Reverb nor TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import replay_server


def test_a_server_that_has_not_started_has_loaded_neither_reverb_nor_tensorflow() -> None:
    modules = (path.stem for path in Path(replay_server.__file__).parent.glob("*.py"))
    names = ", ".join(f"replay_server.{name}" for name in modules if name != "__main__")
    code = f"import json, sys; import {names}; print(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    assert {name.partition(".")[0] for name in json.loads(finished.stdout)} & {"reverb", "tensorflow"} == set()
