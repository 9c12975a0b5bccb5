"""One push, several views: every table holds what a push of its own view would have stored, and the rows go once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import CapacityError, ConfigError, TransportError, ViewError
from rlds2reverb.prepare.preparation import outputs_of
from rlds2reverb.push.sender import Sender
from rlds2reverb.wire.insert import RequestLimits
from tests.support import reference, strategies
from tests.support.push.in_memory import Server, episodes, push, push_to, table_info

VIEWS = {
    "pairs": "two_step",
    "long": "sequence:length=3",
    "whole": "episode",
    "stacks": "frame_stack:frames=3",
    "returns": "n_step:n=2",
    "across": "across_episodes:length=4",
}


def server_of(*names: Any, max_size: int = 1000) -> Server:
    return Server({name: table_info(name, max_size=max_size) for name in names})


def counts(server: Server) -> Counter:
    return Counter({name: len(server.contents(name)) for name in server.tables})


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=5), st.sets(st.sampled_from(sorted(VIEWS)), min_size=1), st.data()
)
@settings(max_examples=40, deadline=None)
def test_every_table_holds_what_a_push_of_its_own_would_store(
    lengths: list[int], names: set[str], data: st.DataObject
) -> None:
    source = [strategies.episode(np.random.default_rng(seed), rows) for seed, rows in enumerate(lengths)]
    limits = RequestLimits(data.draw(st.integers(1, 9)), data.draw(st.integers(1, 1 << 14)))
    options = {"chunk_length": data.draw(st.none() | st.integers(1, 5)), "limits": limits, "on_invalid": "skip"}
    together, apart = server_of(*sorted(names)), server_of(*sorted(names))
    outputs = outputs_of({name: VIEWS[name] for name in sorted(names)})
    report = push_to(together, source, outputs, **options)
    for output in outputs:
        push_to(apart, source, (output,), **options)
    for name in names:
        reference.assert_same_items(together.contents(name), apart.contents(name))
        assert list(together.items.get(name, {})) == list(apart.items.get(name, {}))  # the keys, too
    assert report.items_made == +counts(together)
    assert report.items_confirmed == sum(counts(together).values())
    assert report.episodes_read == report.episodes_pushed + report.episodes_rejected


def test_rows_are_sent_once() -> None:
    wide = [
        episode.with_columns(observation=np.random.default_rng(0).normal(size=(30, 200)).astype(np.float32))
        for episode in episodes(4, rows=30)
    ]
    views = {"pairs": "two_step", "stacks": "frame_stack:frames=4", "returns": "n_step", "long": "sequence:length=5"}
    together = push_to(server_of(*views), wide, outputs_of(views)).bytes
    alone = [push_to(server_of(name), wide, outputs_of({name: view})).bytes for name, view in views.items()]
    assert together < 1.6 * max(alone)
    assert together < 0.45 * sum(alone)


def test_an_episode_of_which_only_some_views_make_items_is_pushed_and_counted() -> None:
    server = server_of("pairs", "long")
    report = push_to(
        server,
        episodes(2, rows=2) + episodes(3, rows=5),
        outputs_of({"pairs": "two_step", "long": "sequence:length=4"}),
    )
    assert (report.episodes_pushed, report.rejected) == (5, {})
    assert report.without_items == {"long": 2}
    assert counts(server) == report.items_made == {"pairs": 2 + 3 * 4, "long": 3 * 2}


def test_an_episode_of_which_no_view_makes_an_item_is_rejected_under_all_their_names() -> None:
    views = {"long": "sequence:length=4", "longer": "sequence:length=5"}
    server = server_of(*views)
    report = push_to(server, episodes(2, rows=2), outputs_of(views), on_invalid="skip")
    assert (report.episodes_pushed, report.rejected, server.items) == (0, {"no_items": 2}, {})
    with pytest.raises(Exception, match=r"sequence:length=4.*, sequence:length=5.* makes no item of 2 steps"):
        push_to(server_of(*views), episodes(1, rows=2), outputs_of(views))


def test_an_episode_that_one_view_refuses_is_left_out_of_all_and_of_the_stream() -> None:
    views = {"across": "across_episodes:length=3", "whole": "episode:max_length=4"}
    good, long = episodes(2, rows=3), episodes(1, rows=6)
    server = server_of(*views)
    report = push_to(server, [good[0], *long, good[1]], outputs_of(views), on_invalid="skip")
    assert report.rejected == {"view_refused": 1}
    only_good = server_of(*views)
    push_to(only_good, good, outputs_of(views))
    for name in views:
        reference.assert_same_items(server.contents(name), only_good.contents(name))
    with pytest.raises(ViewError, match="episode"):
        push_to(server_of(*views), long, outputs_of(views))


def test_of_two_streams_neither_takes_in_what_the_other_refuses() -> None:
    views = {"across": "across_episodes:length=3", "frags": "fragments:length=2"}
    spec = {"observation/a": (np.dtype(np.float32), (2,)), "action": (np.dtype(np.float32), ())}
    *good, odd = (strategies.episode(np.random.default_rng(n), 3, spec, episode_id=f"e{n}") for n in range(3))
    odd = odd.with_only_columns({**odd.columns, "observation/b": odd.columns["reward"]})
    allowed = {"on_invalid": "skip", "allow": ("extra_column",)}
    for source in ([good[0], odd, good[1]], [*good, odd]):
        server = server_of(*views)
        report = push_to(server, source, outputs_of(views), **allowed)
        assert report.rejected == {"view_refused": 1}
        calm = server_of(*views)
        push_to(calm, good, outputs_of(views))
        for name in views:
            reference.assert_same_items(server.contents(name), calm.contents(name))


def test_items_that_hold_rows_of_a_mended_episode_have_keys_of_their_own() -> None:
    server = server_of("across")
    bad, good = episodes(2, rows=4)
    bad = bad.with_columns(discount=np.array([1, 1, 1, 1], np.float32))  # it leads into a terminal step
    outputs = outputs_of({"across": "across_episodes:length=4"})
    push_to(server, [bad, good], outputs)
    before = set(server.items["across"])
    report = push_to(server, [bad, good], outputs, on_invalid="repair", strict=True)
    assert sum(report.repaired.values()) == 1
    assert len(set(server.items["across"]) - before) == report.items_confirmed


def test_a_stream_that_carries_many_rows_does_not_blow_up_the_others() -> None:
    views = {"frags": "fragments:length=300", "stacks": "frame_stack"}
    together = push_to(server_of(*views), episodes(40, rows=11), outputs_of(views)).bytes
    apart = [
        push_to(server_of(name), episodes(40, rows=11), outputs_of({name: view})).bytes for name, view in views.items()
    ]
    assert together <= 1.05 * sum(apart)


def test_an_episode_item_behind_many_short_ones_costs_no_copies_of_what_went_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = episodes(1, rows=400)[0].with_columns(observation=np.random.default_rng(0).normal(size=(400, 500)))
    server = server_of("pairs", "whole")
    held, send = [], Sender.send
    monkeypatch.setattr(Sender, "send", lambda sender, request: (held.append(request), send(sender, request)))
    push_to(server, [wide], outputs_of({"pairs": "two_step", "whole": "episode"}), limits=RequestLimits(16, 1 << 20))
    chunks = {id(chunk): len(chunk) for request in held for chunk in request.earlier_chunks}
    assert len(held) > 20
    assert (
        sum(chunks.values()) < 2.2 * wide.columns["observation"].nbytes
    )  # the episode's own chunks, shared by all requests


def test_steps_at_the_end_of_a_stream_that_no_item_holds_are_counted() -> None:
    report = push_to(
        server_of("across"), episodes(2, rows=5), outputs_of({"across": "across_episodes:length=4,stride=4"})
    )
    assert (report.items_made, report.left_over) == ({"across": 2}, {"across": 2})


def test_the_capacity_of_every_table_counts_its_own_items() -> None:
    views = {"pairs": "two_step", "whole": "episode"}
    server = Server({"pairs": table_info("pairs", max_size=100), "whole": table_info("whole", max_size=2)})
    with pytest.raises(CapacityError, match='table "whole": max_size 2'):
        push_to(server, episodes(3, rows=9), outputs_of(views))
    assert push_to(server_of("pairs", "whole", max_size=24), episodes(3, rows=9), outputs_of(views)).items_made == {
        "pairs": 24,
        "whole": 3,
    }


class TestLedger:
    def test_a_view_that_is_added_later_is_filled_without_sending_the_others_again(self, tmp_path: Path) -> None:
        server, source, ledger = server_of("pairs", "stacks"), episodes(4), tmp_path / "ledger.db"
        push(server, source, tables=("pairs",), ledger=ledger)
        both = outputs_of({"pairs": "two_step", "stacks": "frame_stack"})
        report = push_to(server, source, both, ledger=ledger)
        assert (report.episodes_read, report.episodes_resumed, report.items_confirmed) == (4, 0, 12)
        assert report.items_made == counts(server) == {"pairs": 12, "stacks": 12}
        again = push_to(server, source, both, ledger=ledger)
        assert (again.episodes_resumed, again.items_confirmed) == (4, 0)
        assert again.items_made == report.items_made

    @pytest.mark.parametrize("fails_after", range(3))
    def test_a_push_that_broke_goes_on_and_leaves_every_item_once(self, tmp_path: Path, fails_after: int) -> None:
        source, ledger, limits = episodes(5), tmp_path / "ledger.db", RequestLimits(7, 1 << 20)
        outputs = outputs_of({"pairs": "two_step", "whole": "episode"})
        server = server_of("pairs", "whole")
        server.fail_after(fails_after)
        with pytest.raises(TransportError):
            push_to(server, source, outputs, ledger=ledger, limits=limits)
        server.fail_after(None)
        report = push_to(server, source, outputs, ledger=ledger, limits=limits)
        assert report.items_made == counts(server) == {"pairs": 15, "whole": 5}

    def test_an_episode_of_which_one_view_makes_no_item_is_done_all_the_same(self, tmp_path: Path) -> None:
        server, source = server_of("pairs", "long"), episodes(2, rows=2) + episodes(1, rows=5)
        outputs = outputs_of({"pairs": "two_step", "long": "sequence:length=4"})
        push_to(server, source, outputs, ledger=tmp_path / "ledger.db")
        report = push_to(server, source, outputs, ledger=tmp_path / "ledger.db")
        assert (report.episodes_resumed, report.rejected, report.items_confirmed) == (1, {}, 0)
        assert report.items_made == counts(server)
        assert report.without_items == {"long": 2}

    def test_a_view_added_later_may_make_no_item_of_what_is_there(self, tmp_path: Path) -> None:
        server, source = server_of("pairs", "long"), episodes(2, rows=2)
        push(server, source, tables=("pairs",), ledger=tmp_path / "ledger.db")
        both = outputs_of({"pairs": "two_step", "long": "sequence:length=4"})
        report = push_to(server, source, both, ledger=tmp_path / "ledger.db")
        assert (report.rejected, report.without_items, report.items_made) == ({}, {"long": 2}, {"pairs": 2})

    def test_an_option_that_lets_more_episodes_in_is_not_held_back_by_the_ledger(self, tmp_path: Path) -> None:
        server, source, ledger = server_of("pairs", "whole"), episodes(3, rows=6), tmp_path / "ledger.db"
        push_to(
            server,
            source,
            outputs_of({"pairs": "two_step", "whole": "episode:max_length=4,skip_longer=true"}),
            ledger=ledger,
        )
        push_to(server, source, outputs_of({"pairs": "two_step", "whole": "episode"}), ledger=ledger)
        assert counts(server) == {"pairs": 15, "whole": 3}

    def test_resumed_items_count_against_the_size_of_a_table(self, tmp_path: Path) -> None:
        server, source = Server({"replay": table_info(max_size=9)}), episodes(4)
        push(server, source[2:], ledger=tmp_path / "ledger.db")
        with pytest.raises(CapacityError, match="max_size 9"):
            push(server, source, ledger=tmp_path / "ledger.db")

    def test_of_a_stream_is_refused_beside_any_other_view(self, tmp_path: Path) -> None:
        views = {"pairs": "two_step", "across": "across_episodes"}
        with pytest.raises(ConfigError, match="run the whole push again"):
            push_to(server_of(*views), episodes(1), outputs_of(views), ledger=tmp_path / "ledger.db")
