"""Nothing is evicted that a push did not store itself: whatever a table holds, however large it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.errors import CapacityError, SourceError, Stalled
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.prepare.preparation import outputs_of
from rlds2reverb.push import capacity as push_capacity
from rlds2reverb.push.capacity import TableCapacity
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.wire.insert import RequestLimits
from rlds2reverb.wire.messages import RateLimiter
from tests.support.push.in_memory import Server, Unmeasured, episodes, push, push_to, table_info
from tests.support.raising import outcome_of

ITEMS = 3
"""Items that each of `episodes` gives a table of pairs."""


def limiter_at(inserts: int) -> RateLimiter:
    return RateLimiter(1.0, -1e9, 1e9, 1, inserts, 0)


def keys(server: Server, name: str = "replay") -> list[int]:
    return list(server.items.get(name, {}))


def stored_alone(source: list[Episode], **options: Any) -> list[int]:
    """The keys that a push makes, in order, in a table that takes everything."""
    server = Server({"replay": table_info(max_size=10**6)})
    push(server, source, **options)
    return keys(server)


def holding(known: list[int], strangers: int, room: int) -> Server:
    """A server whose table holds these keys and as many strangers, with room for so many more."""
    held = [(key, [np.array("known")]) for key in known]
    held += [(number + 1, [np.array("stranger")]) for number in range(strangers)]
    server = Server({"replay": table_info(max_size=max(1, len(held) + room))})
    for key, values in held:
        server.put("replay", key, values)
    return server


@settings(max_examples=50)
@given(
    count=st.integers(1, 12),
    known=st.one_of(st.just("all"), st.just("none"), st.integers(0, 36), st.sets(st.integers(0, 35))),
    strangers=st.integers(0, 30),
    room=st.integers(0, 40),
    again=st.booleans(),
)
@example(count=4, known="all", strangers=0, room=0, again=False)
@example(count=4, known=5, strangers=9, room=0, again=False)
@example(count=4, known={1, 4, 8}, strangers=9, room=1, again=False)
def test_a_push_stores_everything_or_is_refused_with_all_that_was_there_still_there(
    count: int, known: int | str | set[int], strangers: int, room: int, again: bool
) -> None:
    source = episodes(count)
    all_keys = stored_alone(source)
    known = {"all": len(all_keys), "none": 0}[known] if isinstance(known, str) else known
    have = [n for n in (range(known) if isinstance(known, int) else sorted(known)) if n < len(all_keys)]
    before = [all_keys[n] for n in have]
    server = holding(before, strangers, room)
    new = len(all_keys) if again else len(all_keys) - len(before)
    ended = outcome_of(CapacityError, lambda: push(server, source, again=again, limits=RequestLimits(5, 1 << 20)))
    is_prefix = have == list(range(len(have)))
    if isinstance(ended, CapacityError):
        assert new > room or not room or not is_prefix
        is_confirmed = set(all_keys[: 3 * ended.report.episodes_pushed]) <= set(keys(server))
        assert again or is_confirmed
    else:
        assert new <= room
        assert (ended.items_new, ended.items_confirmed) == (new, len(all_keys))
        assert again or set(all_keys) <= set(keys(server))
    assert set(before) <= set(keys(server))
    assert not server.evicted
    assert not server.deleted
    assert set(range(1, strangers + 1)) <= set(keys(server))
    assert len(keys(server)) <= server.tables["replay"].info.max_size


class TestTheSamePushAgain:
    @pytest.mark.parametrize("rows", [4, 400])
    def test_is_refused_by_a_full_table_before_the_first_byte_which_says_how_to_go_on(self, rows: int) -> None:
        source = episodes(9, rows)
        server = Server({"replay": table_info(max_size=9 * (rows - 1))})
        push(server, source)
        before, requests = keys(server), server.requests
        with pytest.raises(
            CapacityError, match=r'table "replay" is full .*--ledger FILE.*larger.*--allow-eviction'
        ) as caught:
            push(server, source)
        assert (keys(server), server.requests) == (before, requests)
        assert (caught.value.report.episodes_pushed, caught.value.report.items_new) == (0, 0)

    @pytest.mark.parametrize("rows", [4, 400])
    @pytest.mark.parametrize("free", [1, 7])
    def test_goes_into_a_table_with_a_free_place_and_changes_nothing(self, rows: int, free: int) -> None:
        source = episodes(3, rows)
        server = Server({"replay": table_info(max_size=3 * (rows - 1) + free)})
        push(server, source)
        before = keys(server)
        report = push(server, source)
        assert (report.items_new, report.items_confirmed, report.episodes_pushed) == (0, len(before), 3)
        assert keys(server) == before
        assert not server.evicted
        assert not server.deleted

    def test_that_was_stopped_goes_on_where_it_was(self) -> None:
        source = episodes(8)
        server = Server({"replay": table_info(max_size=8 * ITEMS)})
        push(server, source[:5])
        report = push(server, source)
        assert (report.items_new, report.items_confirmed) == (9, 24)
        assert not server.deleted

    def test_with_more_at_its_end_is_refused(self) -> None:
        source = episodes(6)
        server = Server({"replay": table_info(max_size=4 * ITEMS)})
        push(server, source[:4])
        before = keys(server)
        for again, why in ((Unmeasured(source, "test"), "is full"), (source, "smaller than the push")):
            with pytest.raises(CapacityError, match=why) as caught:
                push(server, again)
            assert keys(server) == before
            assert caught.value.report.episodes_pushed == 0

    def test_is_found_by_the_ledger_without_a_look(self, tmp_path: Path) -> None:
        source = episodes(6)
        server = Server({"replay": table_info(max_size=6 * ITEMS)})
        push(server, source, ledger=tmp_path / "ledger.db")
        assert push(server, source, ledger=tmp_path / "ledger.db").items_new == 0
        assert not server.deleted

    def test_of_several_views_into_nearly_full_tables_leaves_them_as_they_were(self) -> None:
        source, views = episodes(40, 9), outputs_of({"pairs": "two_step", "whole": "episode"})
        server = Server({"pairs": table_info("pairs", max_size=322), "whole": table_info("whole", max_size=41)})
        push_to(server, source, views)
        before = {name: sorted(keys(server, name)) for name in ("pairs", "whole")}
        assert push_to(server, source, views).items_new == 0
        assert {name: sorted(keys(server, name)) for name in ("pairs", "whole")} == before
        assert not server.evicted


class TestOtherData:
    def test_is_refused_before_the_first_item_goes_and_with_counts(self) -> None:
        server = Server({"replay": table_info(max_size=12)})
        push(server, episodes(4))
        before = keys(server)
        others = [replace(episode, id=f"other {number}") for number, episode in enumerate(episodes(2))]
        with pytest.raises(
            CapacityError,
            match=r'table "replay" is full \(12 of at most 12 items\), so it cannot be found out whether the next 3 of this push are in it',
        ) as caught:
            push(server, others)
        assert keys(server) == before
        report = caught.value.report
        assert (report.episodes_pushed, report.items_new, report.stopped[:13]) == (0, 0, "CapacityError")

    def test_fills_what_is_free_and_no_more(self) -> None:
        """Of the last episode some items are stored, which nobody can tell before from items that are there."""
        server = Server({"replay": table_info(max_size=10)})
        push(server, episodes(1))
        others = [replace(episode, id=f"other {number}") for number, episode in enumerate(episodes(3))]
        with pytest.raises(CapacityError, match="is full") as caught:
            push(server, others)
        assert len(keys(server)) == 10
        assert not server.evicted
        report = caught.value.report
        assert (report.episodes_pushed, report.episodes_unconfirmed) == (2, 1)

    def test_that_is_certainly_new_is_refused_with_counts(self) -> None:
        server = Server({"replay": table_info(max_size=13)})
        push(server, episodes(4))
        before = keys(server)
        with pytest.raises(
            CapacityError,
            match=r'table "replay" holds 12 of at most 13 items, so 1 more fit; of the next 2 of this push at least 2 are not in it',
        ):
            push(server, Unmeasured(episodes(2), "test"), again=True)
        assert keys(server) == before

    def test_may_evict_when_that_is_allowed(self) -> None:
        server = Server({"replay": table_info(max_size=12)})
        push(server, episodes(4))
        report = push(server, episodes(4), again=True, allow_eviction=True)
        assert (report.items_new, server.evicted["replay"], len(keys(server))) == (12, 12, 12)


def queue(samples_per_insert: float) -> Server:
    limiter = RateLimiter(samples_per_insert, 0.0, 5.0, 1, 0, 0)
    return Server({"replay": replace(table_info(max_size=5), max_times_sampled=1, rate_limiter=limiter)})


class TestBlockingTables:
    def test_are_never_too_small(self) -> None:
        server = queue(1.0)
        learner = threading.Thread(target=lambda: [server.sample() for _ in range(12)])
        learner.start()
        assert push(server, episodes(4)).items_confirmed == 12
        learner.join()
        assert (server.items, server.evicted) == ({}, {})

    def test_that_want_more_samples_than_they_can_give_are_waited_for_and_evict_nothing(self) -> None:
        server = queue(2.0)
        with pytest.raises(Stalled, match="inserting waits for 1 more sample"):
            push(server, episodes(4), deadlines=Deadlines(notice=0.02, stall=0.1))
        assert not server.evicted

    def test_that_let_items_be_sampled_again_are_not_among_them(self) -> None:
        ratio = replace(table_info(max_size=5), rate_limiter=RateLimiter(1.0, 0.0, 5.0, 1, 0, 0))
        with pytest.raises(CapacityError):
            push(Server({"replay": ratio}), episodes(4))


class Breaking(EpisodeList):
    """Gives so many episodes, and then an error."""

    def __init__(self, source: Any, count: int, error: BaseException) -> None:
        super().__init__(source)
        self._count, self._error = count, error

    def __iter__(self) -> Iterator[Episode]:
        yield from list(super().__iter__())[: self._count]
        raise self._error


class TestQuestions:
    @pytest.mark.parametrize("stops", [False, True])
    def test_are_dropped_at_the_end_whatever_ends_the_push(self, stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(push_capacity, "_ASK_SECONDS", -1.0)
        server, source = Server(), EpisodeList(episodes(3))
        if stops:
            with pytest.raises(SourceError, match="broken"):
                push(server, Breaking(source, 2, SourceError("broken")))
        else:
            push(server, source)
        assert server.questions == 0


class TestOthers:
    def test_that_evict_during_a_push_end_it_with_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(push_capacity, "_ASK_SECONDS", -1.0)
        monkeypatch.setattr("rlds2reverb.push.run.TOGETHER_ROWS", 0)
        server = Server({"replay": table_info(max_size=30)})

        class Beside(EpisodeList):
            """Before its last episodes another client overfills the table."""

            def __iter__(self) -> Iterator[Episode]:
                for number, episode in enumerate(super().__iter__()):
                    if number == 3:
                        for key in range(1, 25):
                            server.put("replay", key, [])
                    yield episode

        with pytest.raises(CapacityError, match=r"[1-9] items were evicted during this push.*another client") as caught:
            push(server, Beside(episodes(6)), limits=RequestLimits(3, 1 << 20))
        assert 0 < server.evicted["replay"] < 12
        assert caught.value.report.episodes_pushed >= 3

    def test_are_looked_for_ever_more_often_as_the_table_fills(self) -> None:
        """Between two looks at most half of what was free is sent, a quarter once another was seen; answers beside do not count."""
        room, sent = TableCapacity(table_info(max_size=800), guarded=True), 0
        for share, inserted in ((2, 0), (2, 400), (4, 650), (4, 750)):
            room.see(replace(table_info(max_size=800), current_size=inserted, rate_limiter=limiter_at(inserted)))
            before = sent
            while not room.wants_a_look(1):
                room.send(1)
                sent += 1
            assert sent - before == (800 - inserted) // share

    def test_that_insert_leave_it_unknown_what_was_new(self) -> None:
        server = Server()

        class Beside(EpisodeList):
            def __iter__(self) -> Iterator[Episode]:
                yield from super().__iter__()
                for key in range(1, 25):
                    server.put("replay", key, [])

        assert push(server, Beside(episodes(2))).items_new is None
