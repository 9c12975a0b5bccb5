"""The compiled reader stays within its memory, whatever a response says: its tests once more, with the compiler's checks in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

CHECKS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def test_the_compiled_reader_stays_within_its_memory(tmp_path: Path) -> None:
    hatch_build = pytest.importorskip("hatch_build", reason="needs hatchling")
    library = tmp_path / "native.compiled"
    try:
        hatch_build.compile_library(ROOT / "rlds2reverb" / "wire" / "sample" / "native.c", library, *CHECKS)
        asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no compiler with sanitizers")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.wire.sanitized", "-p", "no:xdist"]
    files = [str(path) for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    settings = {
        "SANITIZED": str(library),
        "LD_PRELOAD": asan.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    }
    done = subprocess.run(
        [*command, *files],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
