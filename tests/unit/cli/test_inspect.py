"""What `inspect` and `validate` tell of a dataset, as a person reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from rlds2reverb.cli import cli, inspect
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.lists import EpisodeList
from tests import strategies
from tests.unit.prepare.test_endings import poisoned

Tell = Callable[..., str]


def robot(number: int, reward: float = 0.0) -> Episode:
    """An episode as robot datasets have them: with words, and named by the dataset."""
    episode = strategies.episode(np.random.default_rng(number), 4, episode_id=f"train#{number}")
    said = {"language_instruction": np.array([b"lift the cup"] * 4, object), "action_dict/gripper": np.zeros(4)}
    rewards = np.array([reward, 0, 0, 0], np.float32)
    steps = {**episode.columns, **said, "reward": rewards}
    return replace(episode, columns=steps, metadata={"episode_metadata/episode_id": f"kitchen {number}".encode()})


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Runs a command on some episodes; all that it prints."""

    def run(command: str, episodes: list[Episode], *arguments: str) -> str:
        monkeypatch.setattr(inspect, "opened", lambda name: EpisodeList(episodes, name))
        return CliRunner().invoke(cli, [command, "robots", *arguments]).output

    return run


def test_one_is_singular_and_the_default_view_has_its_name(tell: Tell) -> None:
    shown = tell("inspect", [robot(0)])
    assert "counts          1 episode, 4 steps, " in shown
    assert "\ntable replay: 3 items of view two_step, " in shown
    assert "table replay: 1 item of view sequence:length=4,stride=1," in tell(
        "inspect", [robot(0)], "--view", "sequence:length=4"
    )


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_what_a_shift_of_rewards_would_lose_is_told_when_it_is_asked_for(tell: Tell, command: str) -> None:
    rewarded = [robot(0, reward=1.0), robot(1)]
    assert "no problems" in tell(command, rewarded)
    shifted = tell(command, rewarded, "--last-reward", "shift")
    assert "problem first_reward_lost: 1 episode: " in shifted
    assert 'train#0 (episode_id kitchen 0): column "reward": step 0 has reward 1.0; ' in shifted


def test_a_config_is_no_json() -> None:
    with pytest.raises(ConfigError, match="--server-config prints YAML; leave out --json"):
        cli.main(["inspect", "robots", "--server-config", "--json"], standalone_mode=False)


@pytest.mark.full
def test_the_push_of_a_written_config_has_the_conventions_that_were_looked_at(tell: Tell) -> None:
    pytest.importorskip("replay_server.template")
    written = tell("inspect", [robot(0)], "--server-config", "--last-reward", "shift")
    assert " --view two_step --last-reward shift" in written
    assert "--terminal-discount" not in written


@pytest.mark.full
def test_bad_episodes_that_a_written_config_has_no_room_for_are_told(tell: Tell) -> None:
    pytest.importorskip("replay_server.template")
    told, *_ = tell(
        "inspect", [robot(0, reward=1.0), robot(1)], "--server-config", "--last-reward", "shift"
    ).splitlines()
    assert told.startswith(
        "left out: first_reward_lost: 1 episode, such as train#0 (episode_id kitchen 0): step 0 has "
    )
    assert "left out" not in tell("inspect", [robot(0)], "--server-config")


def test_columns_that_no_item_holds_are_listed_by_table(tell: Tell) -> None:
    into = ("--into", "pairs=two_step", "--into", "all=slices:length=2")
    pairs, everything = tell("inspect", [robot(0)], *into).split("table all: ")
    assert "\n  not in the items: action_dict/gripper, language_instruction\n" in pairs
    assert "not in the items" not in everything
    tables = json.loads(tell("inspect", [robot(0)], *into, "--json"))["tables"]
    assert {name: need["not_in_items"] for name, need in tables.items()} == {
        "pairs": ["action_dict/gripper", "language_instruction"],
        "all": [],
    }


def test_returns_are_told_of_the_finite_ones_and_how_many_are_left_out(tell: Tell) -> None:
    episodes = [robot(0, 2), robot(1, np.nan), robot(2, -np.inf), robot(3, 4)]
    assert "return          min 2  median 3  mean 3  max 4  (left out: 2 not finite)\n" in tell("inspect", episodes)
    assert json.loads(tell("inspect", episodes, "--json"))["return"] == {
        "min": 2,
        "median": 3,
        "mean": 3,
        "max": 4,
        "not_finite": 2,
    }
    assert "return          min -  median -  mean -  max -  (left out: 1 not finite)" in tell("inspect", episodes[1:2])


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_examples_name_the_episode_as_the_dataset_does_and_say_how_many_more_there_are(
    tell: Tell, command: str
) -> None:
    shown = tell(command, [robot(number, np.nan) for number in range(24)])
    assert "problem nan: 24 episodes: a value is NaN\n" in shown
    examples = [f'  train#{n} (episode_id kitchen {n}): column "reward": ' for n in range(3)]
    assert [line[: len(examples[0])] for line in shown.splitlines() if line.startswith("  train#")] == examples
    assert "\n  and 21 more\n" in shown
    assert "more" not in tell(command, [robot(number, np.nan) for number in range(3)])
    assert "problem nan: 1 episode: " in tell(command, [robot(0, np.nan)])


def test_validate_counts_its_episodes(tell: Tell) -> None:
    assert tell("validate", [robot(0)]).endswith("1 episode: good\n")
    assert tell("validate", [robot(0), robot(1, np.nan)]).endswith("2 episodes: bad: nan\n")


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_an_end_that_is_not_the_episodes_own_is_told_with_what_to_do(tell: Tell, command: str) -> None:
    source = poisoned(np.random.default_rng(0), 4)
    assert (
        "problem last_observation_shared: 4 episodes: the episode ends with the same observation as other episodes"
        in tell(command, source)
    )
    assert "no problems" in tell(command, source, "--last-observation", "repeat")


def test_how_episodes_end_is_told(tell: Tell) -> None:
    shown = tell("inspect", [strategies.episode(np.random.default_rng(number), 4) for number in range(2)])
    assert "\nends            2 terminal, 0 truncated  (" in shown


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_what_is_said_of_the_dataset_stands_after_the_problems(tell: Tell, command: str) -> None:
    columns = {"observation": (np.dtype(np.float32), (9,)), "action": (np.dtype(np.float32), ())}
    source = [
        strategies.episode(np.random.default_rng(number), 9, columns, episode_id=f"{number}") for number in range(2)
    ]
    source = [one.with_columns(observation=one.columns["observation"].astype(np.float64)) for one in source]
    assert 'no problems\nadvice rounded_float64: column "observation": every value of ' in tell(command, source)
    assert (
        json.loads(tell(command, source, "--json").partition("\n2 episodes")[0])["notices"][0]["path"] == "observation"
    )
    assert "2 episodes: bad: rounded_float64" in tell("validate", source, "--strict", "--allow", "last_reward")
