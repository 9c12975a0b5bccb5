"""Short episodes that are taken together: the same items, keys, ledger and report as one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import PushReport
from rlds2reverb.episode import Episode
from rlds2reverb.errors import CapacityError, InvalidEpisode, TransportError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import MixedSource
from rlds2reverb.formats.source import as_source
from rlds2reverb.prepare.preparation import outputs_of
from rlds2reverb.push import run
from rlds2reverb.wire.insert import EpisodeEncoder, RequestLimits
from tests.support import reference, strategies
from tests.support.prepare import faults
from tests.support.processes import wait_until
from tests.support.profiles import examples
from tests.support.push.in_memory import Server, Unmeasured, episodes, push, push_to, table_info
from tests.unit.push.test_ledger import rows_of

VIEWS = {
    "pairs": "two_step",
    "long": "sequence:length=3,pad_end=true",
    "whole": "episode",
    "stacks": "frame_stack:frames=3",
    "returns": "n_step:n=2",
    "goals": "goal",
    "across": "across_episodes:length=4",
}
ONE_BY_ONE = 0


@contextmanager
def taken(rows: int) -> Iterator[None]:
    """Episodes are taken together until they have so many rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "TOGETHER_ROWS", rows)
        yield


def essence(report: PushReport) -> PushReport:
    return replace(report, seconds=0.0, bytes=0)


@examples(25, 150)
@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=9),
    st.sets(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=3),
    st.integers(1, 60),
    st.sets(st.integers(0, 8)),
    st.data(),
)
def test_items_ledger_and_report_are_those_of_one_by_one(
    tmp_path_factory: Any, lengths: list[int], names: set[str], together: int, bad: set[int], data: st.DataObject
) -> None:
    source = [strategies.episode(np.random.default_rng(seed), rows) for seed, rows in enumerate(lengths)]
    for number in bad:
        if number < len(source):
            source[number] = source[number].with_columns(is_first=np.zeros(lengths[number], bool))
    limits = RequestLimits(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 1 << 14)))
    chunk_length = data.draw(st.none() | st.integers(1, 5))
    reports, servers, ledgers = [], [], []
    for rows in (ONE_BY_ONE, together):
        server = Server({name: table_info(name, max_size=1000) for name in sorted(names)})
        ledger = None if "across" in names else tmp_path_factory.mktemp("push") / "ledger.db"
        outputs = outputs_of({name: VIEWS[name] for name in sorted(names)})
        with taken(rows):
            options = {"limits": limits, "chunk_length": chunk_length, "on_invalid": "skip", "ledger": ledger}
            reports.append(essence(push_to(server, source, outputs, **options)))
        servers.append(server)
        ledgers.append(rows_of(ledger) if ledger else [])
    for name in names:
        reference.assert_same_items(servers[0].contents(name), servers[1].contents(name))
        assert sorted(servers[0].items.get(name, {})) == sorted(servers[1].items.get(name, {}))  # the keys, too
    assert reports[0] == reports[1]
    assert sorted(ledgers[0]) == sorted(ledgers[1])


def test_episodes_share_a_request_and_no_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", 3600.0)
    made = []
    encode = EpisodeEncoder.encode
    monkeypatch.setattr(EpisodeEncoder, "encode", lambda *args: made.append(encode(*args)) or made[-1])
    server = Server({"replay": table_info(max_size=1000)})
    push(server, episodes(6), chunk_length=8)
    assert [len(request.ends) for request in made] == [6]
    assert len(made[0].chunks) == 6
    assert server.requests == 1


@pytest.mark.parametrize("fails_after", range(6))
def test_after_a_failure_only_what_was_not_confirmed_is_sent_again(tmp_path: Path, fails_after: int) -> None:
    """The requests of episodes that were encoded together are confirmed one by one."""
    source, limits, server = episodes(6), RequestLimits(3, 1 << 20), Server()
    server.fail_after(fails_after)
    with pytest.raises(TransportError):
        push(server, source, ledger=tmp_path / "ledger.db", limits=limits)
    server.fail_after(None)
    report = push(server, source, ledger=tmp_path / "ledger.db", limits=limits)
    assert (report.episodes_resumed, report.episodes_pushed) == (fails_after, 6 - fails_after)


def test_of_a_bad_one_those_before_it_are_stored_and_none_behind_it() -> None:
    source, server = episodes(6), Server()
    source[3] = source[3].with_columns(is_first=np.zeros(4, bool))
    with pytest.raises(InvalidEpisode) as caught:
        push(server, source)
    assert len(server.contents()) == 9
    assert vars(caught.value)["report"].episodes_read == 4


def test_a_table_takes_what_fits_before_the_push_is_refused() -> None:
    server = Server({"replay": table_info(max_size=10)})
    with pytest.raises(CapacityError):
        push(server, Unmeasured(episodes(6)))
    assert len(server.contents()) == 9
    assert not server.evicted


def test_an_episode_of_other_columns_goes_by_itself() -> None:
    rng = np.random.default_rng(0)
    source = [faults.good(rng, 5), faults.good(rng, 5), faults.good(rng, 4)]
    source = [replace(episode, id=f"e{number}") for number, episode in enumerate(source)]
    source[1] = source[1].with_columns(action=source[1].columns["action"].astype(np.float64))
    server = Server()
    report = push(server, source, on_invalid="skip")
    assert (report.episodes_pushed, dict(report.rejected)) == (2, {"dtype": 1})


def test_episodes_of_a_program_do_not_wait_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", 3600.0)
    server = Server({"replay": table_info(max_size=1000)})

    def holds(items: int) -> bool:
        return len(server.items.get("replay", ())) >= items

    class Live(EpisodeList):
        is_at_hand = False

        def __iter__(self) -> Iterator[Episode]:
            for number, episode in enumerate(super().__iter__()):
                if number > 1:  # the first waits for the second, which says whether actions stand one row late
                    wait_until(partial(holds, 3 * number))
                yield episode

    assert push(server, Live(episodes(5)), limits=RequestLimits(items=1)).items_confirmed == 15


def test_episodes_in_files_and_in_memory_are_at_hand() -> None:
    at_hand = EpisodeList(episodes(2))
    assert at_hand.is_at_hand
    assert at_hand.first(1).is_at_hand
    assert MixedSource([at_hand, open_source("bundled:cartpole")]).is_at_hand
    assert open_source("bundled:cartpole").is_at_hand
    live = as_source(type("Made", (), {"spec": at_hand.spec, "__iter__": at_hand.__iter__})())
    assert not live.is_at_hand
    assert not MixedSource([at_hand, live]).is_at_hand
