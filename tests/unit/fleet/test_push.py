"""A push by several workers stores and reports what one pusher does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode, PushReport
from rlds2reverb.errors import CapacityError, ConfigError, InvalidEpisode, SourceError, report_of
from rlds2reverb.prepare.problems import ENDS_ALIKE
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.push.options import PushOptions
from tests.support import strategies
from tests.support.profiles import examples
from tests.support.push import in_memory
from tests.support.push.in_memory import Server, table_info
from tests.support.workers_in_threads import push
from tests.unit.prepare.test_endings import poisoned


def made(count: int, bad: frozenset[int] = frozenset(), rows: int = 4) -> list[Episode]:
    """Episodes with ids; those of the numbers `bad` hold a NaN."""
    found = []
    for number in range(count):
        one = strategies.episode(np.random.default_rng(number), rows, episode_id=f"e{number}")
        if number in bad:
            one = one.with_columns(reward=np.full(rows, np.nan, np.float32))
        found.append(one)
    return found


def essence(report: PushReport) -> PushReport:
    """The report without what is another with every run."""
    return replace(report, seconds=0.0, bytes=0, workers=0, parts_again=0)


def stored(server: Server) -> dict[int, tuple[bytes, ...]]:
    """Key -> the bytes of an item's values."""
    items = server.items.get("replay", {})
    return {key: tuple(np.asarray(value).tobytes() for value in values) for key, values in items.items()}


def lines(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@examples(15)
@given(
    count=st.integers(1, 20),
    bad=st.frozensets(st.integers(0, 19)),
    workers=st.integers(1, 3),
    most=st.integers(1, 6),
    action=st.sampled_from(["skip", "quarantine"]),
    lost=st.frozensets(st.integers(0, 5)),
)
def test_items_keys_report_ledger_and_quarantine_are_those_of_one_pusher(
    tmp_path_factory: Any, count: int, bad: frozenset[int], workers: int, most: int, action: str, lost: frozenset[int]
) -> None:
    folder, episodes = tmp_path_factory.mktemp("push"), made(count, bad)
    alone, divided = Server({"replay": table_info()}), Server({"replay": table_info()})
    how: list[dict[str, Any]] = [
        {"on_invalid": action, "quarantine": folder / f"{name}.jsonl" if action == "quarantine" else None}
        for name in ("alone", "divided")
    ]
    expected = in_memory.push(alone, episodes, ledger=folder / "alone.db", **how[0])
    report = push(divided, episodes, workers, most, lost, ledger=folder / "divided.db", **how[1])
    assert essence(report) == essence(expected)
    assert (report.workers, report.parts_again <= len(lost)) == (workers, True)
    assert stored(divided) == stored(alone)
    assert lines(folder / "divided.jsonl") == lines(folder / "alone.jsonl")
    assert rows(folder / "divided.db") == rows(folder / "alone.db")


@examples(25)
@given(
    numbers=st.lists(st.integers(0, 4), min_size=1, max_size=16),
    bad=st.frozensets(st.integers(0, 4), max_size=1),
    workers=st.integers(1, 3),
    most=st.integers(1, 6),
    duplicates=st.sampled_from(["keep", "once"]),
    lost=st.frozensets(st.integers(0, 5)),
)
def test_copies_are_numbered_and_counted_as_by_one_pusher(
    tmp_path_factory: Any,
    numbers: list[int],
    bad: frozenset[int],
    workers: int,
    most: int,
    duplicates: str,
    lost: frozenset[int],
) -> None:
    """Episodes without ids, some of them equal, in any parts."""
    folder, unique = tmp_path_factory.mktemp("push"), [Episode(episode.columns) for episode in made(5, bad)]
    episodes = [unique[number] for number in numbers]
    how: dict[str, Any] = {"on_invalid": "skip", "duplicates": duplicates}
    alone, divided = Server({"replay": table_info()}), Server({"replay": table_info()})
    expected = in_memory.push(alone, episodes, ledger=folder / "alone.db", **how)
    report = push(divided, episodes, workers, most, lost, ledger=folder / "divided.db", **how)
    assert essence(report) == essence(expected)
    assert stored(divided) == stored(alone)
    assert rows(folder / "divided.db") == rows(folder / "alone.db")
    copies = len(numbers) - len(set(numbers))
    assert [notice.count for notice in report.notices if notice.code == "duplicate_episode"] == [copies] * bool(copies)
    good = [number for number in numbers if number not in bad]
    assert len(stored(divided)) == 3 * len(good if duplicates == "keep" else set(good))
    assert report.episodes_duplicate == (0 if duplicates == "keep" else len(good) - len(set(good)))
    for again in (
        in_memory.push(divided, episodes, ledger=folder / "divided.db", **how),
        push(divided, episodes, workers, most, **how),
    ):
        assert again.items_new == 0
    assert stored(divided) == stored(alone)


def rows(path: Path) -> set[Any]:
    with closing(sqlite3.connect(path)) as database:
        return set(database.execute("SELECT * FROM confirmed"))


@examples(10)
@given(workers=st.integers(1, 3), most=st.integers(1, 12), count=st.integers(1, 30))
def test_ends_that_are_alike_are_found_in_the_parts_or_told_of(workers: int, most: int, count: int) -> None:
    episodes = poisoned(np.random.default_rng(count), count)
    alone, divided = Server(), Server()
    expected = in_memory.push(alone, episodes, on_invalid="skip")
    report = push(divided, episodes, workers, most, on_invalid="skip")
    missed = sum(remark.count for remark in report.notices if remark.code == "ends_found_late")
    assert missed == report.ends_found_late
    assert expected.rejected.get(ENDS_ALIKE, 0) == report.rejected.get(ENDS_ALIKE, 0) + missed
    assert report.episodes_pushed == expected.episodes_pushed + missed
    if most >= 8:
        assert missed <= max(0, count % most)


def test_what_the_ledger_has_is_not_pushed_again(tmp_path: Path) -> None:
    server, episodes, ledger = Server(), made(10), tmp_path / "ledger.db"
    in_memory.push(server, episodes[:6], ledger=ledger)
    report = push(server, episodes, 2, 3, ledger=ledger)
    assert (report.episodes_resumed, report.episodes_pushed, report.items_new) == (6, 4, 4 * 3)
    again = push(server, episodes, 3, 2, ledger=ledger)
    assert (again.episodes_resumed, again.episodes_pushed, again.items_confirmed) == (10, 0, 0)
    whole = push(server, episodes, 3, 2, ledger=ledger, resume=False)
    assert (whole.episodes_resumed, whole.items_confirmed, whole.items_new) == (0, 30, 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_progress_never_goes_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """Of parts that are lost, that are resumed, and that need more places than they were given."""
    monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", -1.0)
    server, episodes, ledger = Server({"replay": table_info(max_size=100)}), made(30), tmp_path / "ledger.db"
    in_memory.push(server, episodes[:11], ledger=ledger)
    told: list[Progress] = []
    push(server, episodes, workers, 4, lost=[0, 2, 3, 6], ledger=ledger, on_progress=told.append)
    for name in ("episodes", "steps", "items_confirmed", "bytes"):
        values = [getattr(progress, name) for progress in told]
        assert values == sorted(values), name
    assert (told[-1].episodes, told[-1].steps) == (30, 19 * 4)  # nothing is read of what the ledger has


@examples(10)
@given(bad=st.frozensets(st.integers(0, 19), min_size=1), workers=st.integers(1, 3), most=st.integers(1, 6))
def test_the_first_bad_episode_ends_the_push_and_all_before_it_are_stored(
    bad: frozenset[int], workers: int, most: int
) -> None:
    server, episodes = Server(), made(20, bad)
    with pytest.raises(InvalidEpisode) as caught:
        push(server, episodes, workers, most)
    assert caught.value.episode_id == f"e{min(bad)}"
    expected = Server()
    if min(bad):
        in_memory.push(expected, episodes[: min(bad)])
    assert stored(expected).items() <= stored(server).items()
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.episodes_unconfirmed + report.episodes_pushed + report.episodes_rejected == report.episodes_read
    assert report.stopped.startswith("InvalidEpisode")
    assert report.episodes_pushed >= min(bad)


@examples(10)
@given(workers=st.integers(1, 3), most=st.integers(1, 6), spare=st.integers(0, 4), before=st.integers(0, 20))
def test_a_table_with_just_enough_places_takes_a_push_and_the_same_push_again(
    workers: int, most: int, spare: int, before: int
) -> None:
    spare = spare or int(before == 20)  # a table that is full already takes nothing, known or not
    server, episodes = Server({"replay": table_info(max_size=60 + spare)}), made(20)
    if before:
        in_memory.push(server, episodes[:before])
    for new in (60 - 3 * before, 0) if spare else (60 - 3 * before,):
        report = push(server, episodes, workers, most)
        assert (report.items_confirmed, report.episodes_pushed) == (60, 20)
        assert report.items_new in (new, None)
    if not spare:
        with pytest.raises(CapacityError, match="is full"):
            push(server, episodes, workers, most)
    assert len(server.items["replay"]) == 60
    assert not server.evicted


@pytest.mark.parametrize("workers", [1, 3])
def test_a_push_that_is_too_large_evicts_nothing(workers: int) -> None:
    server = Server({"replay": table_info(max_size=40)})
    with pytest.raises(CapacityError) as caught:
        push(server, made(20), workers, 3)
    assert not server.evicted
    report = report_of(caught.value, PushReport)
    assert report is not None
    assert report.episodes_pushed <= 13


@pytest.mark.parametrize("workers", [1, 3])
def test_again_makes_new_keys_once(workers: int) -> None:
    server, episodes = Server(), made(10)
    in_memory.push(server, episodes)
    report = push(server, episodes, workers, 2, lost=[0, 2], again=True)
    assert (report.items_confirmed, report.items_new) == (30, 30)
    assert len(server.items["replay"]) == 60


def test_two_episodes_of_one_id_in_different_parts_are_told() -> None:
    class Twice(in_memory.EpisodeList):
        def __iter__(self) -> Any:
            episodes = list(super().__iter__())
            return iter([*episodes[:-1], episodes[0]])

    server, episodes = Server(), made(6)
    plan_source = Twice(episodes, "test")
    from tests.support.workers_in_threads import InThreads, distributed

    plan = in_memory.planned(server, plan_source, workers=2)
    divided = distributed(server, plan, lambda job: InThreads(job, 2), 2)
    with pytest.raises(SourceError, match=r"two episodes have one id.*\(number 0\) and .*\(number 5\)"):
        divided.run()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"view": "across_episodes"}, "items depend on the episodes before"),
        ({"workers": 0}, "expected at least 1"),
        ({"workers": True}, "expected at least 1"),
        ({"ray": ""}, "expected HOST:PORT"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_reason(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        PushOptions("replay", **{"workers": 2, **options})
