"""A real browser, without a window; installed where it is missing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.modules import CHECKOUT


@contextmanager
def chromium() -> Iterator[Any]:
    """One of playwright's; skips where that is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api")
    install = CHECKOUT / "scripts" / "install-chromium"
    found = subprocess.run([install], capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0, found.stderr
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found.stdout.strip(), args=["--no-sandbox"])
        yield started
        started.close()
