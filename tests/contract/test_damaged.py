"""Damaged files of every format: an error of ours, or a bad episode; never a traceback, and never a hang.

A case of `tests/contract/source_cases` takes part by `write(folder) -> name of the source`, or by several of them: `WRITE`, kind -> it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.formats import open_source
from tests.contract.test_sources import CASES
from tests.support import damage
from tests.support.raising import error_of


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(dataset: Any) -> None:
    """An error, or bad episodes, or a file that is not needed; no episode is missing without a word."""
    _, folder, name = dataset
    whole = len(list(open_source(name)))
    for path in sorted(path for path in folder.rglob("*") if path.is_file())[:8]:
        path.rename(aside := path.with_name("aside.moved"))
        os.mkfifo(path)
        read: list[Any] = []
        error = error_of(Rlds2ReverbError, lambda: read.extend(open_source(name)))  # noqa: B023
        path.unlink()
        aside.rename(path)
        assert (error is not None and "\n" not in str(error)) or len(read) == whole, path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("scheme", sorted({"rlds", *CASES} - {"episodes", "bundled", "mix"}))
@pytest.mark.parametrize("ending", ["", ".npz", ".hdf5", ".h5", ".json", ".pkl", ".tar", ".yaml", ".parquet"])
def test_a_pipe_is_no_dataset(tmp_path: Path, scheme: str, ending: str) -> None:
    os.mkfifo(tmp_path / f"pipe{ending}")
    with pytest.raises(Rlds2ReverbError):
        list(open_source(f"{scheme}:{tmp_path}/pipe{ending}"))
