"""Tables of running servers: by a checkpoint that the server writes, or by sampling; what is refused, and what is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError, TransportError
from rlds2reverb.formats.recordings import RecordedSource
from rlds2reverb.stored.episodes import recordings_of
from rlds2reverb.stored.running import CHECKPOINT, ELSEWHERE, SAMPLING, Place, place_of, take_snapshot
from rlds2reverb.testing import MemoryServer, MemoryTransport
from rlds2reverb.testing.streams import SamplePlan
from tests.support.learner import stored as tables
from tests.unit.stored.test_source import DATA, NAMES

ITEMS = tables.episodes_of([3, 1, 2])


def server_of(**table: Any) -> MemoryServer:
    return tables.server_of(tables.STEPS, ITEMS, **table)


def read(transport: MemoryTransport, through: str | None = SAMPLING, kind: str = "items", **how: Any) -> Any:
    return RecordedSource(
        recordings_of(take_snapshot(transport, "reverb:memory/replay", "replay", through, **how), kind)
    )


@pytest.mark.parametrize("sampler", ["uniform", "prioritized(1)"])
def test_a_table_is_sampled_until_every_item_was_seen(sampler: str) -> None:
    server = server_of(sampler=sampler)
    source = read(MemoryTransport(server))
    found = sorted((episode.columns["episode"][0].tolist()[0], len(episode.columns["step"][0])) for episode in source)
    assert found == [(0, 3), (1, 1), (2, 2)]
    (remark,) = source.notices
    assert remark.code == "read_by_sampling"
    assert remark.count == sum(item.times_sampled for item in server.table("replay").items.values())


def test_items_whose_chunks_tell_no_order_make_no_episodes() -> None:
    with pytest.raises(SourceError, match=r"rows in an unknown order.*as=items"):
        read(MemoryTransport(server_of()), kind="episodes")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sampler": "fifo"}, "fifo gives the same item over and over"),
        ({"sampler": "fifo", "max_times_sampled": 1}, "leave after 1 samples.*disturb=yes"),
        (
            {"priorities": [0.0, 0.0, 1.0], "sampler": "prioritized(1)"},
            "1 of 3 items came in .* items of priority 0 never do",
        ),
    ],
)
def test_what_sampling_cannot_show_or_would_disturb_is_refused(table: Any, message: str) -> None:
    server = server_of(**table)
    with pytest.raises(SourceError, match=message):
        read(MemoryTransport(server))
    assert len(server.table("replay").items) == 3


def test_a_queue_is_emptied_when_that_is_allowed() -> None:
    server = server_of(sampler="fifo", max_times_sampled=1)
    assert len(list(read(MemoryTransport(server), may_disturb=True))) == 3
    assert not server.table("replay").items


def test_a_table_that_is_written_to_meanwhile_is_refused() -> None:
    class Busy(MemoryTransport):
        def sample_stream(self, messages: Iterator[bytes]) -> Any:
            server.put("replay", 77, ITEMS[0])
            return super().sample_stream(messages)

    server = server_of()
    with pytest.raises(SourceError, match=r"was written to while it was sampled.*through=checkpoint"):
        read(Busy(server))


def test_a_server_that_goes_away_is_told() -> None:
    server = server_of()
    server.sample_plans.append(SamplePlan(samples=2, status="UNAVAILABLE"))
    with pytest.raises(TransportError):
        read(MemoryTransport(server))


def test_a_checkpoint_is_preferred_where_it_can_be_read() -> None:
    server = MemoryServer("pairs", "stream", "windows")
    server.put("pairs", 1, ITEMS[0])
    server.checkpoint_path = str(DATA)
    for through in (None, CHECKPOINT):
        snapshot = take_snapshot(MemoryTransport(server), "reverb:memory/pairs", "pairs", through)
        assert len(list(recordings_of(snapshot).read(range(3)))) == 3
        assert [remark.code for remark in snapshot.notices] == ["read_by_checkpoint"]


@pytest.mark.parametrize("path", [None, "/not/here/at/all"])
def test_without_a_checkpoint_a_table_is_sampled_only_where_that_changes_little(path: str | None) -> None:
    server = server_of()
    server.checkpoint_path = path
    assert len(list(read(MemoryTransport(server), None))) == 3
    with pytest.raises(SourceError, match="through=sampling"):
        read(MemoryTransport(server), CHECKPOINT)
    queue = server_of(sampler="fifo", max_times_sampled=1)
    queue.checkpoint_path = path
    with pytest.raises(SourceError, match="not sampled unasked: its items leave after 1 samples"):
        read(MemoryTransport(queue), None)


def test_a_server_on_another_machine_is_not_asked_for_a_checkpoint_in_vain() -> None:
    server = server_of()
    server.checkpoint_path = str(DATA)
    assert [remark.code for remark in read(MemoryTransport(server), ELSEWHERE).notices] == ["read_by_sampling"]
    queue = server_of(sampler="fifo", max_times_sampled=1)
    with pytest.raises(SourceError, match=r"on another machine.*through=checkpoint tries"):
        read(MemoryTransport(queue), ELSEWHERE)


@pytest.mark.parametrize(
    ("host", "is_here"), [("localhost", True), ("127.0.0.1", True), ("[::1]", True), ("db", False)]
)
def test_this_machine_is_known_by_its_names(host: str, is_here: bool) -> None:
    assert Place(f"{host}:80", None).is_here == is_here


def test_a_server_that_sends_nothing_is_refused() -> None:
    server = server_of()
    server.sample_plans.append(SamplePlan(samples=0))
    with pytest.raises(SourceError, match="3 samples were requested, and 0 came"):
        read(MemoryTransport(server))


@pytest.mark.parametrize("response", [b"\x0a", b"\xff" * 9])
def test_answers_that_are_not_of_reverb_are_refused(response: bytes) -> None:
    server = server_of()
    server.sample_plans.append(SamplePlan(response=response))
    with pytest.raises(SourceError, match="that are no Samples of Reverb's"):
        read(MemoryTransport(server))


def test_unknown_and_ambiguous_tables_are_told() -> None:
    transport = MemoryTransport(MemoryServer("a", "b"))
    with pytest.raises(SourceError, match=r"which table\? There are: a \(0 items\), b \(0 items\)"):
        take_snapshot(transport, "reverb:memory", None)
    with pytest.raises(SourceError, match='no table "c"; there are: a'):
        take_snapshot(transport, "reverb:memory", "c")
    with pytest.raises(SourceError, match="holds no items"):
        take_snapshot(transport, "reverb:memory", "a", SAMPLING)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("localhost:8000/replay", Place("localhost:8000", "replay")),
        ("10.0.0.1:8000", Place("10.0.0.1:8000", None)),
        ("[::1]:8000/a/b", Place("[::1]:8000", "a/b")),
        ("/tmp/x:80/y", None),
        ("folder/checkpoint", None),
        ("folder", None),
    ],
)
def test_addresses_and_folders_are_told_apart(text: str, place: Place | None) -> None:
    assert place_of(text) == place


def rows(source: Any) -> list[Any]:
    return [episode.columns["observation"][:, 0].tolist() for episode in source]


@pytest.mark.full
@pytest.mark.server
@pytest.mark.timeout(120)
@pytest.mark.parametrize("through", ["checkpoint", "sampling"])
def test_a_real_server_gives_its_episodes(forks: Any, tmp_path: Path, through: str) -> None:
    from replay_server import TableConfig

    from rlds2reverb import connect, open_source
    from rlds2reverb.views.trajectory import two_step
    from tests.support.push import in_memory

    episodes = in_memory.episodes(4, 9)
    with forks.embedded([TableConfig("replay"), TableConfig("other")], None, tmp_path) as running:
        with connect(running.address) as client:
            client.push(episodes, "replay", two_step())
        source: Any = open_source(f"reverb:{running.address}/replay?through={through},{NAMES}")
        assert sorted(rows(source)) == sorted(episode.columns["observation"][:, 0].tolist() for episode in episodes)
        assert [remark.code for remark in source.notices] == [f"read_by_{through}"]
        if through == "checkpoint":
            assert rows(source) == [episode.columns["observation"][:, 0].tolist() for episode in episodes]
            assert rows(open_source(f"reverb:{tmp_path}?table=replay,{NAMES}")) == rows(source)
    assert len(rows(source)) == 4  # it was read when it was opened: the server is not needed any more


@pytest.mark.full
@pytest.mark.server
@pytest.mark.timeout(120)
def test_the_service_and_its_generations_are_read(forks: Any, tmp_path: Path) -> None:
    from rlds2reverb import connect, open_source
    from rlds2reverb.views.trajectory import two_step
    from tests.support.push import in_memory

    episodes = in_memory.episodes(2, 5)
    config = {"tables": [{"name": "replay"}], "checkpoints": {"folder": str(tmp_path / "kept")}}
    running = forks.start(config)
    try:
        with connect(running.address) as client:
            client.push(episodes, "replay", two_step())
        wanted = [episode.columns["observation"][:, 0].tolist() for episode in episodes]
        assert rows(open_source(f"reverb:{running.address}/replay?through=checkpoint,{NAMES}")) == wanted
    finally:
        forks.end(running)
    assert rows(open_source(f"reverb:{tmp_path / 'kept'}?table=replay,{NAMES}")) == wanted
    assert np.unique([len(episode) for episode in wanted]).tolist() == [5]
