"""Conversions by workers that are processes: killed, interrupted, begun again; the dataset is that of one process."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.conversion.place import PREFIX
from rlds2reverb.errors import ConfigError, InvalidEpisode, WorkersLost
from rlds2reverb.formats.lists import EpisodeList
from tests.contract.destination_cases import data
from tests.support.conversion.digests import digest_files
from tests.support.gated import Gated, is_running
from tests.support.processes import Process, started, wait_until
from tests.unit.conversion.test_convert_in_workers import essence

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

COUNT, GATE = 60, 20


def place(folder: Path) -> str:
    return f"tfds:{folder / 'own'}"


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The files that one process writes."""
    convert(Gated(tmp_path, COUNT), place(tmp_path / "alone"))
    return digest_files(tmp_path / "alone")


def interrupted(folder: Path, workers: int) -> Process:
    """A conversion whose workers come to the gate."""
    arguments = (str(folder), str(COUNT), str(GATE), place(folder / "divided"), str(workers))
    return started(folder, "-m", "tests.support.conversion.converted", *arguments)


def saved(folder: Path) -> int:
    """How many episodes are on disk for the next run."""
    path = folder / f"divided/own/{PREFIX}1.0.0/progress.json"
    try:
        told: int = json.loads(path.read_text())["saved"]["account"]["numbers"]["episodes_read"]
    except FileNotFoundError:
        return 0
    return told


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path, alone: dict[str, str]) -> None:
    source = Gated(tmp_path, COUNT, GATE)
    with ThreadPoolExecutor(1) as background:
        converting = background.submit(lambda: convert(source, place(tmp_path / "divided"), workers=2, verify=True))
        os.kill(source.wait_for_worker(), signal.SIGKILL)
        source.open()
        report = converting.result()
    assert (report.parts_again, report.workers, report.verified) == (1, 2, COUNT)
    assert digest_files(tmp_path / "divided") == alone


def test_a_part_that_kills_its_workers_ends_it_after_some_tries(tmp_path: Path, alone: dict[str, str]) -> None:
    source = Gated(tmp_path, COUNT, GATE, dies=True)
    with pytest.raises(WorkersLost, match=r"killed by SIGKILL; it was begun 3 times") as caught:
        convert(source, place(tmp_path / "divided"), workers=1)
    report: Any = caught.value.report
    assert report.parts_again == 2
    assert report.stopped.startswith("WorkersLost: process")
    convert(Gated(tmp_path, COUNT), place(tmp_path / "divided"), workers=1)
    assert digest_files(tmp_path / "divided") == alone


def test_the_first_bad_episode_is_the_error(tmp_path: Path) -> None:
    errors: list[Any] = []
    for folder, workers in (("alone", None), ("divided", 2)):
        with pytest.raises(InvalidEpisode, match="episode e17: nan") as caught:
            convert(Gated(tmp_path, COUNT, bad=(17, 34, 50)), place(tmp_path / folder), workers=workers)
        errors.append(caught.value)
    (one, other) = (replace(essence(error.report), episodes_kept=0) for error in errors)
    assert other == one


@pytest.mark.parametrize(
    ("end", "workers"),
    [(Process.kill, 1), (lambda process: process.send(signal.SIGINT), None)],
    ids=["killed", "interrupted"],
)
def test_it_goes_on_after_its_end(
    tmp_path: Path, alone: dict[str, str], end: Callable[[Process], object], workers: int | None
) -> None:
    source = Gated(tmp_path, COUNT, GATE)
    with interrupted(tmp_path, 2) as process:
        source.wait_for_worker()
        wait_until(lambda: saved(tmp_path) >= 4)
        children = [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        end(process)
        source.open()
        code, output, errors = process.result()
    wait_until(lambda: not any(map(is_running, children)))
    kept = saved(tmp_path)
    if code >= 0:
        report = json.loads(output)
        assert (code, errors, report["stopped"]) == (0, "", "interrupted")
        assert 0 <= kept - report["episodes_kept"] <= 1  # interrupted at any point
    resumed = convert(Gated(tmp_path, COUNT), place(tmp_path / "divided"), workers=workers, verify=True)
    assert (resumed.episodes_read, resumed.episodes_resumed, resumed.verified) == (COUNT, kept, COUNT)
    assert digest_files(tmp_path / "divided") == alone


def test_what_cannot_be_sent_to_a_worker_is_refused(tmp_path: Path) -> None:
    episodes = EpisodeList([data.episode(number) for number in range(3)], "locked")
    vars(episodes)["lock"] = threading.Lock()
    with pytest.raises(ConfigError, match=r"by name, or as objects that can be pickled: .*lock"):
        convert(episodes, place(tmp_path), workers=2)
    assert not digest_files(tmp_path)
