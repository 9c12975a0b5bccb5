"""Videos that we write, read by LeRobot itself: every frame, time, task and statistic; and a policy trains on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lerobot", minversion="0.6")

import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from pyarrow import parquet

import rlds2reverb
from rlds2reverb.episode import Episode
from rlds2reverb.formats.lerobot.clips import VideoEncoding
from rlds2reverb.formats.lerobot.plan import LeRobotChoices
from rlds2reverb.formats.lerobot.write import LeRobotDestination

FPS = 10
CAMERAS = {"observation.image": "observation/image", "observation.wrist": "observation/wrist"}
CODECS = ("h264", "av1")
CHUNK = 4


def scene(seed: int, rows: int, height: int, width: int) -> Any:
    """A picture that moves, with noise."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[:height, :width]
    waves = np.stack([128 + 90 * np.sin(across / 9 + seed), 128 + 90 * np.cos(down / 7), across * 255 / width], -1)
    moved = np.stack([np.roll(waves, 8 * row, 1) for row in range(rows)])
    return np.clip(moved + rng.normal(0, 3, moved.shape), 0, 255).astype(np.uint8)


def episode(number: int) -> Episode:
    """Its rows all hold an action: one more stands behind the last, as in RLDS."""
    rows, rng = 12 + 3 * number, np.random.default_rng(number)
    at = np.arange(rows)
    image, wrist = scene(number, rows, 96, 320), scene(number + 50, rows, 64, 96)
    state, action = rng.normal(size=(2, rows, 6)).astype(np.float32)
    columns = {"observation/image": image, "observation/wrist": wrist, "observation/state": state, "action": action}
    flags = {"is_first": at == 0, "is_last": at == rows - 1, "is_terminal": at == rows - 1}
    return Episode({**columns, **flags}, {"language_instruction": f"task {number % 3}".encode()}, str(number))


EPISODES = [episode(number) for number in range(6)]


@pytest.fixture(scope="module", params=CODECS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several episodes in a file, and several files."""
    place = tmp_path_factory.mktemp("videos") / str(request.param)
    choices = LeRobotChoices(fps=FPS, video=VideoEncoding(request.param), video_bytes=30_000)
    report = rlds2reverb.convert(EPISODES, LeRobotDestination(f"lerobot:{place}", place, choices), verify=True)
    assert [name.partition(" ")[0] for name in report.verified_by] == ["rlds2reverb", "lerobot"]
    assert set(report.psnr) == set(CAMERAS.values())
    assert len(list(place.glob("videos/observation.image/*/*.mp4"))) > 1
    return place


def test_every_row_of_every_window_is_that_of_its_episode(folder: Path) -> None:
    offsets = [-1, 0, 1]
    windows = {name: [offset / FPS for offset in offsets] for name in CAMERAS}
    windows["action"] = [offset / FPS for offset in range(CHUNK)]
    dataset = LeRobotDataset("test/videos", root=folder, video_backend="pyav", delta_timestamps=windows)
    index = 0
    for number, written in enumerate(EPISODES):
        rows = len(written) - 1
        for row in range(rows):
            item = dataset[index]
            assert (item["index"], item["episode_index"], item["frame_index"]) == (index, number, row)
            assert item["timestamp"].item() == np.float32(row / FPS)
            assert item["task"].encode() == written.metadata["language_instruction"]
            places = np.clip([row + offset for offset in offsets], 0, rows - 1)
            for name, path in CAMERAS.items():
                frames = np.rint(item[name].numpy().transpose(0, 2, 3, 1) * 255)
                errors = np.square(frames - written.columns[path][places]).mean((1, 2, 3))
                assert errors.max() < 600, (number, row, name)  # the next row is 1,000 away or more
                padded = [not 0 <= row + offset < rows for offset in offsets]
                assert item[f"{name}_is_pad"].tolist() == padded
            actions = np.minimum(row + np.arange(CHUNK), rows - 1)
            np.testing.assert_array_equal(item["action"].numpy(), written.columns["action"][actions])
            index += 1
    assert index == len(dataset)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows by LeRobot's own writer."""
    place = tmp_path_factory.mktemp("recorded") / "set"
    features: dict[str, Any] = {
        name: {"dtype": "video", "shape": EPISODES[0].columns[path].shape[1:], "names": ["height", "width", "channels"]}
        for name, path in CAMERAS.items()
    }
    features |= {name: {"dtype": "float32", "shape": (6,), "names": None} for name in ("observation.state", "action")}
    dataset = LeRobotDataset.create("test/recorded", FPS, features, root=place, use_videos=True)
    for written in EPISODES:
        for row in range(len(written) - 1):
            item = {name: written.columns[name.replace(".", "/")][row] for name in features}
            dataset.add_frame({**item, "task": written.metadata["language_instruction"].decode()})
        dataset.save_episode()
    dataset.finalize()
    return place


def test_statistics_and_info_are_those_of_lerobots_writer(folder: Path, recorded: Path) -> None:
    """Moments to what float32 sums leave; quantiles within two of the 5,000 bins that LeRobot reads them off."""
    ours, theirs = (json.loads((place / "meta/stats.json").read_text()) for place in (folder, recorded))
    assert set(theirs) <= set(ours)
    for name, stats in theirs.items():
        assert set(ours[name]) == set(stats)
        assert ours[name]["count"] == stats["count"]
        reach = np.subtract(stats["max"], stats["min"])
        for key, values in stats.items():
            bound = 2 * reach / 5000 if key.startswith("q") else 5e-4 * reach
            assert np.shape(ours[name][key]) == np.shape(values)
            assert (np.abs(np.subtract(ours[name][key], values)) <= bound + 1e-6).all(), (name, key)
    tables = [parquet.read_table(place / "meta/episodes").to_pydict() for place in (folder, recorded)]
    for name in (
        name for name in tables[1] if name.startswith("stats/") and name.endswith(("/mean", "/std", "/count"))
    ):
        for mine, other in zip(*(table[name] for table in tables)):
            np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4, err_msg=name)
    for name in ("tasks", "length", "dataset_from_index", "dataset_to_index"):
        assert tables[0][name] == tables[1][name]
    infos = [json.loads((place / "meta/info.json").read_text()) for place in (folder, recorded)]
    for name in ("codebase_version", "fps", "total_episodes", "total_frames", "total_tasks", "video_path", "data_path"):
        assert infos[0][name] == infos[1][name]
    for name in CAMERAS:
        entries = [info["features"][name] for info in infos]
        assert [entry["dtype"] for entry in entries] == ["video", "video"]
        if folder.name == "av1":  # the codec of LeRobot's default
            about = {key: value for key, value in entries[0]["info"].items() if key != "rlds2reverb"}
            assert about == entries[1]["info"]
        assert set(entries[1]["info"]) < set(entries[0]["info"])


def test_lerobot_records_further_episodes_into_it(tmp_path: Path) -> None:
    rlds2reverb.convert(EPISODES[:2], f"lerobot:{tmp_path / 'set'}?video=av1,fps={FPS}")
    dataset = LeRobotDataset.resume("test/videos", root=tmp_path / "set")
    names = [name for name in dataset.features if name.startswith(("observation", "action"))]
    more = EPISODES[2]
    for row in range(len(more) - 1):
        item = {name: more.columns[name.replace(".", "/")][row] for name in names}
        dataset.add_frame({**item, "next.done": np.array([row == len(more) - 2]), "task": "task 2"})
    dataset.save_episode()
    dataset.finalize()
    read = list(rlds2reverb.open_source(f"lerobot:{tmp_path / 'set'}"))
    assert [len(found) for found in read] == [len(written) for written in EPISODES[:3]]
    for written, found in zip(EPISODES, read):
        np.testing.assert_array_equal(found.columns["action"][:-1], written.columns["action"][:-1])
        assert (
            np.square(
                found.columns["observation/image"][:-1] - written.columns["observation/image"][:-1].astype(float)
            ).mean()
            < 600
        )


def test_a_policy_trains_on_it(tmp_path: Path) -> None:
    from lerobot.configs.types import FeatureType
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.utils.feature_utils import dataset_to_policy_features

    rlds2reverb.convert(EPISODES, f"lerobot:{tmp_path / 'set'}?video=h264,fps={FPS}")
    torch.manual_seed(0)
    windows = {"action": [offset / FPS for offset in range(CHUNK)]}
    dataset = LeRobotDataset("test/videos", root=tmp_path / "set", video_backend="pyav", delta_timestamps=windows)
    features = dataset_to_policy_features(dataset.meta.features)
    config = ACTConfig(
        input_features={name: feature for name, feature in features.items() if name in ("observation.wrist", "observation.state")},
        output_features={name: feature for name, feature in features.items() if feature.type is FeatureType.ACTION},
        chunk_size=CHUNK, n_action_steps=CHUNK, dim_model=32, n_heads=2, dim_feedforward=64, n_encoder_layers=1,
        pretrained_backbone_weights=None, use_vae=False, device="cpu",
    )  # fmt: skip
    policy = ACTPolicy(config)
    prepare, _ = make_pre_post_processors(config, dataset_stats=dataset.meta.stats)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)
    losses = []
    for _ in range(2):
        for batch in loader:
            loss, _about = policy.forward(prepare(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
