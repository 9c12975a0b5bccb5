"""The code in the page about LeRobot's policies runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lerobot")

from tests.systems.learners.pages import check_page


def test_the_code_of_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    check_page("lerobot", "localhost:8000", tmp_path)
