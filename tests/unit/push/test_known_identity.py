"""A dataset that was written anew: a push tells that all of it would be stored again, and with an identity nothing of it is."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.client import Client
from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.push.known import OTHER_NAMES
from rlds2reverb.testing import MemoryTransport
from tests.support import strategies, workers_in_threads
from tests.support.modules import CHECKOUT
from tests.support.push import in_memory
from tests.support.push.in_memory import Server

LEROBOT = CHECKOUT / "tests" / "data" / "lerobot" / "v30"
IDENTITIES = ("columns=observation/state,action", "id=episode_index,name=robot")


def encoded_again(folder: Path) -> str:
    """The dataset with its video encoded by another codec."""
    av = pytest.importorskip("av")
    shutil.copytree(LEROBOT, folder)
    [path] = folder.glob("videos/*/*/*.mp4")
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", 10)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode(None))
    return f"lerobot:{folder}"


def with_a_feature(folder: Path) -> str:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    shutil.copytree(LEROBOT, folder)
    [path] = folder.glob("data/*/*.parquet")
    table = pq.read_table(path)
    pq.write_table(table.append_column("extra", pa.array(np.arange(len(table), dtype=np.float32))), path)
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"]["extra"] = {"dtype": "float32", "shape": [1], "names": None}
    (folder / "meta/info.json").write_text(json.dumps(info))
    return f"lerobot:{folder}"


def as_tfds(folder: Path) -> str:
    report = convert(f"lerobot:{LEROBOT}", f"tfds:{folder}")
    return f"tfds:{report.path}"


WRITTEN_ANEW: dict[str, Callable[[Path], str]] = {
    "encoded again": encoded_again,
    "with a feature": with_a_feature,
    "as TFDS": as_tfds,
}


def client_of(server: Server) -> Client:
    return Client(MemoryTransport(server))


def told(notices: Any) -> list[str]:
    return [notice.text for notice in notices if notice.code == OTHER_NAMES]


@pytest.mark.parametrize("kind", WRITTEN_ANEW)
def test_data_written_anew_are_told_before_anything_is_sent_and_stored_again(kind: str, tmp_path: Path) -> None:
    server = Server()
    options: dict[str, Any] = {"table": "replay", "ledger": tmp_path / "ledger.db"}
    source = WRITTEN_ANEW[kind](tmp_path / "anew")
    with client_of(server) as client:
        assert not told(client.plan(f"lerobot:{LEROBOT}", **options).notices)
        first = client.push(f"lerobot:{LEROBOT}", **options)
        assert not told(first.notices)
        assert not told(client.plan(f"lerobot:{LEROBOT}", **options).notices)
        plan = client.plan(source, **options)
        [text] = told(plan.notices)
        assert str(LEROBOT) in text
        assert (
            f"all {first.episodes_pushed} episodes will be stored once more: {first.items_confirmed} items in replay"
            in text
        )
        assert len(server.items["replay"]) == first.items_confirmed
        second = client.push(source, **options)
        assert told(second.notices) == [text]
        assert (second.episodes_pushed, second.items_new) == (first.episodes_pushed, first.items_confirmed)
        assert not told(client.plan(source, **options).notices)


@pytest.mark.parametrize("kind", WRITTEN_ANEW)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_with_an_identity_nothing_of_it_is_stored_again(kind: str, identity: str, tmp_path: Path) -> None:
    server = Server()
    options: dict[str, Any] = {"table": "replay", "identity": identity}
    source = WRITTEN_ANEW[kind](tmp_path / "anew")
    ledger = tmp_path / "ledger.db"
    with client_of(server) as client:
        first = client.push(f"lerobot:{LEROBOT}", ledger=ledger, **options)
        assert not told(client.plan(source, ledger=ledger, **options).notices)
        assert client.push(source, **options).items_new == 0
        again = client.push(source, ledger=ledger, **options)
        assert (again.episodes_resumed, again.items_confirmed) == (first.episodes_pushed, 0)
        assert len(server.items["replay"]) == first.items_confirmed


def test_the_same_folder_written_anew_is_told_whatever_its_number_of_episodes(tmp_path: Path) -> None:
    def episodes(seed: int, count: int) -> EpisodeList:
        rng = np.random.default_rng(seed)
        return EpisodeList([replace(strategies.episode(rng, 4), id="") for _ in range(count)], "npz:x?episodes=1:")

    options: Any = {"table": "replay", "ledger": tmp_path / "ledger.db"}
    with client_of(Server()) as client:
        client.push(episodes(1, 3), **options)
        [text] = told(client.plan(episodes(2, 5), **options).notices)
        assert text.startswith("npz:x has been pushed by this ledger")
        other = EpisodeList(list(episodes(2, 5)), "npz:y")
        assert not told(client.plan(other, **options).notices)
        assert len(told(client.plan(EpisodeList(list(other)[:3], "npz:y"), **options).notices)) == 1
        grown = EpisodeList([*episodes(2, 2), *episodes(1, 3)], "npz:x")
        assert not told(client.plan(grown, **options).notices)
        assert not told(client.plan(episodes(2, 5), **{**options, "view": "transition"}).notices)


def test_a_ledger_without_sources_is_known_by_its_count(tmp_path: Path) -> None:
    options: Any = {"table": "replay", "ledger": tmp_path / "ledger.db"}
    rng = np.random.default_rng(0)
    one, other = ([replace(strategies.episode(rng, 4), id="") for _ in range(3)] for _ in range(2))
    with client_of(Server()) as client:
        client.push(one, **options)
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
            database.execute("DROP TABLE sources")
        [text] = told(client.plan(other, **options).notices)
        assert text.startswith("this ledger has as many episodes, with other names")
        assert client.push(other, **options).episodes_pushed == 3


def keyed(**columns: Any) -> list[Episode]:
    made = [strategies.episode(np.random.default_rng(number), 4) for number in range(6)]
    return [
        replace(episode.with_columns(**columns), id="", metadata={"episode_id": np.int64(number)}, where=f"x#{number}")
        for number, episode in enumerate(made)
    ]


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_workers_and_many_kinds_of_pushes_make_the_same_keys(workers: int | None) -> None:
    server, identity = Server(), "id=episode_id"
    in_memory.push(server, keyed(), identity=identity)
    more = keyed(further=np.zeros(4, np.float32))
    if workers is None:
        report = in_memory.push(server, more, identity=identity)
    else:
        report = workers_in_threads.push(server, more, workers, 2, identity=identity)
    assert (report.items_confirmed, report.items_new, report.episodes_duplicate) == (18, 0, 0)
    assert in_memory.push(server, more).items_new == 18


def test_local_batches_have_the_keys_of_the_push() -> None:
    server, identity = Server(), "id=episode_id"
    in_memory.push(server, keyed(), identity=identity)
    batches = rlds2reverb.local(EpisodeList(keyed(further=np.ones(4))), identity=identity, transform="drop=further")
    keys = [key for _, info in batches for key in info.key.tolist()]
    assert len(keys) == 18
    other = rlds2reverb.local(EpisodeList(keyed()), identity=identity)
    assert {key for _, info in other for key in info.key.tolist()} == set(server.items["replay"])
    shuffled = rlds2reverb.local(EpisodeList(keyed()), identity=identity, shuffle="global")
    assert {key for _, info in shuffled for key in info.key.tolist()} == set(server.items["replay"])


def test_a_state_of_local_is_of_one_identity() -> None:
    one = rlds2reverb.local(EpisodeList(keyed()), identity="id=episode_id", batch_size=2)
    next(one)
    state = one.state()
    with pytest.raises(ConfigError, match="identity"):
        rlds2reverb.local(EpisodeList(keyed()), identity="columns=action", batch_size=2).restore(state)


@pytest.mark.parametrize("duplicates", ["keep", "once"])
def test_two_episodes_of_one_identity_end_a_push_by_their_names(duplicates: str) -> None:
    server = Server()
    episodes = [*keyed(), replace(keyed()[0], metadata={"episode_id": 5}, where="x#6")]
    with pytest.raises(SourceError, match=r"one identity \(id=episode_id\).*x#5 \(.*and x#6 \("):
        in_memory.push(server, episodes, identity="id=episode_id", duplicates=duplicates)
    assert len(server.items["replay"]) == 18
    with pytest.raises(SourceError, match=r"one identity \(id=episode_id\).*x#5 \(.*x#6 \("):
        workers_in_threads.push(Server(), episodes, 2, 2, identity="id=episode_id", duplicates=duplicates)


def test_an_episode_without_what_names_it_is_left_out_by_the_policy() -> None:
    episodes = [*keyed(), replace(keyed()[0], metadata={"other": 1})]
    report = in_memory.push(Server(), episodes, identity="id=episode_id", on_invalid="skip")
    assert (report.episodes_pushed, report.rejected) == (6, {"unreadable": 1})


def test_a_writer_has_no_identity() -> None:
    with pytest.raises(ConfigError, match="identity is an option of a push"), client_of(Server()) as client:
        client.writer("replay", identity="columns=numeric")


def test_an_identity_goes_with_metadata_in_the_items() -> None:
    server = Server()
    options: dict[str, Any] = {"view": "transition:extras=metadata/episode_id", "identity": "columns=action"}
    in_memory.push(server, keyed(), **options)
    other = [replace(episode, metadata={"episode_id": np.int64(number + 10)}) for number, episode in enumerate(keyed())]
    assert in_memory.push(server, other, **options).items_new == 0
    assert open_source(EpisodeList(keyed())).episode_count == 6
