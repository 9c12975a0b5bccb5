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
from rlds2reverb.formats.source import About
from rlds2reverb.inspection.inspection import Inspection
from rlds2reverb.look.accounts import said_fields
from tests.support import strategies
from tests.support.formats import minari
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
        monkeypatch.setattr(inspect, "open_dataset", lambda name: EpisodeList(episodes, name))
        return CliRunner().invoke(cli, [command, "robots", *arguments]).output

    return run


def test_one_is_singular_and_the_default_view_has_its_name(tell: Tell) -> None:
    shown = tell("inspect", [robot(0)])
    assert "counts          1 episode, 4 steps, " in shown
    assert "\ntable replay: 3 items of view two_step, " in shown
    assert "table replay: 1 item of view sequence:length=4, " in tell(
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
    example = '  train#0 (episode_id kitchen 0): column "reward": '
    assert [line[: len(example)] for line in shown.splitlines() if line.startswith("  train#")] == [example]
    assert "\n  and 23 more\n" in shown
    alone = tell(command, [robot(0, np.nan)])
    assert "problem nan: 1 episode: " in alone
    assert " more\n" not in alone


def test_validate_shows_three_examples_when_it_is_verbose(tell: Tell) -> None:
    shown = tell("validate", [robot(number, np.nan) for number in range(24)], "--verbose")
    assert [shown.count(f"  train#{number} ") for number in range(4)] == [1, 1, 1, 0]
    assert "\n  and 21 more\n" in shown


@pytest.mark.parametrize(
    ("rewards", "arguments", "said"),
    [
        ((0, 0), (), "no problems in 2 episodes"),
        ((0, np.nan), (), "1 of 2 episodes has problems: nan"),
        ((np.nan, np.inf, 0), (), "2 of 3 episodes have problems: nan, infinite"),
        ((np.nan, 0), ("--allow", "nan"), "no problems in 2 episodes but those that are allowed: nan"),
    ],
)
def test_the_verdict_comes_first(tell: Tell, rewards: tuple[float, ...], arguments: tuple[str, ...], said: str) -> None:
    episodes = [robot(number, reward) for number, reward in enumerate(rewards)]
    assert tell("validate", episodes, *arguments).splitlines()[0] == said


def test_an_episode_with_two_problems_is_one_bad_episode(tell: Tell) -> None:
    both = robot(0)
    both = both.with_columns(reward=np.array([np.nan, np.inf, 0, 0], np.float32))
    assert tell("validate", [both, robot(1)]).startswith("1 of 2 episodes has problems: nan, infinite\n")


def test_a_remedy_is_told_once_in_the_words_of_the_command_line(tell: Tell) -> None:
    rewarded = [robot(number) for number in range(4)]
    rewarded = [episode.with_columns(reward=np.array([0, 0, 0, 1], np.float32)) for episode in rewarded]
    shown = tell("validate", rewarded, "--verbose")
    assert shown.startswith("no problems in 4 episodes; advice: last_reward\nadvice last_reward: 4 episodes: ")
    assert shown.count("--last-reward shift moves rewards one step back") == 1
    assert 'last_reward="' not in shown
    assert "To continue" not in shown
    strict = tell("validate", rewarded, "--strict")
    assert strict.startswith("4 of 4 episodes have problems: last_reward\n")
    way = "push or convert with --on-invalid skip, which leaves these episodes out, or with --allow last_reward, which takes all as it is"
    assert f"To continue anyway: {way}\n" in strict


def test_what_no_view_can_cut_is_not_proposed_to_be_allowed(tell: Tell) -> None:
    shown = tell("validate", [robot(0).with_columns(is_first=np.array([1, 0, 0, 0])), robot(1)])
    assert "\n  remedy: --on-invalid repair mends it\n" in shown
    assert "--on-invalid skip" in shown
    assert "--allow" not in shown


def test_inspect_ends_with_the_command_that_comes_next(tell: Tell) -> None:
    *_, said, last = tell("inspect", [robot(0), robot(1, np.nan)], "--limit", "2", "--table", "a b").splitlines()
    push = "rlds2reverb push robots --server localhost:8000 --table 'a b' --limit 2 --on-invalid skip"
    assert (said, last) == ("next:", f"  {push}")
    assert "next:" not in tell("inspect", [robot(0)], "--view", "sequence:length=9")


def rewarded(number: int, first: float, last: float, bad: bool = False) -> Episode:
    one = robot(number)
    rewards = np.array([first, 0, np.nan if bad else 0, last], np.float32)
    return one.with_columns(reward=rewards)


GOOD, LAST, BOTH, BAD = (0, 0, False), (0, 1, False), (1, 1, False), (0, 0, True)
PUSH = "rlds2reverb push robots --server localhost:8000 --table replay"


@pytest.mark.parametrize("command", ["inspect", "validate"])
@pytest.mark.parametrize(
    ("episodes", "remedy", "options"),
    [
        ((GOOD, GOOD), "", ""),
        ((GOOD, BAD), "", " --on-invalid skip"),
        ((LAST, GOOD), "--last-reward shift moves rewards one step back", " --last-reward shift"),
        ((BOTH, BOTH), "none; --last-reward shift would drop the first reward of 2 episodes, which is not 0", ""),
        (
            (LAST, LAST, BOTH, BAD),
            "--last-reward shift --on-invalid skip moves the rewards of 2 episodes one step back, and leaves out 1 episode whose first reward is not 0",
            " --last-reward shift --on-invalid skip",
        ),
        (
            (LAST, LAST, BAD),
            "--last-reward shift moves rewards one step back",
            " --last-reward shift --on-invalid skip",
        ),
    ],
)
def test_a_shift_is_proposed_where_it_mends(
    tell: Tell, command: str, episodes: tuple[tuple[int, int, bool], ...], remedy: str, options: str
) -> None:
    shown = tell(command, [rewarded(number, *episode) for number, episode in enumerate(episodes)])
    assert (f"\n  remedy: {remedy}\n" in shown) == bool(remedy)
    assert shown.endswith(f"next:\n  {PUSH}{options}\n")


def test_a_validation_proposes_the_push_with_the_options_that_it_was_given(tell: Tell) -> None:
    given = ["--transform", "drop=language_instruction", "--terminal-discount", "transition"]
    assert tell("validate", [robot(0)], "--limit", "1", "--allow", "nan", *given).endswith(
        f"next:\n  {PUSH} --limit 1 --transform drop=language_instruction --terminal-discount transition --allow nan\n"
    )
    flags = robot(0).with_columns(is_first=np.array([1, 0, 0, 0]))
    assert tell("validate", [flags, robot(1)]).endswith(f"next:\n  {PUSH} --on-invalid repair\n")
    assert tell("validate", [robot(0, np.nan)]).endswith("next:\n  rlds2reverb validate robots --verbose\n")
    assert "next:" not in tell("validate", [robot(0, np.nan)], "--verbose")
    assert "next:" not in tell("validate", [robot(0)], "--json")
    twice = [replace(robot(0), id="")] * 2
    assert tell("validate", twice, "--strict").endswith(f"{PUSH} --strict --allow duplicate_episode\n")


def test_the_extremes_of_each_dimension_are_told(tell: Tell) -> None:
    columns = {"observation": (np.dtype(np.float32), (2,)), "action": (np.dtype(np.float32), ())}
    one = strategies.episode(np.random.default_rng(0), 3, columns)
    one = one.with_columns(observation=np.array([[1, -5], [2, np.nan], [3, 7]], np.float32))
    assert "\nextremes of each dimension\n  observation  [0]=1..3  [1]=-5..7\n" in tell("inspect", [one])
    ranges = json.loads(tell("inspect", [one], "--json"))["ranges"]
    assert ranges["observation"]["dimensions"] == [[1, 3], [-5, 7]]
    assert ranges["reward"]["dimensions"] == []


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


def test_what_the_dataset_says_of_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"minari:{minari.dataset('0.5.4', 'plain/two-v3')}"
    shown = CliRunner().invoke(cli, ["inspect", name]).output
    title, dataset_id, *lines = shown.partition("what the dataset says")[2].split("\n\n")[0].splitlines()
    assert title == " of itself"
    assert dataset_id == "  dataset_id         plain/two-v3"
    assert {
        "  author             someone",
        "  action_space       Discrete(4)",
        "  total_steps        16",
        "  env_spec           id two-v0, entry_point __main__:Every, max_episode_steps 100, order_enforce true, kwargs part two",
    } <= set(lines)
    told = json.loads(CliRunner().invoke(cli, ["inspect", name, "--json"]).output)["dataset"]
    assert told["author"] == ["someone"]
    assert json.loads(told["env_spec"])["kwargs"] == {"part": "two"}


@pytest.mark.parametrize(
    ("fact", "shown"),
    [
        ("two\n  lines\x1b[2J", r"two lines\x1b[2J"),
        ('{"id": "a", "kwargs": {}, "note": null}', "id a"),
        ("{no JSON", "{no JSON"),
        (["Ann", "Bea"], "Ann; Bea"),
        ({"a": [1, {"b": 2.5}], "is": False}, "a 1; b 2.5"),
        ("x" * 300, "x" * 160 + "..."),
        (7, "7"),
    ],
)
def test_a_fact_is_told_on_a_line(fact: object, shown: str) -> None:
    about = About.of("minari", {"fact": fact, "nothing": None})
    assert said_fields(Inspection("data", {}, (), {}, about=about)) == {"fact": shown}


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_what_is_said_of_the_dataset_stands_after_the_problems(tell: Tell, command: str) -> None:
    columns = {"observation": (np.dtype(np.float32), (9,)), "action": (np.dtype(np.float32), ())}
    source = [
        strategies.episode(np.random.default_rng(number), 9, columns, episode_id=f"{number}") for number in range(2)
    ]
    source = [episode.with_columns(observation=episode.columns["observation"].astype(np.float64)) for episode in source]
    said = 'no problems in 2 episodes; advice: rounded_float64\nadvice rounded_float64: column "observation": every value of '
    assert said in tell(command, source)
    assert (
        json.loads(tell(command, source, "--json").partition("\n2 episodes")[0])["notices"][0]["path"] == "observation"
    )
    strict = tell("validate", source, "--strict", "--allow", "last_reward")
    assert strict.startswith("the dataset has problems: rounded_float64\n")
    assert "To continue anyway: push or convert with --allow last_reward --allow rounded_float64, " in strict


def test_two_datasets_are_compared_in_words_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "ours": [robot(0), robot(1)],
        "theirs": [replace(robot(2), columns={**robot(2).columns, "new": np.ones(4)})],
    }
    monkeypatch.setattr(inspect, "open_dataset", lambda name: EpisodeList(told[name], name))

    def shown(*arguments: str) -> str:
        found = CliRunner().invoke(cli, ["inspect", "ours", "--against", *arguments])
        assert found.exit_code == 0
        return found.stdout

    lines = shown("theirs").splitlines()
    assert lines[0].startswith("not the same: ")
    assert ", 1 only in B, " in lines[0]
    assert lines[1] == "A has 2 episodes, B 1: with so few, values may differ by chance"
    assert lines[lines.index("only in B") + 1] == "  new  float64[]"
    heads = next(line for line in lines if line.startswith("  column "))
    assert heads.split() == ["column", "difference", "mean", "A", "mean", "B", "shift", "sd", "A", "sd", "B"]
    document = json.loads(shown("theirs", "--json"))
    assert (document["same"], document["verdict"]) == (False, lines[0])
    assert document["columns"]["new"]["state"] == "only_b"
    assert shown("ours").startswith("the same: all ")
    assert json.loads(shown("ours", "--json"))["same"] is True
