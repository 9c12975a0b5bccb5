"""Formats of other packages: a small distribution on the path of a process of its own, with `entry_points.txt` as an installer writes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

CSV = """
from pathlib import Path

import numpy as np

from rlds2reverb.episode import Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.registry import Form, Format, Reading


def read(text):
    rewards = np.loadtxt(text, dtype=np.float32, ndmin=1)
    at = np.arange(len(rewards))
    flags = {"is_first": at == 0, "is_last": at == len(at) - 1, "is_terminal": at == len(at) - 1}
    columns = {"observation": rewards, "action": rewards, "reward": rewards, **flags}
    return EpisodeList([Episode(columns)], f"rewards:{text}")


FORMAT = Format(
    "rewards",
    "lists of rewards",
    Reading(read, forms=(Form("rewards:FILE", "an episode of these rewards"),), marks=("*.rewards",)),
)
"""


def install(folder: Path, package: str, scheme: str, value: str, module: str = "") -> None:
    """A distribution as pip leaves it: its module, and the folder of its metadata."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[rlds2reverb.formats]\n{scheme} = {value}\n", encoding="utf-8")
    if module:
        (folder / f"{value.partition(':')[0]}.py").write_text(module, encoding="utf-8")


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` with what is installed in a folder."""
    path = os.pathsep.join([str(site), str(ROOT), str(ROOT / "server")])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def command(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(site, "-m", "rlds2reverb", *arguments)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    install(folder, "rewards-format", "rewards", "rewards_format:FORMAT", CSV)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "files" / "a.rewards"
    path.parent.mkdir()
    path.write_text("1\n2\n4\n")
    return path


def test_it_is_read_listed_converted_and_proposed(site: Path, file: Path, tmp_path: Path) -> None:
    inspected = command(site, "inspect", f"rewards:{file}", "--json")
    assert inspected.returncode == 0, inspected.stderr
    assert json.loads(inspected.stdout)["steps"] == 3
    listing = f"from pathlib import Path; from rlds2reverb.formats import SOURCES; print(*SOURCES.below(Path({str(file.parent)!r})))"
    assert run(site, "-c", listing).stdout == f"rewards:{file}\n"
    assert "an episode of these rewards" in command(site, "help", "sources").stdout
    converted = command(site, "convert", f"rewards:{file}", f"tfds:{tmp_path / 'tfds' / 'numbers'}")
    assert converted.returncode == 0, converted.stderr
    assert f'did you mean "rewards:{file}"?' in command(site, "inspect", str(file)).stderr
    assert 'did you mean "rewards:x"?' in command(site, "inspect", "reward:x").stderr
    assert "npz, mix, reverb, rewards" in command(site, "inspect", "y:x").stderr


def test_it_is_pushed(site: Path, file: Path) -> None:
    code = f"""
from rlds2reverb.client import Client
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info

with Client(MemoryTransport(MemoryServer(table_info("replay", max_size=100)))) as client:
    print(client.push("rewards:{file}", table="replay").steps_pushed)
"""
    pushed = run(site, "-c", code)
    assert pushed.stdout == "3\n", pushed.stderr


def test_built_in_formats_import_no_other_package(site: Path) -> None:
    code = "import json, sys; from rlds2reverb import open_source; open_source('bundled:cartpole'); print(json.dumps([*sys.modules]))"
    loaded = json.loads(run(site, "-c", code).stdout)
    assert {"rewards_format", "importlib.metadata"} & set(loaded) == set()


@pytest.mark.parametrize(
    ("value", "module", "reason"),
    [
        (
            "rewards_format:FORMAT",
            "import no_such_library",
            "cannot be loaded: ModuleNotFoundError: No module named 'no_such_library'",
        ),
        ("rewards_format:FORMAT", "raise SystemError('x')", "cannot be loaded: SystemError: x"),
        ("rewards_format:OTHER", "", "cannot be loaded: AttributeError: "),
        ("rewards_format:FORMAT", "FORMAT = 3", "expected a rlds2reverb.formats.registry.Format, got int"),
        (
            "rewards_format:FORMAT",
            "from rlds2reverb.formats.registry import Format\nFORMAT = Format('prizes', 'prizes')",
            'expected the scheme "rewards" of its entry point, got "prizes"',
        ),
    ],
)
def test_one_that_cannot_be_used_says_why_and_disturbs_no_other(
    tmp_path: Path, value: str, module: str, reason: str
) -> None:
    install(tmp_path, "rewards-format", "rewards", value, module or "FORMAT = 3")
    opened = command(tmp_path, "inspect", "rewards:x")
    assert (opened.returncode, opened.stdout) == (3, "")
    assert opened.stderr.startswith(f'rlds2reverb: error: format "rewards:" of rewards-format 1.0 ({value})')
    assert reason in opened.stderr
    listed = command(tmp_path, "help", "sources")
    assert listed.returncode == 0
    assert reason in listed.stderr
    assert "bundled:cartpole" in listed.stdout


def test_a_name_that_is_taken_is_refused(tmp_path: Path, file: Path) -> None:
    site = tmp_path / "site"
    for package in ("one", "another"):
        install(site, f"{package}-format", "rewards", f"{package}_format:FORMAT", CSV)
    install(site, "npz-format", "npz", "npz_format:FORMAT", CSV)
    opened = command(site, "inspect", f"rewards:{file}")
    assert opened.returncode == 3
    assert 'format "rewards:" is declared twice, by ' in opened.stderr
    assert "another-format 1.0 (another_format:FORMAT)" in opened.stderr
    listed = command(site, "help", "sources")
    assert (
        'format "npz:" of npz-format 1.0 (npz_format:FORMAT) is not used: rlds2reverb has a format of that name'
        in listed.stderr
    )
    assert "a .npz file for each episode" in listed.stdout


GUESSES_WRONG = """
from rlds2reverb.formats.registry import Form, Format, Reading


def fail(thing):
    raise TypeError("made to fail")


READING = Reading(fail, forms=(Form("rewards:FILE", "rewards"),), takes=fail, marks=("*.rewards",), recognises=fail)
FORMAT = Format("rewards", "lists of rewards", READING)
"""


def test_one_whose_guesses_fail_disturbs_no_other(tmp_path: Path, file: Path) -> None:
    site = tmp_path / "wrong"
    install(site, "wrong", "rewards", "wrong:FORMAT", GUESSES_WRONG)
    listed = command(site, "inspect", str(file.parent))
    assert "made to fail" in listed.stderr and "Traceback" not in listed.stderr
    refused = run(site, "-c", "import rlds2reverb; rlds2reverb.open_source(3)")
    assert "SourceError" in refused.stderr.splitlines()[-1]


def test_one_that_only_reads_is_no_destination(site: Path, tmp_path: Path) -> None:
    refused = command(site, "convert", "bundled:cartpole", f"rewards:{tmp_path / 'out'}")
    assert refused.returncode == 2
    assert "writing lists of rewards by a name" in refused.stderr
    assert "did you mean" not in refused.stderr
