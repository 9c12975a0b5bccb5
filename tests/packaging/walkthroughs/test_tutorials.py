"""The tutorials work from the top to the bottom, in an empty folder, with real servers; those with PyTorch are in tests/systems/learners."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.walkthrough import TUTORIALS, Reader, losses


@pytest.mark.timeout(1200)  # two starts of a server and ten commands, on a busy machine
@pytest.mark.parametrize("page", ["first_push", "robot_dataset", "tf_agents_learner", "running_the_service"])
def test_a_tutorial_works(page: str, tmp_path: Path) -> None:
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    reader = Reader(folder, scratch)
    reader.work_through(TUTORIALS / f"{page}.md")
    if page == "tf_agents_learner":
        first, *_, last = losses(reader.printed)
        assert last < 0.6 * first
