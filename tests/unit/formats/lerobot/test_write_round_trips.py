"""What is written is read back as it was: every row, or all but the last, whose loss is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from rlds2reverb.formats.destination import UnfitEpisode
from rlds2reverb.formats.lerobot.write import open_lerobot
from tests.contract.source_cases.lerobot import opened
from tests.support import strategies
from tests.support.formats.lerobot import content_of, written
from tests.support.profiles import examples

NUMBERS = [np.dtype(one) for one in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")]
NUMBERS += [np.dtype(one) for one in ("float16", "float32", "float64")]

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
    return [with_text(rng, one, tasks) for one in made]


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
