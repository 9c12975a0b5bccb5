"""Options, losses, files of a size, and the way on after a kill."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content, UnfitEpisode
from rlds2reverb.formats.lerobot.write import open_lerobot
from rlds2reverb.specs import ArraySpec
from tests.contract.source_cases.lerobot import opened
from tests.support import strategies
from tests.support.formats.lerobot import content_of, written
from tests.support.profiles import examples


def episodes(count: int = 5, rows: int = 6) -> list[Episode]:
    rng = np.random.default_rng(1)
    return [strategies.episode(rng, rows + at, episode_id=str(at)) for at in range(count)]


def digest(folder: Path) -> dict[str, Any]:
    """What the dataset holds."""
    info = json.loads((folder / "meta/info.json").read_text())
    return {
        "info": info,
        "episodes": [episode.columns["action"].tolist() for episode in open_source(f"lerobot:{folder}")],
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lerobot:", "expected lerobot:PATH"),
        ("lerobot:x?fps=0", "at least 1"),
        ("lerobot:x?fps=fast", "whole number"),
        ("lerobot:x?robot=", "expected a text"),
        ("lerobot:x?speed=3", "unknown option"),
        ("lerobot:x?last_step=maybe", "expected drop or keep"),
    ],
)
def test_names_that_make_no_sense_are_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_destination(name)


def test_a_task_that_is_no_text_is_refused(tmp_path: Path) -> None:
    destination = open_lerobot(f"{tmp_path / 'out'}?task=reward")
    with pytest.raises(ConfigError, match='task "reward"'):
        destination.losses(content_of(episodes(1)[0]))


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (ArraySpec((None, 2), np.dtype("float32")), "column"),
        (ArraySpec((2,), np.dtype(object)), "column"),
        (ArraySpec((2, 0), np.dtype("float32")), "column"),
        (ArraySpec((1,) * 6, np.dtype("float32")), "column"),
        (ArraySpec((), np.dtype("complex64")), "column"),
        (ArraySpec((), np.dtype(ml_dtypes.bfloat16)), "column"),
    ],
)
def test_columns_that_no_feature_holds_are_told(spec: ArraySpec, code: str, tmp_path: Path) -> None:
    destination = open_lerobot(f"{tmp_path / 'out'}?fps=5")
    content = Content(
        "test",
        {"x": spec, "action": ArraySpec((2,), np.dtype("float32"))},
        {"shape": ArraySpec((2,), np.dtype("int8"))},
    )
    assert [(loss.code, loss.path) for loss in destination.losses(content)] == [
        (code, "x"),
        ("feature", "metadata/shape"),
    ]


def test_what_is_lost_of_the_last_step_is_told_for_each_episode(tmp_path: Path) -> None:
    first, second = episodes(2)
    repeated = second.with_columns(
        **{
            path: np.concatenate([column[:-1], column[-2:-1]])
            for path, column in second.columns.items()
            if path == "observation"
        },
        action=np.concatenate([second.columns["action"][:-1], np.zeros_like(second.columns["action"][:1])]),
    )
    told = written(tmp_path / "out", [first, repeated])
    assert [(loss.code, loss.path) for loss in told] == [
        ("time", "timestamp"),
        ("last_observation", "observation"),
        ("last_row", "action"),
    ]


def test_text_that_is_no_utf8_is_told(tmp_path: Path) -> None:
    (one,) = episodes(1, 3)
    column = np.array([b"a", b"\xff", b"c"], object)
    told = written(tmp_path / "out", [one.with_columns(note=column)], "?last_step=keep")
    assert [(loss.code, loss.path) for loss in told] == [("time", "timestamp"), ("text", "note")]
    assert next(iter(open_source(f"lerobot:{tmp_path / 'out'}"))).columns["note"].tolist() == [b"a", b"\\xff", b"c"]


def test_files_have_about_the_size_that_is_asked_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    specs: dict[str, Any] = {"observation": (np.dtype("float64"), (3000,)), "action": (np.dtype("float32"), ())}
    made = [strategies.episode(rng, 30, specs, episode_id=str(at)) for at in range(6)]
    written(tmp_path / "out", made, "?file_mb=1,last_step=keep")
    files = sorted((tmp_path / "out/data").rglob("*.parquet"))
    assert len(files) == 3
    assert [parquet.read_metadata(file).num_row_groups for file in files] == [2, 2, 2]
    assert all(
        (found.columns["observation"] == episode.columns["observation"]).all()
        for found, episode in zip(open_source(f"lerobot:{tmp_path / 'out'}"), made)
    )


def test_the_time_is_that_of_the_timestamps(tmp_path: Path) -> None:
    made = [
        episode.with_columns(timestamp=(np.arange(len(episode)) / 25).astype(np.float32)) for episode in episodes(2)
    ]
    assert "time" not in [loss.code for loss in written(tmp_path / "out", made)]
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["fps"] == 25


@pytest.mark.parametrize("at", range(6))
def test_a_conversion_goes_on_where_it_was_synced(at: int, tmp_path: Path) -> None:
    made = [
        Episode(episode.columns, {"language_instruction": f"task {number % 3}"}, episode.id)
        for number, episode in enumerate(episodes())
    ]
    written(tmp_path / "whole", made)
    destination, content, work = open_lerobot(str(tmp_path / "out")), content_of(made[0]), tmp_path / "out"
    work.mkdir()
    killed, encode = destination.sink(work, content, None), destination.encoder(content)
    for episode in made[:at]:
        killed.write(encode(episode))
    state = json.loads(json.dumps(killed.sync()))
    for episode in made[at:]:
        killed.write(encode(episode))  # on disk or not, none of it counts
    if at % 2:
        killed.sync()
    killed.close()
    sink = destination.sink(work, content, state)
    for episode in made[at:]:
        sink.write(encode(episode))
    last = json.loads(json.dumps(sink.sync()))
    sink.close()
    for _ in range(2):
        again = destination.sink(work, content, last)
        again.finish()
        again.close()
        again.close()
    assert digest(work) == digest(tmp_path / "whole")
    assert not list(work.rglob("*.unfinished"))


def test_statistics_are_those_of_all_rows(tmp_path: Path) -> None:
    made = episodes(3, 50)
    written(tmp_path / "out", made, "?last_step=keep")
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["action"]
    rows = np.concatenate([episode.columns["action"] for episode in made]).astype(np.float64)
    for name, wanted in (("mean", rows.mean(0)), ("std", rows.std(0)), ("min", rows.min(0)), ("max", rows.max(0))):
        assert np.allclose(stats[name], wanted)
    assert stats["count"] == [len(rows)]
    assert np.allclose(stats["q50"], np.median(rows, 0), atol=0.3)


def test_statistics_are_finite_numbers(tmp_path: Path) -> None:
    made = [
        episode.with_columns(odd=np.array([np.nan, *range(len(episode) - 1)]), even=np.arange(len(episode)))
        for episode in episodes(2)
    ]
    written(tmp_path / "out", made)

    def refused(name: str) -> None:
        raise AssertionError(name)

    told = json.loads((tmp_path / "out/meta/stats.json").read_text(encoding="utf-8"), parse_constant=refused)
    assert "even" in told
    assert "odd" not in told


def test_the_task_is_beside_a_feature_of_its_name(tmp_path: Path) -> None:
    (one,) = episodes(1)
    described = replace(one, metadata={"language_instruction": b"pick", "other": b"place"})
    written(tmp_path / "out", [described], "?task=other")
    back = next(iter(open_source(f"lerobot:{tmp_path / 'out'}"))).metadata
    assert (back["language_instruction"], back["other"], back["task"]) == (b"pick", b"place", b"place")


def test_a_copy_says_of_itself_what_the_dataset_says(tmp_path: Path) -> None:
    made = [
        episode.with_columns(**{"observation/arm": np.zeros((len(episode), 2), np.float32)}) for episode in episodes(3)
    ]
    made = [
        Episode(
            {path: episode.columns[path] for path in episode.columns if path != "observation"},
            episode.metadata,
            episode.id,
        )
        for episode in made
    ]
    written(tmp_path / "first", made, "?fps=30,robot=so101")
    path = tmp_path / "first/meta/info.json"
    info = json.loads(path.read_text())
    names = {"motors": ["shoulder", "wrist"]}
    info["features"]["observation.arm"]["names"] = names
    path.write_text(json.dumps(info | {"of_our_own": {"rooms": 2}, "splits": {"train": "0:2", "test": "2:3"}}))
    source = f"lerobot:{tmp_path / 'first'}"
    report = convert(f"{source}?episodes=:2", f"lerobot:{tmp_path / 'copy'}")
    copy = json.loads((tmp_path / "copy/meta/info.json").read_text())
    assert (copy["fps"], copy["robot_type"], copy["of_our_own"], copy["total_episodes"]) == (
        30,
        "so101",
        {"rooms": 2},
        2,
    )
    assert copy["features"]["observation.arm"]["names"] == names
    assert copy["splits"] == {"train": "0:2"}
    lost = [(loss.code, loss.path) for loss in report.losses]
    assert ("time", "timestamp") not in lost
    assert [path for code, path in lost if code == "dataset_metadata"] == ["dataset/splits"]
    times = parquet.read_table(tmp_path / "copy/data/chunk-000/file-000.parquet")["timestamp"].to_numpy()
    assert times[1] == np.float32(1 / 30)

    convert(source, f"lerobot:{tmp_path / 'other'}?fps=5,robot=panda")
    other = json.loads((tmp_path / "other/meta/info.json").read_text())
    assert (other["fps"], other["robot_type"]) == (5, "panda")

    report = convert(
        source,
        f"lerobot:{tmp_path / 'fewer'}",
        transform={"drop": ["observation/arm"], "rename": {"reward": "observation/r"}},
    )
    assert "dataset/names/observation/arm" in [loss.path for loss in report.losses]


# What is written is read back as it was: every row, or all but the last, whose loss is told.

NUMBERS = [
    np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
]
NUMBERS += [np.dtype(name) for name in ("float16", "float32", "float64")]

KINDS = st.tuples(st.sampled_from(NUMBERS), st.lists(st.integers(1, 3), max_size=5).map(tuple))
TEXTS = st.just((np.dtype(object), ()))
IMAGES = st.tuples(st.just(np.dtype("uint8")), st.sampled_from([(4, 5, 3), (3, 3, 1)]))
PATHS = st.sampled_from(
    ["observation/a", "observation/b.c", "observation/d/e", "observation/image", "extra", "info/x", "note"]
)


@st.composite
def datasets(draw: st.DrawFn) -> list[Episode]:
    """Episodes of one content; texts are UTF-8."""
    specs = {"action": draw(KINDS), **draw(st.dictionaries(PATHS, st.one_of(KINDS, TEXTS, IMAGES), max_size=4))}
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    lengths = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    made = [strategies.episode(rng, length, specs, draw(st.booleans()), str(at)) for at, length in enumerate(lengths)]
    tasks = draw(st.sampled_from([None, "column", "metadata"]))
    return [with_text(rng, episode, tasks) for episode in made]


def with_text(rng: np.random.Generator, episode: Episode, tasks: str | None) -> Episode:
    columns = {path: held(column) for path, column in episode.columns.items()}
    task = f"täsk {rng.integers(3)}".encode()
    metadata: dict[str, Any] = {
        "number": np.int32(rng.integers(100)),
        "who": b"someone",
        "weight": np.float64(rng.normal()),
    }
    if tasks == "metadata":
        metadata["language_instruction"] = task
    if tasks == "column":
        columns["language_instruction"] = np.array([task] * len(episode), object)
    return Episode(columns, metadata, episode.id)


def held(column: Any) -> Any:
    """UTF-8, and whole numbers that LeRobot reads."""
    if column.dtype != object:
        return column >> np.uint64(1) if column.dtype == np.uint64 else column
    texts = np.empty(column.shape, object)
    texts[:] = [value.hex().encode() for value in column]
    return texts


def assert_same(found: Episode, wanted: Episode, rows: slice) -> None:
    assert not found.faults
    assert set(wanted.columns) <= set(found.columns)
    for path, column in wanted.columns.items():
        one = found.columns[path][rows]
        assert (one.dtype, one.shape) == (column[rows].dtype, column[rows].shape), path
        assert (
            one.tolist() == column[rows].tolist() if one.dtype == object else one.tobytes() == column[rows].tobytes()
        ), path


def ours(found: Episode) -> dict[str, Any]:
    return {name: value for name, value in found.metadata.items() if name not in ("episode_index", "timestamp")}


def read_back(episodes: list[Episode], options: str, synced: int) -> tuple[list[Episode], list[Any]]:
    folder = Path(mkdtemp())
    try:
        losses = written(folder / "out", episodes, options, synced)
        return list(open_source(f"lerobot:{folder / 'out'}")), losses
    finally:
        shutil.rmtree(folder)


@examples(10)
@given(datasets(), st.integers(1, 3))
def test_steps_that_are_all_kept_come_back(episodes: list[Episode], synced: int) -> None:
    back, losses = read_back(episodes, "?last_step=keep", synced)
    assert {loss.code for loss in losses} - {"float64"} == {"time"}
    assert len(back) == len(episodes)
    for found, wanted in zip(back, episodes):
        assert_same(found, wanted, slice(None))
        without_task = {name: value for name, value in ours(found).items() if name in wanted.metadata}
        assert without_task == dict(wanted.metadata)
        assert set(found.columns) - set(wanted.columns) <= {"timestamp"}


@examples(10)
@given(datasets())
def test_all_but_the_last_row_comes_back_and_the_end(episodes: list[Episode]) -> None:
    back, losses = read_back(episodes, "", 2)
    assert {loss.code for loss in losses} <= {"time", "float64", "last_observation", "last_row"}
    for found, wanted in zip(back, episodes):
        assert_same(found, wanted, slice(0, -1))
        assert len(found) == len(wanted)
        assert found.columns["is_terminal"].tolist() == wanted.columns["is_terminal"].tolist()


@pytest.mark.parametrize("name", ["v21", "v30", "v30_old"])
def test_a_dataset_of_lerobot_comes_back_whole(name: str, tmp_path: Path) -> None:
    episodes = list(opened(name))
    losses = written(tmp_path / "out", episodes)
    told = [(loss.code, loss.path) for loss in losses if loss.code != "float64"]
    assert told == [("renumbered", "metadata/episode_index")]
    for found, wanted in zip(open_source(f"lerobot:{tmp_path / 'out'}"), episodes):
        assert_same(found, wanted, slice(None))
        assert set(found.columns) == set(wanted.columns)
        assert dict(found.metadata) == dict(wanted.metadata)


def test_a_number_that_lerobot_cannot_read_is_refused(tmp_path: Path) -> None:
    """LeRobot makes tensors of Python's numbers, which are int64."""
    columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "observation": (np.dtype("uint64"), ()),
        "action": (np.dtype("float32"), (2,)),
    }
    episode = strategies.episode(np.random.default_rng(1), 3, columns)
    for number, refused in (((1 << 63) - 1, False), (1 << 63, True)):
        column = np.full(3, number, np.uint64)
        if not refused:
            written(tmp_path / str(number), [episode.with_columns(observation=column)])
            continue
        with pytest.raises(
            UnfitEpisode, match=r"'observation', 'has 9,223,372,036,854,775,808.*--transform drop=observation"
        ):
            written(tmp_path / str(number), [episode.with_columns(observation=column)])


def test_images_as_files_come_back_as_they_were(tmp_path: Path) -> None:
    source = opened("v21", "?videos=skip").encoded(["observation/images/top"])
    episodes, destination = list(source), open_lerobot(str(tmp_path / "out"))
    content = content_of(episodes[0])
    spec = source.spec()["observation"]["images"]["top"]
    content = type(content)("test", {**content.columns, "observation/images/top": spec}, content.metadata)
    assert list(destination.held_files(content.columns, source.images())) == ["observation/images/top"]
    (tmp_path / "out").mkdir()
    sink = destination.sink(tmp_path / "out", content, None)
    for episode in episodes:
        sink.write(destination.encoder(content)(episode))
    sink.sync()
    sink.finish()
    back = open_source(destination.source(tmp_path / "out"))
    for found, wanted in zip(back.encoded(["observation/images/top"]), episodes):
        assert_same(found, wanted, slice(None))
