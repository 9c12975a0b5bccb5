"""Damaged files that Minari made: an error of ours, or a bad episode."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import damage
from tests.support.formats import minari as made


@pytest.mark.parametrize("part", damage.PARTS)
@pytest.mark.parametrize(
    ("version", "name", "options"), [one for one in made.OWN if "kinds" in one[1] or one[0] < "0.5"]
)
def test_damaged_files_give_our_errors_or_bad_episodes(
    version: str, name: str, options: str, part: int, tmp_path: Path
) -> None:
    folder = made.copied(version, name, tmp_path)
    files = sorted(path for path in (folder / "data").rglob("*") if path.is_file())
    damage.check_files(files, f"minari:{folder}{options}", f"{name} of {version}", part, few=12, deep=2_000)
