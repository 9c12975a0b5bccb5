"""Code in the pages about adapters runs as it stands, page by page, from the top to the bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.systems.learners.pages import check_page


@pytest.mark.parametrize("page", ["pytorch", "torchrl", "rllib", "jax"])
def test_the_code_of_a_page_runs_and_prints_what_it_says(page: str, replay: str, tmp_path: Path) -> None:
    check_page(page, replay, tmp_path)
