"""Whether anything has changed since a checkpoint: of a made-up server, and what a writer makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server.changes import TableMark, find_change, marks_of, traces_of
from replay_server.checkpoints import CLIENT, REQUEST, SCHEDULE, SHUTDOWN, CheckpointWriter
from replay_server.errors import CheckpointError
from replay_server.files import RECORD_FILES, write_records
from replay_server.store import CheckpointStore

from rlds2reverb.errors import TransportError
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo, WorkerTime, table_info
from rlds2reverb.wire.schema import message_class
from tests.unit.server.test_checkpoints import Reverb, entry, numbers
from tests.unit.server.test_store import opened, write_checkpoint

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


class Table:
    """A table as Reverb has it, in its own words: the record of a checkpoint, and the answer of ServerInfo."""

    def __init__(
        self, name: str = "t", sampler: str = "uniform", max_times_sampled: int = 0, ratio: bool = False
    ) -> None:
        self.name, self.sampler, self.max_times_sampled, self.ratio = name, sampler, max_times_sampled, ratio
        self.inserts = self.samples = self.deletes = 0
        self.inserting = 0.0
        self.episodes = 1

    def record(self) -> bytes:
        bounds = (-1.0, 1.0) if self.ratio else (-1e300, 1e300)
        record = message_class("PriorityTableCheckpoint")(
            table_name=self.name, max_size=100, max_times_sampled=self.max_times_sampled
        )
        limiter = message_class("RateLimiterCheckpoint")(
            samples_per_insert=1.0,
            min_diff=bounds[0],
            max_diff=bounds[1],
            min_size_to_sample=1,
            sample_count=self.samples,
            insert_count=self.inserts,
            delete_count=self.deletes,
        )
        record.rate_limiter.CopyFrom(limiter)
        if self.sampler == "uniform":
            record.sampler.uniform = True
        else:
            record.sampler.prioritized.priority_exponent = 1.0
        record.remover.fifo = True
        return bytes(record.SerializeToString())

    def info(self) -> TableInfo:
        bounds = (-1.0, 1.0) if self.ratio else (-1e300, 1e300)
        limiter = RateLimiter(1.0, *bounds, 1, self.inserts, self.samples)
        sampler = self.sampler if self.sampler == "uniform" else "prioritized(1)"
        table = table_info(self.name, None, 100, sampler, "fifo", limiter)
        worker = WorkerTime(inserting=self.inserting)
        return replace(
            table,
            current_size=self.inserts - self.deletes,
            max_times_sampled=self.max_times_sampled,
            episodes=self.episodes,
            worker=worker,
        )


class Tables(Reverb):
    """Writes checkpoints of these tables."""

    def __init__(self, store: CheckpointStore, *tables: Table) -> None:
        super().__init__(store)
        self.tables = list(tables)

    def finish(self, keep: bool = True) -> str:
        """The next entry, which is there at once."""
        self.seconds += 1
        made, path = self.folder.parent / "made", self.folder / entry(self.seconds)
        write_checkpoint(made, self.seconds)
        (made / RECORD_FILES[0]).unlink()
        write_records(made / RECORD_FILES[0], [table.record() for table in self.tables])
        made.rename(path)
        return str(path)

    def info(self) -> ServerInfo | None:
        return ServerInfo.of(1, [table.info() for table in self.tables])


def writer_of(tmp_path: Path, *tables: Table, keep: int = 9) -> tuple[CheckpointWriter, Tables, CheckpointStore]:
    store = opened(tmp_path / "checkpoints", keep)
    server = Tables(store, *tables)
    return CheckpointWriter(store, server.request, 0.0, look=server.info), server, store


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    table = Table()
    writer, server, store = writer_of(tmp_path, table)
    outcomes: list[Any] = []
    writer.tell = outcomes.append
    table.inserts = 5
    first = writer.write(SCHEDULE)
    for reason in (SCHEDULE, REQUEST, SCHEDULE):
        again = writer.write(reason)
        assert (again, again.is_new, numbers(store), server.asked) == (first, False, [1], 1)
    assert writer.state.not_needed == 3
    assert [outcome.checkpoint.is_new for outcome in outcomes] == [True, False, False, False]
    assert (writer.state.last, writer.state.reason) == (first, SCHEDULE)
    assert writer.write(REQUEST, is_anew=True).is_new
    assert not writer.write(SHUTDOWN).is_new
    with pytest.raises(CheckpointError, match="stopping"):
        writer.write(REQUEST)


CHANGES: dict[str, Callable[[Table], None]] = {
    "insert": lambda table: setattr(table, "inserts", table.inserts + 1),
    "delete": lambda table: setattr(table, "deletes", table.deletes + 1),
    "replace": lambda table: (
        setattr(table, "inserts", table.inserts + 1),
        setattr(table, "deletes", table.deletes + 1),
    )[0],
    "send again": lambda table: setattr(table, "inserting", table.inserting + 0.001),
    "fill again": lambda table: setattr(table, "episodes", table.episodes + 1),
    "sample": lambda table: setattr(table, "samples", table.samples + 1),
    "empty": lambda table: setattr(table, "samples", 0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("options", "samples_matter"),
    [({}, False), ({"max_times_sampled": 3}, True), ({"ratio": True}, True), ({"sampler": "prioritized"}, True)],
    ids=["plain", "once", "ratio", "priority"],
)
@pytest.mark.parametrize("is_own", [False, True], ids=["", "own"])
def test_each_change_that_a_restart_would_tell_is_written_once(
    tmp_path: Path, change: str, options: dict[str, Any], samples_matter: bool, is_own: bool
) -> None:
    table = Table("rlds2reverb.journal" if is_own else "t", **options)
    table.inserts, table.samples = 7, 4
    writer, _, _ = writer_of(tmp_path, Table("other"), table)
    writer.write(SCHEDULE)
    if options.get("sampler"):
        assert writer.write(SCHEDULE).is_new  # for updates of priorities that came after the first
    assert not writer.write(SCHEDULE).is_new
    CHANGES[change](table)
    assert writer.write(SCHEDULE).is_new == (samples_matter or change != "sample")
    if options.get("sampler") and change in ("sample", "empty"):
        assert writer.write(SCHEDULE).is_new
    assert not writer.write(SCHEDULE).is_new


def test_a_table_by_priority_is_written_whenever_somebody_asks(tmp_path: Path) -> None:
    """Reverb tells of no update of priorities."""
    table = Table(sampler="prioritized")
    writer, _, _ = writer_of(tmp_path, table)
    assert writer.write(REQUEST).is_new
    assert not writer.write(REQUEST).is_new  # it is empty
    table.inserts = 1
    assert [writer.write(reason).is_new for reason in (SCHEDULE, SCHEDULE, REQUEST, SCHEDULE, SHUTDOWN)] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_a_start_compares_with_the_checkpoint_that_it_has_restored(tmp_path: Path) -> None:
    table = Table()
    table.inserts, table.samples, table.inserting = 9, 3, 0.5
    writer, server, store = writer_of(tmp_path, table)
    first = writer.write(SCHEDULE)
    for answers in (True, False):
        for change in (0, 1):
            restarted = CheckpointWriter(store, server.request, 0.0, look=server.info if answers else lambda: None)
            table.inserting, table.inserts = 0.0, 9
            restarted.restored(first)
            restarted._look = server.info
            table.inserts += change
            assert restarted.write(SCHEDULE).is_new == bool(change)
            table.inserts = 9
            first = restarted.write(SCHEDULE)


@pytest.mark.parametrize("damage", ["folder", "file", "short"])
def test_a_checkpoint_that_is_not_whole_any_more_is_written_again(tmp_path: Path, damage: str) -> None:
    writer, _, store = writer_of(tmp_path, Table())
    folder = writer.write(SCHEDULE).folder
    if damage == "folder":
        folder.rename(tmp_path / "elsewhere")
    elif damage == "file":
        (folder / RECORD_FILES[1]).unlink()
    else:
        (folder / RECORD_FILES[1]).write_bytes(b"x")
    assert writer.write(SCHEDULE).is_new
    assert not writer.write(SCHEDULE).is_new
    assert store.highest == 2


def test_a_reverb_that_does_not_answer_is_asked_to_write_all_the_same(tmp_path: Path) -> None:
    writer, server, _ = writer_of(tmp_path, Table())
    writer.write(SCHEDULE)
    writer._look = lambda: None
    assert writer.write(SCHEDULE).is_new
    writer._look = server.info
    assert not writer.write(SCHEDULE).is_new


@pytest.mark.parametrize("how", ["client", "unanswered", "start over"])
@pytest.mark.parametrize("is_first", [False, True], ids=["", "first"])
def test_a_table_filled_again_is_written_whatever_checkpoint_came_before(
    tmp_path: Path, how: str, is_first: bool
) -> None:
    """Emptied and filled with as many items; so are items sent again. Reverb was not looked at just before the checkpoint."""
    table = Table()
    writer, server, _ = writer_of(tmp_path, table)
    if not is_first:
        writer.write(SCHEDULE)
    table.inserts, table.inserting = 6, 1.0
    writer._look = lambda: None
    if how == "client":
        server.finish()
        assert writer.keep_clients() is not None
    elif how == "unanswered":
        writer.write(SCHEDULE)
    else:
        writer.start_over(None)
    writer._look, held_at, info = server.info, writer.holds_all_at, server.info()
    assert info is not None
    writer.watch(info, 1e12)
    assert writer.holds_all_at == held_at
    assert writer.write(SHUTDOWN).is_new


def test_a_table_that_was_seen_empty_counts_as_changed_though_it_looks_as_before(tmp_path: Path) -> None:
    """Reverb's clock of inserts has whole milliseconds: a few items do not move it."""
    table = Table()
    table.inserts = 6
    writer, server, _ = writer_of(tmp_path, table)
    first = writer.write(SCHEDULE)
    for inserts, asked_at in ((0, first.manifest.created - 1), (6, 1e12)):  # an answer from before the checkpoint
        table.inserts = inserts
        info = server.info()
        assert info is not None
        writer.watch(info, asked_at)
    assert not writer.write(SCHEDULE).is_new
    for inserts in (0, 6):
        table.inserts = inserts
        info = server.info()
        assert info is not None
        writer.watch(info, 1e12)
    assert writer.write(SHUTDOWN).is_new


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_a_clients_checkpoint_is_kept_when_something_has_changed(tmp_path: Path, sampler: str) -> None:
    """As one that is requested. An empty table has no priorities."""
    table = Table(sampler=sampler)
    writer, server, store = writer_of(tmp_path, table)
    outcomes: list[Any] = []
    for inserts, is_kept in ((0, True), (0, False), (3, True), (3, sampler == "prioritized")):
        table.inserts = inserts
        server.finish()
        kept = writer.keep_clients()
        assert kept is not None
        assert (kept.is_new, writer.keep_clients()) == (is_kept, None)
        assert writer.working.list_finished() == []
        outcomes.append(kept)
        if is_kept and inserts:
            writer.write(SCHEDULE)  # what Reverb counted before a client's is not known
    assert writer.state.from_clients == sum(kept.is_new for kept in outcomes)
    assert numbers(store)[-1] == 1


def test_a_failure_is_tried_again_and_a_clients_checkpoint_counts(tmp_path: Path) -> None:
    table = Table()
    writer, server, _ = writer_of(tmp_path, table)
    writer.write(SCHEDULE)
    table.inserts = 2

    def fail() -> str:
        raise TransportError("no")

    writer._request, request = fail, writer._request
    with pytest.raises(CheckpointError):
        writer.write(SCHEDULE)
    writer._request = request
    server.finish()
    kept = writer.keep_clients()
    assert kept is not None
    assert (writer.state.reason, writer.state.last) == (CLIENT, kept)
    assert [writer.write(SCHEDULE).is_new for _ in range(2)] == [True, False]


def test_what_rests_is_known_to_be_held_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table()
    writer, server, _ = writer_of(tmp_path, table)
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    assert writer.holds_all_at is None
    writer.write(SCHEDULE)
    for clock[0], inserts, asked_at, held_at in (
        (2000.0, 0, 2000.0, 2000.0),
        (2001.0, 0, 1500.0, 2000.0),
        (9000.0, 1, 9000.0, 2000.0),
        (1900.0, 1, 1899.0, 1899.0),  # the clock was set back, and the time since then is counted
        (1950.0, 1, 1950.0, 1899.0),
    ):
        table.inserts = inserts
        info = server.info()
        assert info is not None
        writer.watch(info, asked_at)
        assert writer.holds_all_at == held_at
    last = writer.write(SCHEDULE)
    clock[0] = 1000.0
    restarted = CheckpointWriter(writer._store, server.request, 0.0, look=server.info)
    restarted.restored(last)  # written by a clock that was ahead
    assert restarted.holds_all_at == 1000.0


@given(counts=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=2, max_size=2))
def test_equal_counts_and_nothing_else_are_no_change(counts: list[tuple[int, int, int]]) -> None:
    before, after = Table(max_times_sampled=2), Table(max_times_sampled=2)
    for table, (inserts, samples, deletes) in zip((before, after), counts, strict=True):
        table.inserts, table.samples, table.deletes = inserts + deletes, samples, deletes
    mark = TableMark(before.inserts, before.samples, before.inserts - before.deletes)
    info = ServerInfo.of(1, [replace(after.info())])
    described = replace(mark, description=_description(after))
    assert (find_change({"t": described}, info, traces_of(info)) == "") == (counts[0] == counts[1])


def _description(table: Table) -> str:
    from replay_server.changes import _description_of

    return _description_of(table.info())


def test_marks_are_those_of_the_file_that_reverb_writes(tmp_path: Path) -> None:
    table = Table(sampler="prioritized")
    table.inserts, table.deletes, table.samples = 5, 2, 8
    write_records(tmp_path / RECORD_FILES[0], [table.record()])
    (mark,) = marks_of(tmp_path).values()
    assert (mark.inserts, mark.items, mark.samples, mark.by_priority) == (5, 3, 8, True)
    info = ServerInfo.of(1, [table.info()])
    assert find_change(marks_of(tmp_path), info, traces_of(info)) == ""
