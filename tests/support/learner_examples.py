"""Runs the learners of examples/learners as programs of their own, and reads what they report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from rlds2reverb import open_source
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import Nest
from rlds2reverb.views import view_of
from rlds2reverb.views.trajectory import table_signature

ROOT = Path(__file__).parents[2]
LEARNERS = ROOT / "examples" / "learners"
SOURCE, TABLE = "bundled:cartpole", "cartpole"
MOST_LINES = 60

_REPORT = re.compile(r"^learned ([\d.]+) +random policy ([\d.]+) +mean of the data ([\d.]+)$", re.MULTILINE)


class Report(NamedTuple):
    """Mean returns."""

    learned: float
    random: float
    data: float


def signature() -> Nest:
    """Of the learners' table."""
    return table_signature(view_of("two_step").signature(filled_spec(open_source(SOURCE).spec())))


def report_of(name: str, address: str, *options: str) -> Report:
    """What a learner reports at its end, from the seed 0; it must end well."""
    command = [sys.executable, str(LEARNERS / f"{name}.py"), "--server", address, "--table", TABLE, *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = _REPORT.search(done.stdout)
    assert found, done.stdout
    return Report(*map(float, found.groups()))


def check_learned(report: Report) -> None:
    """A random policy falls after some 22 steps. Learners reach 300 to 500, so these margins are wide."""
    assert report.learned > 120
    assert report.learned > 4 * report.random
    assert 15 < report.random < 30
    assert report.data == pytest.approx(
        np.mean([episode.columns["reward"].sum() for episode in open_source(SOURCE)]), abs=0.06
    )
