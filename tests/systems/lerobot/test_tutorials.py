"""The program of a tutorial that trains LeRobot's own policy learns, on the data of that tutorial."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lerobot")

from tests.support.walkthrough import BLOCK, TUTORIALS, Reader, losses


@pytest.mark.timeout(600)
def test_lerobots_diffusion_policy_learns_from_the_tutorials_data(tmp_path: Path) -> None:
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    reader = Reader(folder, scratch)
    for kind, text in BLOCK.findall((TUTORIALS / "diffusion_policy.md").read_text(encoding="utf-8")):
        if kind == "python":
            reader.python(text.replace("STEPS, BATCH = 200", "STEPS, BATCH = 50"))
        elif kind == "sh" and "server" not in text.replace("[server,", "") and "train.py" not in text:
            reader.sh(text)
    reader.sh("python train_lerobot.py")
    first, last = losses(reader.printed)
    assert last < 0.95 * first
