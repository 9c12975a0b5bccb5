"""What the service knows of its tables, and when."""

from __future__ import annotations

from replay_server.monitor import Monitor

from rlds2reverb.errors import ServerUnreachable
from rlds2reverb.wire.messages import ServerInfo
from tests.support.push.in_memory import table_info


def test_tables_are_known_as_soon_as_it_is_started() -> None:
    monitor = Monitor(lambda: ServerInfo(7, {"replay": table_info("replay")}))
    monitor.start()
    assert [table.name for table in monitor.snapshot.tables()] == ["replay"]
    assert len(monitor.history()) == 1
    monitor.stop()


def test_a_question_without_an_answer_is_told_and_does_not_stop_it() -> None:
    def ask() -> ServerInfo:
        raise ServerUnreachable("no answer")

    monitor = Monitor(ask)
    monitor.start()
    assert monitor.snapshot.tables() == []
    assert monitor.snapshot.error == "no answer"
    monitor.stop()
