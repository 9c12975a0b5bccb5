"""Which checkpoints are kept, against calendars of Python's own; and that pruning obeys it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server import store as stores
from replay_server.config import CheckpointSection, decode
from replay_server.errors import CheckpointNewer, CheckpointUnreadable
from replay_server.restore import outlook
from replay_server.retention import Keep, disk_need, keep_of, kept_because, makes_room, plain_keep
from replay_server.store import PASSING, CheckpointStore

from rlds2reverb.errors import ConfigError
from tests.unit.server.test_store import opened, write_checkpoint

pytestmark = pytest.mark.timeout(120)

KEEPS = st.builds(
    Keep, last=st.integers(1, 4), hourly=st.integers(0, 5), daily=st.integers(0, 5), weekly=st.integers(0, 5)
)
TIMES = st.lists(st.none() | st.integers(0, 10**10) | st.integers(10**9, 10**9 + 10**6), max_size=30)
FORMATS = {"hourly": "%Y-%m-%d %H", "daily": "%Y-%m-%d", "weekly": "%G-W%V"}


def kept_slowly(times: list[int | None], keep: Keep) -> list[set[str]]:
    """A checkpoint at a time: whether it is the newest of its period, and how many periods with any came after it."""
    reasons = []
    for place, time in enumerate(times):
        rules = {"last"} if place < keep.last else set()
        for rule, form in FORMATS.items():
            if time is None:
                continue
            names = [
                None if t is None else datetime.fromtimestamp(t, timezone.utc).strftime(form)
                for t in times[: place + 1]
            ]
            newer = {name for name in names[:-1] if name is not None}
            if names[-1] not in newer and len(newer) < getattr(keep, rule):
                rules.add(rule)
        reasons.append(rules)
    return reasons


@given(times=TIMES, keep=KEEPS, is_in_order=st.booleans())
def test_the_newest_of_each_hour_day_and_week_is_kept(times: list[int | None], keep: Keep, is_in_order: bool) -> None:
    if is_in_order:
        times = sorted(times, key=lambda time: time or 0, reverse=True)
    reasons = kept_because(times, keep)
    assert [set(rules) for rules in reasons] == kept_slowly(times, keep)
    assert sum(map(bool, reasons)) <= keep.most
    assert not times or reasons[0][0] == "last"


@given(times=TIMES, keep=KEEPS, new=st.integers(10**9, 2 * 10**9))
def test_what_is_removed_now_would_be_removed_later_too(times: list[int | None], keep: Keep, new: int) -> None:
    """So it does not matter how often is pruned."""
    pruned = [time for time, rules in zip(times, kept_because(times, keep), strict=True) if rules]
    at_once = [time for time, rules in zip([new, *times], kept_because([new, *times], keep), strict=True) if rules]
    in_steps = [time for time, rules in zip([new, *pruned], kept_because([new, *pruned], keep), strict=True) if rules]
    assert at_once == in_steps


@pytest.mark.parametrize(
    ("keep", "plain"),
    [
        (3, 3),
        ({"last": 2, "daily": 7}, {"last": 2, "daily": 7}),
        ({"hourly": 1}, {"last": 3, "hourly": 1}),
        ({}, 3),
        ({"last": 4}, 4),
    ],
)
def test_a_config_keeps_a_number_or_by_rules(keep: object, plain: object) -> None:
    section = decode({"tables": [{"name": "t"}], "checkpoints": {"keep": keep, "upload_keep": keep}}, "c").checkpoints
    assert plain_keep(keep_of(section.keep)) == plain
    assert section.keep == section.upload_keep


@pytest.mark.parametrize("keep", [0, {"last": 0}, {"hourly": -1}, {"monthly": 3}, "3", {}.fromkeys(["daily"])])
def test_rules_that_make_no_sense_are_refused_with_their_path(keep: object) -> None:
    with pytest.raises(ConfigError, match=r"\$\.checkpoints\.keep") as error:
        decode({"tables": [{"name": "t"}], "checkpoints": {"keep": keep}}, "c")
    if keep == "3":
        assert "Expected a number, or rules such as `{last: 3, daily: 7}`, got `str`" in str(error.value)
    if keep == {"monthly": 3}:
        assert "there are last, hourly, daily, weekly" in str(error.value)


def write(store: CheckpointStore, time: float) -> int:
    number = store.highest + 1
    return store.adopt(write_checkpoint(store.reverb / f"2026-{number}", number), {"one": number}, time, time).number


@given(hours=st.lists(st.integers(0, 200), min_size=1, max_size=12), keep=KEEPS, data=st.data())
def test_pruning_removes_what_no_rule_keeps_and_nothing_that_is_held_pinned_or_sent(
    tmp_path_factory: pytest.TempPathFactory, hours: list[int], keep: Keep, data: st.DataObject
) -> None:
    store = opened(tmp_path_factory.mktemp("kept"), keep)
    numbers = [write(store, 3600.0 * hour) for hour in hours]
    held, pinned, sent = (data.draw(st.sampled_from(numbers)) for _ in range(3))
    store.held = {held: "started from"}
    store.pin(store.kept / f"{pinned:06d}")
    ruled = [number for number in reversed(numbers) if number != pinned]
    rules = kept_because([3600.0 * hours[number - 1] for number in ruled], keep)
    expected = {number for number, names in zip(ruled, rules, strict=True) if names} | {held, pinned, sent}
    with store.using(store.kept / f"{sent:06d}"):
        store.prune()
        assert {listed.number for listed in store.listed()} == expected
        assert all(listed.kept and not listed.problem for listed in store.listed())
    store.held = {}
    store.prune()
    assert {int(path.name) for path in store.paths()} == expected - (
        {held, sent} - {pinned} - {n for n, r in zip(ruled, rules, strict=True) if r}
    )


@pytest.mark.parametrize("kind", [CheckpointUnreadable, CheckpointNewer])
def test_what_cannot_be_read_now_is_not_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[CheckpointUnreadable]
) -> None:
    store = opened(tmp_path, Keep(last=1, weekly=4))
    for week in (10, 11, 12):
        write(store, 7.0 * 86400 * week)
    read = stores.read_manifest

    def read_but_the_second(folder: Path) -> Any:
        if folder.name == "000002":
            raise kind("input/output error")
        return read(folder)

    with monkeypatch.context() as patch:
        patch.setattr(stores, "read_manifest", read_but_the_second)
        store.keep = Keep(last=1, weekly=1)
        assert [path.name for path in store.prune()] == ["000001"]
        assert [listed.kept for listed in store.listed()] == [("last", "weekly"), ("cannot be read now",)]
    assert [path.name for path in store.prune()] == ["000002"]


def test_a_list_says_of_each_checkpoint_what_is_wrong_with_it(tmp_path: Path) -> None:
    store = opened(tmp_path, 9)
    whole, short, bare = (write(store, float(time)) for time in (10, 20, 30))
    (store.kept / f"{short:06d}" / "items.tfrecord").write_bytes(b"")
    (store.kept / f"{bare:06d}" / "MANIFEST.json").unlink()
    documents = {row["generation"]: row for row in (listed.document(now=40.0) for listed in store.listed())}
    assert {number: row["valid"] for number, row in documents.items()} == {whole: True, short: False, bare: False}
    assert (documents[whole]["created"], documents[whole]["age_seconds"], documents[whole]["kept"]) == (
        10.0,
        30.0,
        ["last"],
    )
    assert "0 bytes, expected" in documents[short]["problem"]
    assert documents[bare]["created"] is None
    assert msgspec.json.encode(list(documents.values()))


def test_what_is_pinned_takes_its_room_beside_the_rules(tmp_path: Path) -> None:
    store = opened(tmp_path, 2)
    for time in (10, 20, 30, 40):
        write(store, float(time))
    store.pin(store.kept / "000002")
    store.held = {1: "started from"}
    assert [makes_room(listed.kept, PASSING) for listed in store.listed()] == [True, True, False, False]
    store.pin(store.kept / "000001")
    before = outlook(CheckpointSection(folder=str(tmp_path), keep=2), []).need
    (store.kept / "000004" / "MANIFEST.json").write_bytes(b"?")
    assert "0 bytes if each" not in outlook(CheckpointSection(folder=str(tmp_path), keep=2), []).need
    assert "; 0 bytes more than now" not in before


def test_what_is_kept_is_told_before_the_disk_is_full() -> None:
    need = disk_need(Keep(last=3, daily=7), [100, 100], 100, 950)
    assert (need.most, need.bytes, need.more_bytes, need.is_short) == (10, 1100, 900, False)
    assert disk_need(Keep(last=3), [], 100, 399).is_short
    assert not disk_need(Keep(last=3), [], 100, None).is_short
    assert "not enough" in disk_need(Keep(last=3), [], 100, 399).words()
