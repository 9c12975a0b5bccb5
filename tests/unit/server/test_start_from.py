"""`serve --start-from`: which checkpoint a text means, and what becomes of the newer ones; with a real server in the end."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server.clients import keep_left
from replay_server.config import CheckpointSection
from replay_server.errors import CheckpointError
from replay_server.folder_lock import utc
from replay_server.logs import logger
from replay_server.own_tables import OWN_TABLES
from replay_server.restore import Start, outlook, prepare, take_back
from replay_server.retention import Keep
from replay_server.start_from import (
    OlderStart,
    find_older,
    hash_config,
    is_same_state,
    parse_start,
    passed_over,
    verified_older,
)
from replay_server.store import CheckpointStore, CopyOfOlder, read_checkpoint
from replay_server.tables import TableConfig

from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec
from tests.support.forks import Forks
from tests.support.server_running import Server, get
from tests.unit.server.test_store import opened, write_checkpoint

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)).map(
    lambda moment: moment.replace(tzinfo=timezone.utc)
)


@given(
    moment=MOMENTS,
    form=st.sampled_from(["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S+00:00", "%Y-%m-%dT%H:%M"]),
)
def test_a_time_is_of_utc_unless_it_says_otherwise(moment: datetime, form: str) -> None:
    until = parse_start(moment.strftime(form)).until
    assert until is not None
    assert 0 < until - moment.timestamp() <= (60 if form.endswith("%M") else 1)


def test_a_date_means_all_of_that_day_and_digits_a_number() -> None:
    midnight = datetime(2026, 11, 18, tzinfo=timezone.utc).timestamp()
    assert parse_start("2026-11-17").until == midnight
    assert parse_start("2026-11-17T23:00-02:00").until == midnight + 3660
    assert parse_start("2026-11-17T23:00:00.000000-02:00").until == pytest.approx(midnight + 3600, abs=1e-5)
    assert [parse_start(text).number for text in ("12", " 000012 ", "0")] == [12, 12, 0]


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-1", "2026-13-01", "2026-11-17T25:00", "12a", "2026/11/17", "gs://b/x", "9" * 40]
)
def test_what_is_neither_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a checkpoint's number, or a date or time such as 2026-11-17"):
        parse_start(text)


def store_of(folder: Path, times: Sequence[float]) -> CheckpointStore:
    store = opened(folder, 99)
    for number, time in enumerate(times, 1):
        store.adopt(
            write_checkpoint(store.reverb / f"2026-{number}", number), {"one": number}, float(time), float(time)
        )
    return store


@given(times=st.lists(st.integers(0, 50), max_size=8), asked=st.integers(-1, 51))
def test_the_newest_until_a_time_is_found_or_those_that_there_are_are_named(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], asked: int
) -> None:
    store, section = store_of(tmp_path_factory.mktemp("states"), times), CheckpointSection()
    older = [time for time in times if time < asked]
    if older:
        found = find_older(OlderStart("x", until=float(asked)), store, section)
        assert (found.checkpoint.manifest.created, found.unread) == (max(older), ())
    else:
        with pytest.raises(CheckpointError, match=r"there (are|is)") as error:
            find_older(OlderStart("x", until=float(asked)), store, section)
        assert all(f"{number} (" in str(error.value) for number in range(1, len(times) + 1))
    for number in range(1, len(times) + 1):
        chosen = find_older(OlderStart("x", number=number), store, section).checkpoint
        assert (chosen.number, chosen.manifest.created) == (number, times[number - 1])
        assert [int(path.name) for path in passed_over(chosen, store)] == list(range(len(times), number, -1))


def test_from_the_millionth_checkpoint_on_names_are_compared_as_numbers(tmp_path: Path) -> None:
    store = store_of(tmp_path, [10, 20, 30, 40])
    for path, number in zip(reversed(store.paths()), (999_998, 999_999, 1_000_000, 1_000_001), strict=True):
        path.rename(store.kept / f"{number:06d}")
    for number, newer in ((999_999, [1_000_001, 1_000_000]), (1_000_000, [1_000_001]), (1_000_001, [])):
        chosen = find_older(OlderStart("x", number=number), store, CheckpointSection()).checkpoint
        assert [int(path.name) for path in passed_over(chosen, store)] == newer


@given(times=st.lists(st.floats(1e6, 1e6 + 99), min_size=1, max_size=6, unique_by=int), data=st.data())
def test_the_time_in_a_list_takes_the_checkpoint_of_its_row(
    tmp_path_factory: pytest.TempPathFactory, times: list[float], data: st.DataObject
) -> None:
    store, created = store_of(tmp_path_factory.mktemp("states"), times), data.draw(st.sampled_from(times))
    found = find_older(parse_start(utc(created)), store, CheckpointSection()).checkpoint
    assert found.manifest.created == created


def test_one_that_does_not_say_when_it_was_written_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    store, section = store_of(tmp_path, [10, 20, 30]), CheckpointSection(folder=str(tmp_path))
    (store.kept / "000002" / "MANIFEST.json").write_bytes(b"?")
    found = find_older(OlderStart("x", until=25.0), store, section)
    assert (found.checkpoint.number, len(found.unread)) == (1, 1)
    assert "000002/MANIFEST.json: not a manifest" in found.unread[0]
    assert found.unread[0] in outlook(section, [TableConfig("one")], OlderStart("x", until=25.0)).notes
    assert find_older(OlderStart("x", until=35.0), store, section).unread == ()
    with pytest.raises(CheckpointError, match=r"000002/MANIFEST\.json: not a manifest"):
        find_older(OlderStart("x", until=5.0), store, section)


def test_one_that_is_damaged_is_refused_and_nothing_is_moved(tmp_path: Path) -> None:
    store, section = store_of(tmp_path, [10, 20, 30]), CheckpointSection()
    (store.kept / "000001" / "items.tfrecord").write_bytes(b"?")
    (store.kept / "000002" / "MANIFEST.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    for number in (1, 2, 4):
        with (
            pytest.raises(CheckpointError, match=rf"--start-from {number}: "),
            verified_older(OlderStart(str(number), number), store, section),
        ):
            pass
    assert sorted(tmp_path.rglob("*")) == before


def test_states_are_the_same_when_items_and_tables_are(tmp_path: Path) -> None:
    store = store_of(tmp_path, [10, 20])
    copy = store.adopt(write_checkpoint(store.reverb / "2026-3", 1), {"one": 1}, 30.0, 30.0)
    first = find_older(OlderStart("1", 1), store, CheckpointSection()).checkpoint
    assert is_same_state(first, copy.folder)
    assert not is_same_state(first, store.kept / "000002")
    (copy.folder / "DONE").write_text("damage")
    assert not is_same_state(first, copy.folder)


def test_a_check_says_what_a_start_would_do_and_which_checkpoints_there_are(tmp_path: Path) -> None:
    store_of(tmp_path, [10, 20, 30])
    section, before = CheckpointSection(folder=str(tmp_path), keep=2), sorted(tmp_path.rglob("*"))
    seen = outlook(section, [TableConfig("one")], OlderStart("2", 2))
    assert (seen.refusal, seen.tables) == ("", {"one": "2 items restored"})
    assert seen.starts_from.startswith("checkpoint 2, written at 1970-01-01 00:00:20Z")
    assert seen.notes == (
        "checkpoint 000003 is newer and stays, pinned",
        "before the server is ready it writes a new checkpoint, from which the next start continues",
    )
    notes = outlook(section, [TableConfig("one")], OlderStart("1", 1)).notes
    assert notes[1] == "1 more newer checkpoint stays as checkpoints.keep says"
    newest = outlook(section, [TableConfig("one")], OlderStart("3", 3))
    assert newest.starts_from.startswith("checkpoint 3, 3 items")
    assert newest.notes == ("checkpoint 3 is the newest: the start is as without --start-from",)
    kept = {row["checkpoint"]: row["kept"] for row in seen.kept}
    assert kept == {"000003": "last", "000002": "last", "000001": "until the next one is written"}
    assert seen.need.startswith("at most 2 checkpoints and one while it is written")
    assert (
        "there is no checkpoint 9; there are 3 (" in outlook(section, [TableConfig("one")], OlderStart("9", 9)).refusal
    )
    other = [TableConfig("one", signature={"a": ArraySpec((2,), np.dtype(np.float32))})]
    refused = CheckpointSection(folder=str(tmp_path), unfit_tables="refuse")
    assert "set checkpoints.unfit_tables" in outlook(refused, other, OlderStart("2", 2)).refusal
    assert sorted(tmp_path.rglob("*")) == before


def prepare_from(folder: Path, number: int, *tables: str) -> Start:
    store, section = CheckpointStore(folder, 1), CheckpointSection(folder=str(folder), keep=1)
    configs = [TableConfig("one"), *map(TableConfig, tables)]
    return prepare(store, section, configs, older=OlderStart(str(number), number))


def test_starts_again_and_again_continue_the_copy_that_the_first_has_written_and_pin_none(tmp_path: Path) -> None:
    store, section = store_of(tmp_path, [10, 20]), CheckpointSection(folder=str(tmp_path), keep=9)
    tables = [TableConfig("one"), TableConfig("two"), *OWN_TABLES]
    for number, names in enumerate((["two"], ["two"], ["two", "three"]), 3):
        start = prepare_from(tmp_path, 1, *names)
        continues = number == 4
        assert (start.older is None, start.checkpoint and start.checkpoint.number) == (continues, 3 if continues else 1)
        assert [path.name for path in start.pinned] == (["000002"] if number == 3 else [])
        if not continues:  # other tables than the copy was made for: it may lack items, so it is made anew
            store.adopt(write_checkpoint(store.reverb / f"2026-{number}", 9), {"one": 9}, 30.0)
    assert [path.name for path in store.paths() if store.is_pinned(path)] == ["000002"]
    store.note_copies(
        [CopyOfOlder(4, read_checkpoint(store.kept / "000001").manifest.xxh3, hash_config(tables, section))]
    )
    seen = outlook(section, tables[:2], OlderStart("1", 1))
    assert seen.starts_from.startswith("checkpoint 4, 9 items")
    assert "from checkpoint 1 has written 000004, and nothing came since" in seen.notes[0]
    store.adopt(write_checkpoint(store.reverb / "2026-5", 2), {"one": 2}, 40.0)
    assert "checkpoint 000005 is newer and stays, pinned" in outlook(section, tables[:2], OlderStart("1", 1)).notes


def test_a_copy_that_was_never_written_is_forgotten_by_the_next_start(tmp_path: Path) -> None:
    store = store_of(tmp_path, [10, 20])
    prepare_from(tmp_path, 1)
    assert [copy.number for copy in store.copies()] == [3]
    prepare(store, CheckpointSection(folder=str(tmp_path)), [TableConfig("one")])
    assert store.copies() == []


def test_a_check_counts_what_reverb_had_finished_before_a_kill(tmp_path: Path) -> None:
    store = store_of(tmp_path, [10, 20])
    name = "2026-11-17T08:00:00.0+00:00"
    os.utime(write_checkpoint(store.reverb / name, 5) / "tables.tfrecord", (2e9, 2e9))
    seen = outlook(CheckpointSection(folder=str(tmp_path)), [TableConfig("one")], OlderStart("2", 2))
    assert seen.starts_from.startswith("checkpoint 2, written at")
    assert f"checkpoint {name} is newer and stays, pinned" in seen.notes
    assert (store.reverb / name).is_dir()


@pytest.mark.parametrize("damage", [False, True])
def test_what_is_passed_over_outlives_a_kill_at_any_moment(tmp_path: Path, damage: bool) -> None:
    """A kill before the new checkpoint is adopted, which the next start does: its rules meet the pin."""
    store = store_of(tmp_path, [10, 20, 30, 40])
    if damage:
        (store.kept / "000004" / "MANIFEST.json").write_bytes(b"?")
    prepare_from(tmp_path, 1)
    finished = write_checkpoint(store.reverb / "2026-11-17T08:00:00.0+00:00", 5)
    os.utime(finished / "tables.tfrecord", (2e9, 2e9))  # newer, whatever the file system's clock
    left = keep_left(store, logger("test"))
    assert left is not None
    store.keep = Keep(last=1)
    store.prune()
    assert [path.name for path in store.paths()] == ["000005", "000004", *(["000003"] if damage else [])]


def test_a_start_that_fails_takes_its_pin_back_unless_reverb_has_finished_a_checkpoint(tmp_path: Path) -> None:
    store = store_of(tmp_path, [10, 20])
    start, newer = prepare_from(tmp_path, 1), store.kept / "000002"
    assert store.is_pinned(newer)
    finished = write_checkpoint(store.reverb / "2026-11-17T08:00:00.0+00:00", 3)
    take_back(store, start)
    assert store.is_pinned(newer)
    shutil.rmtree(finished)
    take_back(store, start)
    assert not store.is_pinned(newer)


TABLE = {"name": "t", "signature": "float32[2]"}


def push(server: Server, count: int) -> None:
    import numpy as np
    import reverb

    with reverb.Client(server.address).trajectory_writer(1) as writer:
        for _ in range(count):
            writer.append(np.zeros(2, np.float32))
            writer.create_item("t", 1.0, writer.history[-1])
        writer.flush()


def listed(server: Server) -> dict[int, tuple[int, list[str]]]:
    rows = get(f"{server.url}/status.json")[1]["checkpoints"]["all"]
    return {row["generation"]: (row["items"]["t"], row["kept"]) for row in rows}


def sizes(server: Server) -> int:
    return int(get(f"{server.url}/readyz")[1]["tables"]["t"])


def test_a_server_goes_back_and_the_next_start_continues_from_there(forks: Forks, tmp_path: Path) -> None:
    config: dict[str, Any] = {"tables": [TABLE], "checkpoints": {"keep": 2}}
    with Server(forks, tmp_path, config).until_ready() as first:
        for _ in range(3):
            push(first, 5)
            assert first.get("/checkpoint", "POST")[0] == 200
        assert first.stop() == 0
    with Server(forks, tmp_path, config, "--start-from", "1") as refused:
        code, _, errors = refused.result()
        assert (code, "there is no checkpoint 1; there are 3 (" in errors) == (3, True)
    more = {**config, "tables": [TABLE, {"name": "u", "signature": "float32[2]"}]}
    with Server(forks, tmp_path, more, "--start-from", "2").until_ready() as second:
        assert sizes(second) == 10
        assert listed(second) == {4: (10, ["last"]), 3: (15, ["pinned"]), 2: (10, ["last", "started from"])}
        second.stop(signal.SIGKILL)
    # What a supervisor starts again with the same options continues, and writes no copies.
    with Server(forks, tmp_path, more, "--start-from", "2").until_ready() as again:
        assert list(listed(again)) == [4, 3, 2]
        push(again, 1)
        assert again.stop() == 0
    with Server(forks, tmp_path, more).until_ready() as third:
        assert sizes(third) == 11
        assert listed(third) == {5: (11, ["last"]), 4: (10, ["last"]), 3: (15, ["pinned"])}
        assert third.stop() == 0
    with Server(forks, tmp_path, more, "--start-from", "3").until_ready() as back:
        assert sizes(back) == 15
        assert listed(back)[6] == (15, ["last"])
        assert listed(back)[5] == (11, ["last", "pinned"]) or listed(back)[5] == (11, ["pinned"])
