"""Files of statistics are as each system has them, and come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.numbers.columns import QUANTILES
from rlds2reverb.numbers.statistics import DatasetStatistics, StatisticsBuilder
from rlds2reverb.specs import column_spec

RNG = np.random.default_rng(1)
COLUMNS: dict[str, Array] = {
    "action": RNG.normal(size=(60, 7)).astype(np.float32),
    "observation/state": RNG.normal(size=(60, 8)).astype(np.float32),
    "observation/image": RNG.integers(0, 256, (60, 8, 9, 3)).astype(np.uint8),
    "observation/grid": RNG.normal(size=(60, 4, 2)).astype(np.float32),
    "reward": RNG.normal(size=60).astype(np.float32),
}


@pytest.fixture(scope="module")
def made() -> DatasetStatistics:
    builder = StatisticsBuilder({path: column_spec(column) for path, column in COLUMNS.items()}, images=True)
    builder.add(COLUMNS, 60)
    return builder.build("tfds:bridge_orig?split=train")


def written(made: DatasetStatistics, path: Path, form: str = "", **names: str) -> Any:
    made.write(path, form, names)
    return json.loads(path.read_text())


def test_lerobots(made: DatasetStatistics, tmp_path: Path) -> None:
    document = written(made, tmp_path / "stats.json")
    assert list(document) == ["action", "observation.state", "observation.image", "observation.grid", "next.reward"]
    keys = {"min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"}
    assert all(entry.keys() == keys for entry in document.values())
    np.testing.assert_allclose(document["action"]["mean"], COLUMNS["action"].astype(np.float64).mean(0))
    pixels = COLUMNS["observation/image"].reshape(-1, 3) / 255
    np.testing.assert_allclose(document["observation.image"]["std"], pixels.std(0).reshape(3, 1, 1))
    grid = COLUMNS["observation/grid"].reshape(-1, 2).astype(np.float64)
    np.testing.assert_allclose(document["observation.grid"]["std"], grid.std(0))
    assert document["action"]["count"] == [60] and np.shape(document["next.reward"]["q99"]) == (1,)
    read = DatasetStatistics.read(tmp_path / "stats.json")
    assert list(read) == list(made)
    assert read["observation/image"].is_image and (read["action"].count == 60).all()
    again = written(read, tmp_path / "again.json", "lerobot")
    assert again == document


def test_openpis(made: DatasetStatistics, tmp_path: Path) -> None:
    document = written(made, tmp_path / "norm_stats.json")
    assert list(document) == ["norm_stats"]
    assert list(document["norm_stats"]) == ["actions", "state", "observation/grid", "reward"]
    assert list(document["norm_stats"]["state"]) == ["mean", "std", "q01", "q99"]
    read = DatasetStatistics.read(tmp_path / "norm_stats.json")
    np.testing.assert_array_equal(read["observation/state"].quantiles[0.99], made["observation/state"].quantiles[0.99])
    assert np.isnan(read["action"].min).all() and (read["action"].count == 0).all()
    named = written(made, tmp_path / "named.json", "openpi", state="observation/grid")
    np.testing.assert_allclose(named["norm_stats"]["state"]["mean"], document["norm_stats"]["observation/grid"]["mean"])


def test_openvlas_and_octos(made: DatasetStatistics, tmp_path: Path) -> None:
    mask = [True] * 6 + [False]
    document = written(made.with_mask("action", mask), tmp_path / "dataset_statistics.json")
    assert list(document) == ["bridge_orig"]
    entry = document["bridge_orig"]
    assert list(entry) == ["action", "proprio", "num_transitions", "num_trajectories"]
    assert (
        list(entry["action"]) == ["mean", "std", "max", "min", "q01", "q99", "mask"] and entry["action"]["mask"] == mask
    )
    assert (entry["num_transitions"], entry["num_trajectories"]) == (60, 1)
    read = DatasetStatistics.read(tmp_path / "dataset_statistics.json")
    assert (read.transitions, list(read), read["action"].mask.tolist()) == (60, ["action", "observation/proprio"], mask)
    flat = written(made, tmp_path / "dataset_statistics_0a1b.json")
    assert {name: flat["action"][name] for name in ("mean", "q01")} == {
        name: entry["action"][name] for name in ("mean", "q01")
    }
    np.testing.assert_array_equal(DatasetStatistics.read(tmp_path / "dataset_statistics_0a1b.json")["action"].count, 60)


def test_one_of_several_sets_is_chosen_by_name(made: DatasetStatistics, tmp_path: Path) -> None:
    path = tmp_path / "dataset_statistics.json"
    entry = written(made, path)["bridge_orig"]
    path.write_text(json.dumps({"bridge": entry, "droid": {**entry, "num_transitions": 5}}))
    assert DatasetStatistics.read(path, "droid").transitions == 5
    with pytest.raises(ConfigError, match=r"several datasets; choose dataset=... of bridge, droid"):
        DatasetStatistics.read(path)
    with pytest.raises(ConfigError, match='did you mean "droid"'):
        DatasetStatistics.read(path, "driod")


def test_without_a_state_openvlas_has_zeros(made: DatasetStatistics, tmp_path: Path) -> None:
    only = DatasetStatistics({"action": made["action"]}, "npz:/data/mine", transitions=60)
    document = written(only, tmp_path / "dataset_statistics.json")
    assert document["mine"]["proprio"]["std"] == [0.0] * 7


def test_ours_has_everything(made: DatasetStatistics, tmp_path: Path) -> None:
    written(made.with_mask("action", [True] * 7), tmp_path / "any.json")
    read = DatasetStatistics.read(tmp_path / "any.json")
    assert read.listed == made.listed and read.source == made.source
    for path, column in read.items():
        own = made[path].histograms
        assert own is not None and column.histograms is not None
        assert column.histograms.quantiles(QUANTILES).tolist() == own.quantiles(QUANTILES).tolist()


def test_what_is_no_file_of_statistics_is_refused(made: DatasetStatistics, tmp_path: Path) -> None:
    path = tmp_path / "any.json"
    document = written(made, path)
    document["columns"]["action"]["histogram"]["counts"] = "AAAA"
    other = {**document, "statistics of rlds2reverb": 2}
    for text in (
        "{}",
        '{"a": 1}',
        '{"a": {"mean": "x"}}',
        '{"norm_stats": 3}',
        json.dumps(document),
        json.dumps(other),
    ):
        path.write_text(text)
        with pytest.raises(SourceError, match=str(path)):
            DatasetStatistics.read(path)


@pytest.mark.parametrize(
    ("form", "names", "words"),
    [
        ("lerobt", {}, 'did you mean "lerobot"'),
        ("rlds2reverb", {"a": "action"}, "leave them out"),
        ("openpi", {"state": "observation/stat"}, 'did you mean "observation/state"'),
        ("octo", {"state": "action"}, "are of action and proprio"),
    ],
)
def test_what_cannot_be_written_is_refused(
    made: DatasetStatistics, tmp_path: Path, form: str, names: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        made.write(tmp_path / "file", form, names)
    assert not list(tmp_path.iterdir())


def test_openvlas_needs_one_action(made: DatasetStatistics, tmp_path: Path) -> None:
    apart = DatasetStatistics({"action/xyz": made["action"]})
    with pytest.raises(ConfigError, match="name the column: names="):
        apart.write(tmp_path / "file", "openvla")
    apart.write(tmp_path / "file", "openvla", {"action": "action/xyz"})


@pytest.mark.parametrize(
    ("form", "file", "name", "path"),
    [("lerobot", "stats.json", "observation.state", ()), ("openpi", "norm_stats.json", "state", ("norm_stats",))],
)
def test_a_name_that_is_given_wins_over_the_column_that_usually_has_it(
    tmp_path: Path, form: str, file: str, name: str, path: tuple[str, ...]
) -> None:
    columns = {"action": COLUMNS["action"], "observation/joints": 100 + COLUMNS["observation/state"]}
    columns["observation/state"] = COLUMNS["observation/state"]
    builder = StatisticsBuilder({path: column_spec(column) for path, column in columns.items()})
    builder.add(columns, 60)
    document = written(builder.build(), tmp_path / file, form, **{name: "observation/joints"})
    for key in path:
        document = document[key]
    np.testing.assert_allclose(document[name]["mean"], columns["observation/joints"].astype(np.float64).mean(0))
    assert len(document) == 2


def test_what_a_file_does_not_know_is_left_out_of_the_next(made: DatasetStatistics, tmp_path: Path) -> None:
    written(made, tmp_path / "norm_stats.json")
    read = DatasetStatistics.read(tmp_path / "norm_stats.json")  # without counts
    assert written(read, tmp_path / "again.json", "openpi") == json.loads((tmp_path / "norm_stats.json").read_text())
    assert "count" not in written(read, tmp_path / "stats.json")["action"]
    written(made, tmp_path / "dataset_statistics.json", action="action", proprio="observation/state")
    few = DatasetStatistics.read(tmp_path / "dataset_statistics.json")  # without q10, q50, q90
    few.write(tmp_path / "own.json", "rlds2reverb")
    lerobots = written(DatasetStatistics.read(tmp_path / "own.json"), tmp_path / "few.json", "lerobot")
    assert {"q01", "q99"} < lerobots["action"].keys() and "q50" not in lerobots["action"]


def test_lerobots_features_below_others_keep_their_dot(tmp_path: Path) -> None:
    numbers = {"mean": [0.0], "std": [1.0], "min": [0.0], "max": [1.0], "count": [3]}
    names = ["action", "action.gripper", "observation.state", "observation.state.joint", "observation.images.top.depth"]
    (tmp_path / "stats.json").write_text(json.dumps(dict.fromkeys(names, numbers)))
    read = DatasetStatistics.read(tmp_path / "stats.json")
    assert list(read) == [
        "action",
        "action.gripper",
        "observation/state",
        "observation/state.joint",
        "observation/images/top/depth",
    ]


def test_images_of_pixels_and_of_0_to_1_are_not_merged(made: DatasetStatistics, tmp_path: Path) -> None:
    written(made, tmp_path / "stats.json")
    with pytest.raises(ConfigError, match="images of uint8 and of float32 have other units"):
        DatasetStatistics.merge([made, DatasetStatistics.read(tmp_path / "stats.json")])
