"""A learner may end at any time, in any way, with samplers open: its process ends at once, and says nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_reverb import FakeReverb
from tests.support.learner.leaving import EMPTY, FULL
from tests.support.learner.tables import fill, once, table
from tests.support.processes import started, wait_until

pytestmark = pytest.mark.timeout(120)

END_SECONDS = 30.0


@pytest.fixture
def fake() -> Iterator[FakeReverb]:
    with FakeReverb(table(FULL), once(EMPTY)) as running:
        fill(running, [7], FULL)
        yield running


@pytest.mark.parametrize("how", ["read_and_leave", "leave_a_cycle", "wait_in_a_thread", "drop"])
def test_a_process_ends_with_samplers_open(fake: FakeReverb, tmp_path: Path, how: str) -> None:
    with started(tmp_path, "-m", "tests.support.learner.leaving", fake.address, how) as process:
        wait_until(lambda: "leaves" in process.output or process.poll() is not None)
        assert process.wait(END_SECONDS) == 0, process.errors
    assert process.errors == ""
    wait_until(lambda: all(stream.over for stream in fake.sampled))


def test_an_error_in_a_loop_is_the_only_one(fake: FakeReverb, tmp_path: Path) -> None:
    with started(tmp_path, "-m", "tests.support.learner.leaving", fake.address, "fail") as process:
        assert process.wait() == 1
    assert process.errors.count("Traceback") == 1
    assert process.errors.rstrip().endswith("ZeroDivisionError")


def test_an_interrupt_ends_a_wait_at_once(fake: FakeReverb, tmp_path: Path) -> None:
    with started(tmp_path, "-m", "tests.support.learner.leaving", fake.address, "wait") as process:
        wait_until(lambda: "waits" in process.output)
        process.send(signal.SIGINT)
        process.wait(END_SECONDS)
    assert process.errors.count("Traceback") == 1
    assert process.errors.rstrip().endswith("KeyboardInterrupt")
