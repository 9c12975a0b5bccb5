"""The tutorials whose learner is written with PyTorch work from the top to the bottom, in an empty folder, with a real server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.walkthrough import TUTORIALS, Reader, losses
from tests.systems.learners.servers import SERVER_PYTHON


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", ["minari_to_pytorch"])
def test_a_tutorial_works(page: str, tmp_path: Path) -> None:
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    reader = Reader(folder, scratch, server_python=os.environ[SERVER_PYTHON])
    reader.work_through(TUTORIALS / f"{page}.md")
    first, *_, last = losses(reader.printed)
    assert last < 0.2 * first
