"""What takes long at a server: the lines of its log, how far it says it is, and that nothing of it outlives the work."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replay_server import logs
from replay_server import monitor as prefills
from replay_server.logs import Reading, bytes_in, bytes_read, share
from replay_server.monitor import PrefillTeller
from replay_server.tables import MinSize, Prefill, TableConfig

from tests.support.processes import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


class Log:
    """Notes the lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = info


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PROGRESS_SECONDS", 0.01)
    monkeypatch.setattr(prefills, "PROGRESS_SECONDS", 0.01)


def test_the_first_line_comes_at_once_and_others_say_how_far_it_is(tmp_path: Path) -> None:
    log = Log()
    with logs.log_progress(log, "writing", lambda: share(bytes_in(tmp_path), 40), reason="request"):
        assert log.lines[0] == ("writing", {"reason": "request"})
        (tmp_path / "half").write_bytes(bytes(20))
        wait_until(lambda: log.lines[-1][1].get("percent") == 50)
    event, fields = log.lines[-1]
    assert (event, fields["bytes"], fields["of_bytes"]) == ("writing", 20, 40)
    assert fields["seconds"] >= 0
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_a_folder_that_goes_away_costs_a_line_its_fields_only(tmp_path: Path) -> None:
    log = Log()
    with logs.log_progress(log, "writing", lambda: {"files": len([*(tmp_path / "gone").iterdir()])}):
        wait_until(lambda: len(log.lines) > 1)
    assert set(log.lines[1][1]) == {"seconds"}


def test_an_error_of_the_work_is_raised_and_ends_the_lines() -> None:
    with pytest.raises(ZeroDivisionError), logs.log_progress(Log(), "writing"):
        raise ZeroDivisionError
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_without_a_total_there_is_no_percentage_and_more_than_expected_is_all() -> None:
    assert share(7, 0) == {"bytes": 7}
    assert share(50, 40)["percent"] == 100


def test_reading_is_told_by_what_the_process_has_read(tmp_path: Path) -> None:
    if bytes_read() is None:
        pytest.skip("this system does not say what a process has read")
    file = tmp_path / "file"
    file.write_bytes(bytes(1_000_000))
    reading = Reading(2_000_000)
    file.read_bytes()
    assert reading.far()["bytes"] >= 1_000_000
    assert 50 <= reading.far()["percent"] <= 100


def filling(name: str) -> TableConfig:
    return TableConfig(name, rate_limiter=Prefill(items=100, then=MinSize(min_size=1)))


class Monitor:
    """Answers with sizes of tables."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes

    @property
    def snapshot(self) -> Any:
        tables = [SimpleNamespace(name=name, current_size=size) for name, size in self.sizes.items()]
        return SimpleNamespace(tables=lambda: tables)


def test_a_prefill_is_told_until_it_has_its_items() -> None:
    monitor, log = Monitor(a=0, b=100, c=5), Log()
    teller: Any = PrefillTeller(monitor, [filling("a"), filling("b"), TableConfig("c")])  # type: ignore[arg-type]
    teller._log = log
    teller.look(0.0)
    monitor.sizes["a"] = 50
    teller.look(10.0)
    teller.look(20.0)  # nothing came
    monitor.sizes["a"] = 100
    teller.look(30.0)
    assert [(event, fields["table"], fields["items"]) for event, fields in log.lines] == [
        ("prefill", "a", 0),
        ("prefill has its items", "b", 100),
        ("prefill", "a", 50),
        ("prefill has its items", "a", 100),
    ]
    assert log.lines[2][1] == {"table": "a", "items": 50, "of": 100, "items_per_second": 5.0, "eta_seconds": 10}


def test_its_thread_ends_by_itself_and_when_it_is_told_to() -> None:
    monitor = Monitor(a=1)
    for stop in (True, False):
        teller: Any = PrefillTeller(monitor, [filling("a")])  # type: ignore[arg-type]
        teller._log = Log()
        teller.start()
        wait_until(lambda: bool(teller._log.lines))  # noqa: B023
        if stop:
            teller.stop()
        else:
            monitor.sizes["a"] = 100
        wait_until(lambda: not teller._thread.is_alive())  # noqa: B023
    began: Any = PrefillTeller(monitor, [])  # type: ignore[arg-type]
    began.start()
    assert not began._thread.is_alive()


def test_a_system_without_room_for_a_thread_costs_the_lines_and_not_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log, done = Log(), []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with logs.log_progress(log, "writing"):
        done.append(True)
    assert done
    assert [event for event, _ in log.lines] == ["writing", "nothing will tell how far it is"]
