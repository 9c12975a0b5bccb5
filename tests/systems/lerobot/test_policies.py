"""ACT and diffusion policy train on our batches, of a table and of a dataset on disk, as on LeRobot's own: same batches, same weights."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lerobot")

import torch
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.datasets.factory import resolve_delta_timestamps
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.tdmpc.configuration_tdmpc import TDMPCConfig
from torch.utils.data import DataLoader, default_collate

import rlds2reverb
from rlds2reverb import Episode
from rlds2reverb.adapters.lerobot import PolicyData, policy_view
from rlds2reverb.adapters.torch import LocalDataset, MixDataset, TableDataset
from rlds2reverb.errors import ConfigError
from rlds2reverb.views.base import spell_view
from tests.support.project import ROOT
from tests.systems.learners.servers import ONCE, signature_of
from tests.systems.lerobot import training
from tests.systems.lerobot.training import config_of, policy_of, train

EXTRAS = ["index", "language_instruction"]
POLICIES = ["act", "diffusion"]


def source_of(folder: Path) -> str:
    return f"lerobot:{folder}?reserved=columns,task=column"


def local_of(config: Any, folder: Path, batch_size: int = 8, **options: Any) -> LocalDataset:
    return LocalDataset(source_of(folder), policy_view(config, EXTRAS), batch_size, **options)


def lerobot_of(config: Any, folder: Path) -> Any:
    """LeRobot's own dataset for the policy."""
    whole = LeRobotDataset("test/policies", root=folder, video_backend="pyav")
    deltas = resolve_delta_timestamps(config, whole.meta)
    return LeRobotDataset("test/policies", root=folder, delta_timestamps=deltas, video_backend="pyav")


def check_same(batch: dict[str, Any], theirs: Any) -> None:
    """All that the batch has is LeRobot's, to the bit; and it lacks nothing but LeRobot's own counters."""
    expected = default_collate([theirs[int(row)] for row in batch["index"]])
    assert expected.keys() - batch.keys() <= {"frame_index", "episode_index", "timestamp", "task_index"}
    for name, values in batch.items():
        if name == "task":
            assert values == expected[name]
            continue
        assert (values.dtype, values.stride()) == (expected[name].dtype, expected[name].stride()), name
        assert torch.equal(values, expected[name]), name


def store(start_server: Callable[..., Any], folder: Path, config: Any, **table: Any) -> str:
    """Pushes the dataset to a server with a table for the policy; its address."""
    view = policy_view(config, EXTRAS)
    server = start_server({"name": "replay", "signature": signature_of(source_of(folder), spell_view(view)), **table})
    with rlds2reverb.connect(server.address) as client:
        assert client.push(source_of(folder), "replay", view=view).items_confirmed
    return str(server.address)


@pytest.mark.parametrize(("policy", "encoded"), [("act", ()), ("diffusion", "all")])
def test_batches_of_a_dataset_on_disk_are_lerobots(policy: str, encoded: Any, recorded: Path) -> None:
    config = config_of(policy)
    items = local_of(config, recorded, shuffle="global", encoded=encoded)
    data = PolicyData(config, items, recorded / "meta/stats.json")
    theirs, rows = lerobot_of(config, recorded), []
    for batch in DataLoader(data.dataset, batch_size=None, num_workers=2):
        check_same(batch, theirs)
        rows += batch["index"].tolist()
    kept = [length - getattr(config, "drop_n_last_frames", 0) for length in (9, 14, 5)]
    assert sorted(rows) == [start + row for start, count in zip((0, 9, 23), kept) for row in range(count)]


@pytest.mark.parametrize("policy", POLICIES)
def test_batches_of_a_table_are_lerobots(policy: str, recorded: Path, start_server: Callable[..., Any]) -> None:
    config, theirs = config_of(policy), None
    address = store(start_server, recorded, config)
    theirs = lerobot_of(config, recorded)
    data = PolicyData(config, TableDataset(address, "replay", 8, samples=24), recorded / "meta/stats.json")
    for batch in DataLoader(data.dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"):
        check_same(batch, theirs)
    with rlds2reverb.connect(address) as client, client.sample("replay", 8, samples=16) as batches:
        sampled = PolicyData(config, batches, recorded / "meta/stats.json")
        assert sampled.features == data.features
        count = 0
        for batch in sampled:
            check_same(batch, theirs)
            count += len(batch["index"])
    assert count == 16


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_batches_in_the_same_order_make_the_same_weights(
    policy: str, recorded: Path, start_server: Callable[..., Any]
) -> None:
    """From LeRobotDataset, from the dataset on disk by two workers, and from a table that hands items out in order."""
    config = config_of(policy)

    def weights(data: Any, batches: Iterable[Any]) -> dict[str, Any]:
        return train(*policy_of(config_of(policy), data), batches)

    theirs = lerobot_of(config, recorded)
    drop = getattr(config, "drop_n_last_frames", 0)
    rows = [start + row for start, length in ((0, 9), (9, 14), (23, 5)) for row in range(length - drop)]
    in_order = [rows[start : start + 8] for start in range(0, len(rows), 8)]
    # Statistics are LeRobot's own; images are normalised by them too, not by ImageNet's, as `make_policy` alone does it.
    options: dict[str, Any] = {"statistics": recorded / "meta/stats.json", "imagenet": False}
    expected = weights(theirs.meta, DataLoader(theirs, batch_sampler=in_order))
    address = store(start_server, recorded, config, **ONCE)
    table = PolicyData(config, TableDataset(address, "replay", 8, samples=len(rows), streams=1), **options)
    ours = {"table": weights(table, DataLoader(table.dataset, batch_size=None))}
    local = PolicyData(config, local_of(config, recorded, epochs=1), **options)
    ours["local"] = weights(local, DataLoader(local.dataset, batch_size=None, num_workers=2))
    for name, found in ours.items():
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected), name
    shuffled = PolicyData(config, local_of(config, recorded, shuffle="global", seed=3), **options)
    order = [batch["index"].tolist() for batch in shuffled]
    shuffled.dataset.set_epoch(0)
    ours["shuffled"] = weights(shuffled, DataLoader(shuffled.dataset, batch_size=None, num_workers=2))
    expected = weights(theirs.meta, DataLoader(theirs, batch_sampler=order))
    assert all(torch.equal(ours["shuffled"][key], expected[key]) for key in expected)


def test_statistics_are_lerobots(recorded: Path) -> None:
    config = config_of("act")
    statistics = rlds2reverb.statistics(source_of(recorded))
    data = PolicyData(config, local_of(config, recorded), statistics)
    expected = LeRobotDataset("test/policies", root=recorded).meta.stats
    for name in ("observation.state", "action"):
        for statistic in ("mean", "std", "min", "max"):
            np.testing.assert_allclose(data.stats[name][statistic], expected[name][statistic], rtol=1e-5, atol=1e-6)
    assert data.stats["observation.images.top"]["mean"].tolist() == [[[0.485]], [[0.456]], [[0.406]]]


def run_training(folder: Path, source: str, workers: int, killed_after: int | None = None) -> int:
    arguments = {"source": source, "folder": str(folder), "workers": workers, "killed_after": killed_after}
    script = [sys.executable, training.__file__, json.dumps(arguments)]
    return subprocess.run(script, cwd=ROOT, check=False, timeout=300).returncode


def test_a_killed_training_continues_to_the_same_weights(recorded: Path, tmp_path: Path) -> None:
    """Killed within its second epoch, and continued by another number of workers."""
    last = {}
    runs_of: dict[str, list[tuple[int, int | None]]] = {"whole": [(2, None)], "killed": [(2, 6), (1, None)]}
    for name, runs in runs_of.items():
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(recorded / "meta/stats.json", folder)
        for workers, killed_after in runs:
            code = run_training(folder, f"lerobot:{recorded}", workers, killed_after)
            assert code == (0 if killed_after is None else -signal.SIGKILL)
        last[name] = torch.load(folder / "checkpoint.pt", weights_only=False)
    assert last["whole"]["step"] == last["killed"]["step"] == 8
    whole, killed = last["whole"]["policy"], last["killed"]["policy"]
    assert all(torch.equal(killed[key], whole[key]) for key in whole)


# Datasets of other names.


def episode_of(steps: int, number: int, **columns: Any) -> Episode:
    """As RLDS has robots: another name of the state, two cameras, and a text in each step."""
    drawn = np.random.default_rng(number)
    rows = np.arange(steps)
    cameras = {
        f"observation/{name}": drawn.integers(0, 256, (steps, 24, 32, 3), np.uint8) for name in ("front", "wrist")
    }
    texts = np.full(steps, b"pick it up", object)
    flags = {"is_first": rows == 0, "is_last": rows == steps - 1, "is_terminal": rows < 0}
    numbers = {
        "observation/proprio": drawn.normal(size=(steps, 4)),
        "observation/natural_language_instruction": texts,
        "action": drawn.normal(size=(steps, 2)).astype(np.float32),
        "reward": rows.astype(np.float32),
        "discount": np.ones(steps, np.float32),
    }
    return Episode({**cameras, **numbers, **flags, **columns}, {}, f"episode {number}")


EPISODES = [episode_of(steps, number) for number, steps in enumerate((12, 10))]
NAMES = {"observation.state": "observation/proprio"}


def rlds_of(config: Any, episodes: Any = EPISODES, **options: Any) -> LocalDataset:
    return LocalDataset(episodes, policy_view(config, "reward"), 4, **options)


def test_columns_of_other_names_are_told(recorded: Path) -> None:
    config = config_of("diffusion", crop_shape=(16, 16))
    statistics = rlds2reverb.statistics(EPISODES, images=True)
    data = PolicyData(config, rlds_of(config), statistics, NAMES, imagenet=False)
    assert {name: feature.shape for name, feature in data.input_features.items()} == {
        "observation.front": (3, 24, 32),
        "observation.wrist": (3, 24, 32),
        "observation.state": (4,),
    }
    assert {feature.type for feature in data.output_features.values()} == {FeatureType.ACTION}
    np.testing.assert_allclose(
        data.stats["observation.front"]["mean"].ravel(), statistics["observation/front"].mean / 255
    )
    policy, preprocessor = policy_of(config, data)
    batches = list(data)
    assert train(policy, preprocessor, batches)
    first = batches[0]
    assert first["task"] == ["pick it up"] * 4
    assert first["next.reward"].tolist() == [0, 1, 2, 3]
    assert first["observation.state"].dtype == torch.float32
    front = np.moveaxis(EPISODES[0].columns["observation/front"][[0, 1, 2, 3]], -1, -3)
    assert (first["observation.front"][:, 1].numpy() == front.astype(np.float32) / np.float32(255)).all()
    as_bytes = PolicyData(config, rlds_of(config), statistics, NAMES, return_uint8=True)
    assert (next(iter(as_bytes))["observation.front"][:, 1].numpy() == front).all()


def test_only_what_the_config_names_is_in_the_batches_and_a_function_sees_it_in_the_worker() -> None:
    inputs = {
        "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 12, 16)),
        "observation.state": PolicyFeature(FeatureType.STATE, (4,)),
    }
    config = config_of("act", input_features=inputs)
    names = {**NAMES, "observation.images.front": "observation/front"}
    data = PolicyData(
        config,
        rlds_of(config, encode="observation/front:png", decode=(12, 16)),
        rlds2reverb.statistics(EPISODES),
        names,
        map=shapes_of,
    )
    shapes = next(iter(DataLoader(data.dataset, batch_size=None, num_workers=1)))
    assert shapes == {
        "observation.images.front": [4, 3, 12, 16],
        "observation.state": [4, 4],
        "action": [4, 8, 2],
        "action_is_pad": [4, 8],
        "next.reward": [4],
    }


def shapes_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: list(values.shape) for name, values in batch.items() if name != "task"}


# What makes no sense.


def refused(config: Any, items: Any = None, words: str = "", **options: Any) -> None:
    statistics = options.pop("statistics", rlds2reverb.statistics(EPISODES))
    with pytest.raises(ConfigError, match=words):
        PolicyData(config, rlds_of(config) if items is None else items, statistics, **{"names": NAMES, **options})


def test_what_the_items_lack_is_refused_before_a_batch() -> None:
    camera = {"observation.images.wrst": PolicyFeature(FeatureType.VISUAL, (3, 24, 32))}
    refused(
        config_of("act", input_features=camera),
        words='wants the camera "observation.images.wrst", which the items lack; they have',
    )
    small = {"observation.wrist": PolicyFeature(FeatureType.VISUAL, (3, 96, 96))}
    refused(
        config_of("act", input_features=small),
        words=r"expected \[3, 96, 96\], as the config says, got \[3, 24, 32\]; decode=",
    )
    refused(
        config_of("act"), names={"observation.state": "observation/propio"}, words='did you mean "observation/proprio"'
    )
    for names, expected in (
        ({"action": "observation/proprio"}, 'begins with "observation."'),
        ({"front": "observation/front"}, 'begins with "observation."'),
        ({"observation.state": "action"}, 'expected "action"'),
    ):
        refused(config_of("act"), names=names, words=f"{expected}.* for a column of")
    refused(config_of("act"), task="no_such", words='task: "no_such": expected a text in the items')
    refused(config_of("act"), rlds_of(config_of("act"), encode="png", decode=False), words="decode=False leaves them")


def test_windows_of_another_policy_are_refused() -> None:
    act, diffusion = config_of("act"), config_of("diffusion")
    refused(act, rlds_of(diffusion), words="observation: expected the row alone, got windows of 2; take the view")
    refused(
        diffusion, rlds_of(act), words="observation: expected 2 rows, at -1 to 0, got items without a window of them"
    )
    refused(
        act,
        rlds_of(config_of("act", chunk_size=4, n_action_steps=4)),
        words="action: expected 8 rows, at 0 to 7, got windows of 4",
    )
    shifted = LocalDataset(EPISODES, "chunk:history=2,horizon=8,skip_last=3", 4)
    refused(diffusion, shifted, words="horizon: expected -1:0:1:2:3:4:5:6, got 8; take the view")
    refused(act, LocalDataset(EPISODES, "transition", 4), words="expected")
    refused(act, LocalDataset(EPISODES, "chunk:horizon=8,history=none,masks=octo", 4), words="items without a window")


def test_statistics_that_are_missing_are_refused_and_not_passed_over() -> None:
    act = config_of("act")
    refused(
        act,
        statistics=None,
        words="normalises .action. by MEAN_STD, which needs mean and std, and got no statistics",
    )
    refused(act, imagenet=False, words="observation.front.*images=True")
    other = rlds2reverb.statistics([episode_of(9, 1, action=np.zeros((9, 3), np.float32))])
    refused(act, statistics=other, words="of another signature: .action.: min: expected .2., got .3.")
    nothing = dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.IDENTITY)
    assert PolicyData(config_of("act", normalization_mapping=nothing), rlds_of(act), names=NAMES).dataset


def test_what_is_no_policy_and_no_items_is_refused() -> None:
    act = config_of("act")
    with pytest.raises(ConfigError, match="expected the config of a policy of LeRobot, such as ACTConfig"):
        policy_view({"chunk_size": 8})
    with pytest.raises(ConfigError, match="got the class TDMPCConfig"):
        policy_view(TDMPCConfig)
    refused(act, statistics={"action": {}}, words="statistics: expected rlds2reverb.statistics.* got dict")
    refused(act, names=["observation/proprio"], words="names: expected LeRobot's name -> path of the column, got list")
    refused(act, map=3, words="map 3: expected a function of a batch")
    with pytest.raises(ConfigError, match="it wants rewards at"):
        policy_view(TDMPCConfig(device="cpu"))
    refused(act, "replay", words="expected LocalDataset, TableDataset or MixDataset, or batches")
    refused(
        act, LocalDataset(EPISODES, policy_view(act), 4, map=shapes_of), words="has a map; expected it of the whole"
    )
    data = PolicyData(act, rlds_of(act), rlds2reverb.statistics(EPISODES), NAMES)
    with pytest.raises(ConfigError, match="as of the items that were looked at"):
        data(next(rlds2reverb.local("bundled:cartpole", "transition", 4)))


def test_a_mixture_has_the_features_of_its_parts() -> None:
    act = config_of("act")
    mixed = MixDataset([(rlds_of(act, EPISODES[:1]), 1), (rlds_of(act, EPISODES[1:]), 1)], 4, samples=16)
    data = PolicyData(act, mixed, rlds2reverb.statistics(EPISODES), NAMES)
    batches = list(DataLoader(data.dataset, batch_size=None, num_workers=1))
    assert [batch["action"].shape for batch in batches] == [(4, 8, 2)] * 4


def test_every_part_of_a_mixture_is_checked() -> None:
    diffusion = config_of("diffusion")
    odd = {
        "horizon: expected": LocalDataset(EPISODES, "chunk:history=2,horizon=8,skip_last=3", 4),
        "decode=False leaves them": rlds_of(diffusion, encode="png", decode=False),
    }
    for words, part in odd.items():
        refused(diffusion, MixDataset([(rlds_of(diffusion), 1), (part, 1)], 4), words=words)


def test_without_lerobot_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("rlds2reverb.adapters.lerobot", "lerobot."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lerobot", None)  # importing it fails
    with pytest.raises(
        ModuleNotFoundError, match=r"adapter for LeRobot's policies needs lerobot.*; install with: pip install"
    ):
        importlib.import_module("rlds2reverb.adapters.lerobot")
