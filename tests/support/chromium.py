"""A real browser, without a window; installed where it is missing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.modules import CHECKOUT


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


def accessibility_findings(page: Any, *rules: str) -> list[str]:
    """What axe finds in an open page by all of its rules or by these, a line for each element: the rule, how bad it is, and where."""
    from axe_playwright_python.sync_playwright import Axe

    options: dict[str, Any] = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    violations = Axe().run(page, options=options).response["violations"]
    return [
        f"{violation['id']} ({violation['impact']}): {node['target']}"
        for violation in violations
        for node in violation["nodes"]
    ]
