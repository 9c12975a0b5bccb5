"""What a checkpoint of Reverb's own server holds, read back; the options; and what is refused, with the way out."""

from __future__ import annotations

import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import ServerUnreachable, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import spec_of
from rlds2reverb.specs import spec_texts
from rlds2reverb.views import view_of
from tests.support import damage
from tests.support.processes import dead_port
from tests.support.project import ROOT
from tests.support.push import in_memory
from tests.support.stored import folders

DATA = ROOT / "tests" / "data" / "reverb"
ROWS = np.arange(6)
NAMES = "columns=step_type+observation+action+next_step_type+reward+discount"


def opened(options: str) -> Any:
    return open_source(f"reverb:{DATA}?{options}")


def test_windows_of_a_trajectory_writer_make_the_episodes_that_were_written() -> None:
    source = opened("table=windows")
    assert spec_texts(source.spec()) == {
        "action": "int64[]",
        "is_first": "bool[]",
        "is_last": "bool[]",
        "observation": "float32[2]",
    }
    first, second, broken = source
    for number, episode in enumerate((first, second)):
        assert np.array_equal(episode.columns["observation"], np.repeat(10 * number + ROWS, 2).reshape(-1, 2))
        assert np.array_equal(episode.columns["action"], ROWS)
        assert np.array_equal(episode.columns["is_first"], ROWS == 0)
        assert np.array_equal(episode.columns["is_last"], ROWS == 5)
    assert broken.faults == (
        ("", 'no item of table "windows" holds its rows 3: they were removed, or never stored; gaps=split makes an episode of each run of rows'),
    )  # fmt: skip
    assert [(notice.code, notice.count) for notice in source.notices] == [("rows_in_no_item", 1), ("no_end", 2)]


def test_runs_of_rows_become_episodes_on_request() -> None:
    parts = list(opened("table=windows,gaps=split"))[2:]
    assert [part.columns["action"].tolist() for part in parts] == [[0, 1, 2], [4, 5]]
    assert [part.where.rpartition(".")[2] for part in parts] == ["0", "4"]
    assert [(bool(part.columns["is_first"][0]), bool(part.columns["is_last"][-1])) for part in parts] == [
        (True, False),
        (False, True),
    ]


def test_windows_of_the_old_writer_are_decoded() -> None:
    (episode,) = opened("table=delta,columns=observation+reward")
    assert np.array_equal(episode.columns["observation"], np.arange(4) + ROWS[:, None])
    assert np.array_equal(episode.columns["reward"], np.float32(ROWS))


@pytest.mark.parametrize("table", ["pairs", "stream"])
def test_observers_of_tf_agents_give_steps(table: str) -> None:
    episodes = list(opened(f"table={table},{NAMES},streams=split"))
    assert len(episodes) == 3
    for number, episode in enumerate(episodes):
        assert np.array_equal(episode.columns["observation"][:, 0], np.float32(10 * number + ROWS))
        assert np.array_equal(episode.columns["is_first"], ROWS == 0)
        assert np.array_equal(episode.columns["is_last"], ROWS == 5)
        assert np.array_equal(episode.columns["is_terminal"], (ROWS == 5) & (number % 2 == 0))


def test_a_stream_of_episodes_is_a_bad_episode_by_default() -> None:
    (episode,) = opened(f"table=stream,{NAMES}")
    ((path, why),) = episode.faults
    assert path == "step_type"
    assert "another episode begins at row 6" in why
    assert "streams=split" in why


def test_without_a_signature_columns_have_numbers() -> None:
    assert set(spec_texts(opened("table=pairs").spec())) == {*map(str, range(6)), "is_first", "is_last"}


def test_items_become_episodes_on_request() -> None:
    found = list(opened("table=windows,as=items"))
    assert len(found) == 13
    assert found[1].columns["action"].tolist() == [1, 2]
    assert found[1].metadata["priority"] == 2.0
    assert len({int(episode.metadata["item_key"]) for episode in found}) == 13
    single = list(opened("table=single,as=items"))
    assert [episode.columns["0"].tolist() for episode in single] == [[[0, 0]], [[1, 1]], [[2, 2]]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "table=none",
            'no table "none"; there are: delta (4 items), empty (0 items), pairs (15 items), single (3 items)',
        ),
        ("gaps=split", "which table? There are: delta"),
        ("table=empty", "holds no items"),
        ("table=single", "their order is unknown; read each item as an episode with as=items"),
        ("table=delta,columns=a", "its items have 2 columns; columns names 1: a"),
        ("table=delta,columns=a+a", "its items have 2 columns; columns names 2: a, a"),
        ("table=delta,streams=split", "streams=split is for trajectories"),
        ("table=delta,through=sampling", 'option "through" is for running servers'),
        ("table=delta,as=rows", "expected episodes or items"),
        ("tabel=delta", "unknown option"),
    ],
)
def test_what_makes_no_sense_is_refused(options: str, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        opened(options)
    assert message in str(caught.value)


def test_episodes_can_be_chosen_by_number_and_by_metadata() -> None:
    whole = [episode.id for episode in opened("table=pairs")]
    assert [episode.id for episode in opened("table=pairs,episodes=1:")] == whole[1:]
    number = int(next(iter(opened("table=pairs"))).metadata["episode_id"])
    assert [episode.id for episode in opened(f"table=pairs,where=episode_id={number}")] == whole[:1]


def test_a_folder_of_checkpoints_stands_for_the_newest_finished_one(tmp_path: Path) -> None:
    for name in ("2026-01-01", "2026-01-02", "2026-01-03"):
        shutil.copytree(DATA, tmp_path / "reverb" / name)
    (tmp_path / "reverb" / "2026-01-03" / "DONE").unlink()
    (tmp_path / "reverb" / "2026-01-01" / "items.tfrecord").unlink()
    assert len(list(open_source(f"reverb:{tmp_path}/reverb?table=pairs"))) == 3
    with pytest.raises(SourceError, match="without DONE"):
        open_source(f"reverb:{tmp_path}/reverb/2026-01-03?table=pairs")
    (tmp_path / "reverb").rename(tmp_path / "generations")
    assert len(list(open_source(f"reverb:{tmp_path}?table=pairs"))) == 3


def test_a_copy_elsewhere_has_the_same_names(tmp_path: Path) -> None:
    copy = shutil.copytree(DATA, tmp_path / "copy")
    assert [episode.id for episode in open_source(f"reverb:{copy}?table=pairs")] == [
        episode.id for episode in opened("table=pairs")
    ]


def test_files_without_zlib_are_read(tmp_path: Path) -> None:
    for path in DATA.iterdir():
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(zlib.decompress(data) if data else b"")
    found = list(open_source(f"reverb:{tmp_path}?table=pairs"))
    assert [episode.id for episode in found] == [episode.id for episode in opened("table=pairs")]
    (tmp_path / "chunks.tfrecord").write_bytes(
        (tmp_path / "chunks.tfrecord").read_bytes().replace(b"\x0c", b"\x0d", 40)
    )
    with pytest.raises(SourceError, match="damaged: the checksum"):
        open_source(f"reverb:{tmp_path}?table=pairs")


@pytest.mark.parametrize("name", ["tables", "chunks"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    shutil.copytree(DATA, tmp_path / "copy")
    (tmp_path / "copy" / f"{name}.tfrecord").unlink()
    with pytest.raises(SourceError, match=f"{name}.tfrecord"):
        open_source(f"reverb:{tmp_path / 'copy'}?table=pairs")


@pytest.mark.parametrize("keep", [0, 1, 7, 100])
def test_a_file_that_ends_early_is_named(tmp_path: Path, keep: int) -> None:
    shutil.copytree(DATA, tmp_path / "copy")
    (tmp_path / "copy" / "items.tfrecord").write_bytes((DATA / "items.tfrecord").read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"items\.tfrecord: ends in the middle"):
        open_source(f"reverb:{tmp_path / 'copy'}?table=pairs")


def test_what_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected a checkpoint of Reverb, or a folder of checkpoints"):
        open_source(f"reverb:{tmp_path}")
    with pytest.raises(SourceError, match="cannot be read"):
        open_source(f"reverb:{tmp_path}/none")


def test_an_item_without_its_chunk_is_named(tmp_path: Path) -> None:
    found = folders.Sent({}, {1: b"\x08\x01\x12\x06replay\x42\x08\x0a\x06\x0a\x04\x08\x07\x18\x01"})
    with pytest.raises(SourceError, match="item 1 points to chunk 7, which is not there"):
        open_source(f"reverb:{folders.write_stored(tmp_path / 'made', found, {'replay': None})}")


def test_a_server_that_is_not_there_is_told() -> None:
    with dead_port() as port, pytest.raises(ServerUnreachable):
        open_source(f"reverb:localhost:{port}/replay")


# Messages that are damaged inside whole files: an error of ours, or a bad episode; never another error, and never much memory.


@pytest.mark.parametrize("view", ["two_step", "transition", "frame_stack:frames=2"])
@pytest.mark.parametrize("options", ["", "?gaps=split", "?as=items", "?streams=split"])
@pytest.mark.parametrize("part", damage.PARTS)
def test_damaged_messages_give_our_errors_or_bad_episodes(tmp_path: Path, view: str, options: str, part: int) -> None:
    episodes = in_memory.episodes(2, 5)
    signature = view_of(view).signature(spec_of(episodes[0]))
    found = folders.pushed(episodes, view_of(view), signature=signature, chunk_length=2)

    def job(name: str, draw: random.Random) -> None:
        folder = folders.write_stored(tmp_path / "checkpoint", damaged(found, draw), {"replay": signature})
        damage.check(name, f"reverb:{folder}{options}")
        shutil.rmtree(folder)

    damage.each_case(f"{view}{options}", part, few=40, deep=4_000, job=job)


def damaged(found: folders.Sent, draw: random.Random) -> folders.Sent:
    """What was sent, with a message or two changed."""
    items, chunks = list(found.items.items()), list(found.chunks.items())
    for _ in range(draw.choice((1, 1, 2, 5))):
        among = draw.choice((items, chunks))
        at = draw.randrange(len(among))
        among[at] = (among[at][0], damage.damaged(among[at][1], draw))
    return folders.Sent(dict(chunks), dict(items))


def test_a_record_that_promises_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    folder = folders.write_checkpoint(tmp_path / "checkpoint", [b""], [b""], [b""])
    (folder / "chunks.tfrecord").write_bytes(folders.zlib.compress((1 << 40).to_bytes(8, "little") + bytes(8)))
    with pytest.raises(SourceError, match="says that it has 1,099,511,627,776 bytes"):
        list(open_source(f"reverb:{folder}"))
