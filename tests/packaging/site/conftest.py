"""The docs' site: built strictly from this checkout, served on loopback."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from tests.support.project import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder. A warning of mkdocs (a page, a link or a heading that is not there) is a failure."""
    folder = tmp_path_factory.mktemp("site") / "built"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where it is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    found = subprocess.run(
        [ROOT / "scripts" / "install-chromium"], capture_output=True, text=True, timeout=280, check=False
    )
    assert found.returncode == 0, found.stderr
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found.stdout.split()[-1], args=["--no-sandbox"])
        yield started
        started.close()
