"""LeRobot's datasets: what it records is read here as it reads it, and what is written here it loads.

Runs where lerobot is installed; what it makes is made in the version that is there. Datasets of other versions are in tests/data/lerobot.
"""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lerobot")

from lerobot.datasets import lerobot_dataset
from pyarrow import parquet

import rlds2reverb
from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from tests.data import make_lerobot
from tests.support import strategies
from tests.support.formats.lerobot import written

DATA = Path(__file__).parents[2] / "data" / "lerobot"
VERSION = lerobot_dataset.CODEBASE_VERSION
NAME = "v21" if VERSION == "v2.1" else "v30"

HAS_DEPTH = find_spec("lerobot.datasets.depth_utils") is not None
OTHERS = [] if VERSION == "v2.1" else ["v30_old", "v30_merged", *(["v30_depth"] if HAS_DEPTH else [])]

needs_depth = pytest.mark.skipif(not HAS_DEPTH, reason="a lerobot with depth maps")
needs_v3 = pytest.mark.skipif(VERSION != "v3.0", reason="a lerobot that reads version 3.0")


def loaded(folder: Path) -> list[Any]:
    """Every row as LeRobot gives it."""
    read = lerobot_dataset.LeRobotDataset("test/it", root=folder, video_backend="pyav")
    return [read[row] for row in range(len(read))]


def rows_of(episodes: list[Episode], path: str) -> Any:
    return np.concatenate([episode.columns[path][:-1] for episode in episodes])


def as_pixels(image: Any) -> Any:
    """[channels, height, width] of floats -> [height, width, channels] of uint8."""
    return np.rint(image.numpy().transpose(1, 2, 0) * 255).astype(np.uint8)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "dataset"
    make_lerobot.make(NAME, folder)
    return folder


@pytest.mark.parametrize("folder", [None, *OTHERS])
def test_rows_are_those_that_lerobot_gives(folder: str | None, recorded: Path, tmp_path: Path) -> None:
    where = recorded if folder is None else shutil.copytree(DATA / folder, tmp_path / "copy")
    episodes = list(open_source(f"lerobot:{where}?task=column"))
    rows = loaded(Path(where))
    assert [episode.faults for episode in episodes] == [()] * len(episodes)
    assert sum(len(episode) - 1 for episode in episodes) == len(rows)
    tasks = rows_of(episodes, "language_instruction")
    assert [row["task"].encode() for row in rows] == list(tasks)
    features = json.loads((Path(where) / "meta/info.json").read_text())["features"]
    for name, path in make_lerobot.COLUMNS.items():
        if name in features and features[name]["dtype"] != "video":
            compare(rows, name, rows_of(episodes, path))
        elif name in features and name != "observation.images.far":
            found = rows_of(episodes, path)
            assert all((as_pixels(row[name]) == image).all() for row, image in zip(rows, found))


def compare(rows: list[Any], name: str, found: Any) -> None:
    for row, image in zip(rows, found):
        told = row[name]
        if isinstance(told, str):
            assert told.encode() == image
        elif name == "observation.images.top":
            assert (as_pixels(told) == image).all()
        elif name == "observation.depth":
            assert np.allclose(told.numpy()[0] / 1000, image[..., 0])
        else:
            assert (
                told.numpy().reshape(image.shape) == image.astype(told.numpy().dtype)
            ).all()  # lists of float64 come as float32


@needs_v3
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_stale_metadata_are_those_that_lerobot_gives(seed: int, tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "v30_merged", tmp_path / "stale")
    rng = np.random.default_rng(seed)
    for path in (folder / "meta/episodes").rglob("*.parquet"):
        table = parquet.read_table(path)
        for name in ("data/file_index", "dataset_from_index", "dataset_to_index"):
            scrambled = rng.permutation(table[name].to_numpy())
            table = table.set_column(table.column_names.index(name), name, [scrambled])
        parquet.write_table(table, path)
    rows = loaded(folder)
    episodes = list(open_source(f"lerobot:{folder}"))
    for name in ("action", "observation.images.top"):
        compare(rows, name, rows_of(episodes, make_lerobot.COLUMNS[name]))
    numbers = [int(episode.metadata["episode_index"]) for episode in episodes for _ in episode.columns["action"][:-1]]
    assert [row["episode_index"].item() for row in rows] == numbers


@needs_depth
def test_codes_of_depth_become_the_metres_that_lerobot_gives() -> None:
    from lerobot.datasets import depth_utils

    codes = rows_of(list(open_source(f"lerobot:{DATA / 'v30_depth'}")), "observation/images/far")
    told = np.stack([row["observation.images.far"].numpy()[0] for row in loaded(DATA / "v30_depth")])
    ours = depth_utils.dequantize_depth(codes, output_tensor=False)
    assert np.abs(ours.reshape(told.shape).astype(np.float64) - told).max() <= 1


@needs_v3
@pytest.mark.parametrize("options", ["", "?last_step=keep", "?images=arrays,fps=5,robot=arm,file_mb=1"])
def test_what_is_written_lerobot_loads(options: str, tmp_path: Path) -> None:
    episodes = list(open_source(f"lerobot:{DATA / 'v21'}"))
    written(tmp_path / "out", episodes, options, synced=2)
    rows = loaded(tmp_path / "out")
    keeps = "keep" in options
    for name in make_lerobot.COLUMNS.keys() & rows[0].keys():
        path = make_lerobot.COLUMNS[name]
        wanted = np.concatenate([episode.columns[path] for episode in episodes]) if keeps else rows_of(episodes, path)
        if "arrays" not in options:
            compare_written(rows, name, wanted)
    meta = lerobot_dataset.LeRobotDatasetMetadata("test/it", root=tmp_path / "out")
    assert meta.total_episodes == len(episodes)
    assert meta.stats is not None
    assert set(meta.stats) == {name for name, feature in meta.features.items() if feature["dtype"] != "string"}
    assert meta.stats["action"]["mean"].shape == (3,)


def compare_written(rows: list[Any], name: str, wanted: Any) -> None:
    assert len(rows) == len(wanted)
    if "images" in name:
        assert all((as_pixels(row[name]) == image).all() for row, image in zip(rows, wanted))
    else:
        compare(rows, name, wanted)


@needs_v3
def test_the_statistics_are_those_of_lerobot(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    written(tmp_path / "out", [strategies.episode(rng, 200, episode_id=str(number)) for number in range(3)])
    columns = lerobot_dataset.LeRobotDatasetMetadata("test/it", root=tmp_path / "out")
    from lerobot.datasets import compute_stats as stats_of

    read = list(open_source(f"lerobot:{tmp_path / 'out'}"))
    of_each = [stats_of.get_feature_stats(episode.columns["action"][:-1], axis=0, keepdims=False) for episode in read]
    wanted = stats_of.aggregate_stats([{"action": stats} for stats in of_each])["action"]
    for key, value in wanted.items():
        assert np.allclose(columns.stats["action"][key], value, rtol=1e-2, atol=2e-2), key


@needs_v3
def test_lerobot_goes_on_with_what_was_written(tmp_path: Path) -> None:
    resume = getattr(lerobot_dataset.LeRobotDataset, "resume", None)
    if resume is None:
        pytest.skip("a lerobot that goes on with a dataset")
    written(tmp_path / "out", list(open_source(f"lerobot:{DATA / 'v30'}?videos=skip,done_means=nothing")))
    more = resume("test/it", root=tmp_path / "out")
    for row in range(3):
        frame = {key: value for key, value in make_lerobot.frame(5, row, 3).items() if key in more.features}
        more.add_frame({**frame, "task": "another"})
    more.save_episode()
    more.finalize()
    assert len(loaded(tmp_path / "out")) == 16 + 3
    assert [len(episode) for episode in open_source(f"lerobot:{tmp_path / 'out'}")] == [6, 8, 5, 4]


def test_chunks_are_those_of_delta_timestamps(recorded: Path) -> None:
    """Values and masks of every row, at both ends of each episode; by seconds there and here, in order."""
    step = 1 / json.loads((recorded / "meta/info.json").read_text())["fps"]
    around = [-2 * step, -step, 0.0, step]
    seconds = {"observation.state": around, "observation.images.top": around, "action": [i * step for i in range(4)]}
    theirs = lerobot_dataset.LeRobotDataset("test/it", root=recorded, video_backend="pyav", delta_timestamps=seconds)
    view = {"view": "chunk", "history": around, "horizon": seconds["action"], "short": "pad"}
    batches = rlds2reverb.local(f"lerobot:{recorded}?videos=skip", view=view, batch_size=1)
    count = pads = 0
    for number, (item, _) in enumerate(batches):
        row, count = theirs[number], number + 1
        observation = item["observation"]
        np.testing.assert_array_equal(item["action"][0], row["action"].numpy())
        np.testing.assert_array_equal(observation["state"][0], row["observation.state"].numpy())
        for own, image in zip(observation["images"]["top"][0], row["observation.images.top"]):
            np.testing.assert_array_equal(own, as_pixels(image))
        for name, mask in (
            ("observation.state", "observation"),
            ("observation.images.top", "observation"),
            ("action", "action"),
        ):
            np.testing.assert_array_equal(item[f"{mask}_is_pad"][0], row[f"{name}_is_pad"].numpy())
            pads += int(row[f"{name}_is_pad"].sum())
    assert count == len(theirs)
    assert pads


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "quantiles"])
def test_it_normalises_by_statistics_of_here_as_a_normalizer_does(tmp_path: Path, mode: str) -> None:
    processor = pytest.importorskip("lerobot.processor.normalize_processor")
    types = pytest.importorskip("lerobot.configs.types")
    torch = pytest.importorskip("torch")
    actions = np.random.default_rng(0).normal(2, 3, (500, 4)).astype(np.float32)
    columns = {**strategies.episode(np.random.default_rng(0), 500).columns, "action": actions}
    rlds2reverb.statistics([Episode(columns, {}, "e")]).write(tmp_path / "stats.json")
    stats = json.loads((tmp_path / "stats.json").read_text())
    action = types.FeatureType.ACTION
    step = processor.NormalizerProcessorStep(
        features={"action": types.PolicyFeature(action, (4,))},
        norm_map={action: types.NormalizationMode[mode.upper()]},
        stats={name: {key: np.array(value) for key, value in entry.items()} for name, entry in stats.items()},
    )
    normal = step._normalize_action(torch.from_numpy(actions), inverse=False)
    normalizer = rlds2reverb.Normalizer(tmp_path / "stats.json", mode)["action"]
    np.testing.assert_allclose(normalizer.normalize(actions), normal.numpy(), atol=1e-5)
    np.testing.assert_allclose(normalizer.denormalize(normal).numpy(), actions, atol=1e-5)
