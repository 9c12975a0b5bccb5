"""What damages files tells its cases: one that fails, one that hangs, and one that ends the process."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import damage, notes
from tests.support.modules import CHECKOUT
from tests.support.profiles import DEEP, SIZE


def draws(part: int) -> dict[str, float]:
    """Name -> first draw of the cases of a part."""
    found = {}

    def job(name: str, draw: random.Random) -> None:
        found[name] = draw.random()

    damage.each_case("x", part, few=5, deep=round(5 * len(damage.PARTS) / (SIZE or 1)), job=job)
    return found


def test_each_case_draws_by_its_name_alone() -> None:
    assert draws(0) == {name: random.Random(name).random() for name in draws(0)}
    assert len({**draws(0), **draws(1)}) == 10
    assert all(f"of seed {damage.SEED if DEEP else 1}" in name for name in draws(0))


def test_a_case_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "LONGEST", 0.05)
    with pytest.raises(pytest.fail.Exception, match=r"x, case 0 of seed .*: not at its end after 0\.05 s"):
        damage.each_case("x", 0, few=1, deep=len(damage.PARTS), job=lambda name, draw: time.sleep(60))
    assert not (notes.FOLDER / str(os.getpid())).exists()


def test_an_error_that_is_not_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "open_source", lambda name: [][0])
    with pytest.raises(AssertionError, match="the case: IndexError: list index"):
        damage.check("the case", "toy:3")


KILLS = """
import os
from tests.support import damage
from tests.support.profiles import SIZE

def job(name, draw):
    if "case 3 " in name:
        os.kill(os.getpid(), 9)

def test_kills():
    damage.each_case("x", 0, few=5, deep=round(5 * len(damage.PARTS) / (SIZE or 1)), job=job)

def test_others():
    pass
"""


def test_a_case_that_ends_the_process_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(KILLS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-n",
        "1",
        "--dist",
        "loadfile",
        str(tmp_path),
    ]
    environment = {**os.environ, "RLDS2REVERB_SEED": str(os.getpid())}
    ran = subprocess.run(
        command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 1
    assert "a process ended at: x, case 3 of seed" in ran.stdout
    assert "crashed while running" in ran.stdout
    assert re.search(r"x, case 3 of seed \d+: ended the process", ran.stdout)
    assert "2 failed, 1 passed" in ran.stdout
