"""The tutorials whose learner is written with PyTorch work from the top to the bottom, in an empty folder, with a real server."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.walkthrough import TUTORIALS, Reader, losses
from tests.systems.learners.servers import SERVER_PYTHON


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", ["minari_to_pytorch", "diffusion_policy"])
def test_a_tutorial_works(page: str, tmp_path: Path) -> None:
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    reader = Reader(folder, scratch, server_python=os.environ[SERVER_PYTHON])
    reader.work_through(TUTORIALS / f"{page}.md")
    first, *_, last = losses(reader.printed)
    if page == "diffusion_policy":
        of_policy, of_mean = (float(error) for error in re.findall(r"error (\d+\.\d+)", reader.printed))
        assert of_policy < 0.6 * of_mean  # of held-out episodes, trained from the table
        assert last < 0.5 * first
    else:
        assert last < 0.2 * first
