"""Ctrl-C at any moment, also in callbacks of C code, where Python loses it: the command ends with 130, and run again gives the same dataset."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.conversion.place import PREFIX
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import open_destination
from tests.contract.test_destinations import written
from tests.support.processes import started
from tests.support.profiles import DEEP, SEED, drawn
from tests.unit.conversion.test_convert_kills import FORMATS
from tests.unit.conversion.test_convert_odd_episodes import PLACES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process there gets no SIGINT from itself alone")

START, END = 300, 0.98
"""Calls before the command begins; the part of all calls at whose end it prints its report."""


def run(folder: Path, at: int, *arguments: str) -> tuple[int, str]:
    """Exit code, and what it says."""
    with started(
        folder, "-m", "tests.support.conversion.interrupted", str(at), str(folder / "calls"), *arguments
    ) as process:
        return process.wait(), process.errors


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of HDF5, which is read by callbacks."""
    name = f"minari:{tmp_path_factory.mktemp('source')}/own-v0"
    convert("bundled:cartpole", name, limit=3)
    return name


@pytest.mark.parametrize("place", FORMATS)
def test_ctrl_c_at_any_moment_of_a_conversion_ends_it_and_loses_nothing(
    place: str, source: str, tmp_path: Path
) -> None:
    def into(folder: str) -> str:
        (tmp_path / folder).mkdir()
        return PLACES[place].format(tmp_path / folder)

    whole = into("whole")
    assert run(tmp_path, 0, "convert", source, whole)[0] == 0
    calls = int((tmp_path / "calls").read_text())
    wanted = written(open_destination(whole))
    rng = np.random.default_rng([SEED if DEEP else 0, len(place)])
    for at in rng.integers(START, int(calls * END), drawn(2, 60)).tolist():
        name = into(f"at_{at}")
        code, said = run(tmp_path, at, "convert", source, name)
        assert code == 130, (at, said)
        assert "Exception ignored" not in said, at
        with suppress(ConfigError):  # it was complete already
            convert(source, name)
        destination = open_destination(name)
        assert written(destination) == wanted, at
        assert [file for file in destination.path.parent.iterdir() if file.name.startswith(PREFIX)] == [], at


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_ctrl_c_at_any_moment_of_a_reading_ends_it(command: str, source: str, tmp_path: Path) -> None:
    assert run(tmp_path, 0, command, source)[0] == 0
    calls = int((tmp_path / "calls").read_text())
    for at in np.random.default_rng(SEED if DEEP else 0).integers(START, int(calls * END), drawn(1, 60)).tolist():
        code, said = run(tmp_path, at, command, source)
        assert code == 130, (at, said)
