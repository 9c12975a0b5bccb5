"""Damaged files of every format: an error of ours, or a bad episode; never a traceback, and never a hang.

A case of `tests/sources/cases` takes part by `write(folder) -> name of the source`, or by several of them: `WRITE`, kind -> it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb.sources import open_source
from tests import damage
from tests.sources.test_contract import CASES


def writes(scheme: str) -> dict[str, Any]:
    """Name of the dataset -> what writes it."""
    kinds = getattr(CASES[scheme], "WRITE", {})
    alone = {scheme: CASES[scheme].write} if not kinds and hasattr(CASES[scheme], "write") else {}
    return {**alone, **{f"{scheme}, {kind}": write for kind, write in kinds.items()}}


WRITTEN = {name: write for scheme in CASES for name, write in writes(scheme).items()}
KINDS = {name: len(writes(scheme)) for scheme in CASES for name in writes(scheme)}
"""Name of the dataset -> how many there are of its format; they share its cases."""


@pytest.fixture(scope="module", params=list(WRITTEN))
def dataset(request: pytest.FixtureRequest) -> Any:
    folder = Path(tempfile.mkdtemp())
    yield request.param, folder, WRITTEN[request.param](folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("part", damage.PARTS)
def test_damaged_files_give_our_errors_or_bad_episodes(dataset: Any, part: int) -> None:
    what, folder, name = dataset
    assert all(not episode.faults for episode in open_source(name))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    few, deep = max(10, 40 // KINDS[what]), max(2_000, 10_000 // KINDS[what])
    damage.check_files(files, name, what, part, few=few, deep=deep)
