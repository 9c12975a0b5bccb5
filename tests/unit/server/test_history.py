"""What a checkpoint folder remembers: bounded, never half written, never in the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_server.checkpoints import Outcome
from replay_server.errors import CheckpointError, FolderLost
from replay_server.history import (
    DAYS,
    HISTORY,
    MOST_BYTES,
    MOST_TEXT,
    CheckpointRow,
    Gap,
    History,
    HistoryFile,
    MemorySample,
    ServerRun,
    as_of,
    decode,
    encode,
    fit_history,
    gaps,
)
from replay_server.recorder import GAP_SECONDS, Recorder
from replay_server.store import CheckpointStore

from tests.support.processes import PATIENCE_SECONDS, wait_until
from tests.support.raising import outcome_of
from tests.unit.server.test_store import add, killed_at, newest_valid, opened, which

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

NOW = 1_800_000_000
DAY = 86400

COUNTS = st.integers(0, 2**63 - 1)
TIMES = st.integers(NOW - 30 * DAY, NOW + 30 * DAY)
TEXTS = st.text(max_size=MOST_TEXT)
ROWS = st.builds(CheckpointRow, TIMES, TIMES, COUNTS, st.floats(0, 1e11), COUNTS, COUNTS, TEXTS, st.just("") | TEXTS)
HISTORIES = st.builds(
    History,
    st.lists(st.builds(ServerRun, TIMES, TIMES, COUNTS), max_size=60).map(tuple),
    st.lists(ROWS, max_size=120).map(tuple),
    st.lists(st.builds(MemorySample, TIMES, COUNTS, COUNTS), max_size=60).map(tuple),
)


def good(ended: int, number: int = 1, seconds: float = 1.0) -> CheckpointRow:
    return CheckpointRow(ended, ended, 1, seconds, 1000 * number, number, "schedule")


def bad(ended: int, error: str = "the disk is full") -> CheckpointRow:
    return CheckpointRow(ended, ended, 1, 0.5, 0, 0, "schedule", error)


def busy(days: float, every: int = 600, now: int = NOW) -> History:
    """A history as a server makes it, one checkpoint and two samples at a time."""
    history, began = History(), now - int(days * DAY)
    for number, when in enumerate(range(began, now, every), 1):
        history = history.running(began, when).with_checkpoint(good(when, number))
        for at in (when, when + every // 2):
            history = history.with_sample(MemorySample(at, 10**9 + number, 10**6 + number))
        history = fit_history(history, when)
    return history


@given(HISTORIES)
def test_a_history_comes_back_as_it_was(history: History) -> None:
    assert decode(encode(history)) == history


@given(HISTORIES, st.integers(-40 * DAY, 40 * DAY))
@settings(max_examples=50)
def test_whatever_happened_takes_so_many_bytes_at_most_and_is_readable(history: History, shift: int) -> None:
    kept = fit_history(as_of(history, NOW + shift), NOW + shift)
    data = encode(kept)
    assert len(data) <= MOST_BYTES
    assert decode(data) == kept


@given(HISTORIES, st.integers(-40 * DAY, 40 * DAY))
@settings(max_examples=50)
def test_nothing_lies_in_the_future_of_a_clock_that_was_set_back(history: History, shift: int) -> None:
    now = NOW + shift
    past = as_of(history, now)
    times = [time for run in past.runs for time in (run.first, run.last)]
    times += [time for checkpoint in past.checkpoints for time in (checkpoint.first, checkpoint.last)]
    assert all(time <= now for time in times)
    assert all(sample.time <= now for sample in past.samples)
    assert as_of(past, now) == past


def test_weeks_of_a_schedule_are_told_in_so_many_rows_and_lose_no_checkpoint() -> None:
    history = busy(days=12)
    assert len(encode(history)) <= MOST_BYTES
    assert 60 <= len(history.checkpoints) <= 80
    assert all(checkpoint.count == 1 for checkpoint in history.checkpoints[-35:])
    assert max(checkpoint.last - checkpoint.first for checkpoint in history.checkpoints) < DAY  # no row tells of days
    numbers = [checkpoint.number for checkpoint in history.checkpoints]
    assert numbers == sorted(numbers)
    oldest = history.checkpoints[0]
    assert oldest.last >= NOW - 600 - DAYS * DAY
    told = sum(checkpoint.count for checkpoint in history.checkpoints)
    assert told >= DAYS * DAY // 600 - 1
    assert history.runs == (ServerRun(NOW - 12 * DAY, NOW - 600),)


def test_of_many_samples_the_peaks_stay() -> None:
    history = busy(days=3)
    peak = MemorySample(NOW - 2 * DAY, 9 * 10**9, 5)
    samples = tuple(sorted((*history.samples, peak), key=lambda one: one.time))
    kept = fit_history(msgspec.structs.replace(history, samples=samples), NOW).samples
    assert peak in kept
    assert len(kept) <= 160
    newest = [sample.time for sample in kept if sample.time > NOW - 3600]
    assert len(newest) >= 11  # one per five minutes


def test_a_failure_among_successes_keeps_its_row_and_its_reason() -> None:
    history = busy(days=1)
    rows = [*history.checkpoints[:30], bad(history.checkpoints[30].first), *history.checkpoints[30:]]
    many = (*rows, *(good(NOW + n, n) for n in range(1, 300)))
    kept = fit_history(msgspec.structs.replace(history, checkpoints=many), NOW + 300).checkpoints
    assert [checkpoint.error for checkpoint in kept if checkpoint.error] == ["the disk is full"]


def test_gaps_outlive_the_joining_of_rows() -> None:
    first = [good(NOW - 3 * DAY + 600 * n, n + 1) for n in range(100)]
    then = [good(NOW - DAY + 600 * n, n + 101) for n in range(100)]
    history = History((ServerRun(first[0].first, first[-1].last), ServerRun(then[0].first, NOW)), (*first, *then))
    kept = fit_history(history, NOW)
    assert len(kept.checkpoints) <= 80
    hole = (first[-1].last, then[0].first)
    assert gaps(kept, NOW, GAP_SECONDS, 600.0)[:2] == [Gap("server", *hole), Gap("checkpoint", *hole)]


@pytest.mark.parametrize(
    ("rows", "every", "found"),
    [
        ([good(NOW - 3000), good(NOW - 2000), good(NOW - 1000)], 600.0, []),
        ([], 600.0, [Gap("checkpoint", NOW - 4000, NOW)]),
        ([good(NOW - n) for n in range(4000, 0, -50)], 0.001, []),
        ([good(NOW - 4000), good(NOW - 2400, seconds=300.0), good(NOW - 700)], 600.0, []),
        ([], None, []),  # nobody asked for one
        ([good(NOW - 3900), good(NOW - 100)], 600.0, [Gap("checkpoint", NOW - 3900, NOW - 100)]),
        ([good(NOW - 3900), good(NOW - 100)], None, []),
        ([good(NOW - 3900), bad(NOW - 2000), good(NOW - 100)], None, [Gap("checkpoint", NOW - 3900, NOW - 100)]),
        ([good(NOW - 3900), bad(NOW - 2000)], None, [Gap("checkpoint", NOW - 3900, NOW)]),
    ],
)
def test_a_time_without_a_checkpoint_that_succeeded_is_a_gap(
    rows: list[CheckpointRow], every: float | None, found: list[Gap]
) -> None:
    history = History((ServerRun(NOW - 4000, NOW),), tuple(rows))
    assert gaps(history, NOW, GAP_SECONDS, every) == found


@given(HISTORIES, st.none() | st.floats(1, 1e6))
@settings(max_examples=50)
def test_gaps_have_a_length_whatever_the_rows_say(history: History, every: float | None) -> None:
    for gap in gaps(as_of(history, NOW), NOW, GAP_SECONDS, every):
        assert gap.first < gap.last


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert isinstance(outcome_of(CheckpointError, lambda: decode(data)), CheckpointError)


def test_every_bit_counts() -> None:
    data = encode(History((ServerRun(1, 2),), (good(3), bad(4)), (MemorySample(5, 6, 7),)))
    unnoticed = 0
    for place in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        unnoticed += not isinstance(outcome_of(CheckpointError, lambda: decode(bytes(damaged))), CheckpointError)  # noqa: B023
    assert unnoticed < 8  # white space at the end


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return opened(tmp_path / "checkpoints")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_and_every_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    old, new = History(checkpoints=(good(NOW),)), History(checkpoints=(good(NOW), bad(NOW + 9)))
    seen, at, killed = set(), 0, True
    while killed:
        at += 1
        store = opened(tmp_path / f"{at}")
        add(store, 5)
        file = HistoryFile(store)
        file.write(old)
        killed = killed_at(monkeypatch, at, after, lambda file=file: file.write(new))  # type: ignore[misc]
        again = opened(store.folder)
        assert which(newest_valid(again)[0]) == 5
        found = HistoryFile(again).read()
        assert found in (old, new)
        seen.add(len(found.checkpoints))
        following = HistoryFile(again)
        following.write(new)
        assert (following.problem, following.read()) == ("", new)
        assert [path.name for path in again.folder.glob(f"{HISTORY}*")] == [HISTORY]
    assert seen == {1, 2}
    assert at > 4


def test_it_is_no_checkpoint_and_stays_when_a_start_cleans_up(store: CheckpointStore) -> None:
    file = HistoryFile(store)
    file.write(busy(days=1))
    add(store, 1)
    assert store.clean() == []
    assert file.read() == busy(days=1)
    assert [path.name for path in store.paths()] == ["000001"]


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "within").touch()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(encode(busy(days=1))[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "huge": lambda path: path.write_bytes(bytes(1 << 20)),
    "of another format": lambda path: path.write_text('{"format":0,"xxh3":"","history":{}}'),
    "a folder": a_folder,
    "a pipe": lambda path: os.mkfifo(path),
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_set_aside_and_told_and_another_one_begins(
    store: CheckpointStore, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = HistoryFile(store)
    DAMAGES[damage](file.path)
    assert file.read() == History()
    assert os.path.lexists(store.folder / "set_aside" / f"{HISTORY}-damaged")
    told = capfd.readouterr()
    assert "history set aside" in told.out + told.err
    file.write(History((ServerRun(1, 2),)))
    assert (file.problem, file.read()) == ("", History((ServerRun(1, 2),)))
    assert add(store, 1).number == 1


def test_one_that_is_in_the_way_is_told_and_left(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    file = HistoryFile(store)
    file.path.write_text("what is this")

    def refuse(*_: object) -> Path:
        raise OSError("read-only file system")

    monkeypatch.setattr(store, "set_aside", refuse)
    assert file.read() == History()
    file.write(History((ServerRun(1, 2),)))
    assert "not be moved away (read-only file system)" in file.problem
    assert file.path.read_text() == "what is this"


def test_a_folder_that_is_another_servers_by_now_is_left_alone(tmp_path: Path) -> None:
    lost = False

    def guard() -> None:
        if lost:
            raise FolderLost("another server has it")

    file = HistoryFile(CheckpointStore(tmp_path, 3, guard))
    file.write(History((ServerRun(1, 2),)))
    lost = True
    file.write(History((ServerRun(3, 4),)))
    assert "another server has it" in file.problem
    lost = False
    assert file.read() == History((ServerRun(1, 2),))
    file.write(History((ServerRun(3, 4),)))
    assert (file.problem, file.read()) == ("", History((ServerRun(3, 4),)))


def outcome(store: CheckpointStore, number: int, error: str = "") -> Outcome:
    if error:
        return Outcome(time.time(), 0.5, "request", error=error)
    checkpoint = add(store, number)
    return Outcome(time.time(), 0.25, "request", checkpoint)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits as long as the disk of a busy machine takes."""
    monkeypatch.setattr("replay_server.recorder._JOIN_SECONDS", PATIENCE_SECONDS)


def test_a_bug_of_the_history_is_told_and_ends_nothing_else(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = recorder(store)
    monkeypatch.setattr(one, "_save", lambda: 1 / 0)
    one.start()
    wait_until(lambda: "a bug" in one.document(None)["problem"])
    one.note(outcome(store, 1))
    one.stop()
    assert [row["generation"] for row in one.document(None)["checkpoints"]] == [1]


def recorder(store: CheckpointStore, items: int | None = 7) -> Recorder:
    return Recorder(HistoryFile(store), lambda: items, time.time())


def test_what_is_noted_is_on_the_disk_soon_and_a_restart_has_it(store: CheckpointStore) -> None:
    one = recorder(store)
    one.note(outcome(store, 1))  # kept by the start, before the folder's history was read
    one.start()
    one.note(outcome(store, 2, error="no\x1b[31m room\nat all"))
    wait_until(lambda: len(HistoryFile(store).read().checkpoints) == 2)
    one.stop()
    again = recorder(store, items=None)
    again.start()
    again.note(outcome(store, 3))
    again.stop()
    told = again.document(600.0)
    assert [row["generation"] for row in told["checkpoints"]] == [1, 0, 2]
    assert [row["error"] for row in told["checkpoints"]] == ["", "no [31m room at all", ""]
    assert told["checkpoints"][0]["bytes"] > 0
    assert set(told["samples"]["items"]) == {7}
    assert sum(run["starts"] for run in told["runs"]) == len(told["runs"])
    assert told["gaps"] == []
    assert HistoryFile(store).read().checkpoints[-1].number == 2


def test_what_is_told_of_the_fullest_history_is_small(store: CheckpointStore) -> None:
    file = HistoryFile(store)
    rows = tuple(bad(int(time.time()) - 60 * n, "€" * MOST_TEXT) for n in range(500, 0, -1))
    file.write(fit_history(msgspec.structs.replace(busy(days=7, now=int(time.time())), checkpoints=rows), time.time()))
    one = recorder(store)
    one.start()
    one.stop()
    told = one.document(60.0)
    assert sum(row["count"] for row in told["checkpoints"]) == 500
    assert len(msgspec.json.encode(told)) < 50_000


def test_the_peak_of_memory_since_the_last_sample_counts(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [3000, 9000]
    monkeypatch.setattr("replay_server.recorder.resident_bytes", lambda: readings.pop() if readings else 1000)
    one = recorder(store)  # looks once
    one.start()
    one.stop()
    assert max(one.document(None)["samples"]["memory_bytes"]) == 9000
    assert one.recent_memory()["bytes"][0] == 9000


@pytest.mark.parametrize("hours", [0.5, 48.0])
def test_a_clock_that_goes_back_stops_nothing(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    first = recorder(store)
    first.start()
    first.note(outcome(store, 1))
    first.stop()
    ahead = time.time() - hours * 3600
    monkeypatch.setattr(time, "time", lambda: ahead)
    again = recorder(store)
    again.start()
    again.note(outcome(store, 2))
    again.stop()
    kept = [checkpoint.number for checkpoint in HistoryFile(store).read().checkpoints]
    assert kept == ([1, 2] if hours < 1 else [2])
    assert all(run.last <= ahead for run in again.history().runs)
    assert len(again.history().runs) <= 2
    assert again.document(None)["gaps"] == []


def test_a_disk_that_takes_nothing_costs_the_history_only(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = recorder(store)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("replay_server.history.write_synced", full)
        one.start()
        one.note(outcome(store, 1))
        wait_until(lambda: "No space left" in one.document(None)["problem"])
        assert [row["generation"] for row in one.document(None)["checkpoints"]] == [1]
        assert list(store.folder.glob(f"{HISTORY}*")) == []
    one.note(outcome(store, 2))
    wait_until(lambda: not one.document(None)["problem"])
    one.stop()
    assert [row.number for row in HistoryFile(store).read().checkpoints] == [1, 2]
