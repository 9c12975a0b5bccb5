"""The recording script, and the datasets that it recorded for the package."""

import importlib.metadata
import importlib.util
import json
import pathlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rlds2reverb.formats.tfds import BUNDLED, bundled_path

tfds = pytest.importorskip("tensorflow_datasets")
gymnasium = pytest.importorskip("gymnasium")

SCRIPT = pathlib.Path(__file__).parents[3] / "examples" / "record_datasets.py"
STEP_FEATURES = {"observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal"}
METADATA = {"seed", "environment", "policy", "episode_return"}
SHIPPED = {  # name: observation shape, action shape, action dtype, environment, limit in bytes
    "cartpole": ((4,), (), np.int64, b"CartPole-v1", 200_000),
    "half_cheetah": ((17,), (6,), np.float32, b"HalfCheetah-v5", 450_000),
}


def load_script() -> ModuleType:
    """Import the script by its path; examples are no package."""
    spec = importlib.util.spec_from_file_location("record_datasets", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses looks its own module up
    spec.loader.exec_module(module)
    return module


script = load_script()


def element_spec(directory: pathlib.Path) -> Any:
    """Return the structure (names, shapes, dtypes) of one episode as TFDS reads it."""
    return tfds.builder_from_directory(directory).as_dataset(split="train").element_spec


def read(directory: pathlib.Path) -> list[dict[str, Any]]:
    """Return the episodes, in order; `steps` becomes a dict of columns [T + 1, ...]."""
    dataset = tfds.builder_from_directory(directory).as_dataset(split="train")
    episodes = []
    for episode in dataset:
        steps = episode.pop("steps")
        columns = next(steps.batch(10_000).as_numpy_iterator())
        episodes.append({**{key: value.numpy() for key, value in episode.items()}, "steps": columns})
    return episodes


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Check that two episodes agree in every value and dtype."""
    assert left.keys() == right.keys()
    for key in METADATA:
        assert left[key] == right[key], key
    for key in STEP_FEATURES:
        np.testing.assert_array_equal(left["steps"][key], right["steps"][key], err_msg=key)
        assert left["steps"][key].dtype == right["steps"][key].dtype


def assert_conventions(episode: dict[str, Any]) -> None:
    """Check flags, discounts, the empty last row and the metadata of one episode."""
    steps = episode["steps"]
    assert steps.keys() == STEP_FEATURES
    assert episode.keys() == METADATA | {"steps"}
    rows = len(steps["reward"])
    index = np.arange(rows)
    terminal = bool(steps["is_terminal"][-1])
    np.testing.assert_array_equal(steps["is_first"], index == 0)
    np.testing.assert_array_equal(steps["is_last"], index == rows - 1)
    np.testing.assert_array_equal(steps["is_terminal"], (index == rows - 1) & terminal)
    np.testing.assert_array_equal(steps["discount"], np.where((index >= rows - 2) & terminal, 0.0, 1.0))
    assert not np.any(steps["action"][-1])
    assert steps["reward"][-1] == 0.0
    assert episode["episode_return"] == pytest.approx(steps["reward"].sum(dtype=np.float64), rel=1e-6)


def assert_replays(episode: dict[str, Any], transitions: int, tolerance: float) -> None:
    """Check the alignment: action t, played in the simulator at o_t, earns r_t and leads to o_(t+1)."""
    steps = episode["steps"]
    environment = gymnasium.make(episode["environment"].decode())
    observation, _ = environment.reset(seed=int(episode["seed"]))
    for row in range(transitions):
        np.testing.assert_allclose(observation, steps["observation"][row], atol=tolerance)
        observation, reward, _, _, _ = environment.step(steps["action"][row])
        assert reward == pytest.approx(steps["reward"][row], abs=tolerance)
    np.testing.assert_allclose(observation, steps["observation"][transitions], atol=tolerance)
    environment.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The first five CartPole episodes, recorded anew: four terminal, one truncated."""
    return script.record("cartpole", tmp_path_factory.mktemp("recorded"), episodes=5)


@pytest.fixture(scope="module")
def shipped() -> dict[str, list[dict[str, Any]]]:
    """All shipped episodes by dataset name."""
    return {name: read(bundled_path(name)) for name in BUNDLED}


def test_recorded_cartpole_keeps_the_conventions(recorded: pathlib.Path) -> None:
    episodes = read(recorded)
    assert len(episodes) == 5
    for episode in episodes:
        assert_conventions(episode)
        assert_replays(episode, len(episode["steps"]["reward"]) - 1, tolerance=1e-5)
    assert [bool(episode["steps"]["is_terminal"][-1]) for episode in episodes] == [True] * 4 + [False]
    assert len(episodes[4]["steps"]["reward"]) == 501


def test_recording_twice_gives_equal_data(recorded: pathlib.Path, tmp_path: pathlib.Path) -> None:
    again = script.record("cartpole", tmp_path, episodes=2)
    for left, right in zip(read(again), read(recorded)[:2], strict=True):
        assert_equal(left, right)


def test_cartpole_episodes_are_the_shipped_ones(
    recorded: pathlib.Path, shipped: dict[str, list[dict[str, Any]]]
) -> None:
    for fresh, old in zip(read(recorded), shipped["cartpole"]):
        assert_equal(fresh, old)


def test_first_half_cheetah_episode_is_the_shipped_one(
    shipped: dict[str, list[dict[str, Any]]], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its log file in the working directory
    directory = script.record("half_cheetah", tmp_path, episodes=1)
    assert element_spec(directory) == element_spec(bundled_path("half_cheetah"))
    (fresh,) = read(directory)
    old = shipped["half_cheetah"][0]
    assert_conventions(fresh)
    for key in STEP_FEATURES - {"observation", "action", "reward"}:
        np.testing.assert_array_equal(fresh["steps"][key], old["steps"][key], err_msg=key)
    np.testing.assert_allclose(fresh["steps"]["action"], old["steps"]["action"], atol=1e-6)
    # The motion is chaotic: another MuJoCo version or processor may drift apart after some steps.
    for key in ("observation", "reward"):
        np.testing.assert_allclose(fresh["steps"][key][:20], old["steps"][key][:20], atol=1e-3, err_msg=key)
    assert_replays(old, transitions=20, tolerance=1e-3)


def test_half_cheetah_actions_vary_by_seed() -> None:
    first, second = script.gait_actions(1), script.gait_actions(2)
    assert first.shape == (1_000, 6) and first.dtype == np.float32
    assert np.abs(first).max() <= 1.0
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, script.gait_actions(1))


@pytest.mark.parametrize("name", BUNDLED)
def test_shipped_episodes_keep_the_conventions(name: str, shipped: dict[str, list[dict[str, Any]]]) -> None:
    observation, action, action_dtype, environment, _ = SHIPPED[name]
    for number, episode in enumerate(shipped[name]):
        assert_conventions(episode)
        steps = episode["steps"]
        assert steps["observation"].shape[1:] == observation and steps["observation"].dtype == np.float32
        assert steps["action"].shape[1:] == action and steps["action"].dtype == action_dtype
        assert steps["reward"].dtype == steps["discount"].dtype == np.float32
        assert np.isfinite(steps["observation"]).all()
        assert episode["environment"] == environment
        assert episode["seed"] == script.RECORDINGS[name].first_seed + number
    assert len(shipped[name]) == script.RECORDINGS[name].episodes


def test_shipped_half_cheetah_is_truncated_at_1000_transitions(
    shipped: dict[str, list[dict[str, Any]]],
) -> None:
    for episode in shipped["half_cheetah"]:
        assert len(episode["steps"]["reward"]) == 1_001
        assert not episode["steps"]["is_terminal"][-1]
        assert episode["policy"] == b"sinusoidal_gait"


def test_shipped_cartpole_has_terminal_and_truncated_episodes(
    shipped: dict[str, list[dict[str, Any]]],
) -> None:
    ends = {True: b"uniform_random", False: b"pd_balance"}
    terminal = [bool(episode["steps"]["is_terminal"][-1]) for episode in shipped["cartpole"]]
    assert terminal.count(True) == 20 and terminal.count(False) == 5
    for episode, is_terminal in zip(shipped["cartpole"], terminal, strict=True):
        assert episode["policy"] == ends[is_terminal]
        assert is_terminal == (len(episode["steps"]["reward"]) < 501)


def test_shipped_and_recorded_have_one_structure(recorded: pathlib.Path) -> None:
    assert element_spec(recorded) == element_spec(bundled_path("cartpole"))


@pytest.mark.parametrize("name", BUNDLED)
def test_shipped_metadata_names_the_dataset_and_no_place(name: str) -> None:
    directory = bundled_path(name)
    info = json.loads((directory / "dataset_info.json").read_text())
    assert (info["name"], info["version"]) == (name, "1.0.0")
    assert [split["name"] for split in info["splits"]] == ["train"]
    for path in directory.glob("*.json"):
        assert "/" not in path.read_text() and "\\" not in path.read_text()


@pytest.mark.parametrize("name", BUNDLED)
def test_shipped_datasets_are_small(name: str) -> None:
    assert sum(path.stat().st_size for path in bundled_path(name).iterdir()) < SHIPPED[name][4]


def test_bundled_names_are_those_of_the_script() -> None:
    assert set(BUNDLED) == set(script.RECORDINGS) == set(SHIPPED)


def test_unknown_bundled_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match='expected one of cartpole, half_cheetah, got "ant"'):
        bundled_path("ant")


def test_description_names_the_simulator_version(recorded: pathlib.Path) -> None:
    text = tfds.builder_from_directory(recorded).info.description
    assert f"gymnasium {importlib.metadata.version('gymnasium')}" in text
    assert "mujoco" not in text


def test_existing_dataset_is_not_overwritten(recorded: pathlib.Path) -> None:
    with pytest.raises(FileExistsError, match="remove it or choose another"):
        script.record("cartpole", recorded.parents[1], episodes=1)


def test_no_episodes_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="episodes: expected at least 1, got 0"):
        script.record("cartpole", tmp_path, episodes=0)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "names"), [(["--only", "cartpole"], ["cartpole"]), ([], ["cartpole", "half_cheetah"])]
)
def test_command_line_records_what_it_is_asked_for(
    options: list[str],
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script, "record", lambda name, output: output / name)
    script.main(["--output", "out", *options])
    assert capsys.readouterr().out.split() == [str(pathlib.Path("out") / name) for name in names]
