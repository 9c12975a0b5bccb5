"""`rlds2reverb.inspect` tells what the command tells."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import rlds2reverb
from rlds2reverb import cli
from rlds2reverb.errors import ConfigError, SourceError, ViewError
from rlds2reverb.views import view_of


def test_it_tells_what_the_command_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--view",
        "sequence:length=3",
        "--limit",
        "5",
        "--terminal-discount",
        "transition",
        "--transform",
        "drop=discount",
    ]
    monkeypatch.setattr(sys, "argv", ["rlds2reverb", "inspect", "bundled:cartpole", "--json", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    given: dict[str, Any] = {"limit": 5, "terminal_discount": "transition", "transform": "drop=discount"}
    found = rlds2reverb.inspect("bundled:cartpole", "sequence:length=3", **given)
    assert json.loads(json.dumps(found.as_dict())) == json.loads(capsys.readouterr().out)


def test_a_view_may_be_written_as_in_yaml() -> None:
    given = {"view": "sequence", "length": 3}
    found = rlds2reverb.inspect("bundled:cartpole", given, limit=2)
    assert found.as_dict() == rlds2reverb.inspect("bundled:cartpole", "sequence:length=3", limit=2).as_dict()
    found = rlds2reverb.inspect("bundled:cartpole", {"a": given, "view": "two_step"}, limit=2)
    assert list(found.outputs) == ["a", "view"]


def test_several_tables_have_views_of_their_own() -> None:
    found = rlds2reverb.inspect("bundled:cartpole", {"a": "episode", "b": view_of("two_step")}, limit=2)
    assert [(table, one.view) for table, one in found.outputs.items()] == [("a", "episode"), ("b", "two_step")]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"view": {}}, ConfigError, "view is empty"),
        ({"limit": 0}, ConfigError, "limit 0: expected at least 1"),
        (
            {"last_rewards": "shift"},
            ConfigError,
            'inspect has no option last_rewards; there are .*; did you mean "last_reward"',
        ),
        ({"last_reward": "shif"}, ConfigError, 'last_reward "shif": expected one of'),
        ({"view": "nonsense"}, ViewError, "nonsense"),
        ({"encoded": "observation"}, SourceError, "no step columns whose JPEG or PNG"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        rlds2reverb.inspect("bundled:cartpole", **options)


def test_a_source_that_there_is_not_is_refused() -> None:
    with pytest.raises(SourceError):
        rlds2reverb.inspect("bundled:nothing")
