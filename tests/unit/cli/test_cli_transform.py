"""`--transform` of inspect and validate, as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rlds2reverb.cli import EXIT_CODES, cli, inspect
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.lists import EpisodeList
from tests.unit.formats.test_transformed import robot, with_column

Tell = Callable[..., str]

TEXT = "action=concat(arm,grip),resize=observation/image:2x3,drop=observation/words,rename=observation/state:proprio"


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Runs a command on some episodes; all that it prints."""

    def run(command: str, episodes: list[Episode], *arguments: str) -> str:
        monkeypatch.setattr(inspect, "open_dataset", lambda name: EpisodeList(episodes, name))
        return CliRunner().invoke(cli, [command, "robots", *arguments], catch_exceptions=False).output

    return run


def test_inspect_shows_what_is_done_and_what_comes_out(tell: Tell) -> None:
    shown = tell("inspect", [robot(0)], "--transform", TEXT)
    done, spec = shown.partition("transform, in this order\n")[2].split("\nstep spec after it\n")
    assert done.splitlines() == [
        "  action    concat(arm, grip)",
        "  drop      observation/words",
        "  resize    observation/image -> 2x3:area",
        "  rename    observation/state -> proprio",
        "  left out  action/mode, observation/words",
    ]
    assert "  observation/image  uint8[2, 3, 3] " in spec
    assert "  action             float32[4] " in spec
    assert "  observation/image  uint8[2, 2, 3, 3]" in spec.replace("[?", "[2")  # of the table
    assert "\nno problems in 1 episode\n" in shown


def test_nothing_is_shown_of_no_transform(tell: Tell) -> None:
    shown = tell("inspect", [robot(0)])
    assert "transform" not in shown
    assert "\nstep spec\n" in shown
    plain = json.loads(tell("inspect", [robot(0)], "--json"))
    assert (plain["transform"], plain["left_out"]) == ({}, [])


def test_json_has_it_in_one_way_of_writing(tell: Tell, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("transform:\n  resize: {observation/image: 2 x 3}\n  drop: observation/words\n")
    by_file = json.loads(tell("inspect", [robot(0)], "--transform", str(tmp_path / "t.yaml"), "--json"))
    by_texts = ("--transform", "drop=observation/words", "--transform", "resize=observation/image:2x3:area")
    assert by_file == json.loads(tell("inspect", [robot(0)], *by_texts, "--json"))
    assert by_file["transform"] == {"drop": ["observation/words"], "resize": {"observation/image": "2x3:area"}}
    assert by_file["step_spec"]["observation/image"] == "uint8[2, 3, 3]"


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_a_bad_episode_is_told_by_what_is_wrong_with_it(tell: Tell, command: str) -> None:
    bad = with_column("action/arm", np.zeros((4, 4), np.float32))
    shown = tell(command, [robot(0), bad], "--transform", TEXT)
    assert "problem untransformed: 1 episode: " in shown
    assert 'robots#1 (episode_id kitchen 1): column "action/arm": expected rows of float32[3], got float32[4]' in shown


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_a_shift_of_rewards_can_be_part_of_it(tell: Tell, command: str) -> None:
    assert "problem first_reward_lost: " in tell(command, [robot(0)], "--transform", "reward_last=shift")


@pytest.mark.parametrize("command", ["inspect", "validate"])
@pytest.mark.parametrize("text", ["drop=nothing", "drp=action", "missing.yaml"])
def test_what_makes_no_sense_is_an_error_of_usage(tell: Tell, command: str, text: str) -> None:
    with pytest.raises(ConfigError):
        tell(command, [robot(0)], "--transform", text)
    assert dict(EXIT_CODES)[ConfigError] == 2


@pytest.mark.full
def test_a_written_config_has_the_tables_and_the_push_of_the_transform(tell: Tell) -> None:
    pytest.importorskip("replay_server.template")
    written = tell("inspect", [robot(0)], "--server-config", "--transform", TEXT, "--transform", "reward_last=shift")
    assert f" --transform '{TEXT}' --transform reward_last=shift" in written
    assert "image: 'uint8[?, 2, 3, 3]'" in written
