"""Datasets that are damaged, or that somebody made on purpose: refused by name, or a bad episode."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from rlds2reverb.cli import cli
from rlds2reverb.errors import SourceError, ViewError
from rlds2reverb.formats import open_source, paths
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transformed import transformed as apply_transform
from tests.contract.source_cases.lerobot import DATA
from tests.support import strategies
from tests.support.formats.lerobot import written
from tests.support.push.in_memory import Server, push


@pytest.fixture(params=["v21", "v30"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / request.param, tmp_path / request.param))


@pytest.fixture
def v21(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "v21", tmp_path / "v21"))


@pytest.fixture
def v30(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "v30", tmp_path / "v30"))


def changed(folder: Path, change: Callable[[Any], object]) -> str:
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))
    return f"lerobot:{folder}"


def refused(name: str, said: str) -> None:
    with pytest.raises(SourceError, match=re.escape(said)):
        list(open_source(name))


def faults(folder: Path, options: str = "") -> list[str]:
    return [episode.faults[0][1] if episode.faults else "" for episode in open_source(f"lerobot:{folder}{options}")]


def feature(**told: Any) -> Callable[[Any], object]:
    return lambda info: info["features"].update({"bad": {"dtype": "float32", "shape": [1], "names": None, **told}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda info: info.update(codebase_version="v1.6"), "version v1.6"),
        (lambda info: info.update(codebase_version=3), "codebase_version"),
        (lambda info: info.update(chunks_size=0), "chunks_size"),
        (lambda info: info.update(features=[]), "features"),
        (lambda info: info["features"].update({"a/b": {"dtype": "int64", "shape": [1]}}), 'without "/"'),
        (lambda info: info["features"].pop("episode_index"), "no feature episode_index"),
        (feature(dtype="object"), "dtype 'object' is not read"),
        (feature(shape=[2, -1]), "shape [2, -1]"),
        (feature(shape=[1 << 20, 1 << 20]), "at most"),
        (feature(shape=[1] * 6), "1 to 5 sizes"),
        (feature(dtype="image"), "three axes"),
        (feature(info={"rlds2reverb": {"path": "action/x"}}), 'column "action/x" lies below another column'),
    ],
)
def test_an_info_that_makes_no_sense_is_refused(folder: Path, change: Callable[[Any], object], said: str) -> None:
    refused(changed(folder, change), said)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("../{episode_index}{chunk_index}", "no field"),
        ("/etc/passwd", "leads out of the dataset"),
        ("../../passwd", "leads out of the dataset"),
        ("data/{episode_index.__class__}", "expected fields"),
        ("data/{episode_index:99999999d}", "expected fields"),
        ("data/{episode_index!r}", "expected fields"),
        ("data/{}", "expected fields"),
        ("x" * 2000, "template of a path"),
        (7, "template of a path"),
    ],
)
def test_a_template_leads_nowhere_else(v21: Path, template: Any, said: str) -> None:
    with pytest.raises(SourceError, match=re.escape(said)):
        assert not [
            episode
            for episode in open_source(changed(v21, lambda info: info.update(data_path=template)))
            if not episode.faults
        ]


def test_a_template_may_be_another(folder: Path) -> None:
    (folder / "data").rename(folder / "rows")
    name = changed(folder, lambda info: info.update(data_path=info["data_path"].replace("data/", "rows/", 1)))
    assert not any(episode.faults for episode in open_source(name))


def test_links_stay_inside(v21: Path, tmp_path: Path) -> None:
    path = v21 / "data/chunk-000/episode_000001.parquet"
    shutil.move(path, tmp_path / "elsewhere.parquet")
    path.symlink_to(tmp_path / "elsewhere.parquet")
    assert "a link that leads out of the dataset" in faults(v21)[1]


def test_links_of_a_snapshot_lead_to_its_blobs(v21: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "datasets--a--b/snapshots/0123abcd"
    shutil.copytree(v21, snapshot)
    path = snapshot / "meta/info.json"
    blob = tmp_path / "datasets--a--b/blobs/info"
    blob.parent.mkdir()
    shutil.move(path, blob)
    path.symlink_to(blob)
    assert faults(snapshot) == ["", "", ""]


def test_a_missing_file_is_one_bad_episode(v21: Path) -> None:
    (v21 / "data/chunk-000/episode_000001.parquet").unlink()
    (v21 / "videos/chunk-000/observation.images.wrist/episode_000002.mp4").unlink()
    _, rows, video = faults(v21)
    assert "episode_000001.parquet" in rows
    assert "no such video" in video


def with_rows(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    parquet.write_table(change(parquet.read_table(path)), path)


def replaced(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.column_names.index(name), name, [values])


ROWS_OF_1 = "data/chunk-000/episode_000001.parquet"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.slice(1), "has 6 rows; expected 7"),
        (lambda table: table.drop(["action"]), "no such column"),
        (replaced("episode_index", pa.array([2] * 7)), "rows of episode 2"),
        (replaced("action", pa.array([[1.0, 2.0]] * 7)), "a list of 2 values at axis 0; expected 3"),
        (replaced("action", pa.array([[1.0, 2.0, None]] * 7)), "a value is missing"),
        (replaced("action", pa.array([None] * 7, pa.list_(pa.float32()))), "without a value"),
        (replaced("action", pa.array(["a"] * 7)), "expected lists of the shape [3]"),
        (replaced("action", pa.array([[1 / 3] * 3] * 7)), "does not hold every value"),
        (replaced("note", pa.array(range(7))), "expected text"),
        (replaced("task_index", pa.array([9] * 7)), "task_index 9"),
        (replaced("observation.images.top", pa.array([{"bytes": None, "path": "a.png"}] * 7)), "no bytes"),
        (replaced("observation.images.top", pa.array([{"bytes": b"II*\0", "path": ""}] * 7)), "damaged TIFF"),
        (replaced("observation.images.top", pa.array([{"bytes": b"GIF8", "path": ""}] * 7)), "a GIF file"),
        (replaced("timestamp", pa.array([100.0] * 7, pa.float32())), "no frame within 0.0001 s of row 0"),
        (replaced("timestamp", pa.array([float("nan")] * 7, pa.float32())), "no finite numbers"),
    ],
)
def test_an_episode_that_is_not_as_told_is_a_bad_one(
    v21: Path, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    with_rows(v21 / ROWS_OF_1, change)
    first, second, third = faults(v21)
    assert (first, third) == ("", "")
    assert said in second


def test_values_of_another_dtype_are_cast_where_that_loses_nothing(v21: Path) -> None:
    with_rows(v21 / ROWS_OF_1, replaced("gripper", pa.array([float(row) for row in range(7)])))
    with_rows(v21 / ROWS_OF_1, replaced("action", pa.array([[0.5, float("nan"), 2.0]] * 7)))
    second = list(open_source(f"lerobot:{v21}"))[1]
    assert second.columns["gripper"].dtype == np.int64
    assert second.columns["action"].dtype == np.float32
    assert second.columns["gripper"][:-1, 0].tolist() == list(range(7))


THIRDS = replaced("action", pa.array([[1 / 3, float("nan"), -2.0]] * 7))


def test_floats_that_the_dtype_lacks_are_rounded_on_request(v21: Path) -> None:
    names = [episode.id for episode in open_source(f"lerobot:{v21}")]
    with_rows(v21 / ROWS_OF_1, THIRDS)
    assert "add cast=nearest behind the name" in faults(v21)[1]
    source: Any = open_source(f"lerobot:{v21}?cast=nearest")
    first, second, third = source
    assert (second.faults, second.columns["action"].dtype) == ((), np.float32)
    assert np.array_equal(second.columns["action"][0], np.array([1 / 3, np.nan, -2], np.float32), equal_nan=True)
    assert [first.id, third.id] == [names[0], names[2]]
    assert "rounded" in {notice.code for notice in source.notices if notice.is_note}


@pytest.mark.parametrize(("column", "value"), [("action", [1e300, 0.0, 0.0]), ("gripper", 0.5)])
def test_what_rounding_would_spoil_stays_a_bad_episode(v21: Path, column: str, value: Any) -> None:
    with_rows(v21 / ROWS_OF_1, replaced(column, pa.array([value] * 7)))
    for options in ("", "?cast=nearest"):
        first, second, third = faults(v21, options)
        assert (first, third) == ("", "")
        assert "does not hold every value" in second
        assert "cast=" not in second


def test_a_missing_list_of_episodes_is_told(v21: Path) -> None:
    (v21 / "meta/episodes.jsonl").unlink()
    refused(f"lerobot:{v21}", "meta/episodes.jsonl: no such file")


def test_done_in_the_middle_and_odd_counters_are_told(v21: Path) -> None:
    with_rows(v21 / ROWS_OF_1, replaced("next.done", pa.array([True] * 7)))
    with_rows(v21 / ROWS_OF_1, replaced("frame_index", pa.array([3] * 7)))
    source: Any = open_source(f"lerobot:{v21}")
    for _ in range(3):
        assert not any(episode.faults for episode in source)
    assert {"frame_index": 1, "done_inside": 1}.items() <= {
        notice.code: notice.count for notice in source.notices
    }.items()


def test_a_damaged_video_is_one_bad_episode(v21: Path) -> None:
    video = v21 / "videos/chunk-000/observation.images.wrist/episode_000001.mp4"
    for data in (video.read_bytes()[:-400], b"", b"#EXTM3U\n/etc/passwd", video.read_bytes()[:60]):
        video.write_bytes(data)
        first, second, third = faults(v21)
        assert (first, third) == ("", "")
        assert str(video) in second


def test_videos_of_other_codecs_sizes_and_kinds_are_bad_episodes(v21: Path) -> None:
    import av

    video = v21 / "videos/chunk-000/observation.images.wrist/episode_000001.mp4"
    for codec, size, said in (("mjpeg", (80, 64), "the codec mjpeg"), ("mpeg4", (40, 32), "frames of 32 × 40")):
        with av.open(str(video), "w") as container:
            stream = container.add_stream(codec, 10)
            stream.width, stream.height = size
            stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            for _ in range(7):
                frame = av.VideoFrame.from_ndarray(np.zeros((size[1], size[0], 3), np.uint8), "rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        assert said in faults(v21)[1]
    (v21 / "a.gif").write_bytes(b"GIF89a")
    name = changed(v21, lambda info: info.update(video_path="a.gif"))
    assert ".mp4" in next(iter(open_source(name))).faults[0][1]


def test_a_wider_tolerance_takes_the_nearest_frame(v21: Path) -> None:
    with_rows(v21 / ROWS_OF_1, replaced("timestamp", pa.array([row / 10 + 0.02 for row in range(7)], pa.float32())))
    assert "tolerance=" in faults(v21)[1]
    assert faults(v21, "?tolerance=0.03") == ["", "", ""]


def test_pyav_is_asked_for_by_name(v21: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "av", None)
    refused(f"lerobot:{v21}", "videos=skip")
    assert faults(v21, "?videos=skip") == ["", "", ""]


def with_episodes(folder: Path, change: Callable[[pa.Table], pa.Table]) -> str:
    with_rows(folder / "meta/episodes/chunk-000/file-000.parquet", change)
    return f"lerobot:{folder}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop(["length"]), 'no column "length"'),
        (replaced("length", pa.array([5, 7, -4])), "episode 2: its length"),
        (replaced("length", pa.array([5, 7, 4.5])), "expected a whole number for every episode"),
        (replaced("length", pa.array([5, None, 4])), "expected a whole number for every episode"),
        (replaced("episode_index", pa.array([0, 1, 1])), "stands there twice"),
        (replaced("data/file_index", pa.array(["0", "0", "0"])), "expected a whole number for every episode"),
    ],
)
def test_episodes_that_make_no_sense_are_refused(v30: Path, change: Callable[[pa.Table], pa.Table], said: str) -> None:
    refused(with_episodes(v30, change), said)


def test_a_length_that_the_rows_do_not_have_is_a_bad_episode(v30: Path) -> None:
    with_episodes(v30, replaced("length", pa.array([5, 7, 5])))
    *good, bad = faults(v30)
    assert good == ["", ""]
    assert "4 rows of episode 2; expected 5" in bad


def test_files_without_tasks_and_episodes(v30: Path) -> None:
    shutil.rmtree(v30 / "meta/episodes")
    refused(f"lerobot:{v30}", "no episodes")


@pytest.mark.parametrize("line", ["[]", "{", '{"task_index": "0", "task": "x"}', '{"task_index": 0, "task": "x"}'])
def test_damaged_lines_are_refused(v21: Path, line: str) -> None:
    with (v21 / "meta/tasks.jsonl").open("a") as file:
        file.write(line + "\n")
    refused(f"lerobot:{v21}", "tasks.jsonl")


def lines_changed(path: Path, change: Callable[[int, dict[str, Any]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number, line in enumerate(lines):
        change(number, line)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize(
    ("seeds", "dtype"),
    [
        ([1, 2, 3], np.int64),
        ([1, 2, (1 << 63) + 5], np.uint64),
        ([1, 2.5, 3], np.float64),
        ([-1, 2, (1 << 63) + 5], None),
        ([1, 2, 1 << 64], None),
        ([2.5, 2, (1 << 53) + 1], None),
        ([1, None, 2], None),
    ],
)
def test_numbers_of_episodes_are_exact_or_left_out(v21: Path, seeds: list[Any], dtype: Any) -> None:
    lines_changed(v21 / "meta/episodes.jsonl", lambda number, line: line.update(seed=seeds[number]))
    source: Any = open_source(f"lerobot:{v21}")
    if dtype is None:
        assert not any("seed" in episode.metadata for episode in source)
        assert [(notice.code, notice.count) for notice in source.notices if "seed" in notice.text] == [("left_out", 1)]
    else:
        found = [episode.metadata["seed"] for episode in source]
        assert (found, {seed.dtype for seed in found}) == (seeds, {np.dtype(dtype)})
        assert "left_out" not in {notice.code for notice in source.notices}


def test_what_makes_other_steps_is_in_the_names(v21: Path) -> None:
    def ids(options: str = "") -> list[str]:
        return [episode.id for episode in open_source(f"lerobot:{v21}{options}")]

    names = [ids(), ids("?done_means=timeout"), ids("?last_step=mark"), ids("?task=column")]
    lines_changed(v21 / "meta/episodes.jsonl", lambda _, line: line.update(seed=1))
    assert ids() == names[0]  # what is told of an episode is no part of its steps
    lines_changed(v21 / "meta/tasks.jsonl", lambda _, line: line.update(task=line["task"] + " now"))
    names.append(ids("?task=column"))
    assert len(set(map(tuple, names))) == len(names)
    assert ids("?tolerance=0.001") == ids()


def test_a_column_that_claims_far_more_than_the_file_has_is_refused(v30: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand zeros for each of 3,000 rows are 24 MB."""
    rows = next((v30 / "data").rglob("*.parquet"))
    table = parquet.read_table(rows)
    many = pa.concat_tables([table, table.slice(15).take([0] * 3000)])  # 3,000 rows more of the last episode
    many = many.set_column(
        many.column_names.index("note"), "note", pa.FixedSizeListArray.from_arrays(np.zeros(1_000 * len(many)), 1_000)
    )
    parquet.write_table(many, rows)
    with_episodes(v30, replaced("length", pa.array([5, 7, 3004])))
    monkeypatch.setattr(paths, "FREE_BYTES", 1 << 20)
    before = pa.total_allocated_bytes()
    assert all("bytes to read at once" in why for why in faults(v30, "?videos=skip"))
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("kind", ["*.parquet", "*.mp4"])
def test_files_that_are_written_anew_between_passes_are_told(folder: Path, kind: str) -> None:
    source = open_source(f"lerobot:{folder}")
    assert not any(episode.faults for episode in source)
    assert not any(episode.faults for episode in source)
    path = next(path for part in ("data", "videos") for path in sorted((folder / part).rglob(kind)))
    told = path.stat()
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns + 1_000))
    with pytest.raises(SourceError, match="written anew"):
        list(source)


# Datasets with openpi's names of features: what is proposed for them works, and the row behind the last action is one of zeros.

FLOAT, UINT8 = np.dtype(np.float32), np.dtype(np.uint8)


@pytest.fixture
def name(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    columns: strategies.Columns = {"state": (FLOAT, (4,)), "actions": (FLOAT, (3,)), "image": (UINT8, (8, 8, 3))}
    episodes = [strategies.episode(rng, length, columns, episode_id=str(length)) for length in (4, 6)]
    written(tmp_path / "openpi", episodes)
    return f"lerobot:{tmp_path / 'openpi'}"


RENAMING = "rename=actions:action,image:observation/image,state:observation/state"


def test_the_added_row_has_zeros_for_actions_before_and_after_they_are_renamed(name: str) -> None:
    for source, path in (
        (open_source(name), "actions"),
        (apply_transform(open_source(name), transform_of(RENAMING)), "action"),
    ):
        for episode in source:
            assert not episode.columns[path][-1].any()
            assert episode.columns[path][:-1].any(1).all()


def test_what_errors_and_validate_propose_can_be_pushed(name: str) -> None:
    with pytest.raises(ViewError, match=f"--transform {re.escape(RENAMING)}$"):
        push(Server(), open_source(name))
    shown = CliRunner().invoke(cli, ["validate", name], catch_exceptions=False).output
    words = shlex.split(shown.rpartition("next:")[2])
    assert words[words.index("--transform") + 1] == RENAMING
    report = push(Server(), open_source(name), transform=RENAMING)
    assert (report.episodes_pushed, report.items_confirmed) == (2, 3 + 5)
