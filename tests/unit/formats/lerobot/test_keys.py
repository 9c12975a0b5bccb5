"""Episodes are found by the keys of their rows, whatever meta/episodes says: against tables that are divided into files by code of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lerobot import read
from tests.contract.source_cases.lerobot import DATA
from tests.support.profiles import examples

FOLDER = Path(mkdtemp()) / "dataset"
FEATURES = {
    name: {"dtype": dtype, "shape": [1], "names": None}
    for name, dtype in (("action", "float32"), ("episode_index", "int64"), ("index", "int64"), ("frame_index", "int64"))
}


def rows_of(episodes: dict[int, int]) -> dict[int, pa.Table]:
    """Episode -> its rows; each action is another one."""
    tables, index = {}, 0
    for episode, length in episodes.items():
        numbers = np.arange(index, index + length)
        tables[episode] = pa.table(
            {
                "action": pa.array(numbers + 0.5, pa.float32()),
                "episode_index": pa.array([episode] * length, pa.int64()),
                "index": pa.array(numbers, pa.int64()),
                "frame_index": pa.array(range(length), pa.int64()),
            }
        )
        index += length
    return tables


def write(files: list[pa.Table], meta: dict[str, list[Any]], **options: Any) -> str:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for folder in ("data/chunk-000", "meta/episodes/chunk-000"):
        (FOLDER / folder).mkdir(parents=True)
    info = {"codebase_version": "v3.0", "fps": 10, "features": FEATURES, "chunks_size": 1000, "video_path": None}
    data_path = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    (FOLDER / "meta/info.json").write_text(json.dumps({**info, "data_path": data_path}))
    for number, table in enumerate(files):
        parquet.write_table(table, FOLDER / f"data/chunk-000/file-{number:03d}.parquet", **options)
    parquet.write_table(pa.table(meta), FOLDER / "meta/episodes/chunk-000/file-000.parquet")
    return f"lerobot:{FOLDER}?last_step=mark"


def actions(episodes: list[Episode]) -> dict[int, list[float]]:
    assert not [episode.faults for episode in episodes if episode.faults]
    return {int(episode.metadata["episode_index"]): episode.columns["action"][:, 0].tolist() for episode in episodes}


def codes(source: Any) -> dict[str, int]:
    return {notice.code: notice.count for notice in source.notices if not notice.is_note}


@examples(60)
@given(st.data())
def test_rows_are_those_of_their_keys_whatever_meta_says(data: st.DataObject) -> None:
    lengths = dict(enumerate(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))))
    tables = rows_of(lengths)
    all_rows = pa.concat_tables(tables.values())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(all_rows)), max_size=4)))  # also within an episode
    bounds = [0, *cuts, len(all_rows)]
    files = [all_rows.slice(start, stop - start) for start, stop in pairwise(bounds)]
    listed = data.draw(st.lists(st.sampled_from(list(lengths)), min_size=1, unique=True))
    anything = st.lists(st.one_of(st.none(), st.integers(-1, 30)), min_size=len(listed), max_size=len(listed))
    meta: dict[str, list[Any]] = {"episode_index": listed, "length": [lengths[episode] for episode in listed]}
    pointers = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
    meta |= {name: data.draw(anything) for name in pointers if data.draw(st.booleans())}
    if data.draw(st.booleans()):  # as pandas stores them beside one that is missing
        meta = {name: pa.array(values, pa.float64()) if "/" in name else values for name, values in meta.items()}
    name = write(files, meta, row_group_size=data.draw(st.integers(1, 9)), write_statistics=data.draw(st.booleans()))
    wanted = {episode: tables[episode]["action"].to_pylist() for episode in sorted(listed)}
    source: Any = open_source(name)
    assert actions(list(source)) == wanted
    again = data.draw(st.permutations(range(len(listed))))
    found = {number: episode for place in again for number, episode in source.at([place])}
    assert actions([found[number] for number in range(len(listed))]) == wanted


def of_two_files() -> tuple[list[pa.Table], dict[str, list[Any]]]:
    """Four episodes in two files, and what LeRobot says of them."""
    tables = rows_of({0: 3, 1: 2, 2: 4, 3: 2})
    files = [pa.concat_tables([tables[0], tables[1]]), pa.concat_tables([tables[2], tables[3]])]
    meta: dict[str, list[Any]] = {
        "episode_index": [0, 1, 2, 3],
        "length": [3, 2, 4, 2],
        "data/chunk_index": [0, 0, 0, 0],
        "data/file_index": [0, 0, 1, 1],
        "dataset_from_index": [0, 3, 5, 9],
        "dataset_to_index": [3, 5, 9, 11],
    }
    return files, meta


def test_where_meta_is_right_no_other_file_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    files, meta = of_two_files()
    name = write(files, meta)
    monkeypatch.setattr(read, "open_table", None)  # opens what meta does not name
    source: Any = open_source(name)
    assert len(actions(list(source))) == 4
    assert codes(source) == {}


@pytest.mark.parametrize(
    ("changes", "stale"),
    [
        ({"data/file_index": [1, 0, 1, 1]}, 1),
        ({"data/file_index": [1, 0, 7, 0]}, 3),
        ({"data/file_index": [None, 0, 1, 1]}, 1),
        ({"dataset_from_index": [0, 5, 3, 9]}, 2),
        ({"dataset_from_index": [0, 3, 5, None]}, 0),
    ],
)
def test_stale_pointers_are_counted(changes: dict[str, list[Any]], stale: int) -> None:
    files, meta = of_two_files()
    source: Any = open_source(write(files, meta | changes))
    wanted = {n: table["action"].to_pylist() for n, table in rows_of({0: 3, 1: 2, 2: 4, 3: 2}).items()}
    for _ in range(2):
        assert actions(list(source)) == wanted
    assert codes(source) == ({"stale_pointers": stale} if stale else {})


def test_an_episode_that_meta_does_not_list_moves_no_other() -> None:
    files, meta = of_two_files()
    source: Any = open_source(write(files, {name: values[1:] for name, values in meta.items()}))
    assert list(actions(list(source))) == [1, 2, 3]
    assert codes(source) == {"unlisted_episodes": 1}


def test_shards_count_what_they_read() -> None:
    files, meta = of_two_files()
    source: Any = open_source(write(files, meta | {"data/file_index": [1, 1, 0, 0]}))
    halves = [source.shard(index, 2) for index in range(2)]
    assert [list(actions(list(half))) for half in halves] == [[0, 2], [1, 3]]


def doubled(files: list[pa.Table]) -> list[pa.Table]:
    return [*files, files[0], files[0]]


def with_a_gap(files: list[pa.Table]) -> list[pa.Table]:
    return [files[0].slice(1), files[1]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (doubled, "9 rows of episode 0; expected 3"),
        (with_a_gap, "2 rows of episode 0; expected 3, as meta/episodes says"),
        (lambda files: files[1:], "no file has rows of episode 0"),
        (lambda files: [b"PAR1", *files], "no file has rows of episode 0; the keys of some rows cannot be read"),
    ],
)
def test_what_keys_cannot_find_is_a_bad_episode(change: Callable[[list[pa.Table]], list[Any]], said: str) -> None:
    files, meta = of_two_files()
    changed = change(files)
    first = {name: values[:1] for name, values in meta.items()}
    name = write([files[1] if isinstance(file, bytes) else file for file in changed], {**first, "data/file_index": [9]})
    for number, file in enumerate(changed):
        if isinstance(file, bytes):
            (FOLDER / f"data/chunk-000/file-{number:03d}.parquet").write_bytes(file)
            (FOLDER / f"data/chunk-000/file-{number + 1:03d}.parquet").unlink()
    (bad,) = open_source(name)
    assert said in bad.faults[0][1]
    assert "file-009.parquet" in bad.faults[0][1]


def test_halves_with_the_same_index_are_not_put_together() -> None:
    tables = rows_of({0: 4})
    half = tables[0].slice(0, 2)
    meta = {"episode_index": [0], "length": [4]}
    (bad,) = open_source(write([half, half], meta))
    assert "rows of episode 0 stand in 2 places" in bad.faults[0][1]


@pytest.fixture
def v30(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "v30", tmp_path / "v30"))


def change_meta(folder: Path, changes: dict[str, list[Any]]) -> str:
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    table = parquet.read_table(path)
    for name, values in changes.items():
        table = table.set_column(table.column_names.index(name), name, [values])
    parquet.write_table(table, path)
    return f"lerobot:{folder}"


WRIST = "videos/observation.images.wrist"


@pytest.mark.parametrize(
    ("begin", "end", "advice"),
    [
        ([0.0, 0.5, 1.2], [0.5, 1.2, 1.6], {}),
        ([0.0, 0.47, 1.2], [0.5, 1.17, 1.6], {}),
        ([0.0, 0.4, 1.2], [0.5, 1.1, 1.6], {"video_overlap": 2}),
        ([0.0, 0.0, 0.0], [0.5, 0.7, 0.4], {"video_overlap": 3}),
        ([0.0, 0.5, 1.2], [0.5, 1.0, 1.6], {"video_short": 1}),
    ],
)
def test_parts_of_a_video_that_overlap_or_are_too_short_are_told(
    v30: Path, begin: list[float], end: list[float], advice: dict[str, int]
) -> None:
    name = change_meta(v30, {f"{WRIST}/from_timestamp": begin, f"{WRIST}/to_timestamp": end})
    source: Any = open_source(f"{name}?tolerance=0.1")
    assert not any(episode.faults for episode in source)
    assert codes(source) == advice
    assert codes(open_source(f"{name}?videos=skip")) == {}


def test_a_video_that_meta_does_not_name_is_one_bad_episode(v30: Path) -> None:
    name = change_meta(v30, {f"{WRIST}/file_index": [0, None, 0]})
    first, second, third = open_source(name)
    assert (first.faults, third.faults) == ((), ())
    assert "videos/observation.images.wrist/: file_index or from_timestamp is missing" in second.faults[0][1]
