"""A test that hangs is told, with where it hangs, and the run ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.modules import CHECKOUT

HANGS = """
import threading

def test_hangs_here():
    threading.Event().wait()

def test_another():
    pass
"""


def test_a_test_that_hangs_in_a_worker_is_told_with_its_stack(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    options = "-p tests.conftest -p no:cacheprovider --timeout 1 -n 2 --dist loadfile --max-worker-restart 0"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 1
    assert "in test_hangs_here" in ran.stderr
    assert "crashed while running" in ran.stdout
    assert "test_it.py::test_hangs_here" in ran.stdout
