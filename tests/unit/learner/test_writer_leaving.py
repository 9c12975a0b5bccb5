"""Writers that nobody closes: what was finished is sent, and what is not stored is told."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.support.learner.loops import step, writer
from tests.support.learner.tables import PATIENCE_SECONDS, our_threads
from tests.support.processes import started, wait_until
from tests.support.push.in_memory import Server

pytestmark = pytest.mark.timeout(120)


def test_a_dropped_writer_sends_what_is_finished_and_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.hold()
    to = writer(server, name="actor")
    for number in range(4):
        to.append(step(number))
    to.end_episode(terminal=False)
    to.append(step())
    del to
    gc.collect()
    wait_until(lambda: "writer actor: not closed, and nobody holds it any more" in caplog.text, PATIENCE_SECONDS)
    server.release()
    wait_until(lambda: not our_threads(), PATIENCE_SECONDS, our_threads)
    assert len(server.contents()) == 3
    assert len(caplog.messages) == 1


def test_what_a_dropped_writer_could_not_send_is_told(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.fail_after(0)
    to = writer(server, name="actor")
    for number in range(4):
        to.append(step(number))
    to.end_episode(terminal=False)
    del to
    gc.collect()
    wait_until(lambda: not our_threads(), PATIENCE_SECONDS, our_threads)
    assert "writer actor: of 1 episode that had ended not all items may be stored: TransportError" in caplog.text


def test_nothing_is_told_of_a_writer_that_was_closed(caplog: pytest.LogCaptureFixture) -> None:
    with writer(Server()) as to:
        to.append(step())
        to.append(step())
        to.end_episode(terminal=False)
    del to
    gc.collect()
    wait_until(lambda: not our_threads(), PATIENCE_SECONDS, our_threads)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("how", "stored", "words"),
    [
        ("release", 3, "writer actor: not closed, and the interpreter ends: episodes that have ended are still sent"),
        ("drop", 3, "writer actor: not closed, and nobody holds it any more: episodes that have ended are still sent"),
        (
            "hold",
            0,
            "writer actor: of 1 episode that had ended not all items may be stored: not confirmed within 0.1 s",
        ),
    ],
)
def test_a_writer_left_open_at_the_end(how: str, stored: int, words: str, tmp_path: Path) -> None:
    with started(tmp_path, "-m", "tests.support.learner.writer_leaving", how) as process:
        assert process.wait() == 0, process.errors
    assert process.output == f"stored {stored}\n"
    assert words in process.errors
    assert ("closed before the end of actor/1 (1 steps)" in process.errors) == (how != "drop")
    assert ("not all items may be stored" in process.errors) == (how == "hold")
    assert "Traceback" not in process.errors
