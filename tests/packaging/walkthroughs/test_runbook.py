"""The pages of the runbook work from the top to the bottom, with real servers, nginx and a bucket, as an operator follows them."""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.buckets import environment, storage
from tests.support.project import ROOT
from tests.support.versions import make_environment
from tests.support.walkthrough import RUNBOOK, Reader

RUNS = (("backup", "restore"), ("upgrade", "side_by_side"), ("roles",), ("grow",), ("delete",), ("migrate",))
"""Pages that are worked through one after the other in a folder: a later one takes for granted what an earlier one has made."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


@pytest.fixture
def variables(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Of the environment: of a storage service that has the bucket of the pages, if these use it."""
    if not any("my-bucket" in (RUNBOOK / f"{page}.md").read_text() for page in request.getfixturevalue("pages")):
        yield {}
        return
    with storage() as service:
        service.create("my-bucket")
        yield {name: value for name, value in environment(service.url, tmp_path).items() if value is not None}


def prepare(folder: Path, text: str) -> None:
    """What pages take for granted: environments of two versions, and nginx."""
    if "old/bin/rlds2reverb" in text:
        make_environment(folder / "old")
        make_environment(folder / "new", "0.2.0")
    if re.search(r"^nginx ", text, re.MULTILINE):
        done = subprocess.run([ROOT / "scripts" / "install-nginx"], stdout=subprocess.PIPE, check=False)
        if done.returncode and os.getuid():
            pytest.skip("no nginx here, and only root can install it: scripts/install-nginx")
        assert done.returncode == 0


@pytest.mark.timeout(1200)  # up to four starts of a server, on a busy machine
@pytest.mark.parametrize("pages", RUNS, ids="-".join)
def test_pages_work(pages: tuple[str, ...], folder: Path, variables: dict[str, str], tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    texts = [(RUNBOOK / f"{page}.md").read_text(encoding="utf-8") for page in pages]
    prepare(folder, "\n".join(texts))
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    reader = Reader(folder, scratch, environment=variables, names={"ada@lab-3": me})
    for page in pages:
        reader.work_through(RUNBOOK / f"{page}.md")


def test_every_page_is_worked_through_and_listed() -> None:
    pages = {page.stem for page in RUNBOOK.glob("*.md")}
    assert pages == {page for run in RUNS for page in run}
    index = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    for page in pages:
        assert f"(runbook/{page}.md)" in index
        assert f"runbook/{page}.md" in str(navigation)
